//! Would catch: servers with the same configuration that take each other for copies (I3), or one
//! that issues nothing for a while after its promotion (I10); and a node name that differs from the
//! setting.

use std::time::Duration;

use leaf_id_tests::{
    Asking, CENTRAL, First, Registry, Server, Session, Stop, assert_apart, assert_in_order,
    default_node_name, in_threads_until, tell, wait_until,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Time limit for a server's first id. It takes leaf_id.timestamp_reservation, a second, and two
/// flushed files, which take seconds on a busy disk. Much shorter than a lease, which is five
/// minutes.
const AT_ONCE: Duration = Duration::from_secs(30);

/// Settings of all three servers, whose own database has the registry.
const CONF: [(&str, &str); 5] = [
    ("leaf_id.worker_id", "auto"),
    ("leaf_id.worker_registry", "postgres"),
    // For replication and pg_rewind.
    ("wal_log_hints", "on"),
    ("wal_keep_size", "256MB"),
    ("wal_retrieve_retry_interval", "100ms"),
];
/// On one machine, only the port distinguishes their node names.
const PORTS: [&str; 3] = ["5441", "5442", "5443"];

/// Node names and worker ids.
fn nodes(session: &mut Session) -> Vec<(String, i32)> {
    let sql = "SELECT name || ' ' || worker_id FROM leaf_id.fleet
               WHERE kind = 'member' AND name IS NOT NULL ORDER BY 1";
    let rows = session.column::<String>(sql);
    let rows = rows.iter().map(|row| row.rsplit_once(' ').unwrap());
    rows.map(|(name, id)| (name.into(), id.parse().unwrap()))
        .collect()
}

/// Settings in the configuration file that do not depend on the directory.
fn configuration(server: &Server) -> Vec<String> {
    server.session().column(
        "SELECT name || '=' || setting FROM pg_settings
         WHERE source = 'configuration file'
             AND name NOT IN ('port', 'unix_socket_directories', 'primary_conninfo')
         ORDER BY 1",
    )
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

#[test]
fn three_servers_of_one_configuration_fail_over_and_switch_over() {
    let conf = |number: usize| [&CONF[..], &[("port", PORTS[number])]].concat();
    let first = Server::with_leaf_id(&conf(0));
    let standbys = [1, 2].map(|number| first.standby(&[("port", PORTS[number])]));
    let [second, third] = standbys;
    let servers = [first, second, third];
    let [first, second, third] = &servers;
    for standby in [second, third] {
        assert_eq!(configuration(standby), configuration(first));
    }
    let asking: [Asking; 3] = Default::default();
    let issues = |number: usize, after: &str| -> First {
        let first = asking[number].first(&servers[number]);
        let port = servers[number].port();
        tell(&format!(
            "{after}: the first snowflake id of {port} after {:?}, {} refusals{}",
            first.took,
            first.refusals.len(),
            first
                .refusals
                .last()
                .map_or(String::new(), |failure| format!(", the last {failure}"))
        ));
        first
    };
    let at_once = |first: First| {
        assert!(first.took < AT_ONCE, "{first:?}");
        assert_eq!(first.refusals, []);
    };
    let _ = issues(0, "first start");
    in_threads_until(
        3,
        |number, done| asking[number].ask(&servers[number], done),
        || {
            asking[0].wait_for_ids();
            second.replay_all_of(first);
            third.replay_all_of(first);
            first.kill_9();
            second.promote();
            at_once(issues(1, "failover"));
            asking[1].wait_for_ids();

            third.configure("primary_conninfo", &second.conninfo());
            // Otherwise pg_rewind would not see the new timeline.
            second.session().run("CHECKPOINT");
            first.rewind_and_follow(second);
            for standby in [first, third] {
                standby.replay_all_of(second);
            }
            second.stop(Stop::Fast);
            third.promote();
            at_once(issues(2, "switchover"));
            asking[2].wait_for_ids();

            second.follow(third);
            // Its lease has not ended, but the third server has its worker id now.
            second
                .session()
                .fails("SELECT leaf_snowflake_next()")
                .is("25006");
            first.configure("primary_conninfo", &third.conninfo());
            for standby in [first, second] {
                standby.replay_all_of(third);
            }
            third.stop(Stop::Fast);
            first.promote();
            at_once(issues(0, "switchover to the first"));
            asking[0].wait_for_ids();
        },
    );
    for asking in &asking {
        assert_in_order(asking.calls());
    }
    assert_apart(&asking);
    // One worker id, inherited with the registry.
    let nodes = nodes(&mut first.session());
    let nodes: Vec<_> = nodes.into_iter().map(|node| node.0).collect();
    assert_eq!(nodes, [default_node_name(first)]);
}

/// The registry is in their own database, too, but reached through a foreign server that points to
/// the current primary.
#[test]
fn hot_standbys_of_one_configuration_go_on_when_one_is_promoted() {
    let conf = |number: usize| {
        let registry = [("leaf_id.worker_registry", "postgres/leaf_central")];
        [&CONF[..], &registry, &[("port", PORTS[number])]].concat()
    };
    let first = Server::with_leaf_id(&conf(0));
    first.admit_members();
    first.lease_worker_ids();
    let standbys = [1, 2].map(|number| first.standby(&[("port", PORTS[number])]));
    let [second, third] = standbys;
    let servers = [first, second, third];
    let [first, second, third] = &servers;
    let mut session = first.session();
    session.run("CREATE EXTENSION dblink");
    session.create_foreign_server(CENTRAL, &servers.each_ref().map(Server::dir));
    let ports = PORTS.join(",");
    session.run(&format!(
        "ALTER SERVER {CENTRAL} OPTIONS (ADD port '{ports}')"
    ));
    let asking: [Asking; 3] = Default::default();
    for (asking, server) in asking.iter().zip(&servers) {
        let first = asking.first(server);
        println!("{}: {:?}", server.port(), first.took);
    }
    let nodes_before = nodes(&mut session);
    drop(session);
    let names = servers.each_ref().map(default_node_name);
    assert_eq!(
        nodes_before.iter().map(|node| &node.0).collect::<Vec<_>>(),
        names.iter().collect::<Vec<_>>()
    );
    let refused = asking.each_ref().map(|asking| asking.refusals().len());
    in_threads_until(
        3,
        |number, done| asking[number].ask(&servers[number], done),
        || {
            for asking in &asking {
                asking.wait_for_ids();
            }
            second.replay_all_of(first);
            third.replay_all_of(first);
            first.kill_9();
            second.promote();
            let first = asking[1].first(second);
            tell(&format!(
                "a hot standby that was promoted: an id after {:?}",
                first.took
            ));
            assert!(first.took < AT_ONCE, "{first:?}");
            third.configure("primary_conninfo", &second.conninfo());
            third.replay_all_of(second);
            for asking in &asking[1..] {
                asking.wait_for_ids();
            }
        },
    );
    for (asking, refused) in asking.iter().zip(refused).skip(1) {
        assert_eq!(
            asking.refusals().len(),
            refused,
            "{:?}",
            asking.refusals().last()
        );
    }
    for asking in &asking {
        assert_in_order(asking.calls());
    }
    assert_apart(&asking);
    assert_eq!(nodes(&mut second.session()), nodes_before);
}
