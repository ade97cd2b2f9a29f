//! Would catch: an installing role that can modify a counter directly, or cannot manage series.
//! (Other roles are tested in sql/gapless.sql.)

use super::{NEXT, next, server_and_session};

/// The installing role creates and drops series, but cannot modify counters.
#[test]
fn the_installing_role_manages_series_and_counts_none() {
    let (server, mut admin) = server_and_session(&[]);
    admin.run("CREATE ROLE owner LOGIN; CREATE ROLE manager LOGIN");
    admin.run("CREATE DATABASE app OWNER owner");
    let mut owner = server.connect_as("owner", "app");
    owner.run(
        "CREATE EXTENSION leaf_id;
         SELECT leaf_id.leaf_gapless_create('s'), leaf_id.leaf_gapless_next('s');
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
    manager.run("SELECT leaf_id.leaf_gapless_create('of manager'); SELECT leaf_id.leaf_gapless_drop('of manager')");
    manager.fails(NEXT).is("42501");
    assert_eq!(next(&mut owner), 2);
}
