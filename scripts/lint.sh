#!/usr/bin/env bash
# Format check, clippy with warnings as errors, the house rules, the graph of modules, and the
# extension's script.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
"$ROOT/scripts/setup.sh" lint
need_rust
need_pgspot
locate_copy
cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

say "House rules"
scripts/house-rules.sh --self-test
scripts/house-rules.sh
say "One version"
[ "$(grep -cF "\"version\": \"$(version)\"" META.json)" = 2 ] || die "META.json has another version than Cargo.toml"
grep -qF "\"maintainer\": \"$(maintainer)\"" META.json || die "META.json has another maintainer than Cargo.toml"
grep -qF "\"PostgreSQL\": \"$(versions | head -n 1).0.0\"" META.json || die "META.json has another first version of PostgreSQL"
say "Modules without a cycle"
scripts/module-graph.sh --self-test
scripts/module-graph.sh
say "Format"
cargo fmt --all --check
say "Clippy"
CARGO_TARGET_DIR=$PG_BUILD cargo clippy --workspace --all-targets --no-default-features --features "leaf_id/pg$PG_MAJOR" -- --deny warnings
say "Names in the extension's script"
if echo 'CREATE VIEW @extschema@.v AS SELECT 1 = 1' | "$PGSPOT" >/dev/null; then
    die "pgspot does not see an operator that anybody could plant"
fi
"$ROOT/scripts/build.sh"
for script in "$("$PG_BIN/pg_config" --sharedir)/extension"/leaf_id--*.sql; do
    "$PGSPOT" "$script"
done
say "No complaints"
