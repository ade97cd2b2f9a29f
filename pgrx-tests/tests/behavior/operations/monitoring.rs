//! Would catch: a metric in packaging/monitoring/postgres_exporter.yaml without a column, a column
//! without a metric, an alert or a panel on a missing metric, a query that fails, and an alert
//! that does not say what to do. Values and alerts are tested by `make test-monitoring`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use leaf_id_tests::Server;

fn file(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/monitoring");
    fs::read_to_string(directory.join(name)).unwrap()
}

/// Queries with their metrics: name, SQL, and column names.
fn queries(file: &str) -> Vec<(String, String, BTreeSet<String>)> {
    let mut found: Vec<(String, String, BTreeSet<String>)> = Vec::new();
    for line in file.lines() {
        if let Some(name) = line
            .strip_suffix(':')
            .filter(|name| !name.starts_with([' ', '#']))
        {
            found.push((name.into(), String::new(), BTreeSet::new()));
        } else if let Some((_, sql, metrics)) = found.last_mut() {
            if let Some(metric) = line.strip_prefix("    - ") {
                metrics.insert(metric.split(':').next().unwrap().into());
            } else if let Some(line) = line.strip_prefix("    ") {
                sql.push_str(line);
                sql.push('\n');
            }
        }
    }
    found
}

#[test]
fn each_metric_is_a_column_and_each_alert_is_of_metrics() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "5")]);
    let mut session = server.session();
    session.create_tag("orders");
    session.run("CREATE ROLE exporter; GRANT pg_monitor TO exporter; SET ROLE exporter");
    let mut names = BTreeSet::new();
    for (name, sql, metrics) in queries(&file("postgres_exporter.yaml")) {
        session.run(&sql);
        let query = session.prepare(&sql).unwrap();
        let columns = query.columns().iter().map(|column| column.name().into());
        assert_eq!(columns.collect::<BTreeSet<_>>(), metrics, "{name}");
        names.extend(metrics.iter().map(|metric| format!("{name}_{metric}")));
    }
    assert!(names.len() > 20, "{names:?}");
    for (file, key, least) in [
        (file("alerts.yaml"), "expr: ", 16),
        (file("dashboard.json"), "\"expr\": ", 20),
    ] {
        let lines = file.lines();
        let expressions: Vec<_> = lines
            .filter_map(|line| line.trim().strip_prefix(key))
            .collect();
        assert!(expressions.len() >= least, "{expressions:?}");
        for expression in expressions {
            let words = expression.split(|c: char| !c.is_alphanumeric() && c != '_');
            for metric in words.filter(|word| word.starts_with("leaf_id_")) {
                assert!(names.contains(metric), "{metric}");
            }
        }
    }
}

#[test]
fn each_alert_says_what_to_do() {
    let text = file("alerts.yaml");
    let alerts: Vec<_> = text.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 16, "{alerts:?}");
    // Rules of one name in a row differ by severity: the first one describes them.
    let mut described = BTreeSet::new();
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        if alert.contains(" description: '") {
            described.insert(name);
        }
        assert!(described.contains(name), "{name}");
    }
}
