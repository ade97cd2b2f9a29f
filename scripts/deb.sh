#!/usr/bin/env bash
# deb.sh PG_CONFIG: a Debian package for that PostgreSQL, in target/deb/. It is built from a copy
# of the checkout, as dpkg-buildpackage does it, with the files of "make package".

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

pg_config=$(command -v "${1:-pg_config}") ||
    die "there is no ${1:-pg_config}" "Say which one: make deb PG_CONFIG=/path/to/pg_config"
command -v dh >/dev/null || die "debhelper is missing" "apt install debhelper"
major=$("$pg_config" --version | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p')
version=$(version)
# Pre-releases sort before the release.
debian_version=${version/-/\~}-1
maintainer=$(sed -n 's/^Maintainer: //p' packaging/debian/control.in)
committed=$(git log -1 --format=%ct)

source=$TARGET/deb/leaf-id-$version
rm -rf "$source"
# An image is made of the one package that is there.
rm -f "$TARGET/deb/postgresql-$major-leaf-id_"*
mkdir -p "$source"
git ls-files -z | xargs -0 cp --parents -t "$source"
cp -r packaging/debian "$source/debian"
cd "$source/debian"
rm -f control.in
sed "s/@MAJOR@/$major/g" "$ROOT/packaging/debian/control.in" >control
{
    sed '/^@LICENSE@$/d' "$ROOT/packaging/debian/copyright"
    tail -n +5 "$ROOT/LICENSE" | sed 's/^$/./; s/^/ /'
} >copyright
cat >changelog <<END
leaf-id ($debian_version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- $maintainer  $(date --utc --date="@$committed" -R)
END
printf 'README.md\nCHANGELOG.md\n' >docs

cd "$source"
# Rust is not Debian's: its packages are too old.
CARGO_TARGET_DIR=$TARGET PG_CONFIG=$pg_config SOURCE_DATE_EPOCH=$committed \
    DEB_BUILD_OPTIONS="noautodbgsym${DEB_BUILD_OPTIONS:+ $DEB_BUILD_OPTIONS}" \
    dpkg-buildpackage --build=binary --no-sign --no-check-builddeps
say "The package is $(ls "$TARGET/deb/postgresql-$major-leaf-id_$debian_version"_*.deb)"
