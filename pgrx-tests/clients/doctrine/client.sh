# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='Doctrine ORM'
language='PHP'
key='`CustomIdGenerator`'
advice='`AUTO` and `IDENTITY` ask for a sequence; the schema tool sets the default each time'

install() { debian php-cli php-pgsql php-doctrine-orm php-symfony-cache; }
version() { debian_version php-doctrine-orm php-symfony-cache; }
run() { php main.php; }
