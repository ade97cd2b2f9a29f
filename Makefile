# Every recipe is one script in scripts/; what they share is scripts/lib.sh.
#
# PG_MAJOR   version of the system's PostgreSQL that is developed and tested against (the one in this
#            release of Debian; elsewhere 15)
# SECTIONS   what "make bench" measures (all; one-session one-row bulk sessions latency start-up)
# TESTS      which tests on real servers "make check", "make test" and "make test-all" run, and no others,
#            by the beginnings of their names: "lease segment::waits"
# STEPS      which parts "make test" runs, and no others: "core servers"
# CLIENTS    which of pgrx-tests/clients "make test-clients" tries (all)
# NIGHT      how long "make night" tortures servers, and which (7200 15 18-assert)
# PG_CONFIG  the PostgreSQL that "make all", "make install", "make installcheck", "make uninstall",
#            "make package" and "make deb" are for; all other targets then develop and test against
#            a copy of it, if it is in a prefix of its own

PG_CONFIG ?= pg_config

.DEFAULT_GOAL := help
.PHONY: help setup build demo demo-stop bench check test test-all test-clients test-another-version \
        test-upgrade test-monitoring test-patroni test-pgbackrest test-pg-repack test-neighbors test-citus torture night lint fmt all install \
        installcheck uninstall package deb test-deb test-from-nothing test-dist-upgrade test-image rpm-spec release matrix env \
        clean distclean

help: ## list the targets
	@echo "leaf_id: unique 64-bit ids from shared memory, inside PostgreSQL"
	@echo
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)$$/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r target words; do printf '%-28s %s\n' "$$target" "$$words"; done

demo: ## see it work: a private server, many sessions, a report
	@scripts/demo.sh run

demo-stop: ## stop the demo's server and remove its data
	@scripts/demo.sh stop

bench: ## measure it beside sequences and uuids: 40 minutes; LEAF_ID_BENCH=quick: a few; PGEDGE=/path/to/snowflake's/source: beside that, too
	@PGEDGE='$(PGEDGE)' scripts/bench.sh $(SECTIONS)

check: ## lint and the quick tests: three minutes
	@scripts/test.sh check

test: ## set up, build and test: ten minutes, more the first time
	@scripts/test.sh $(or $(STEPS),test)

test-all: ## everything, on all versions of PostgreSQL: hours
	@scripts/test-versions.sh all

test-clients: ## drivers, ORMs and migration tools, with their packages: 8 minutes; CLIENTS="psycopg django": some
	@scripts/test-clients.sh $(CLIENTS)

test-another-version: ## the tests on real servers with another version, which the commit chooses
	@scripts/test-versions.sh another

test-upgrade: ## pg_upgrade from OLD=/path/to/pg_config to NEW=/path/to/pg_config, with ids in use
	@scripts/test-upgrade.sh '$(OLD)' '$(NEW)'

test-monitoring: ## each alert fires, and is silent otherwise: Prometheus and postgres_exporter, installed by apt
	@scripts/test-operations.sh monitoring

test-patroni: ## a failover and a switchover under load, by Patroni, installed by apt
	@scripts/test-operations.sh patroni

test-pgbackrest: ## a restore to a point in time, by pgBackRest, installed by apt
	@scripts/test-operations.sh pgbackrest

test-pg-repack: ## pg_repack of every table of leaf_id, under load, installed by apt
	@scripts/test-operations.sh pg_repack

test-neighbors: ## the regression tests beside ten other libraries, installed by apt
	@scripts/test-operations.sh neighbors

test-citus: ## a Citus cluster: every statement on every node. Built from CITUS=/path/to/its/source
	@CITUS=$(CITUS) scripts/test-operations.sh citus

night: ## everything random, and what it met in bench/results/night.md: two and a half hours or more; NIGHT=600: of ten minutes of torture
	@scripts/night.sh $(NIGHT)

torture: ## kill, restart and edit under many sessions, one server and a fleet: 25 minutes
	@scripts/torture.sh

lint: ## format check, clippy, house rules, names in the SQL
	@scripts/lint.sh

fmt: ## format the sources
	@cargo fmt --all

setup: ## install what is missing: PostgreSQL, its headers, clang
	@scripts/setup.sh

build: ## build the release into a private copy of PostgreSQL
	@scripts/build.sh

all: ## compile what "make install" installs, for PG_CONFIG=/path/to/pg_config
	@scripts/install.sh package '$(PG_CONFIG)'

install: ## build and install for PG_CONFIG=/path/to/pg_config
	@scripts/install.sh install '$(PG_CONFIG)'

installcheck: ## the regression tests on a running server of PG_CONFIG, found as psql finds it
	@scripts/install.sh installcheck '$(PG_CONFIG)'

uninstall: ## remove what "make install" installed for PG_CONFIG
	@scripts/install.sh uninstall '$(PG_CONFIG)'

package: ## build a directory to package, for PG_CONFIG=/path/to/pg_config
	@scripts/install.sh package '$(PG_CONFIG)'

deb: ## build a Debian package for PG_CONFIG, or for SUITE's PostgreSQL in a bare one (ARCH=arm64: cross), in target/deb
	@scripts/deb.sh '$(PG_CONFIG)' '$(SUITE)' '$(ARCH)'

test-deb: ## install DEB in a bare Debian SUITE (bookworm, trixie), and insert: as root
	@scripts/test-deb.sh '$(SUITE)' '$(DEB)'

test-from-nothing: ## make demo, or another TARGET, in a bare Debian SUITE without Rust and PostgreSQL: as root
	@scripts/test-from-nothing.sh '$(SUITE)' $(TARGET)

test-dist-upgrade: ## pg_upgrade from OLD_SUITE's PostgreSQL with OLD_DEB to SUITE's with DEB, in a bare SUITE: as root
	@scripts/test-dist-upgrade.sh '$(OLD_SUITE)' '$(OLD_DEB)' '$(SUITE)' '$(DEB)'

test-image: ## do what the Dockerfiles do with DEB in a bare Debian SUITE, and insert: as root
	@scripts/test-image.sh '$(SUITE)' '$(DEB)'

rpm-spec: ## write the .spec of an RPM package for PG_MAJOR, checked by rpmlint
	@scripts/rpm-spec.sh

release: ## check, build, test and collect what a release consists of; TRIAL=1 goes past what is not ready
	@scripts/release.sh $(if $(TRIAL),--trial)

matrix: ## write what was tried into bench/results/tested.md, from the results in target/results
	@scripts/matrix.sh

env: ## print what cargo needs to know: eval "$(make -s env)"
	@scripts/env.sh

clean: ## remove what was built from these sources
	@scripts/clean.sh

distclean: ## remove everything that was built or copied
	@scripts/clean.sh all
