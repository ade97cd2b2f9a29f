# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='postgres.js'
language='JavaScript'
key='any default'
advice='ids are strings, or BigInt with an option'

install() { npm_install postgres@3.4.9; }
version() { node_version postgres; }
run() { node main.mjs; }
