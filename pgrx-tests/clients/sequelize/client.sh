# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='Sequelize'
language='JavaScript'
key='`autoIncrement: true`, or `defaultValue: literal(…)`'
advice='without either it sends NULL for the key; `sync()` makes a `bigserial` of `autoIncrement`, which the hook adopts'

install() { npm_install sequelize@6.37.8 pg@8.23.1; }
version() { node_version sequelize; }
run() {
    node main.mjs
    cp "$ROOT/packaging/hooks/sequelize/leaf_id.mjs" .
    node adopted.mjs
}
