#!/usr/bin/env bash
# deb.sh PG_CONFIG: builds a Debian package for that PostgreSQL of Debian, in target/deb/, with the
# files of "make package" and this system's Rust.
# deb.sh PG_CONFIG SUITE [ARCHITECTURE]: builds a source package with all crates in it, and from it
# the package for PostgreSQL of another release of Debian (bookworm, trixie, forky), there: in a bare
# root, with what Build-Depends names, and without network. For arm64 on another processor, it is
# compiled with Debian's cross compilers. Requires root and debootstrap.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/roots.sh
. "$ROOT/scripts/roots.sh"

suite=${2:-}
architecture=${3:-}
[ -z "$suite" ] || enter_root "$@"
version=$(version)
# With a revision, CHANGELOG.md is upstream's changelog, not Debian's.
revision=-1
committed=$(changed_at)

# Pre-releases sort before the release.
upstream() { echo "${version/-/\~}"; }

# sources DIRECTORY: upstream's files.
sources() {
    rm -rf "$1"
    mkdir -p "$1"
    source_files | xargs -0 cp --parents -t "$1"
}

# debian DIRECTORY: adds debian/ to the sources there.
debian() {
    cp -r packaging/debian "$1/debian"
    (
        cd "$1/debian"
        versions >pgversions
        sed -i "s/@MAINTAINER@/$(maintainer)/; s/@RUST@/$(rust_version)/g
            s|@HOMEPAGE@|$(homepage)|; s|@REPOSITORY@|$(repository)|" control.in watch
        # As "pg_buildext updatecontrol" has it where this is the only version.
        sed "s/PGVERSION/$major/g" control.in >control
        {
            sed '/^@LICENSE@$/d' copyright.in
            tail -n +5 "$ROOT/LICENSE" | sed 's/^$/./; s/^/ /'
            [ ! -d ../vendor ] || "$ROOT/scripts/dep5.sh" "$(pwd)/../vendor"
        } >copyright
        rm copyright.in
        cat >changelog <<END
leaf-id ($(upstream)$revision) unstable; urgency=medium

  * See CHANGELOG.md.

 -- $(maintainer)  $(date --utc --date="@$committed" -R)
END
    )
}

# vendor DIRECTORY: the crates that the library is compiled from. Of the others in Cargo.lock, which
# tests and other systems use, cargo reads only the manifests.
vendor() {
    local needed crate name
    cargo vendor --locked --quiet "$1" >/dev/null
    needed=$(cargo tree --locked --package leaf_id --edges normal,build --prefix none --no-dedupe \
        --target x86_64-unknown-linux-gnu --target aarch64-unknown-linux-gnu --format '{p}' | cut -d' ' -f1,2)
    for crate in "$1"/*; do
        name=$(sed -nE '/^\[package\]/,/^\[/s/^(name|version) = "(.*)"$/\2/p' "$crate/Cargo.toml" | paste -sd' ' | sed 's/ / v/')
        if grep -qxF "$name" <<<"$needed"; then
            # dh_clean removes files of this name.
            rm -f "$crate/Cargo.toml.orig"
            sed -i -E 's/"Cargo.toml.orig":"[0-9a-f]*",?//' "$crate/.cargo-checksum.json"
        else
            find "$crate" -mindepth 1 ! -name Cargo.toml ! -name .cargo-checksum.json -delete
            sed -i 's/"files":{[^}]*}/"files":{}/' "$crate/.cargo-checksum.json"
            mkdir "$crate/src"
            : >"$crate/src/lib.rs"
        fi
    done
}

# archive DIRECTORY FILE [FOLDER]: a tar of the directory, or of that folder in it, the same on each run.
archive() {
    tar -C "$(dirname "$1/${3:-}")" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$committed" \
        -cJf "$2" "$(basename "$1/${3:-}")"
}

# cross_build: installs what compiles for $architecture, and changes the build to that. As the server's
# headers for it cannot be installed beside this processor's, they are unpacked.
cross_build() {
    local triple target headers=/build/headers
    [ "$architecture" = arm64 ] || die "no such architecture: $architecture (arm64)"
    target=aarch64-unknown-linux-gnu
    logged in_root dpkg --add-architecture "$architecture"
    logged in_root apt-get -q update
    logged in_root apt-get -q install --no-install-recommends "crossbuild-essential-$architecture" debhelper clang libclang-dev \
        rustc-web cargo-web rustfmt-web {libstd-rust-web-dev,libpq-dev,libssl-dev,libicu-dev}:"$architecture"
    logged in_root sh -ec "mkdir /build/debs; cd /build/debs; apt-get -q download postgresql-server-dev-$major:$architecture; dpkg-deb -x *.deb $headers"
    triple=$(in_root dpkg-architecture -a"$architecture" -qDEB_HOST_MULTIARCH 2>/dev/null)
    cat >"$BARE/build/pg_config" <<END
#!/bin/sh
case \$1 in
--version) echo 'PostgreSQL $(sed -nE 's/^#define PG_VERSION "(.*)"$/\1/p' "$BARE$headers/usr/include/postgresql/$major/server/pg_config.h")' ;;
--includedir-server) echo $headers/usr/include/postgresql/$major/server ;;
--libdir) echo /usr/lib/$triple ;;
--pkglibdir) echo /usr/lib/postgresql/$major/lib ;;
--sharedir) echo /usr/share/postgresql/$major ;;
--configure) echo --disable-rpath ;;
esac
END
    chmod +x "$BARE/build/pg_config"
    build=(dpkg-buildpackage --no-sign --build=binary --no-check-builddeps --host-arch "$architecture")
    settings+=(PG_CONFIG=/build/pg_config "CARGO_BUILD_TARGET=$target" CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$triple-gcc")
}

# The profile, which the caller may have changed to save time.
settings=("SOURCE_DATE_EPOCH=$committed" "DEB_BUILD_OPTIONS=noautodbgsym")
while IFS= read -r setting; do settings+=("$setting"); done < <(env | grep '^CARGO_PROFILE_RELEASE_' || true)
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
    source=$TARGET/deb/leaf-id-$version
    sources "$source"
    debian "$source"
    rm -f "$TARGET/deb/postgresql-$major-leaf-id_"*"${revision}_"*.deb
    cd "$source"
    env "${settings[@]}" CARGO_TARGET_DIR="$TARGET" PG_CONFIG="$pg_config" \
        dpkg-buildpackage --build=binary --no-sign --no-check-builddeps
else
    need_rust
    native=$(dpkg --print-architecture)
    architecture=${architecture:-$native}
    unpack_root "$suite"
    # For an upgrade of Debian to replace the package by that of its next release. Not VERSION_ID of
    # os-release, which a release in development does not have.
    # shellcheck disable=SC2016  # dpkg's
    release=$(in_root dpkg-query --show --showformat='${Version}' base-files)
    revision+=+deb${release%%.*}
    major=$(major_of_suite)
    say "Building a package for Debian $suite's PostgreSQL $major (see $BARE_LOG)"
    source=/build/leaf-id-$version
    tree=$BARE$source
    sources "$tree"
    archive "$tree" "$BARE/build/leaf-id_$(upstream).orig.tar.xz"
    vendor "$tree/vendor"
    archive "$tree" "$BARE/build/leaf-id_$(upstream).orig-vendor.tar.xz" vendor
    debian "$tree"
    build=(dpkg-buildpackage --no-sign)
    logged in_root apt-get -q install --no-install-recommends build-essential
    if [ "$architecture" = "$native" ]; then
        logged in_root apt-get -q build-dep --no-install-recommends "$source"
        logged in_root sh -c "cd $source && pg_buildext updatecontrol"
    else
        cross_build
    fi
    logged in_root unshare --net env "${settings[@]}" CARGO_TARGET_DIR=/build/target sh -c "cd $source && ${build[*]}"
    find "$BARE/build" -maxdepth 1 -type f -exec cp -t "$TARGET/deb" {} +
    say "Lintian of Debian $suite"
    logged in_root apt-get -q install --no-install-recommends lintian
    in_root sh -c 'lintian --allow-root --fail-on error --info /build/*.changes' | tee "$TARGET/deb/lintian-$suite-$architecture"
fi
say "The package is $(ls "$TARGET/deb/postgresql-$major-leaf-id_$(upstream)$revision"_${architecture:-*}.deb)"
