# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='Hibernate'
language='Java'
key='a `@LeafId` of your own, over `leaf_segment_next_range`'
advice='`IDENTITY` works, one INSERT a row; `AUTO` and `SEQUENCE` ask for a sequence'

install() {
    command -v javac >/dev/null || debian default-jdk-headless
    command -v mvn >/dev/null || debian maven
    debian libpostgresql-jdbc-java
    once "Hibernate $(version)" jars
}
version() { sed -n 's/.*<version>\(.*\)\.Final<.*/\1/p' "$SOURCE/pom.xml"; }

jars() {
    rm -rf "$PACKAGES/jars"
    "${limited[@]}" mvn --batch-mode --quiet --file "$SOURCE/pom.xml" \
        dependency:copy-dependencies -DoutputDirectory="$PACKAGES/jars"
}

run() {
    export CLASSPATH=/usr/share/java/postgresql.jar:$PACKAGES/jars/*:.
    javac -proc:none -d . shop/*.java
    java shop.Main
}
