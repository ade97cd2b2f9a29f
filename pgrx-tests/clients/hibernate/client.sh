# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='Hibernate'
language='Java'
key='an `IdentifierGenerator` over `leaf_segment_next_range`'
advice='`IDENTITY` works, one INSERT a row; `SEQUENCE` asks for a sequence. Nothing after 3.6 was tried'

install() {
    command -v javac >/dev/null || debian default-jdk-headless
    debian libpostgresql-jdbc-java libhibernate3-java libslf4j-java libantlr-java libdom4j-java libjavassist-java
}
version() { debian_version libhibernate3-java; }

run() {
    local jars=/usr/share/java
    local jar
    CLASSPATH=.
    for jar in postgresql hibernate-core hibernate-commons-annotations slf4j-api slf4j-nop antlr dom4j javassist \
        commons-collections3 geronimo-jta-1.2-spec geronimo-jpa_2.0_spec; do
        CLASSPATH=$CLASSPATH:$jars/$jar.jar
    done
    export CLASSPATH
    javac -proc:none -d . shop/*.java
    java --add-opens java.base/java.lang=ALL-UNNAMED shop.Main
}
