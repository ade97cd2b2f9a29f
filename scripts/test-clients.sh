#!/usr/bin/env bash
# Runs programs of real clients (drivers, ORMs, migration tools) against a private server with
# leaf_id: test-clients.sh [CLIENT...], by default all; "quick" for those that install within
# seconds and change nothing in the system.
#
# A client is a directory of pgrx-tests/clients. Its client.sh sets the variables for its row in
# docs/clients.md, and defines
#   install  gets packages with debian, pip_install, npm_install or fetch_crates, which skip the
#            client if a package is not available; nothing else may skip one
#   version  prints the version under test, without suffixes added by a distribution
#   run      runs it, in its own directory ($WORK), and prints "checked N ids"
# Programs and client.sh find the server in PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE and
# DATABASE_URL, and a copy of the client's directory in $WORK. Role app is an ordinary role that
# owns the client's database, in which it has installed leaf_id (schema=none: nothing is installed;
# schema=extension: no tables).
#
# With LEAF_ID_EXPECTED=write, the table in docs/clients.md is rewritten; otherwise it is compared.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

CLIENTS_DIR=$ROOT/pgrx-tests/clients
PAGE=$ROOT/docs/clients.md
# In the order of the table. (psql is installed with the server.)
all=(psql pgbouncer psycopg asyncpg sqlalchemy django
    node-postgres postgres-js drizzle typeorm sequelize prisma
    sqlx diesel activerecord jdbc hibernate eclipselink pdo doctrine pgx)
quick=(psql psycopg sqlalchemy node-postgres)
# Exit status of a client that is skipped.
SKIPPED=77

# Variables set by each client.sh.
title='' language='' key='' advice='' schema='' seconds=''

load() {
    schema=tables seconds=300
    # shellcheck source=/dev/null
    . "$CLIENTS_DIR/$1/client.sh"
}

# --- For client.sh: sources of packages. Installed packages remain in target/clients. ---

# Limits network operations. (Without its own process group, a command also ends with the run.)
limited=(timeout --foreground --kill-after=10 300)

skip() {
    # On a line of its own, even after a program that has not ended its last one.
    printf '\nskipped: %s\n' "$*"
    exit $SKIPPED
}

# had WHAT COMMAND...: skips the client if the command fails; the log has the output.
had() {
    local what=$1 status=0
    shift
    "$@" </dev/null 9>&- || status=$?
    [ $status -ne 124 ] || skip "$what: does not come in time"
    [ $status -eq 0 ] || skip "$what is not available"
}

# once WHAT COMMAND...: like had, unless the same command has already succeeded here.
once() {
    local stamp=$PACKAGES/installed
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$*" ]; then return; fi
    rm -f "$stamp"
    had "$@"
    printf '%s\n' "$*" >"$stamp"
}

debian() {
    local package missing=()
    for package in "$@"; do
        case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) in
        installed) ;;
        *) missing+=("$package") ;;
        esac
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || skip "${missing[*]}: this system is not Debian"
    [ -z "$WITHOUT_APT" ] || skip "${missing[*]}: not installed (make test-clients CLIENTS=$name does it)"
    had "${missing[*]}" apt "${missing[@]}"
}

# Package lists are fetched, or fail, once for all clients of a run.
apt() {
    # No password can be entered.
    local status=0 root=() install=(install --yes --no-install-recommends "$@")
    is_root || root=(sudo -n)
    # With SYSTEMD_OFFLINE, systemd does not start a package's service (it is enabled, and starts
    # with the system); otherwise none starts in runlevel 1.
    local apt_get=(env DEBIAN_FRONTEND=noninteractive SYSTEMD_OFFLINE=1 RUNLEVEL=1 apt-get --quiet=2
        -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -o Acquire::Retries=1)
    if [ ! -e "$RUN/apt-updated" ]; then
        "${root[@]}" "${limited[@]}" "${apt_get[@]}" update || status=$?
        echo $status >"$RUN/apt-updated"
    fi
    if [ "$(cat "$RUN/apt-updated")" != 0 ]; then
        echo "apt-get update has failed in this run"
        return 1
    fi
    "${root[@]}" "${limited[@]}" "${apt_get[@]}" "${install[@]}" --download-only || return
    # Neither a time limit nor the end of this run may interrupt dpkg.
    setsid --wait "${root[@]}" "${apt_get[@]}" "${install[@]}" --no-download
}

# Into the client's virtual environment, which is first in its PATH.
pip_install() {
    python3 -c 'import ensurepip, venv' 2>/dev/null || debian python3-venv
    once "$*" venv "$@"
}

venv() {
    rm -rf "$PACKAGES/venv"
    python3 -m venv "$PACKAGES/venv" &&
        "${limited[@]}" "$PACKAGES/venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 20 "$@"
}

# Without the packages' scripts, which none of these clients needs.
npm_install() {
    command -v node >/dev/null || debian nodejs
    command -v npm >/dev/null || debian npm
    once "$*" node_modules "$@"
}

node_modules() {
    rm -rf "$PACKAGES/node_modules" "$PACKAGES/package.json"
    echo '{"private": true, "type": "module"}' >"$PACKAGES/package.json"
    "${limited[@]}" npm install --prefix "$PACKAGES" --loglevel=error --no-audit --no-fund --no-package-lock --ignore-scripts \
        --fetch-retries=1 --fetch-timeout=60000 --save-exact "$@"
}

# Fetches the crates of the Cargo.toml next to client.sh, which is a workspace of its own.
fetch_crates() {
    need_rust
    had "$title" "${limited[@]}" cargo fetch --locked --quiet --manifest-path "$SOURCE/Cargo.toml"
}

# run_crate: builds where the next run finds the result.
run_crate() {
    need_rust
    nice -n 10 cargo run --locked --offline --quiet --manifest-path "$SOURCE/Cargo.toml" --target-dir "$PACKAGES/target"
}

# crate_version CRATE
crate_version() { sed -n "/^name = \"$1\"\$/{n;s/version = \"\(.*\)\"/\1/p}" "$SOURCE/Cargo.lock"; }

# node_version PACKAGE
node_version() { node -p "require('$PACKAGES/node_modules/$1/package.json').version"; }

# pip_version PACKAGE
pip_version() { "$PACKAGES/venv/bin/pip" show "$1" 2>/dev/null | sed -n 's/^Version: //p'; }

# debian_version PACKAGE: major and minor version, which Debian's fixes do not change.
debian_version() { dpkg-query -W -f '${Version}' "$1" | sed -E 's/^[0-9]+://; s/^([0-9]+(\.[0-9]+)?).*/\1/'; }

# --- A single client, in a separate process. ---

one() {
    name=$1
    load "$name"
    PACKAGES=$TARGET/clients/$name
    WORK=$RUN/$name
    SOURCE=$CLIENTS_DIR/$name
    export PACKAGES WORK SOURCE
    mkdir -p "$PACKAGES" "$WORK"
    if [ "$2" = install ]; then
        with_lock install
        return
    fi
    PATH=$PACKAGES/venv/bin:$PATH
    # (PgBouncer reserves database name pgbouncer for its console.)
    export PGDATABASE=app_${name//-/_}
    DATABASE_URL=$DATABASE_URL/$PGDATABASE
    version >"$RUN/$name.version"
    # Settings made by the previous client for the role.
    query -d postgres -c 'ALTER ROLE app RESET ALL'
    query -d postgres -c "CREATE DATABASE $PGDATABASE OWNER app"
    [ "$schema" = none ] || as_app -c 'CREATE EXTENSION leaf_id'
    [ "$schema" != tables ] || as_app -f "$CLIENTS_DIR/schema.sql" >/dev/null
    cp -r "$CLIENTS_DIR"/checks.* "$SOURCE/." "$WORK"
    [ ! -d "$PACKAGES/node_modules" ] || ln -s "$PACKAGES/node_modules" "$PACKAGES/package.json" "$WORK"
    cd "$WORK"
    run </dev/null
    query -d "$PGDATABASE" -f "$CLIENTS_DIR/check.sql"
}


query() { "$PG_BIN/psql" -X -q -At -v ON_ERROR_STOP=1 -h "$RUN" -U postgres "$@"; }
as_app() { "$PG_BIN/psql" -X -q -v ON_ERROR_STOP=1 "$@"; }

# --- The server: for this run only, accessible to local users who know the password. ---

start_server() {
    local try
    # Not only digits: EclipseLink would take it for an encrypted password.
    PGPASSWORD=leaf-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    as_server "$PG_BIN/initdb" -D "$RUN/data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 -N >/dev/null
    # Only the server's user and root can access the socket.
    as_server tee "$RUN/data/pg_hba.conf" >/dev/null <<'END'
local all all trust
host all all 127.0.0.1/32 scram-sha-256
END
    as_server tee -a "$RUN/data/postgresql.conf" >/dev/null <<END
listen_addresses = '127.0.0.1'
unix_socket_directories = '$RUN'
max_connections = 50
fsync = off
shared_preload_libraries = 'leaf_id'
leaf_id.worker_id = '1'
leaf_id.timestamp_reservation = '100ms'
END
    for try in 1 2 3 4 5; do
        PGPORT=$((20000 + RANDOM % 10000))
        if as_server "$PG_BIN/pg_ctl" -D "$RUN/data" -l "$RUN/server.log" -o "-p $PGPORT" -w -t 60 start \
            </dev/null >/dev/null 2>&1; then
            break
        fi
        # Another process uses the port.
        [ $try -lt 5 ] || die "the server does not start" "$(tail -n 5 "$RUN/server.log")"
    done
    local variable
    for variable in ${!PG@}; do
        case $variable in PG_* | PGRX_* | PGPASSWORD | PGPORT | PGSPOT_VERSION | PGLAST_VERSION) ;; *) unset "$variable" ;; esac
    done
    export PGHOST=127.0.0.1 PGPORT PGUSER=app PGPASSWORD
    export DATABASE_URL=postgresql://app:$PGPASSWORD@127.0.0.1:$PGPORT
    query -d postgres -c 'CREATE EXTENSION leaf_id'
    # Test runners of frameworks create databases.
    query -d postgres -c "CREATE ROLE app LOGIN CREATEDB PASSWORD '$PGPASSWORD'"
}

# Only while the process with this pid runs in our data directory.
stop_server() {
    local pid signal waited
    for signal in INT QUIT KILL; do
        for ((waited = 0; waited < 200; waited++)); do
            pid=$(head -n 1 "$RUN/data/postmaster.pid" 2>/dev/null) || return 0
            [ "$(readlink "/proc/$pid/cwd")" = "$RUN/data" ] || return 0
            [ $waited -gt 0 ] || kill -"$signal" "$pid" 2>/dev/null || return 0
            sleep 0.1
        done
    done
    echo "the server with pid $pid does not stop" >&2
}

end_run() {
    local status=$?
    trap - EXIT
    # The signal is passed on to everything started by the client.
    [ -z "$client_pid" ] || kill "$client_pid" 2>/dev/null || true
    wait
    stop_server
    rm -rf "$RUN"
    exit $status
}

# --- The table in docs/clients.md. ---

row_of() { printf '| [%s](#%s) | %s | %s | %s | %s |\n' "$title" "$(anchor "$title")" "$1" "$language" "$key" "$advice"; }
anchor() { printf '%s' "$1" | tr '[:upper:] ' '[:lower:]-' | tr -cd 'a-z0-9_-'; }

# The row for this client's title on the page.
row_on_page() { grep -F -- "| [$title](#" "$PAGE" || true; }

# Versions differ between systems.
without_version() { cut -d '|' -f 1,2,4-; }

write_table() {
    local client rows=$RUN/rows
    for client in "${all[@]}"; do
        load "$client"
        if [ -f "$RUN/$client.row" ]; then cat "$RUN/$client.row"; else row_on_page; fi
    done >"$rows"
    awk -v rows="$rows" '
        /^<!-- clients: end/ { inside = 0; while ((getline row < rows) > 0) print row }
        !(inside && /^\| \[/)
        /^<!-- clients: begin/ { inside = 1 }' "$PAGE" >"$RUN/page"
    cat "$RUN/page" >"$PAGE"
}

# --- All clients. ---

# attempt CLIENT STEP: runs a step of a client, limited to its time. Returns its status.
attempt() {
    load "$1"
    local limit=$seconds
    # Downloads have their own limits.
    [ "$2" = run ] || limit=0
    # In the background, so that a signal interrupts the wait.
    timeout --kill-after=10 "$limit" "$ROOT/scripts/test-clients.sh" "$2-one" "$1" >>"$TARGET/clients/$1.log" 2>&1 &
    client_pid=$!
    local status=0
    wait "$client_pid" || status=$?
    client_pid=
    return $status
}

report() { printf '    %-18s %-10s %s\n' "$@"; }

test_client() {
    local client=$1 status=0 began=$SECONDS version ids
    local log=$TARGET/clients/$client.log
    : >"$log"
    attempt "$client" install || status=$?
    if [ $status -eq $SKIPPED ]; then
        report "$client" '' "SKIPPED: $(sed -n 's/^skipped: //p' "$log" | tail -n 1)"
        sed 's/^/        /' "$log" | tail -n 5
        skipped=$((skipped + 1))
        return
    fi
    [ $status -ne 0 ] || attempt "$client" run || status=$?
    version=$(cat "$RUN/$client.version" 2>/dev/null || true)
    ids=$(sed -nE 's/^checked ([0-9]+) ids$/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
    if [ $status -eq 0 ] && [ "$ids" -eq 0 ]; then
        echo 'it has checked no ids' >>"$log"
        status=1
    fi
    if [ $status -eq 0 ]; then
        row_of "$version" >"$RUN/$client.row"
        if [ -z "$write" ] &&
            [ "$(row_on_page | without_version)" != "$(without_version <"$RUN/$client.row")" ]; then
            {
                echo "docs/clients.md has another row for it: LEAF_ID_EXPECTED=write make test-clients CLIENTS=$client"
                row_on_page
                cat "$RUN/$client.row"
            } >>"$log"
            status=1
        fi
    fi
    if [ $status -ne 0 ]; then
        [ $status -ne 124 ] || echo "it has not ended in time" >>"$log"
        report "$client" "$version" "FAIL, the end of its log:"
        tail -n 40 "$log" | sed 's/^/        /'
        failed=$((failed + 1))
        return
    fi
    report "$client" "$version" "pass, $ids ids, $(duration $((SECONDS - began)))"
    passed=$((passed + 1))
}

main() {
    local client clients=("$@")
    [ $# -gt 0 ] || clients=("${all[@]}")
    export WITHOUT_APT=
    if [ "$*" = quick ]; then
        clients=("${quick[@]}")
        WITHOUT_APT=yes
    fi
    for client in "${clients[@]}"; do
        [ -f "$CLIENTS_DIR/$client/client.sh" ] || die "no such client: $client" "${all[*]}"
    done
    [ "$(printf '%s\n' "${all[@]}" | sort)" = "$(cd "$CLIENTS_DIR" && printf '%s\n' */ | sort | tr -d /)" ] ||
        die "pgrx-tests/clients and the list of clients in scripts/test-clients.sh differ"
    write=
    [ "${LEAF_ID_EXPECTED:-}" != write ] || write=yes

    "$ROOT/scripts/build.sh"
    RUN=$(as_server mktemp -d /tmp/leaf_id-clients.XXXXXX)
    export RUN
    client_pid=
    trap end_run EXIT
    trap 'exit 130' INT TERM
    mkdir -p "$TARGET/clients"
    start_server

    say "Clients, against PostgreSQL $("$PG_BIN/postgres" -V | sed -E 's/.*\) ([0-9.]+).*/\1/')"
    passed=0 failed=0 skipped=0
    for client in "${clients[@]}"; do test_client "$client"; done
    [ -z "$write" ] || write_table
    if [ $skipped -gt 0 ]; then echo "NOT EVERYTHING WAS TRIED: $skipped skipped, see above"; fi
    if [ $failed -gt 0 ] || [ $passed -eq 0 ]; then
        echo "test result: FAILED. $passed passed; $failed failed; $skipped ignored"
        return 1
    fi
    echo "test result: ok. $passed passed; $failed failed; $skipped ignored"
}

locate_copy
case ${1:-} in
install-one) one "$2" install ;;
run-one) one "$2" run ;;
*) main "$@" ;;
esac
