#!/usr/bin/env bash
# Prints the environment for plain cargo commands: eval "$(make -s env)"

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
locate_copy
export_test_env
before=$PATH
need_rust
[ "$PATH" = "$before" ] || printf 'export PATH=%q\n' "$PATH"
for name in PGRX_HOME LEAF_ID_PG_BIN LEAF_ID_SERVER_USER; do
    [ -z "${!name:-}" ] || printf 'export %s=%q\n' "$name" "${!name}"
done
