#!/usr/bin/env bash
# test-dist-upgrade.sh OLD_SUITE OLD_DEB SUITE DEB: test-upgrade.sh as after an upgrade of Debian:
# in a bare SUITE that still has OLD_SUITE's PostgreSQL, with leaf_id from the packages of both
# releases. Requires root and debootstrap.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/roots.sh
. "$ROOT/scripts/roots.sh"

old_suite=${1:?the name of a Debian release}
old_deb=$(realpath "${2:?a package for it}")
suite=${3:?the name of a newer release}
deb=$(realpath "${4:?a package for it}")
enter_root "$@"
old=$(major_of_package "$old_deb")
new=$(major_of_package "$deb")
unpack_root "$suite"

say "Installing PostgreSQL $old of Debian $old_suite and $new of $suite (see $BARE_LOG)"
cat >>"$BARE/etc/apt/sources.list" <<END
deb http://deb.debian.org/debian $old_suite main
deb http://deb.debian.org/debian-security $old_suite-security main
END
mkdir -p "$BARE/etc/postgresql-common"
echo 'create_main_cluster = false' >"$BARE/etc/postgresql-common/createcluster.conf"
logged in_root apt-get -q update
logged in_root apt-get -q install --no-install-recommends "postgresql-$old" "postgresql-$new" procps
cp "$old_deb" "$deb" "$BARE/tmp/"
logged in_root sh -c 'apt-get -q install --no-install-recommends /tmp/*.deb'

cp -r --parents scripts Cargo.toml "$BARE/srv/"
programs() { echo "/usr/lib/postgresql/$1/bin"; }
# There is no git in the root.
commit=$(tested_commit) || commit=unknown
in_root env LEAF_ID_COMMIT="$commit, packages" /srv/scripts/test-upgrade.sh "$(programs "$old")" "$(programs "$new")"
mkdir -p "$TARGET/results"
cat "$BARE/srv/target/results/tests.tsv" >>"$TARGET/results/tests.tsv"
# Like record does.
chown -R --reference="$ROOT" "$TARGET/results"
