#!/usr/bin/env bash
# rpm-spec.sh: writes the .spec of leaf_id for PostgreSQL PG_MAJOR as packaged by PGDG to
# target/rpm/, and checks it with rpmlint.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for program in rpmlint rpm; do command -v $program >/dev/null || die "$program is missing" "apt install rpmlint rpm"; done
date=$(date --utc --date="@$(changed_at)" '+%a %b %d %Y')
spec=$TARGET/rpm/leaf_id_$PG_MAJOR.spec
mkdir -p "$TARGET/rpm"
upstream=$(version)
# Pre-releases sort before the release.
sed "s/@MAJOR@/$PG_MAJOR/g; s/@UPSTREAM@/$upstream/g; s/@VERSION@/${upstream/-/\~}/g
    s/@DATE@/$date/; s/@RUST@/$(rust_version)/; s/@MAINTAINER@/$(maintainer)/" packaging/rpm/leaf_id.spec.in >"$spec"
rpmlint "$spec"
say "The spec is $spec"
