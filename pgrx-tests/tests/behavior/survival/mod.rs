//! Would catch: an id issued again after its server was stopped, killed, promoted, restored or
//! dumped (I1, I3, I6, I7); ids skipped although nothing was lost; a lost right, setting or key;
//! and a standby that issues ids.
//!
//! Each test is one event, applied to a server with all [`KINDS`]. The expected result for each
//! kind is in [`Kind::promise`]. Combinations of events and kinds are tested with the feature:
//! `operations::failover`, `opaque::keys`, `gapless::durable`.

use leaf_id_tests::{Server, Session, Stop, worker_of};

/// Database with all objects.
const SHOP: &str = "shop";
/// Length of every segment, so that skipped ids can be counted.
const STEP: i64 = 20;
/// Default of `leaf_id.failover_skip`.
const FAILOVER_SKIP: i64 = 2;
const CONF: [(&str, &str); 2] = [
    ("leaf_id.worker_id", "1"),
    ("leaf_id.timestamp_reservation", "500ms"),
];
/// Role with rights that others lack.
const CLERK: &str = "clerk";
const STRANGER: &str = "stranger";
const ROLES: &str = "CREATE ROLE clerk LOGIN; CREATE ROLE stranger LOGIN";

/// A generator.
struct Kind {
    create: &'static str,
    /// Query that takes one id, and returns its counter.
    next: &'static str,
    /// Role that takes ids. If [`CLERK`], then [`STRANGER`] may not.
    role: &'static str,
    counts: Counts,
    /// Number of uses before the event, starting after `before`.
    uses: usize,
    before: i64,
    /// Query whose result must not change, apart from ids.
    kept: &'static str,
}

#[derive(Clone, Copy)]
enum Counts {
    /// By segments of a tag.
    Tag(&'static str),
    /// By transactions.
    Transactions,
    /// By time.
    Time,
}

const SETTINGS: &str =
    "SELECT string_agg(format('%s: %s %s %s %s %s', biz_tag, step, max_step, max_value,
        description, granted_to), ', ' ORDER BY biz_tag)
    FROM leaf_id.leaf_alloc";

const KINDS: [Kind; 7] = [
    Kind {
        create: "SELECT leaf_tag_create('plain', step => 20, max_step => 20)",
        next: "SELECT leaf_segment_next('plain')",
        role: "postgres",
        counts: Counts::Tag("plain"),
        uses: 30,
        before: 0,
        kept: SETTINGS,
    },
    Kind {
        create: "SELECT leaf_tag_create('unused', step => 20, start => 77, max_step => 20)",
        next: "SELECT leaf_segment_next('unused')",
        role: "postgres",
        counts: Counts::Tag("unused"),
        uses: 0,
        before: 76,
        kept: SETTINGS,
    },
    Kind {
        create: "SELECT leaf_tag_create('granted', step => 20, max_step => 20, max_value => 100000,
                     description => 'of clerks');
                 SELECT leaf_tag_revoke('granted', 'public'); SELECT leaf_tag_grant('granted', 'clerk')",
        next: "SELECT leaf_segment_next('granted')",
        role: CLERK,
        counts: Counts::Tag("granted"),
        uses: 30,
        before: 0,
        kept: SETTINGS,
    },
    Kind {
        create: "SELECT leaf_id.leaf_opaque_create('opaque', step => 20, max_step => 20)",
        next: "SELECT leaf_id.leaf_opaque_decode('opaque', leaf_opaque_next('opaque'))",
        role: "postgres",
        counts: Counts::Tag("opaque"),
        uses: 30,
        before: 0,
        // Compares the key: with another key, the ids differ.
        kept: "SELECT string_agg(leaf_id.leaf_opaque_encode('opaque', n)::text, ' ') FROM generate_series(1, 1000) n",
    },
    Kind {
        create: "CREATE TABLE orders (id bigserial PRIMARY KEY, item text);
                 INSERT INTO orders (item) VALUES ('tea'), ('coffee');
                 SELECT leaf_adopt('orders', 'id', step => 20);
                 UPDATE leaf_id.leaf_alloc SET max_step = 20 WHERE biz_tag = 'orders'",
        next: "INSERT INTO orders (item) VALUES ('milk') RETURNING id",
        role: "postgres",
        counts: Counts::Tag("orders"),
        uses: 30,
        before: 2,
        kept: "SELECT pg_get_expr(adbin, 0) FROM pg_attrdef WHERE adrelid = 'orders'::regclass",
    },
    Kind {
        create: "SELECT leaf_id.leaf_gapless_create('invoices');
                 GRANT EXECUTE ON FUNCTION leaf_id.leaf_gapless_next TO clerk",
        next: "SELECT leaf_id.leaf_gapless_next('invoices')",
        role: CLERK,
        counts: Counts::Transactions,
        uses: 7,
        before: 0,
        kept: "SELECT string_agg(format('%s %s', series, last_number), ', ') FROM leaf_id.leaf_gapless",
    },
    Kind {
        create: "",
        next: "SELECT leaf_snowflake_next()",
        role: "postgres",
        counts: Counts::Time,
        uses: 1000,
        before: 0,
        kept: "SELECT current_setting('leaf_id.worker_id')",
    },
];

/// An event in the life of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// An event of other servers; this one continues.
    Nothing,
    CleanRestart,
    Crash,
    /// Promotion of a standby that lacks the last claims.
    Promotion,
    /// Promotion of the server itself, which was stopped and restarted as a standby.
    PromotionOfItself,
    /// Restore of a base backup, as an independent server.
    Restore,
    /// Dump of a database, restored into another one.
    DumpAndRestore,
}

/// The expected next id, relative to the last one.
#[derive(Clone, Copy, Debug)]
enum Promise {
    /// The next one.
    Next,
    /// A larger one; the ids skipped were claimed already.
    Cached,
    /// The first unclaimed one.
    Claim,
    /// The first unclaimed one plus the max ids of this many lost claims.
    After(i64),
    /// A later one with the same worker id.
    Later,
}

/// State of a kind before an event.
#[derive(Clone)]
struct Known {
    last: i64,
    /// First unclaimed id of a tag.
    claimed: i64,
    kept: String,
}

impl Kind {
    fn promise(&self, event: Event) -> Promise {
        match (self.counts, event) {
            (Counts::Transactions, _) | (Counts::Tag(_), Event::Nothing | Event::CleanRestart) => {
                Promise::Next
            }
            (Counts::Tag(_), Event::Crash) => Promise::Cached,
            (Counts::Tag(_), Event::Restore | Event::DumpAndRestore) => Promise::Claim,
            (Counts::Tag(_), Event::Promotion | Event::PromotionOfItself) => {
                Promise::After(FAILOVER_SKIP)
            }
            (Counts::Time, _) => Promise::Later,
        }
    }

    fn take(&self, server: &Server, database: &str) -> i64 {
        let mut session = server.connect_as(self.role, database);
        match self.counts {
            Counts::Time => session.next_snowflake(),
            Counts::Tag(_) | Counts::Transactions => session.value(self.next),
        }
    }

    /// Uses the kind as before each event.
    fn learn(&self, server: &Server, mut last: i64) -> Known {
        let mut session = server.connect_as(self.role, SHOP);
        for _ in 0..self.uses {
            last = session.value(self.next);
        }
        let mut session = server.session_in(SHOP);
        let mut claimed = 0;
        if let Counts::Tag(tag) = self.counts {
            if last > self.before {
                session.wait_for_spare(tag);
            }
            claimed = session.max_id(tag);
        }
        let kept = session.value(self.kept);
        Known {
            last,
            claimed,
            kept,
        }
    }

    /// Takes ids by two claims that only this server has.
    fn lose_claims(&self, server: &Server, known: &mut Known) {
        let mut session = server.session_in(SHOP);
        match self.counts {
            Counts::Tag(tag) if self.uses > 0 => {
                session.use_claims_with(tag, FAILOVER_SKIP, |session, count| {
                    (0..count).map(|_| session.value(self.next)).collect()
                });
                known.last = session.value(self.next);
                assert!(known.last >= known.claimed, "{tag}: nothing is lost");
            }
            Counts::Time => {
                let ids = session.ids("SELECT leaf_snowflake_next_batch(10000)");
                known.last = ids[ids.len() - 1];
            }
            // Committed transactions are lost with the server.
            Counts::Tag(_) | Counts::Transactions => (),
        }
    }

    /// Tests one cell of the table. The next id becomes the last one.
    fn survives(&self, event: Event, server: &Server, database: &str, known: &mut Known) {
        let mut session = server.session_in(database);
        assert_eq!(session.value::<String>(self.kept), known.kept, "{event:?}");
        if self.role == CLERK {
            server
                .connect_as(STRANGER, database)
                .fails(self.next)
                .is("42501");
        }
        let id = self.take(server, database);
        let promise = self.promise(event);
        let kept = match promise {
            Promise::Next => id == known.last + 1,
            Promise::Cached => id > known.last && id <= known.claimed,
            Promise::Claim => id == known.claimed,
            Promise::After(claims) => id == known.claimed + claims * STEP,
            Promise::Later => id > known.last && worker_of(id) == worker_of(known.last),
        };
        assert!(
            kept && (id > known.last),
            "{event:?}: {}: {id} after {}, claimed up to {}, not {promise:?}",
            self.next,
            known.last,
            known.claimed
        );
        known.last = id;
    }

    fn is_refused_by_a_standby(&self, server: &Server, known: &Known) {
        let mut session = server.connect_as(self.role, SHOP);
        session.fails(self.next).is("25006");
        let mut session = server.session_in(SHOP);
        assert_eq!(session.value::<String>(self.kept), known.kept);
    }
}

/// A server with all kinds, unused.
fn server(conf: &[(&str, &str)]) -> Server {
    let server = Server::start(conf);
    server.session().run(ROLES);
    server.session().run("CREATE DATABASE shop");
    let mut session = server.session_in(SHOP);
    session.run("CREATE EXTENSION leaf_id");
    for kind in &KINDS {
        session.run(kind.create);
    }
    server
}

/// Uses all kinds.
fn learn(server: &Server, before: Option<&[Known]>) -> Vec<Known> {
    let last = |i: usize| before.map_or(KINDS[i].before, |before| before[i].last);
    let learned: Vec<Known> = (KINDS.iter().enumerate())
        .map(|(i, kind)| kind.learn(server, last(i)))
        .collect();
    if before.is_none() {
        for (kind, known) in KINDS.iter().zip(&learned) {
            let used = i64::try_from(kind.uses).unwrap();
            let all = matches!(kind.counts, Counts::Time) || known.last == kind.before + used;
            assert!(all, "{}: {}", kind.next, known.last);
        }
    }
    learned
}

/// Tests all cells of one event.
#[track_caller]
fn all_survive(event: Event, server: &Server, database: &str, known: &mut [Known]) {
    let elsewhere = event == Event::DumpAndRestore;
    for (kind, known) in KINDS.iter().zip(known) {
        // Time-based ids depend on the server, and are not dumped.
        if !(elsewhere && matches!(kind.counts, Counts::Time)) {
            kind.survives(event, server, database, known);
        }
    }
}

/// A transaction that has a gapless number, and does not commit.
#[must_use]
fn open_transaction(server: &Server) -> Session {
    let mut session = server.session_in(SHOP);
    session.run("BEGIN; SELECT leaf_id.leaf_gapless_next('invoices')");
    session
}

#[test]
fn a_clean_restart() {
    let server = server(&CONF);
    let mut known = learn(&server, None);
    for _ in 0..2 {
        let open = open_transaction(&server);
        server.restart();
        drop(open);
        all_survive(Event::CleanRestart, &server, SHOP, &mut known);
        known = learn(&server, Some(&known));
    }
}

#[test]
fn a_crash() {
    let server = server(&CONF);
    let mut known = learn(&server, None);
    let stops: [fn(&Server); 3] = [
        Server::kill_9,
        |server| server.stop(Stop::Immediate),
        Server::kill_9_postmaster,
    ];
    for stop in stops {
        let open = open_transaction(&server);
        stop(&server);
        drop(open);
        server.launch();
        all_survive(Event::Crash, &server, SHOP, &mut known);
        known = learn(&server, Some(&known));
    }
}

#[test]
fn a_crash_of_one_process() {
    // The allocator must keep running, to be one of the victims.
    let server = server(&[&CONF[..], &[("leaf_id.allocator_idle_timeout", "1h")]].concat());
    let mut known = learn(&server, None);
    for victim in [
        "client backend",
        "leaf_id allocator",
        "leaf_id launcher",
        "checkpointer",
    ] {
        let mut open = open_transaction(&server);
        let pids = open.column::<i32>(&format!(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = '{victim}'
             ORDER BY pid <> pg_backend_pid()"
        ));
        assert!(server.crash_by(pids[0]), "{victim}");
        drop(open);
        all_survive(Event::Crash, &server, SHOP, &mut known);
        known = learn(&server, Some(&known));
    }
}

#[test]
fn the_promotion_of_a_standby() {
    let primary = server(&CONF);
    let mut known = learn(&primary, None);
    let standby = primary.standby(&[]);
    standby.replay_all_of(&primary);
    standby.cut_off();
    for (kind, known) in KINDS.iter().zip(&mut known) {
        kind.is_refused_by_a_standby(&standby, known);
        kind.lose_claims(&primary, known);
    }
    let open = open_transaction(&primary);
    primary.kill_9();
    drop(open);
    standby.promote();
    all_survive(Event::Promotion, &standby, SHOP, &mut known);
}

#[test]
fn the_promotion_of_a_server_that_was_stopped() {
    let server = server(&CONF);
    let mut known = learn(&server, None);
    server.stop(Stop::Fast);
    server.launch_as_standby();
    for (kind, known) in KINDS.iter().zip(&known) {
        kind.is_refused_by_a_standby(&server, known);
    }
    server.promote();
    all_survive(Event::PromotionOfItself, &server, SHOP, &mut known);
}

#[test]
fn a_base_backup_that_is_restored() {
    let server = server(&CONF);
    let mut known = learn(&server, None);
    let open = open_transaction(&server);
    let backup = server.backup();
    drop(open);
    // Without a claim, since cached ids belong to the server.
    for (kind, known) in KINDS.iter().zip(&mut known) {
        if !matches!(kind.counts, Counts::Transactions) && kind.uses > 0 {
            known.last = kind.take(&server, SHOP);
        }
    }
    server.kill_9();
    let restored = backup.start(&[]);
    all_survive(Event::Restore, &restored, SHOP, &mut known);
}

/// In another database, on another server, and on one promoted since, where the same rows would
/// belong to a lost timeline.
#[test]
fn a_dump_that_is_restored() {
    let server = server(&CONF);
    let mut known = learn(&server, None);
    let [plain, custom] = ["plain", "custom"].map(|format| {
        let open = open_transaction(&server);
        let file = server.dir().join(format).to_str().unwrap().to_owned();
        let option = format!("--format={format}");
        server.run("pg_dump", &[&option, "-f", &file, SHOP]);
        drop(open);
        file
    });
    let promoted = server.standby(&[]);
    promoted.replay_all_of(&server);
    promoted.promote();
    let elsewhere = Server::start_unrelated(1, &[]);
    elsewhere.session().run(ROLES);
    for (target, database) in [
        (&server, "beside"),
        (&promoted, "restored"),
        (&elsewhere, SHOP),
        (&elsewhere, "again"),
    ] {
        target.session().run(&format!("CREATE DATABASE {database}"));
        if database == "again" || database == "beside" {
            let options = ["-Xq", "-v", "ON_ERROR_STOP=1", "-d", database, "-f"];
            target.run("psql", &[&options[..], &[&plain]].concat());
        } else {
            target.run("pg_restore", &["--exit-on-error", "-d", database, &custom]);
        }
        all_survive(Event::DumpAndRestore, target, database, &mut known.clone());
        assert!(!target.log().contains("leaf_id: skipped"));
    }
    all_survive(Event::Nothing, &server, SHOP, &mut known);
}
