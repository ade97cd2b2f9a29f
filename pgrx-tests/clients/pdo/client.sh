# shellcheck shell=bash disable=SC2016,SC2034  # the variables are the runner's
title='PDO'
language='PHP'
key='any default'
advice='`lastInsertId()` returns an id of another table, or fails'

install() { debian php-cli php-pgsql; }
version() { php -r 'echo PHP_MAJOR_VERSION, ".", PHP_MINOR_VERSION, "\n";'; }
run() { php main.php; }
