# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='asyncpg'
language='Python'
key='any default'
advice='`executemany` returns no ids: `fetchmany` does'

install() { pip_install asyncpg==0.32.0; }
version() { pip_version asyncpg; }
run() { python main.py; }
