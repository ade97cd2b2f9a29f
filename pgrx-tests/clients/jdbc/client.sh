# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='JDBC'
language='Java'
key='any default'
advice='`RETURN_GENERATED_KEYS` returns all columns: name the key'

install() {
    command -v javac >/dev/null || debian default-jdk-headless
    debian libpostgresql-jdbc-java
}
version() { debian_version libpostgresql-jdbc-java; }
run() { java -cp /usr/share/java/postgresql.jar Main.java; }
