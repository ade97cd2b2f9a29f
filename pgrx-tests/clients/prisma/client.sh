# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='Prisma'
language='JavaScript'
key="\`BigInt @id @default(dbgenerated(\"leaf_segment_next('orders'::text)\"))\`"
advice='ids are BigInt, which `JSON.stringify` refuses. `prisma migrate` was not tried'

install() { npm_install prisma@7.10.1 @prisma/client@7.10.0 @prisma/adapter-pg@7.10.1; }
version() { node_version @prisma/client; }

run() {
    # Generating asks for the engine that migrates, and does not use it.
    CHECKPOINT_DISABLE=1 PRISMA_HIDE_UPDATE_MESSAGE=1 PRISMA_SCHEMA_ENGINE_BINARY=/bin/true \
        node node_modules/prisma/build/index.js generate
    node main.mjs
}
