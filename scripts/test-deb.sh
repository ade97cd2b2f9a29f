#!/usr/bin/env bash
# test-deb.sh SUITE DEB: installs a package in a bare Debian (bookworm, trixie) that has neither
# Rust nor anything else of ours, and does what README.md says: configure, restart, create the
# extension, insert. Needs root and debootstrap.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

suite=${1:?the name of a Debian release}
deb=$(realpath "${2:?a package}")
is_root || die "this takes root" "A bare Debian is entered with chroot."
command -v debootstrap >/dev/null || die "debootstrap is missing" "apt install debootstrap"
major=$(dpkg-deb --field "$deb" Package | sed -nE 's/^postgresql-([0-9]+)-leaf-id$/\1/p')
[ -n "$major" ] || die "$deb is no package of leaf_id"

bare=$TARGET/roots/$suite
if [ ! -f "$bare.tar" ]; then
    say "Making a bare Debian $suite"
    remove_root "$bare"
    debootstrap --variant=minbase "$suite" "$bare" >"$bare.log" 2>&1 || die "debootstrap failed" "See $bare.log."
    tar -C "$bare" --one-file-system -cf "$bare.tar.new" .
    mv "$bare.tar.new" "$bare.tar"
fi

root=$(mktemp -d "$TARGET/roots/run.XXXXXX")
in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
end() {
    in_root pg_ctlcluster "$major" main stop --mode immediate >/dev/null 2>&1 || true
    umount "$root/proc" "$root/dev" 2>/dev/null || true
    # Never what is mounted there.
    rm -rf --one-file-system "$root"
}
trap end EXIT
tar -C "$root" -xf "$bare.tar"
mount -t proc proc "$root/proc"
# Nothing of the machine's own but what a server needs.
mount -t tmpfs -o mode=755 dev "$root/dev"
for device in null zero random urandom; do cp -a "/dev/$device" "$root/dev/"; done
mkdir -m 1777 "$root/dev/shm"
cp /etc/resolv.conf "$root/etc/"

say "Installing $(basename "$deb") in a bare Debian $suite"
cp "$deb" "$root/tmp/leaf_id.deb"
in_root apt-get -q update >"$bare.log" 2>&1
in_root apt-get -q install -y --no-install-recommends /tmp/leaf_id.deb >>"$bare.log" 2>&1 ||
    die "the package cannot be installed" "See $bare.log."

cat >>"$root/etc/postgresql/$major/main/postgresql.conf" <<END
shared_preload_libraries = 'leaf_id'
leaf_id.worker_id = 5
END
in_root pg_ctlcluster "$major" main restart
psql() { in_root runuser -u postgres -- psql -X -A -t -q -v ON_ERROR_STOP=1 "$@"; }
ids=$(psql <<'END'
CREATE EXTENSION leaf_id;
SELECT leaf_tag_create('orders');
CREATE TABLE orders (
    id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'),
    event bigint DEFAULT leaf_snowflake_next());
INSERT INTO orders SELECT FROM generate_series(1, 3) RETURNING id;
SELECT (leaf_snowflake_decode(event)).worker_id FROM orders WHERE id = 1;
END
)
[ "$ids" = $'\n1\n2\n3\n5' ] || die "other ids than expected" "$ids"
say "Debian $suite, PostgreSQL $(psql -c 'SHOW server_version'): the first INSERT got 1, 2, 3"
say "Running the package's own tests"
mkdir "$root/tmp/source"
cp -r --parents pgrx-tests/sql pgrx-tests/expected "$root/tmp/source/"
cp -r packaging/debian "$root/tmp/source/debian"
sed "s/@MAJOR@/$major/g" packaging/debian/control.in >"$root/tmp/source/debian/control"
in_root sh -c 'cd /tmp/source && debian/tests/regress' || die "the package's tests fail"
in_root apt-get -q purge -y "postgresql-$major-leaf-id" >>"$bare.log" 2>&1
[ -z "$(in_root find /usr -name 'leaf_id*')" ] || die "the package leaves files behind"
