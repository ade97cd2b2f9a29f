# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='node-postgres'
language='JavaScript'
key='any default'
advice='ids are strings'

install() { npm_install pg@8.23.1; }
version() { node_version pg; }
run() { node main.mjs; }
