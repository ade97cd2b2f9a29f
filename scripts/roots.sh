# shellcheck shell=bash
# Bare Debian roots for builds and tests (source after lib.sh). BARE is the directory of one.

# enter_root ARGUMENTS...: reruns the calling script with these arguments, in mount and pid
# namespaces that end with it, and with an empty BARE, which is removed afterwards.
enter_root() {
    local status=0
    [ -z "${BARE:-}" ] || return 0
    is_root || die "this takes root" "A bare Debian is entered with chroot."
    command -v debootstrap >/dev/null || die "debootstrap is missing" "apt install debootstrap"
    mkdir -p "$TARGET/roots"
    BARE=$(mktemp -d "$TARGET/roots/run.XXXXXX")
    export BARE
    # Mounts are not visible in this namespace.
    trap 'rm -rf --one-file-system "$BARE"' EXIT
    unshare --mount --mount-proc --pid --fork --kill-child -- "$ROOT/scripts/${0##*/}" "$@" || status=$?
    exit $status
}

# logged COMMAND...: prints the end of the log if the command fails.
logged() {
    "$@" >>"$BARE_LOG" 2>&1 </dev/null && return
    tail -n 20 "$BARE_LOG" >&2
    die "failed: $*" "See $BARE_LOG."
}

in_root() {
    chroot "$BARE" env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive "$@"
}

# emulate ARCHITECTURE: makes the kernel start qemu for programs of that processor, as Debian's
# package qemu-user-static does where systemd runs, but with the rights of those programs (C): sudo has
# none otherwise. That holds for the whole machine, until it restarts.
emulate() {
    local binfmt=/proc/sys/fs/binfmt_misc
    [ "$1" = arm64 ] || die "no such architecture: $1 (arm64)"
    [ -e /usr/lib/binfmt.d/qemu-aarch64.conf ] || die "qemu is missing" "apt install qemu-user-static"
    [ -e $binfmt/register ] || mount -t binfmt_misc binfmt_misc $binfmt
    grep -q '^flags:.*C' $binfmt/qemu-aarch64 2>/dev/null && return
    [ ! -e $binfmt/qemu-aarch64 ] || echo -1 >$binfmt/qemu-aarch64
    sed 's/:[A-Z]*$/&C/' /usr/lib/binfmt.d/qemu-aarch64.conf >$binfmt/register
}

# unpack_root SUITE [ARCHITECTURE]: creates a Debian of that release in BARE, with sudo, today's
# package lists, and no other additions. It is bootstrapped once, and kept as an archive.
unpack_root() {
    local suite=$1 architecture=${2:-$(dpkg --print-architecture)} archive new
    archive=$TARGET/roots/$suite-$architecture.tar
    [ "$architecture" = "$(dpkg --print-architecture)" ] || emulate "$architecture"
    BARE_LOG=$TARGET/roots/$suite-$architecture-$(basename "$0" .sh).log
    : >"$BARE_LOG"
    if [ ! -f "$archive" ]; then
        say "Making a bare Debian $suite for $architecture"
        new=$BARE/new
        # The script is the same for every release, including those unknown to debootstrap.
        logged debootstrap --force-check-gpg --variant=minbase --include=sudo --arch="$architecture" "$suite" "$new" \
            http://deb.debian.org/debian /usr/share/debootstrap/scripts/sid
        # Answer all questions with yes, and accept a mirror that lags behind.
        printf '%s "%s";\n' APT::Get::Assume-Yes true Acquire::Check-Valid-Until false >"$new/etc/apt/apt.conf.d/bare"
        [ "$suite" = sid ] ||
            echo "deb http://deb.debian.org/debian-security $suite-security main" >>"$new/etc/apt/sources.list"
        cp /etc/resolv.conf "$new/etc/"
        # Required by sudo.
        echo "127.0.0.1 localhost $(hostname)" >"$new/etc/hosts"
        tar -C "$new" --one-file-system -cf "$archive.new" .
        mv "$archive.new" "$archive"
        rm -rf --one-file-system "$new"
    fi
    tar -C "$BARE" -xf "$archive"
    mount -t proc proc "$BARE/proc"
    # Only the devices that a server needs.
    mount -t tmpfs -o mode=755 dev "$BARE/dev"
    for device in null zero full random urandom; do cp -a "/dev/$device" "$BARE/dev/"; done
    ln -s /proc/self/fd "$BARE/dev/fd"
    mkdir -m 1777 "$BARE/dev/shm"
    cp /etc/resolv.conf "$BARE/etc/"
    # What this system trusts besides Debian's certificates, for when those are installed.
    mkdir -p "$BARE/usr/local/share"
    if [ -d /usr/local/share/ca-certificates ]; then cp -r /usr/local/share/ca-certificates "$BARE/usr/local/share/"; fi
    # A mirror removes packages named in the archive's lists when newer ones replace them.
    logged in_root apt-get -q update
}

# read_only DIRECTORY PLACE: mounts a directory of this system in BARE.
read_only() {
    mkdir -p "$BARE$2"
    mount --bind "$1" "$BARE$2"
    mount -o remount,ro,bind "$BARE$2"
}

# Name of PostgreSQL $major in the root, as from server_name.
server_in_root() {
    local version
    version=$(in_root dpkg-query --show --showformat='${Version}' "postgresql-$1")
    echo "${version%%-*} (Debian)"
}

# Major version of the PostgreSQL of the root's Debian.
major_of_suite() { in_root apt-cache show postgresql | sed -nE 's/^Depends:.* postgresql-([0-9]+).*/\1/p' | head -n 1; }

# Major version of PostgreSQL that a package is for.
major_of_package() {
    dpkg-deb --field "$1" Package | sed -nE 's/^postgresql-([0-9]+)-leaf-id$/\1/p' | grep . ||
        die "$1 is no package of leaf_id"
}

# readme DIRECTORY: extracts from README.md, for PostgreSQL $major, the commands marked for this
# test to file sh, the first SQL to sql, and the output shown below it to output.
readme() {
    awk -v to="$1/" '
        /^<!-- test: run by scripts\/test-deb.sh -->/ { ours = 1 }
        /^```/ && !inside { inside = ++blocks; language = substr($0, 4); next }
        /^```/ { inside = ours = 0; next }
        ours && inside { print > (to "sh") }
        inside == 1 && language == "sql" { print > (to "sql") }
        inside == 2 && language == "" { print > (to "output") }' README.md
    local part
    for part in sh sql output; do [ -s "$1/$part" ] || die "README.md has no $part to try"; done
    # README.md explains how to change the version.
    # shellcheck disable=SC2154  # the script's
    sed -i "s/\b15\b/$major/g" "$1/sh"
}

# same_as_readme TEXT: checks that psql has printed the output in README.md.
same_as_readme() {
    local shown
    shown=$(cat "$BARE/tmp/output")
    # psql pads columns.
    case $(printf '%s\n' "$1" | sed 's/ *$//') in
    *"$shown"*) ;;
    *) die "README.md shows other ids than these" "$1" ;;
    esac
}
