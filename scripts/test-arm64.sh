#!/usr/bin/env bash
# test-arm64.sh: builds leaf_id for arm64 on another processor, and runs its regression tests in a
# bare Debian 12 for arm64, emulated by qemu. The first run takes ten minutes or more, mainly to set
# up that Debian and its PostgreSQL. Requires root, debootstrap, gcc-aarch64-linux-gnu and
# qemu-user-static.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/roots.sh
. "$ROOT/scripts/roots.sh"

target=aarch64-unknown-linux-gnu
major=15
binfmt=/proc/sys/fs/binfmt_misc
enter_root "$@"
for program in aarch64-linux-gnu-gcc qemu-aarch64-static; do
    command -v $program >/dev/null ||
        die "$program is missing" "apt install gcc-aarch64-linux-gnu qemu-user-static"
done
need_rust
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] ||
    die "Rust's library for arm64 is missing" "rustup target add $target"

# Makes the kernel start qemu for programs of that processor, as Debian's package does if systemd is
# running.
[ -e $binfmt/register ] || mount -t binfmt_misc binfmt_misc $binfmt
[ -e $binfmt/qemu-aarch64 ] || cat /usr/lib/binfmt.d/qemu-aarch64.conf >$binfmt/register
unpack_root bookworm arm64 postgresql-$major

# Files of arm64's packages needed by the compiler. The only library is libpq; libc is that of the
# cross compiler.
headers=$TARGET/arm64/headers
if [ ! -f "$headers/complete" ]; then
    rm -rf "$headers"
    mkdir -p "$headers/lib" "$BARE/debs"
    logged in_root sh -c "cd /debs && apt-get -q update && apt-get -q download postgresql-server-dev-$major \
        libpq-dev libpq5 libssl-dev libc6-dev linux-libc-dev libcrypt-dev"
    for deb in "$BARE/debs"/*.deb; do dpkg-deb -x "$deb" "$headers"; done
    cp -L "$headers/usr/lib/aarch64-linux-gnu/libpq.so" "$headers/lib/"
    touch "$headers/complete"
fi
write_if_changed "$headers/pg_config" "#!/bin/sh
case \$1 in
--version) echo '$(in_root /usr/lib/postgresql/$major/bin/pg_config --version)' ;;
--includedir-server) echo $headers/usr/include/postgresql/$major/server ;;
--libdir) echo $headers/lib ;;
--pkglibdir) echo /usr/lib/postgresql/$major/lib ;;
--sharedir) echo /usr/share/postgresql/$major ;;
--configure) echo --disable-rpath ;;
*) echo ;;
esac"
chmod +x "$headers/pg_config"

say "Building leaf_id for arm64"
export CARGO_TARGET_DIR=$TARGET/arm64 PGRX_PG_CONFIG_PATH=$headers/pg_config
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export BINDGEN_EXTRA_CLANG_ARGS_aarch64_unknown_linux_gnu=--sysroot=$headers
compile $major --target $target
place_files "$CARGO_TARGET_DIR/$target/release/libleaf_id.so" "$headers/pg_config" "$BARE"

say "Running the regression tests on arm64"
cp -r --parents pgrx-tests/sql pgrx-tests/expected pgrx-tests/schedule "$BARE/tmp/"
mkdir "$BARE/tmp/debian"
sed "s/@MAJOR@/$major/g" packaging/debian/control.in >"$BARE/tmp/debian/control"
cp -r packaging/debian/tests "$BARE/tmp/debian/"
in_root sh -c 'uname -m && cd /tmp && debian/tests/regress'
record "the regression tests, emulated" "$(server_in_root $major)" "$(find pgrx-tests/sql -name '*.sql' | wc -l)" 0 0 ok aarch64
