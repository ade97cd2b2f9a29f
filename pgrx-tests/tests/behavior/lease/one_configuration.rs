//! Would catch: a node name that is not what the setting says.

use std::time::Duration;

use leaf_id_tests::{Registry, Session, default_node_name, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// Names of nodes and their worker ids.
fn nodes(session: &mut Session) -> Vec<(String, i32)> {
    let sql = "SELECT node_name || ' ' || worker_id FROM leaf_worker_status
               WHERE node_name IS NOT NULL ORDER BY 1";
    let rows = session.column::<String>(sql);
    let rows = rows.iter().map(|row| row.rsplit_once(' ').unwrap());
    rows.map(|(name, id)| (name.into(), id.parse().unwrap()))
        .collect()
}

#[test]
fn by_default_a_node_is_its_host_and_its_port() {
    let registry = Registry::start();
    let member = registry.member("%h:%p");
    member.session().next_snowflake();
    let name = default_node_name(&member);
    let sees = |name: &str| {
        let mut session = registry.server.session();
        wait_until(LIMIT, name, || {
            nodes(&mut session).iter().any(|(node, _)| node == name)
        });
    };
    sees(&name);
    assert_eq!(
        member
            .session()
            .value::<String>("SELECT boot_val FROM pg_settings WHERE name = 'leaf_id.node_name'"),
        "%h:%p"
    );
    for (setting, expanded) in [
        ("100%%", "100%".to_string()),
        ("a %p", format!("a {}", member.port())),
        ("", String::new()),
    ] {
        member.set("leaf_id.node_name", setting);
        sees(&expanded);
    }
    let mut session = member.session();
    let long = format!("{}%h", "x".repeat(63));
    for refused in ["%", "%x", "100%", "%%%", &long] {
        let set = format!("ALTER SYSTEM SET leaf_id.node_name = '{refused}'");
        let failure = session.fails(&set);
        failure.is("22023").details("63 bytes").details("\"%h\"");
    }
}
