# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='TypeORM'
language='JavaScript'
key='`type: "bigint", primary: true, default: () => …`'
advice='`synchronize` puts a sequence in place of the default where the key is `generated`'
schema=extension

install() { npm_install typeorm@1.1.1 reflect-metadata@0.2.2 pg@8.23.1; }
version() { node_version typeorm; }
run() { node main.mjs; }
