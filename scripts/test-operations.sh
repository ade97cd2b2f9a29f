#!/usr/bin/env bash
# Tests leaf_id with software that operators run alongside PostgreSQL, from Debian's packages, which
# it installs: test-operations.sh monitoring|patroni|pgbackrest|pg_repack|neighbors|citus. Citus is built
# from its source, whose path is in CITUS. The programs are in pgrx-tests/operations; everything they start
# ends with them.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1:-} in
monitoring)
    what="monitoring: each alert in its case" program=monitoring packages=(prometheus prometheus-postgres-exporter)
    ;;
patroni)
    what="Patroni: failover and switchover" program=patroni_failover packages=(patroni etcd-server python3-etcd)
    ;;
pgbackrest)
    what="pgBackRest: recovery to a point in time" program=pgbackrest_recovery packages=(pgbackrest)
    ;;
pg_repack)
    what="pg_repack: every table under load" program=pg_repack packages=("postgresql-$PG_MAJOR-repack")
    ;;
neighbors)
    what="ten other libraries: the regression tests beside them" program=neighbors
    packages=()
    for name in pgaudit cron plpgsql-check pldebugger pg-qualstats pg-stat-kcache pg-wait-sampling set-user; do
        packages+=("postgresql-$PG_MAJOR-$name")
    done
    ;;
citus)
    what="Citus: every statement on every node" program=citus
    packages=(flex gcc libkrb5-dev liblz4-dev libpam0g-dev libselinux1-dev libssl-dev libzstd-dev make)
    [ -x "${CITUS:-}/configure" ] || die "CITUS is the path of Citus's source" \
        "as in: make test-citus CITUS=/path/to/citus" \
        "Version 13.2 is for PostgreSQL 15 to 17, and 14 for 16 to 18."
    ;;
*) die "test-operations.sh monitoring, patroni, pgbackrest, pg_repack, neighbors or citus" ;;
esac
packages+=(python3 python3-psycopg2 python3-yaml)

missing=()
for package in "${packages[@]}"; do
    dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || die "missing: ${missing[*]}" "This runs Debian's packages."
    say "Installing ${missing[*]}"
    # Services must not start here.
    apt_get=(env DEBIAN_FRONTEND=noninteractive SYSTEMD_OFFLINE=1 RUNLEVEL=1 apt-get --quiet=2
        -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
    as_root "${apt_get[@]}" update
    as_root "${apt_get[@]}" install --yes --no-install-recommends "${missing[@]}" >/dev/null
fi

"$ROOT/scripts/build.sh"
locate_copy
export_test_env

# The server is a copy, which does not have them.
for package in "${packages[@]}"; do
    [[ $package = postgresql-$PG_MAJOR-* ]] || continue
    mapfile -t files < <(dpkg --listfiles "$package" | grep -E "^/usr/(lib|share)/postgresql/$PG_MAJOR/(bin|lib|extension)/[^/]+$")
    for file in "${files[@]}"; do
        case $file in
        */bin/*) cp "$file" "$PG_BIN" ;;
        *.so) cp "$file" "$("$PG_BIN/pg_config" --pkglibdir)" ;;
        */extension/*) cp "$file" "$("$PG_BIN/pg_config" --sharedir)/extension" ;;
        esac
    done
done

# Into the copy of PostgreSQL, from a copy of the source.
if [ "$1" = citus ] && [ ! -f "$("$PG_BIN/pg_config" --pkglibdir)/citus.so" ]; then
    say "Building Citus (a few minutes, once)"
    build=$TARGET/citus-$PG_MAJOR
    rm -rf "$build"
    cp -r "$CITUS" "$build"
    # Or make takes what is generated and committed for outdated, and needs autoconf.
    touch "$build/configure" "$build"/src/include/*.in
    # PostgreSQL 15.20 has this function itself.
    sed -i 's/\bhave_createdb_privilege\b/citus_&/g' "$build/src/include/pg_version_compat.h"
    (
        cd "$build"
        # From "make PG_CONFIG=...", its own make would take that for the place to install into.
        unset MAKEFLAGS MAKEOVERRIDES
        PG_CONFIG=$PG_BIN/pg_config ./configure --without-libcurl
        make --silent CPPFLAGS=-I/usr/include/postgresql
        make --silent install
    ) >"$build.log" 2>&1 || die "Citus could not be built: see $build.log"
fi

# The servers' user may not be able to read the checkout.
run=$(mktemp -d "/tmp/leaf_id-$1.XXXXXX")
program_pid=
end() {
    local status=$?
    trap - EXIT
    if [ -n "$program_pid" ]; then
        kill "$program_pid" 2>/dev/null || true
        wait "$program_pid" || true
    fi
    if [ $status -eq 0 ]; then rm -rf "$run"; else echo "what is left of it: $run" >&2; fi
    exit $status
}
trap end EXIT
trap 'exit 130' INT TERM
cp "$ROOT"/pgrx-tests/operations/*.py "$ROOT"/packaging/monitoring/* "$ROOT"/packaging/patroni/* "$ROOT/docs/fleet-and-failover.md" "$run"
if [ "$1" = neighbors ]; then
    mkdir "$run/regress"
    cp -r "$ROOT"/pgrx-tests/{sql,expected,schedule} "$run/regress"
fi
# A clock that can be set, preloaded as in other tests.
[ "$1" != monitoring ] || cc -O2 -fPIC -shared -o "$run/clock.so" "$ROOT/pgrx-tests/clock.c"
! is_root || chown -R "$SERVER_USER" "$run"

server=$(server_name "$PG_BIN")
say "$what, on PostgreSQL $server"
# In the background, so that a signal interrupts the wait; not by runuser, which would be an
# additional process in between.
command=(env -C "$run" PYTHONDONTWRITEBYTECODE=1 "LEAF_ID_PG_BIN=$PG_BIN" /usr/bin/python3 "$run/$program.py")
is_root && command=(setpriv --reuid "$SERVER_USER" --regid "$SERVER_USER" --init-groups "${command[@]}")
"${command[@]}" </dev/null &
program_pid=$!
status=0
wait "$program_pid" || status=$?
program_pid=
if [ $status -eq 0 ]; then record "$what" "$server" 1 0 0 ok; else record "$what" "$server" 0 1 0 FAILED; fi
exit $status
