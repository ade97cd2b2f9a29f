# shellcheck shell=bash
# Bare Debians to build and test in (sourced after lib.sh): BARE is the root of one.

# enter_root ARGUMENTS...: of the script, which runs again, with mounts and processes that end with
# it, and with an empty BARE, which is removed afterwards.
enter_root() {
    local status=0
    [ -z "${BARE:-}" ] || return 0
    is_root || die "this takes root" "A bare Debian is entered with chroot."
    command -v debootstrap >/dev/null || die "debootstrap is missing" "apt install debootstrap"
    mkdir -p "$TARGET/roots"
    BARE=$(mktemp -d "$TARGET/roots/run.XXXXXX")
    export BARE
    # Nothing is mounted there on this side.
    trap 'rm -rf --one-file-system "$BARE"' EXIT
    unshare --mount --mount-proc --pid --fork --kill-child -- "$ROOT/scripts/${0##*/}" "$@" || status=$?
    exit $status
}

# logged COMMAND...: shows the end of the log if it fails.
logged() {
    "$@" >>"$BARE_LOG" 2>&1 </dev/null && return
    tail -n 20 "$BARE_LOG" >&2
    die "failed: $*" "See $BARE_LOG."
}

in_root() {
    chroot "$BARE" env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive "$@"
}

# unpack_root SUITE [ARCHITECTURE [PACKAGE]]: a Debian of that release in BARE, with sudo, today's
# lists of its packages, that package and nothing else of ours. It is made once, and kept as an archive.
unpack_root() {
    local suite=$1 architecture=${2:-$(dpkg --print-architecture)} archive new
    archive=$TARGET/roots/$suite-$architecture${3:+-$3}.tar
    BARE_LOG=$TARGET/roots/$suite-$architecture-$(basename "$0" .sh).log
    : >"$BARE_LOG"
    if [ ! -f "$archive" ]; then
        say "Making a bare Debian $suite for $architecture"
        new=$BARE/new
        # The script is the same for every release, also for one that is newer than debootstrap.
        logged debootstrap --variant=minbase --include=sudo --arch="$architecture" "$suite" "$new" \
            http://deb.debian.org/debian /usr/share/debootstrap/scripts/sid
        # As if somebody sat before it and said yes; and a mirror may lag behind.
        printf '%s "%s";\n' APT::Get::Assume-Yes true Acquire::Check-Valid-Until false >"$new/etc/apt/apt.conf.d/bare"
        echo "deb http://deb.debian.org/debian-security $suite-security main" >>"$new/etc/apt/sources.list"
        cp /etc/resolv.conf "$new/etc/"
        # sudo asks for it.
        echo "127.0.0.1 localhost $(hostname)" >"$new/etc/hosts"
        if [ -n "${3:-}" ]; then
            logged chroot "$new" apt-get -q update
            logged chroot "$new" env LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive apt-get -q install --no-install-recommends "$3"
        fi
        tar -C "$new" --one-file-system -cf "$archive.new" .
        mv "$archive.new" "$archive"
        rm -rf --one-file-system "$new"
    fi
    tar -C "$BARE" -xf "$archive"
    mount -t proc proc "$BARE/proc"
    # Nothing of the machine's own but what a server needs.
    mount -t tmpfs -o mode=755 dev "$BARE/dev"
    for device in null zero full random urandom; do cp -a "/dev/$device" "$BARE/dev/"; done
    ln -s /proc/self/fd "$BARE/dev/fd"
    mkdir -m 1777 "$BARE/dev/shm"
    cp /etc/resolv.conf "$BARE/etc/"
    # A mirror drops the packages that the archive's lists name when newer ones replace them.
    logged in_root apt-get -q update
}

# read_only DIRECTORY PLACE: a directory of this system in BARE.
read_only() {
    mkdir -p "$BARE$2"
    mount --bind "$1" "$BARE$2"
    mount -o remount,ro,bind "$BARE$2"
}

# Its PostgreSQL MAJOR, as server_name has it.
server_in_root() {
    local version
    version=$(in_root dpkg-query --show --showformat='${Version}' "postgresql-$1")
    echo "${version%%-*} (Debian)"
}

# The PostgreSQL that a package is for.
major_of_package() {
    dpkg-deb --field "$1" Package | sed -nE 's/^postgresql-([0-9]+)-leaf-id$/\1/p' | grep . ||
        die "$1 is no package of leaf_id"
}

# readme DIRECTORY: writes what README.md tells a reader to do there, for PostgreSQL $major: the
# commands that are marked as ours into sh, the SQL from there to the first INSERT into sql, and
# what it shows into output.
readme() {
    awk -v to="$1/" '
        /^<!-- test: run by scripts\/test-deb.sh -->/ { ours = begun = 1 }
        /^```/ && !inside { inside = begun; language = substr($0, 4); next }
        /^```/ { inside = ours = 0; if (language == "") exit; next }
        inside && (language == "sql" || ours) { print > (to language) }
        inside && language == "" { print > (to "output") }' README.md
    local part
    for part in sh sql output; do [ -s "$1/$part" ] || die "README.md has no $part to try"; done
    # It says what to write for another version.
    # shellcheck disable=SC2154  # the script's
    sed -i "s/\b15\b/$major/g" "$1/sh"
}

# same_as_readme TEXT: whether psql has printed what README.md shows.
same_as_readme() {
    local shown
    shown=$(cat "$BARE/tmp/output")
    # psql fills its columns.
    case $(printf '%s\n' "$1" | sed 's/ *$//') in
    *"$shown"*) ;;
    *) die "README.md shows other ids than these" "$1" ;;
    esac
}
