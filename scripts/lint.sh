#!/usr/bin/env bash
# Format check, clippy with warnings as errors, and the house rules.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
"$ROOT/scripts/setup.sh"
need_rust
cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

say "House rules"
scripts/house-rules.sh --self-test
scripts/house-rules.sh
say "Format"
cargo fmt --all --check
say "Clippy"
cargo clippy --workspace --all-targets --no-default-features --features "leaf_id/pg$PG_MAJOR" -- --deny warnings
say "No complaints"
