# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='pgx'
language='Go'
key='any default'
advice='`LastInsertId` of `database/sql` fails'

install() { debian golang-go golang-github-jackc-pgx-v4-dev; }
version() { debian_version golang-github-jackc-pgx-v4-dev; }
# With Debian's packages, which are no modules.
run() { GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE=$PACKAGES/cache GOFLAGS='' nice -n 10 go run main.go; }
