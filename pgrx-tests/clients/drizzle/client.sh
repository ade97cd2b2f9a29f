# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='Drizzle'
language='JavaScript'
key='``bigint({ mode: '"'"'bigint'"'"' }).default(sql`…`)``'
advice='`mode: "number"` rounds snowflake ids'
schema=extension

install() { npm_install drizzle-orm@0.45.4 drizzle-kit@0.31.11 pg@8.23.1; }
version() { node_version drizzle-orm; }

run() {
    local kit="node node_modules/drizzle-kit/bin.cjs" PAGER=cat
    # A custom migration is where the tag belongs.
    $kit generate --custom --name tags
    echo "SELECT leaf_tag_create('orders');" >drizzle/0000_tags.sql
    $kit generate --name tables
    $kit migrate
    # The schema is the database's: nothing to add, change or drop.
    $kit generate | tee generate.log
    grep -q 'No schema changes' generate.log || die 'drizzle-kit generate finds changes'
    $kit push --force --verbose | tee push.log
    grep -q 'No changes detected' push.log || die 'drizzle-kit push finds changes'
    node main.mjs
}
