//! Would catch: a role that takes numbers, or holds up others, without having been let; one that
//! counts a series itself; and code of somebody else's that runs in a call.

use super::{NEXT, last, next, server_and_session};

#[test]
fn a_role_needs_execute_and_nothing_else() {
    let (server, mut admin) = server_and_session(&[]);
    admin.run("CREATE ROLE clerk LOGIN; CREATE ROLE stranger LOGIN");
    admin.run(
        "GRANT EXECUTE ON FUNCTION leaf_gapless_next TO clerk;
         CREATE TABLE invoices (number bigint DEFAULT leaf_gapless_next('s'));
         GRANT INSERT, SELECT ON invoices TO clerk, stranger",
    );
    let mut clerk = server.connect_as("clerk", "postgres");
    assert_eq!(next(&mut clerk), 1);
    assert_eq!(
        clerk.ids("INSERT INTO invoices DEFAULT VALUES RETURNING number"),
        [2]
    );
    let mut stranger = server.connect_as("stranger", "postgres");
    stranger.fails(NEXT).is("42501");
    stranger
        .fails("INSERT INTO invoices DEFAULT VALUES")
        .is("42501");
    for session in [&mut clerk, &mut stranger] {
        for sql in [
            "SELECT * FROM leaf_id.leaf_gapless",
            "SELECT * FROM leaf_id.leaf_gapless FOR UPDATE",
            "UPDATE leaf_id.leaf_gapless SET last_number = 0",
            "DELETE FROM leaf_id.leaf_gapless",
            "SELECT leaf_gapless_create('mine')",
            "SELECT leaf_gapless_drop('s')",
        ] {
            session.fails(sql).is("42501");
        }
    }
    // One series and no other: a function of the manager's own, as documented.
    admin.run(
        "SELECT leaf_gapless_create('other');
         CREATE FUNCTION next_of_s() RETURNS bigint LANGUAGE sql SECURITY DEFINER
             SET search_path = pg_catalog, pg_temp BEGIN ATOMIC SELECT public.leaf_gapless_next('s'); END",
    );
    assert_eq!(stranger.value::<i64>("SELECT next_of_s()"), 3);
    stranger
        .fails("SELECT leaf_gapless_next('other')")
        .is("42501");
}

/// Who has installed the extension creates and drops series, and does not count them either.
#[test]
fn the_installing_role_manages_series_and_counts_none() {
    let (server, mut admin) = server_and_session(&[]);
    admin.run("CREATE ROLE owner LOGIN; CREATE ROLE manager LOGIN");
    admin.run("CREATE DATABASE app OWNER owner");
    let mut owner = server.connect_as("owner", "app");
    owner.run(
        "CREATE EXTENSION leaf_id;
         SELECT leaf_gapless_create('s'), leaf_gapless_next('s');
         GRANT SELECT, INSERT, DELETE ON leaf_id.leaf_gapless TO manager",
    );
    owner
        .fails("UPDATE leaf_id.leaf_gapless SET last_number = 0")
        .is("42501");
    owner
        .fails("SELECT FROM leaf_id.leaf_gapless FOR UPDATE")
        .is("42501");
    owner
        .fails("ALTER TABLE leaf_id.leaf_gapless DISABLE TRIGGER ALL")
        .is("42501");
    let mut manager = server.connect_as("manager", "app");
    manager.run("SELECT leaf_gapless_create('of manager'); SELECT leaf_gapless_drop('of manager')");
    manager.fails(NEXT).is("42501");
    assert_eq!(next(&mut owner), 2);
}

/// I9: a role that was given TRIGGER, as part of ALL, does not act in calls of others.
#[test]
fn nobodys_trigger_rule_or_policy_takes_part() {
    let (server, mut admin) = server_and_session(&[]);
    admin.run(
        "CREATE ROLE mallory LOGIN; CREATE SCHEMA hers AUTHORIZATION mallory;
         GRANT ALL ON leaf_id.leaf_gapless TO mallory",
    );
    server.connect_as("mallory", "postgres").run(
        "CREATE FUNCTION hers.f() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'run as %', current_user; END $$;
         CREATE TRIGGER t BEFORE UPDATE ON leaf_id.leaf_gapless
             FOR EACH ROW EXECUTE FUNCTION hers.f();
         CREATE TRIGGER t2 AFTER UPDATE ON leaf_id.leaf_gapless EXECUTE FUNCTION hers.f()",
    );
    assert_eq!([next(&mut admin), next(&mut admin)], [1, 2]);
    admin.run(
        "ALTER TABLE leaf_id.leaf_gapless ENABLE ROW LEVEL SECURITY;
         ALTER TABLE leaf_id.leaf_gapless FORCE ROW LEVEL SECURITY;
         CREATE RULE r AS ON UPDATE TO leaf_id.leaf_gapless DO INSTEAD NOTHING",
    );
    assert_eq!(next(&mut admin), 3);
    assert_eq!(last(&mut admin), 3);
}
