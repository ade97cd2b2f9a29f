#!/usr/bin/env bash
# test-from-nothing.sh SUITE [TARGET...]: runs "make demo", or other targets, as a stranger does: in a
# bare Debian of that release, without Rust and PostgreSQL, as a user with sudo, in a copy of the
# checkout, with the same TESTS, STEPS and TIER. SUITE "experimental" is sid with the PostgreSQL that
# is only there, and its name is PG_MAJOR; for test-upgrade, also with sid's own. Requires root and
# debootstrap.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/roots.sh
. "$ROOT/scripts/roots.sh"

suite=${1:?the name of a Debian release}
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(demo)
enter_root "$@"
upgrade=()
if [ "$suite" = experimental ]; then
    major=$PG_MAJOR
    unpack_root sid
    old=$(major_of_suite)
    echo "deb http://deb.debian.org/debian experimental main" >>"$BARE/etc/apt/sources.list"
    logged in_root apt-get -q update
    packages=(postgresql-"$major" postgresql-client-"$major" postgresql-server-dev-"$major" libpq5 libpq-dev)
    packages=("${packages[@]/%//experimental}")
    if [[ " ${targets[*]} " = *" test-upgrade "* ]]; then
        packages+=(postgresql-"$old" postgresql-server-dev-"$old")
        upgrade=("OLD=/usr/lib/postgresql/$old/bin/pg_config" "NEW=/usr/lib/postgresql/$major/bin/pg_config")
    fi
    logged in_root apt-get -q install --no-install-recommends "${packages[@]}"
else
    unpack_root "$suite"
    # The one of this release of Debian.
    major=
fi
logged in_root apt-get -q install --no-install-recommends make
in_root useradd --create-home reader
echo 'reader ALL=(ALL) NOPASSWD: ALL' >"$BARE/etc/sudoers.d/reader"
home=/home/reader/leaf_id
mkdir "$BARE$home"
source_files | xargs -0 cp --parents -t "$BARE$home"
in_root chown -R reader: "$home"

# There is no git in the root.
commit=$(tested_commit) || commit=unknown
say "Debian $suite: make ${targets[*]}, in $home (see $BARE_LOG)"
began=$SECONDS
status=0
in_root runuser -u reader -- env HOME=/home/reader LEAF_ID_COMMIT="$commit" ${major:+PG_MAJOR="$major"} \
    ${TESTS:+TESTS="$TESTS"} ${TIER:+TIER="$TIER"} ${STEPS:+STEPS="$STEPS"} make -C $home "${targets[@]}" "${upgrade[@]}" 2>&1 </dev/null | tee -a "$BARE_LOG" || status=$?
results=$BARE$home/target/results/tests.tsv
if [ -s "$results" ]; then
    mkdir -p "$TARGET/results"
    cat "$results" >>"$TARGET/results/tests.tsv"
    # Like record does.
    chown -R --reference="$ROOT" "$TARGET/results"
fi
[ $status -eq 0 ] || die "make ${targets[*]} fails in a bare Debian $suite" "See $BARE_LOG."
[ -n "${TESTS:-}${TIER:-}" ] ||
    record "make ${targets[*]}, from nothing, in a bare $suite" "$(server_in_root "$(in_root ls /usr/lib/postgresql | tail -n 1)")" 1 0 0 ok
say "make ${targets[*]}, from nothing, in Debian $suite: $(duration $((SECONDS - began)))"
