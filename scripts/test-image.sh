#!/usr/bin/env bash
# test-image.sh SUITE DEB: tests packaging/docker with a package, in a bare Debian instead of the
# base images, and without Docker: runs the steps of the Dockerfiles. With the extension image, for
# PostgreSQL 18 and later, the server finds leaf_id by path settings alone; with the other one,
# every new cluster preloads it. Requires root and debootstrap.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/roots.sh
. "$ROOT/scripts/roots.sh"

suite=${1:?the name of a Debian release}
deb=$(realpath "${2:?a package}")
enter_root "$@"
major=$(major_of_package "$deb")
unpack_root "$suite"
logged in_root apt-get -q install --no-install-recommends "postgresql-$major"
readme "$BARE/tmp"
cp "$deb" "$BARE/tmp/leaf_id.deb"

# run FILE: executes its RUN.
run() {
    local commands
    commands=$(sed '/^ *#/d' "packaging/docker/$1" | sed -n '/^RUN /,/[^\\]$/{ s/^RUN //; p; }')
    [ -n "$commands" ] || die "$1 has no RUN"
    logged in_root env PG_MAJOR="$major" sh -eux -c "$commands"
}

# insert NAME [SETTING...]: README.md's first INSERT, on a new server with these settings.
insert() {
    local data=/srv/$1 programs=/usr/lib/postgresql/$major/bin
    shift
    in_root install -d -o postgres "$data"
    as_postgres() { in_root runuser -u postgres -- "$@"; }
    logged as_postgres "$programs/initdb" -D "$data"
    printf '%s\n' "$@" >>"$BARE$data/postgresql.conf"
    logged as_postgres "$programs/pg_ctl" -D "$data" -w -l "$data/log" start
    same_as_readme "$(as_postgres psql -X -v ON_ERROR_STOP=1 2>&1 <"$BARE/tmp/sql")"
    logged as_postgres "$programs/pg_ctl" -D "$data" -w -m fast stop
}

tried="the server's image"
if [ "$major" -ge 18 ]; then
    tried="both images"
    say "The extension image, on Debian $suite's PostgreSQL $major"
    run Dockerfile.extension
    # CloudNativePG's mount point.
    image=/extensions/leaf_id
    while read -r _ _ from to; do
        mkdir -p "$BARE$image$to"
        cp -r "$BARE$from." "$BARE$image$to"
    done < <(grep '^COPY --from=files ' packaging/docker/Dockerfile.extension)
    found=$(in_root sh -c "cd $image && find . -type f | sort")
    wanted=$({
        printf './%s\n' lib/leaf_id.so licenses/leaf_id licenses/leaf_id-THIRD-PARTY share/extension/leaf_id.control
        find sql -maxdepth 1 -name 'leaf_id--*--*.sql' -printf './share/extension/%f\n'
        echo "./share/extension/leaf_id--$(version).sql"
    } | sort)
    [ "$found" = "$wanted" ] || die "the image holds other files than a server needs" "$(diff <(echo "$wanted") <(echo "$found"))"
    insert extension "shared_preload_libraries = 'leaf_id'" \
        "extension_control_path = '\$system:$image/share'" \
        "dynamic_library_path = '\$libdir:$image/lib'"
fi

say "The server's image, on Debian $suite's PostgreSQL $major"
share=/usr/share/postgresql
# Like the official image.
in_root sh -c "mv $share/$major/postgresql.conf.sample $share/ && ln -s ../postgresql.conf.sample $share/$major/"
cat >"$BARE/etc/dpkg/dpkg.cfg.d/docker" <<'END'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
END
run Dockerfile
[ -s "$BARE/usr/share/doc/postgresql-$major-leaf-id/THIRD-PARTY" ] || die "the server's image has no notices of what it contains"
insert server
record "$tried without Docker, in a bare $suite" "$(server_in_root "$major")" 1 0 0 ok
say "Debian $suite, PostgreSQL $major: $tried, all as in README.md"
