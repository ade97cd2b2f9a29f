# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='sqlx'
language='Rust'
key='any default'
advice='none'
schema=extension
# It compiles.
seconds=900

install() { fetch_crates; }
version() { crate_version sqlx; }
run() { run_crate; }
