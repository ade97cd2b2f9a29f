//! Sessions that take ids in all possible ways until the test ends the load, and reconnect after
//! losing their connections.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use postgres::Statement;
use postgres::types::{ToSql, Type};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};

use crate::history::{Caller, History, IdRange, Source};
use crate::server::Server;
use crate::session::{Failure, Session};

/// Share of transactions that take numbers of a series: these wait for each other, and for the disk.
const GAPLESS: f64 = 0.03;
/// Retry interval of connections.
const RETRY: Duration = Duration::from_millis(20);

/// A statement that requests ids. SOURCE stands for the tag's name.
struct Way {
    kind: &'static str,
    /// Returns a bigint for one id, two for a range, or an array. The parameter is the number of
    /// ids.
    sql: &'static str,
    single: bool,
}

const TAG_WAYS: [Way; 7] = [
    Way {
        kind: "segment, single",
        sql: "SELECT leaf_segment_next('SOURCE')",
        single: true,
    },
    Way {
        kind: "segment, inserted",
        sql: "INSERT INTO rows_of_SOURCE DEFAULT VALUES RETURNING id",
        single: true,
    },
    Way {
        kind: "segment, inserted",
        sql: "INSERT INTO rows_of_SOURCE SELECT FROM generate_series(1, $1) RETURNING id",
        single: false,
    },
    Way {
        kind: "segment, batch",
        sql: "SELECT array_agg(id) FROM leaf_segment_next_batch('SOURCE', $1) id",
        single: false,
    },
    Way {
        kind: "segment, range",
        sql: "SELECT first_id, last_id FROM leaf_segment_next_range('SOURCE', $1)",
        single: false,
    },
    Way {
        kind: "segment, aggregated",
        sql: "SELECT array_agg(leaf_segment_next('SOURCE')) FROM generate_series(1, $1)",
        single: false,
    },
    Way {
        kind: "segment, PL/pgSQL",
        sql: "SELECT with_rollbacks('SOURCE', $1)",
        single: false,
    },
];

/// The number behind each id: that of two ids is the same if these are, under one key.
const OPAQUE_WAYS: [Way; 4] = [
    Way {
        kind: "opaque, single",
        sql: "SELECT leaf_id.leaf_opaque_decode('SOURCE', leaf_opaque_next('SOURCE'))",
        single: true,
    },
    Way {
        kind: "opaque, inserted",
        sql: "INSERT INTO rows_of_SOURCE DEFAULT VALUES RETURNING leaf_id.leaf_opaque_decode('SOURCE', id)",
        single: true,
    },
    Way {
        kind: "opaque, inserted",
        sql: "INSERT INTO rows_of_SOURCE SELECT FROM generate_series(1, $1)
              RETURNING leaf_id.leaf_opaque_decode('SOURCE', id)",
        single: false,
    },
    Way {
        kind: "opaque, aggregated",
        sql: "SELECT array_agg(leaf_id.leaf_opaque_decode('SOURCE', leaf_opaque_next('SOURCE')))
              FROM generate_series(1, $1)",
        single: false,
    },
];

/// Takes part in transactions of its own only: see [`Worker::series`].
const GAPLESS_WAYS: [Way; 1] = [Way {
    kind: "gapless, committed",
    sql: "INSERT INTO rows_of_SOURCE DEFAULT VALUES RETURNING id",
    single: true,
}];

const SNOWFLAKE_WAYS: [Way; 4] = [
    Way {
        kind: "snowflake, single",
        sql: "SELECT leaf_snowflake_next()",
        single: true,
    },
    Way {
        kind: "snowflake, inserted",
        sql: "INSERT INTO rows_of_SOURCE SELECT FROM generate_series(1, $1) RETURNING id",
        single: false,
    },
    Way {
        kind: "snowflake, batch",
        sql: "SELECT array_agg(id) FROM leaf_snowflake_next_batch($1) id",
        single: false,
    },
    Way {
        kind: "snowflake, aggregated",
        sql: "SELECT array_agg(leaf_snowflake_next()) FROM generate_series(1, $1)",
        single: false,
    },
];

/// Takes every third id in a subtransaction that is rolled back, but keeps the id in the array.
const WITH_ROLLBACKS: &str = "
CREATE FUNCTION with_rollbacks(tag text, n integer) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
BEGIN
    FOR i IN 1 .. n LOOP
        BEGIN
            ids := ids || leaf_segment_next(tag);
            IF i % 3 = 0 THEN
                RAISE division_by_zero;
            END IF;
        EXCEPTION WHEN division_by_zero THEN
        END;
    END LOOP;
    RETURN ids;
END $$";

/// A source and its use.
#[derive(Clone)]
pub struct Part {
    /// The source. The name of a tag or series must be valid as part of a table's name.
    pub source: Source,
    /// Max ids per call.
    pub most: u32,
}

impl Part {
    fn name(&self) -> &str {
        match &self.source {
            Source::Tag(name) | Source::Opaque(name) | Source::Gapless(name) => name,
            Source::Snowflake => "snowflake",
        }
    }

    /// Table into which ids are inserted.
    fn table(&self) -> String {
        format!("rows_of_{}", self.name())
    }

    fn default(&self) -> String {
        match &self.source {
            Source::Tag(tag) => format!("leaf_segment_next('{tag}')"),
            Source::Opaque(tag) => format!("leaf_opaque_next('{tag}')"),
            Source::Gapless(series) => format!("leaf_id.leaf_gapless_next('{series}')"),
            Source::Snowflake => "leaf_snowflake_next()".into(),
        }
    }

    fn is_gapless(&self) -> bool {
        matches!(self.source, Source::Gapless(_))
    }

    fn ways(&self) -> &'static [Way] {
        match self.source {
            Source::Tag(_) => &TAG_WAYS,
            Source::Opaque(_) => &OPAQUE_WAYS,
            Source::Gapless(_) => &GAPLESS_WAYS,
            Source::Snowflake => &SNOWFLAKE_WAYS,
        }
    }
}

/// Short timeout of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// The server's settings.
    None,
    /// A short `leaf_id.refill_timeout`: 55P03.
    Refill,
    /// A short `statement_timeout`: 57014.
    Statement,
}

impl Haste {
    /// The short timeout.
    pub const TIMEOUT: Duration = Duration::from_millis(100);

    fn settings(self) -> String {
        let ms = Self::TIMEOUT.as_millis();
        match self {
            Self::None => String::new(),
            Self::Refill => format!("SET leaf_id.refill_timeout = {ms};"),
            Self::Statement => format!("SET statement_timeout = {ms};"),
        }
    }
}

/// Parameters of a load.
pub struct Plan {
    /// Sources, in the order of the history's.
    pub parts: Vec<Part>,
    /// Number of sessions.
    pub sessions: usize,
    /// Two of eight sessions have a short timeout.
    pub hasty: bool,
    /// Seed of the sessions' random choices.
    pub seed: u64,
}

impl Plan {
    /// An empty history for these sessions on `servers` servers, and for one more session that
    /// drives.
    #[must_use]
    pub fn history(&self, dir: &Path, servers: usize) -> History {
        let sources = self.parts.iter().map(|part| part.source.clone());
        History::new(dir, servers, sources.collect(), self.sessions + 1)
    }

    /// Timeout of a session.
    #[must_use]
    pub fn haste(&self, session: usize) -> Haste {
        match session % 8 {
            2 if self.hasty => Haste::Refill,
            5 if self.hasty => Haste::Statement,
            _ => Haste::None,
        }
    }
}

/// A running load.
pub struct Load<'a> {
    servers: &'a [&'a Server],
    history: &'a History,
    plan: &'a Plan,
    /// Held in shared mode by each session while it works.
    gate: RwLock<()>,
    done: AtomicBool,
    /// Incremented to make sessions reconnect.
    connections: AtomicU64,
    failures: Mutex<Vec<Failure>>,
}

impl<'a> Load<'a> {
    /// Creates the tables and the function of the load. The tags and series must exist.
    pub fn prepare(session: &mut Session, parts: &[Part]) {
        session.run(WITH_ROLLBACKS);
        for part in parts {
            session.run(&format!(
                "CREATE TABLE {} (id bigint PRIMARY KEY DEFAULT {})",
                part.table(),
                part.default()
            ));
        }
    }

    /// Empties the tables. Their rows were a check, by the primary key; those of a series are also
    /// all numbers that were committed.
    ///
    /// # Panics
    /// If a number of a series is missing.
    #[track_caller]
    pub fn clear(session: &mut Session, parts: &[Part]) {
        let mut sql = String::from("SET synchronous_commit = off;");
        for part in parts {
            let (table, name) = (part.table(), part.name());
            if part.is_gapless() {
                // The last one stays, so that the next one is next to it.
                let last = session.last_number(name);
                let missing: i64 = session.value(&format!(
                    "SELECT coalesce({last} - min(id) + 1 - count(*), 0) FROM {table}"
                ));
                assert_eq!(missing, 0, "numbers of {name}, the last of which is {last}");
                sql += &format!("DELETE FROM {table} WHERE id < (SELECT max(id) FROM {table});");
            } else {
                sql += &format!("TRUNCATE {table};");
            }
        }
        session.run(&sql);
    }

    /// Runs the sessions until `drive` returns. Sessions are assigned to servers round-robin.
    pub fn run<T>(
        servers: &'a [&'a Server],
        history: &'a History,
        plan: &'a Plan,
        drive: impl FnOnce(&Self) -> T,
    ) -> T {
        let load = Self {
            servers,
            history,
            plan,
            gate: RwLock::new(()),
            done: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            failures: Mutex::default(),
        };
        thread::scope(|scope| {
            for session in 0..plan.sessions {
                let load = &load;
                scope.spawn(move || load.work(session));
            }
            // The sessions must end even if this panics.
            let result = catch_unwind(AssertUnwindSafe(|| drive(&load)));
            load.done.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Waits until no session is working, and blocks them while the guard is held.
    ///
    /// # Panics
    /// On timeout, since a session is stuck.
    #[track_caller]
    pub fn pause(&self, limit: Duration) -> RwLockWriteGuard<'_, ()> {
        self.gate.try_write_for(limit).unwrap_or_else(|| {
            self.history
                .fail(&format!("a session is stuck for {limit:?}"))
        })
    }

    /// Makes each session reconnect before it continues: the server was restarted while they were
    /// paused, which must not fail them.
    pub fn reconnect(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Errors since the last call of statements other than requests for ids: BEGIN, COMMIT,
    /// connecting.
    #[must_use]
    pub fn take_failures(&self) -> Vec<Failure> {
        std::mem::take(&mut *self.failures.lock())
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    fn work(&self, number: usize) {
        let seed = self.plan.seed.wrapping_add(number as u64);
        let mut random = StdRng::seed_from_u64(seed);
        let mut worker: Option<Worker<'_>> = None;
        while !self.is_done() {
            let _gate = self.gate.read();
            let connection = self.connections.load(Ordering::Relaxed);
            worker = worker.filter(|worker| worker.connection == connection);
            worker = match worker {
                Some(mut worker) => worker.work(&mut random).is_ok().then_some(worker),
                None => Worker::new(self, number, connection).map_or_else(
                    |failure| {
                        self.failures.lock().push(failure);
                        thread::sleep(RETRY);
                        None
                    },
                    Some,
                ),
            };
        }
    }
}

/// The session is unusable.
struct Broken;

struct Worker<'a> {
    load: &'a Load<'a>,
    caller: Caller,
    connection: u64,
    session: Session,
    /// Prepared statements, by part and way.
    statements: HashMap<(usize, usize), Statement>,
}

impl<'a> Worker<'a> {
    fn new(load: &'a Load<'a>, number: usize, connection: u64) -> Result<Self, Failure> {
        let caller = Caller {
            server: number % load.servers.len(),
            session: number,
        };
        let mut session = load.servers[caller.server].try_connect("postgres", "postgres")?;
        // The test checks the session's errors; they would flood the log.
        session.try_run("SET log_min_messages = log; SET synchronous_commit = off")?;
        session.try_run(&load.plan.haste(number).settings())?;
        Ok(Self {
            load,
            caller,
            connection,
            session,
            statements: HashMap::new(),
        })
    }

    /// One call, or a transaction with several.
    fn work(&mut self, random: &mut StdRng) -> Result<(), Broken> {
        let series = self.load.plan.parts.iter().position(Part::is_gapless);
        let result = if let Some(place) = series.filter(|_| random.random_bool(GAPLESS)) {
            self.series(random, place)
        } else if random.random_bool(0.7) {
            self.call(random)
        } else {
            self.transaction(random)
        };
        // Return to a usable state.
        result.or_else(|Failed| self.session.try_run("ROLLBACK").map_err(|_| Broken))
    }

    fn transaction(&mut self, random: &mut StdRng) -> Result<(), Failed> {
        let begin = ["BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"];
        self.say(begin[random.random_range(0..2)])?;
        for _ in 0..random.random_range(1..4) {
            if random.random_bool(0.7) {
                self.call(random)?;
            } else {
                self.say("SAVEPOINT s")?;
                self.call(random)?;
                self.say("ROLLBACK TO s")?;
                self.call(random)?;
            }
        }
        let end = ["COMMIT", "ROLLBACK"];
        self.say(end[random.random_range(0..2)])
    }

    /// A transaction that takes numbers of a series: those that it keeps.
    fn series(&mut self, random: &mut StdRng, place: usize) -> Result<(), Failed> {
        let Self { load, caller, .. } = *self;
        let part = &load.plan.parts[place];
        let way = &part.ways()[0];
        let sql = way.sql.replace("SOURCE", part.name());
        let kept = random.random_range(0..=part.most);
        let undone = random.random_range(0..=kept);
        let take = || {
            let session = &mut self.session;
            session.try_run("BEGIN")?;
            let mut numbers = Vec::new();
            for count in 0..=kept {
                if count == undone {
                    session.try_run("SAVEPOINT s")?;
                    session.try_column::<i64>(&sql)?;
                    session.try_run("ROLLBACK TO s")?;
                } else {
                    numbers.extend(session.try_column::<i64>(&sql)?);
                }
            }
            session.try_run(if kept == 0 { "ROLLBACK" } else { "COMMIT" })?;
            Ok(IdRange::of(&numbers))
        };
        let taken = load.history.call(caller, place, way.kind, kept, take);
        taken.map_err(|_| Failed)
    }

    fn say(&mut self, sql: &str) -> Result<(), Failed> {
        self.session.try_run(sql).map_err(|failure| {
            self.load.failures.lock().push(failure);
            Failed
        })
    }

    /// A random call.
    fn call(&mut self, random: &mut StdRng) -> Result<(), Failed> {
        let parts = self.load.plan.parts.iter().enumerate();
        let parts = parts.filter(|(_, part)| !part.is_gapless());
        let (place, part) = parts.choose(random).expect("a source besides a series");
        let choice = random.random_range(0..part.ways().len());
        let way = &part.ways()[choice];
        let asked = if way.single {
            1
        } else {
            random.random_range(1..=part.most)
        };
        let statement = match self.statements.get(&(place, choice)) {
            Some(statement) => statement.clone(),
            None => {
                let sql = way.sql.replace("SOURCE", part.name());
                let types = if way.single { &[][..] } else { &[Type::INT4] };
                let prepared = self.session.prepare_typed(&sql, types);
                let statement = prepared.map_err(|error| {
                    self.load.failures.lock().push(Failure::from(&error));
                    Failed
                })?;
                self.statements.insert((place, choice), statement.clone());
                statement
            }
        };
        let (load, caller, session) = (self.load, self.caller, &mut self.session);
        load.history
            .call(caller, place, way.kind, asked, || {
                take(session, &statement, way.single, asked)
            })
            .map_err(|_| Failed)
    }
}

/// A statement has failed, and is recorded.
struct Failed;

fn take(
    session: &mut Session,
    statement: &Statement,
    single: bool,
    asked: u32,
) -> Result<Vec<IdRange>, Failure> {
    let asked = i32::try_from(asked).expect("few");
    let parameters: &[&(dyn ToSql + Sync)] = if single { &[] } else { &[&asked] };
    let rows = session
        .query(statement, parameters)
        .map_err(|error| Failure::from(&error))?;
    if statement.columns().len() == 2 {
        let range = |row: &postgres::Row| IdRange {
            first: row.get(0),
            last: row.get(1),
        };
        return Ok(rows.iter().map(range).collect());
    }
    let ids: Vec<i64> = if *statement.columns()[0].type_() == Type::INT8_ARRAY {
        rows.iter()
            .flat_map(|row| row.get::<_, Vec<i64>>(0))
            .collect()
    } else {
        rows.iter().map(|row| row.get(0)).collect()
    };
    Ok(IdRange::of(&ids))
}
