#!/usr/bin/env bash
# test-deb.sh SUITE DEB: follows README.md in a bare Debian (bookworm, trixie) that has neither Rust
# nor other additions: install the package, configure, restart, create the extension, insert. The
# commands are README.md's own. A package for arm64 is tried under qemu (package qemu-user-static). Then checks the links in the package's documentation, runs its tests
# (autopkgtest), and removes it. Requires root and debootstrap.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/roots.sh
. "$ROOT/scripts/roots.sh"

suite=${1:?the name of a Debian release}
deb=$(realpath "${2:?a package}")
enter_root "$@"
major=$(major_of_package "$deb")
architecture=$(dpkg-deb --field "$deb" Architecture)
unpack_root "$suite" "$architecture"

as_user() { in_root runuser -u reader -- env HOME=/home/reader sh -euc "cd; $1"; }

say "Debian $suite, $(basename "$deb"): README.md: its installation and its first INSERT"
in_root useradd --create-home reader
echo 'reader ALL=(ALL) NOPASSWD: ALL' >"$BARE/etc/sudoers.d/reader"
cp "$deb" "$BARE/home/reader/"
# Without an init system, packages start a service only if this allows it.
printf '#!/bin/sh\n' >"$BARE/usr/sbin/policy-rc.d"
chmod +x "$BARE/usr/sbin/policy-rc.d"
if in_root sh -c 'command -v rustc cargo'; then die "there is Rust in the bare Debian"; fi
readme "$BARE/tmp"
logged as_user "$(cat "$BARE/tmp/sh")"
insert() { as_user 'sudo -u postgres psql -X -v ON_ERROR_STOP=1' <"$BARE/tmp/sql"; }
same_as_readme "$(insert 2>&1)"
worker=$(as_user "sudo -u postgres psql -X -A -t -c 'SELECT (leaf_snowflake_decode(leaf_snowflake_next())).worker_id'")
[ "$worker" = 1 ] || die "not the worker id of README.md: $worker"

say "Following the links of the package's pages"
doc=$BARE/usr/share/doc/postgresql-$major-leaf-id
grep -q . "$doc/THIRD-PARTY" || die "the package has no notices of what the library contains"
followed=0
while IFS=: read -r page link; do
    [ -e "$doc/$(dirname "$page")/$link" ] || die "$page links to $link, which is not in the package"
    followed=$((followed + 1))
done < <(cd "$doc" && grep -HoE '\]\([^)#]+' README.md SECURITY.md docs/*.md | grep -v '](http' | sed 's/](//')
[ $followed -gt 50 ] || die "only $followed links were followed"

say "Running the package's own tests"
cp -r --parents pgrx-tests/sql pgrx-tests/expected pgrx-tests/schedule "$BARE/tmp/"
cp -r packaging/debian "$BARE/tmp/debian"
sed "s/PGVERSION/$major/g" packaging/debian/control.in >"$BARE/tmp/debian/control"
depends=$(sed -n 's/^Depends: @\(, \)\?//p' packaging/debian/tests/control)
[ -z "$depends" ] || logged in_root apt-get -q install --no-install-recommends "${depends//,/}"
in_root sh -c 'cd /tmp && debian/tests/regress' || die "the package's tests fail"

restart() { as_user 'sudo service postgresql restart'; }
query() { as_user 'sudo -u postgres psql -X -A -t -v ON_ERROR_STOP=1' <<<"$1"; }

say "Removing the package the wrong way: while the server preloads the library"
logged in_root apt-get -q purge "postgresql-$major-leaf-id"
if restart >>"$BARE_LOG" 2>&1; then die "the server starts without the library that it is to preload"; fi
grep -q 'could not access file "leaf_id"' "$BARE/var/log/postgresql/postgresql-$major-main.log" ||
    die "the server does not say what it misses"
logged as_user "sudo apt install ./$(basename "$deb")"
logged restart
[ "$(query 'SELECT count(*) FROM orders')" = 2 ] || die "the rows of README.md are gone"

# As documented in docs/operations.md. The extension cannot be dropped while a default calls it.
say "Removing it the right way"
query 'ALTER TABLE orders ALTER id DROP DEFAULT; DROP EXTENSION leaf_id;' >>"$BARE_LOG"
query 'ALTER SYSTEM RESET shared_preload_libraries' >>"$BARE_LOG"
rm "$BARE/etc/postgresql/$major/main/conf.d/leaf_id.conf"
logged restart
logged in_root apt-get -q purge "postgresql-$major-leaf-id"
[ -z "$(in_root find /usr -name 'leaf_id*' -o -name '*leaf-id*')" ] || die "the package leaves files behind"
logged restart
[ "$(query 'CREATE TABLE later AS SELECT * FROM orders; SELECT count(*) FROM later;' | tail -n 1)" = 2 ] ||
    die "the server does not go on without leaf_id"
record "the package, in a bare $suite" "$(server_in_root "$major")" 1 0 0 ok "$(in_root uname -m)"
say "Debian $suite, PostgreSQL $major: all as in README.md"
