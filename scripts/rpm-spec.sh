#!/usr/bin/env bash
# rpm-spec.sh: the .spec of leaf_id for PostgreSQL PG_MAJOR as the PGDG packages it, in target/rpm/,
# checked by rpmlint.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

command -v rpmlint >/dev/null || die "rpmlint is missing" "apt install rpmlint"
date=$(date --utc --date="@$(git log -1 --format=%ct)" '+%a %b %d %Y')
spec=$TARGET/rpm/leaf_id_$PG_MAJOR.spec
mkdir -p "$TARGET/rpm"
sed "s/@MAJOR@/$PG_MAJOR/g; s/@VERSION@/$(version)/g; s/@DATE@/$date/g" packaging/rpm/leaf_id.spec.in >"$spec"
rpmlint "$spec"
say "The spec is $spec"
