# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='Diesel'
language='Rust'
key='any default'
advice='leave the key out of the `Insertable`'
# It compiles.
seconds=900

install() {
    # It links with libpq.
    debian libpq-dev
    fetch_crates
}
version() { crate_version diesel; }
run() { run_crate; }
