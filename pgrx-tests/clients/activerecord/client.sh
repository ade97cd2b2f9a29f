# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='ActiveRecord'
language='Ruby'
key="\`default: -> { \"leaf_segment_next('orders')\" }\`, or the hook"
advice='a database made from `schema.rb` or `structure.sql` has no tags: `leaf_sync()`'
schema=none

install() { debian ruby-activerecord ruby-pg rake; }
version() { debian_version ruby-activerecord; }

run() {
    ruby main.rb
    ruby fixtures.rb
    # pg_dump for structure.sql.
    PATH=$PG_BIN:$PATH
    ruby schema.rb
    cp "$ROOT/packaging/hooks/rails/leaf_id.rb" .
    ruby adopted.rb
}
