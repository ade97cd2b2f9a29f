#!/usr/bin/env bash
# Format check, clippy with warnings as errors, house rules, module graph, and the extension's
# script.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
"$ROOT/scripts/setup.sh" lint
need_rust
need_pgspot
locate_copy
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

say "House rules"
scripts/house-rules.sh --self-test
scripts/house-rules.sh
say "Released scripts"
scripts/released.sh --self-test
scripts/released.sh check
say "One version"
# The version of meta-spec is that of the format.
[ "$(sed '/"meta-spec"/,/}/d' META.json | grep -cF "\"version\": \"$(version)\"")" = 2 ] || die "META.json has another version than Cargo.toml"
grep -qF "\"maintainer\": \"$(maintainer)\"" META.json || die "META.json has another maintainer than Cargo.toml"
for address in "\"homepage\": \"$(homepage)\"" "\"web\": \"$(homepage)\"" "\"web\": \"$(homepage)/issues\"" "\"url\": \"$(repository)\""; do
    grep -qF "$address" META.json || die "META.json has another address than Cargo.toml"
done
grep -qF "\"PostgreSQL\": \"$(versions | head -n 1).0.0\"" META.json || die "META.json has another first version of PostgreSQL"
other=$(grep -oE '"[0-9]+\.[0-9]+\.[0-9][^"]*"' packaging/cloudnativepg/metadata.hcl | grep -vE "^\"$(version)(-1\.pgdg[0-9]+\+1)?\"$" || true)
[ -z "$other" ] || die "packaging/cloudnativepg/metadata.hcl has another version than Cargo.toml: $other"
say "Modules without a cycle"
scripts/module-graph.sh --self-test
scripts/module-graph.sh
say "Format"
cargo fmt --all --check
say "Clippy"
CARGO_TARGET_DIR=$PG_BUILD cargo clippy --workspace --all-targets --no-default-features --features "leaf_id/pg$PG_MAJOR" -- --deny warnings
say "Names in the extension's script"
# The parts of a script in quotes that the name of a schema is put into: before 15.4, PostgreSQL
# does that whatever characters it has, and they would be run.
schema_in_quotes() {
    perl -0777 -ne 'while (/--[^\n]*|\x27(?:[^\x27]|\x27\x27)*\x27|\$(\w*)\$.*?\$\1\$/gs) {
        $part = $&; print "$part\n" if $part !~ /^--/ and $part =~ /\@extschema\@/ }' "$@"
}
for quoted in "SELECT '@extschema@'" 'DO $$ @extschema@.f $$' 'DO $x$ @extschema@.f $x$'; do
    [ -n "$(schema_in_quotes <<<"$quoted")" ] || die "the check does not see $quoted"
done
if echo 'CREATE VIEW @extschema@.v AS SELECT 1 = 1' | "$PGSPOT" >/dev/null; then
    die "pgspot does not see an operator that anybody could plant"
fi
"$ROOT/scripts/build.sh"
scripts=$("$PG_BIN/pg_config" --sharedir)/extension
scripts/released.sh same "$scripts/leaf_id--$(version).sql"
quoted=$(schema_in_quotes "$scripts/leaf_id--$(version).sql" sql/step.sql.in $(ls sql/leaf_id--*--*.sql 2>/dev/null))
[ -z "$quoted" ] || die "@extschema@ is in quotes: $quoted"
# A procedure that commits cannot have a SET clause; its body is checked all the same.
look_for_names() {
    "$PGSPOT" "$@" \
        --proc-without-search-path "leaf_id_internal.leaf_move_all(schema name,is_release boolean,dry_run boolean)" \
        --proc-without-search-path "extschema.leaf_adopt_all(schema name,dry_run boolean)" \
        --proc-without-search-path "extschema.leaf_release_all(schema name)"
}
look_for_names "$scripts/leaf_id--$(version).sql"
# The frame of a step, since there is none before the second version.
frame=$(mktemp)
sed -e 's/@GRANTS_TO_OWNER@//' -e '/^@[A-Z]*@$/d' sql/step.sql.in >"$frame"
look_for_names --append "$scripts/leaf_id--$(version).sql" "$frame"
rm "$frame"
for step in sql/leaf_id--*--*.sql; do
    [ -f "$step" ] || continue
    [ -f "$scripts/${step##*/}" ] || die "$step is not installed"
    # Append to the script of the previous version, so that replacing its objects is allowed.
    from=${step##*/leaf_id--}
    look_for_names --append "sql/released/leaf_id--${from%%--*}.sql" "$step"
done
if command -v cargo-deny >/dev/null; then
    say "Licenses and sources of what is compiled in"
    cargo deny --workspace check --hide-inclusion-graph licenses bans sources
fi
say "No complaints"
