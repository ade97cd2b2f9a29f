"""Would catch: a library in shared_preload_libraries whose hooks, locks or settings do not go with those of
leaf_id. All of them together, each as talkative as it gets, beside the regression tests."""

from common import BIN, RUN, Server, main, run

SETTINGS = {
    "shared_preload_libraries": ",".join((
        "pg_stat_statements", "auto_explain", "pgaudit", "pg_cron", "plpgsql_check", "plugin_debugger", "pg_qualstats",
        "pg_stat_kcache", "pg_wait_sampling", "set_user", "leaf_id")),
    "leaf_id.worker_id": "5",
    "max_worker_processes": "32",
    "pg_stat_statements.track": "all",
    # Below what a test asks for: the expected output has no messages of others.
    "auto_explain.log_level": "debug5",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_nested_statements": "on",
    "pgaudit.log": "all",
    "plpgsql_check.mode": "every_start",
    "pg_qualstats.sample_rate": "1",
}


def test():
    server = Server("data", SETTINGS).start()
    regress = run(BIN / "pg_config", "--pgxs").strip().replace("makefiles/pgxs.mk", "test/regress/pg_regress")
    out = run(regress, "--dbname=regression", f"--host={server.socket}", "--user=postgres", f"--bindir={BIN}",
              "--no-locale", "--encoding=UTF8", "--inputdir=regress", "--outputdir=regress", "--schedule=regress/schedule",
              cwd=RUN)
    return out.count("... ok") + sum(line.startswith("ok ") for line in out.splitlines())


main(test)
