# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='EclipseLink'
language='Java'
key='a `QuerySequence` over `leaf_segment_next_range`'
advice='`IDENTITY` reads `lastval()`: an error, or an id of another table'

install() {
    command -v javac >/dev/null || debian default-jdk-headless
    debian libpostgresql-jdbc-java libeclipselink-java
}
version() { debian_version libeclipselink-java; }

run() {
    local jars=/usr/share/java
    export CLASSPATH=$jars/postgresql.jar:$jars/eclipselink.jar:$jars/eclipselink-jpa-2.1-spec.jar:$jars/org.eclipse.persistence.jpa.jpql.jar:.
    javac -proc:none -d . shop/*.java
    java shop.Main
}
