#!/usr/bin/env bash
# deb.sh PG_CONFIG: builds a Debian package for that PostgreSQL of Debian, in target/deb/. As with
# dpkg-buildpackage, it is built from a copy of the checkout, with the files of "make package".
# deb.sh PG_CONFIG SUITE: for PostgreSQL of another release of Debian (bookworm, trixie, forky),
# built there: in a bare root, with its compiler and headers, but with this system's Rust, since
# Debian's is too old. Requires root and debootstrap.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/roots.sh
. "$ROOT/scripts/roots.sh"

suite=${2:-}
[ -z "$suite" ] || enter_root "$@"
version=$(version)
# With a revision, CHANGELOG.md is upstream's changelog, not Debian's.
revision=-1
maintainer=$(maintainer)
committed=$(changed_at)

# Pre-releases sort before the release.
debian_version() { echo "${version/-/\~}$revision"; }

# source_package DIRECTORY: input of dpkg-buildpackage, for PostgreSQL $major.
source_package() {
    rm -rf "$1"
    mkdir -p "$1"
    source_files | xargs -0 cp --parents -t "$1"
    cp -r packaging/debian "$1/debian"
    (
        cd "$1/debian"
        rm -f control.in
        sed "s/@MAJOR@/$major/g; s/@MAINTAINER@/$maintainer/" "$ROOT/packaging/debian/control.in" >control
        {
            sed '/^@LICENSE@$/d' "$ROOT/packaging/debian/copyright"
            tail -n +5 "$ROOT/LICENSE" | sed 's/^$/./; s/^/ /'
        } >copyright
        cat >changelog <<END
leaf-id ($(debian_version)) unstable; urgency=medium

  * See CHANGELOG.md.

 -- $maintainer  $(date --utc --date="@$committed" -R)
END
    )
    # Packages built before, except for other suites.
    rm -f "$TARGET/deb/postgresql-$major-leaf-id_"*"${revision}_"*.deb
}

# Include the profile, which the caller may have changed to save time.
settings=("SOURCE_DATE_EPOCH=$committed" "DEB_BUILD_OPTIONS=noautodbgsym")
while IFS= read -r setting; do settings+=("$setting"); done < <(env | grep '^CARGO_PROFILE_RELEASE_' || true)
package=(dpkg-buildpackage --build=binary --no-sign)
mkdir -p "$TARGET/deb"

if [ -z "$suite" ]; then
    pg_config=$(command -v "${1:-pg_config}") ||
        die "there is no ${1:-pg_config}" "Say which one: make deb PG_CONFIG=/path/to/pg_config"
    command -v dh >/dev/null || die "debhelper is missing" "apt install debhelper"
    major=$("$pg_config" --version | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p')
    # The package installs into these directories, and depends on Debian's postgresql-$major.
    [ "$("$pg_config" --bindir)" = "/usr/lib/postgresql/$major/bin" ] ||
        die "$pg_config is not of Debian's PostgreSQL, which the package is for" \
            "make package PG_CONFIG=$pg_config collects the files for another one."
    source_package "$TARGET/deb/leaf-id-$version"
    cd "$TARGET/deb/leaf-id-$version"
    env "${settings[@]}" CARGO_TARGET_DIR="$TARGET" PG_CONFIG="$pg_config" "${package[@]}" --no-check-builddeps
else
    need_rust
    cargo fetch --locked --quiet
    unpack_root "$suite"
    # For an upgrade of Debian to replace the package by that of its next release. Not VERSION_ID of
    # os-release, which a release in development does not have.
    # shellcheck disable=SC2016  # dpkg's
    release=$(in_root dpkg-query --show --showformat='${Version}' base-files)
    revision+=+deb${release%%.*}
    major=$(in_root apt-cache show postgresql | sed -nE 's/^Depends:.* postgresql-([0-9]+).*/\1/p' | head -n 1)
    source=$BARE/build/leaf-id-$version
    source_package "$source"
    say "Building a package for Debian $suite's PostgreSQL $major (see $BARE_LOG)"
    logged in_root apt-get -q install --no-install-recommends build-essential
    logged in_root apt-get -q build-dep --no-install-recommends "${source#"$BARE"}"
    read_only "$(rustc --print sysroot)" /rust
    read_only "${CARGO_HOME:-$HOME/.cargo}/registry" /root/.cargo/registry
    ln -s /rust/bin/{cargo,rustc,rustfmt} "$BARE/usr/local/bin/"
    logged in_root env "${settings[@]}" CARGO_TARGET_DIR=/build/target CARGO_NET_OFFLINE=true \
        sh -c "cd ${source#"$BARE"} && ${package[*]}"
    cp "$BARE/build/"*.deb "$TARGET/deb/"
fi
say "The package is $(ls "$TARGET/deb/postgresql-$major-leaf-id_$(debian_version)_"*.deb)"
