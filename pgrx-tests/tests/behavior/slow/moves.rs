//! Random histories of two sessions that move columns to a tag and back, insert, take ids of the tag and
//! of the sequence, roll back and crash. A session that waits goes on when the other one lets it. A
//! history has only some kinds of steps, so that it gets far with each.
//!
//! Would catch: an id that comes twice, in a column or of a tag (I3), and a statement that fails though
//! nothing is in its way (I10). Rules of `sql/adopt.sql` are taken out of their functions, one by one,
//! and a history must find each.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{Failure, Server, Session, in_threads, random, tell};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

const LIMIT: Duration = Duration::from_secs(60);
/// A statement that takes longer may wait for the other session.
const PROMPT: Duration = Duration::from_millis(20);
const LANES: usize = 3;
/// Steps of a history.
const STEPS: usize = 14;
/// Histories in which a rule that was left out must be found.
const TRIES: usize = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Begin,
    /// With a snapshot for the whole transaction.
    BeginOld,
    Commit,
    Rollback,
    Savepoint,
    RollbackTo,
    Adopt,
    Release,
    Insert,
    /// Inserts an id of its own choice, above all others.
    InsertAbove,
    /// Takes an id of the tag, and does not insert it.
    Take,
    /// The same of the sequence.
    TakeOfSequence,
}

use Act::{
    Adopt, Begin, BeginOld, Commit, Insert, InsertAbove, Release, Rollback, RollbackTo, Savepoint,
    Take, TakeOfSequence,
};

const ALL: [Act; 12] = [
    Begin,
    BeginOld,
    Commit,
    Rollback,
    Savepoint,
    RollbackTo,
    Adopt,
    Release,
    Insert,
    InsertAbove,
    Take,
    TakeOfSequence,
];

impl Act {
    fn is_move(self) -> bool {
        matches!(self, Adopt | Release)
    }

    fn is_taking(self) -> bool {
        matches!(self, Insert | InsertAbove | Take | TakeOfSequence)
    }
}

/// A rule of `sql/adopt.sql`: the function that has it, what is replaced there, and by what; the steps
/// that find it, and whether they take two columns.
struct Rule {
    name: &'static str,
    function: &'static str,
    replaced: &'static str,
    by: &'static str,
    acts: &'static [Act],
    two_columns: bool,
}

const RULES: [Rule; 9] = [
    Rule {
        name: "the tag begins above what the sequence has given",
        function: "leaf_largest_taken",
        replaced: "RETURN (",
        by: "RETURN 0; RETURN (",
        acts: &[Adopt, Insert, TakeOfSequence],
        two_columns: false,
    },
    Rule {
        name: "the tag begins above the column",
        function: "leaf_largest_value",
        replaced: "RETURN largest;",
        by: "RETURN 0;",
        acts: &[Adopt, Insert, InsertAbove],
        two_columns: false,
    },
    Rule {
        name: "a column is looked at once more under the lock",
        function: "leaf_adopt_column",
        replaced: "plan := leaf_id_internal.leaf_plan_adoption($1, $2, $3, $4, $5);\n        tag :=",
        by: "tag :=",
        acts: &[Begin, Commit, Adopt],
        two_columns: false,
    },
    Rule {
        name: "the table is locked before it is read",
        function: "leaf_lock_to_move",
        replaced: "LOOP\n        tries",
        by: "RETURN '0'; LOOP\n        tries",
        acts: &[Begin, Commit, Adopt, Insert],
        two_columns: false,
    },
    Rule {
        name: "a move is refused under an old snapshot",
        function: "leaf_begin_move",
        replaced: "<> 'read committed'",
        by: "= 'none'",
        acts: &[BeginOld, Adopt, Insert, InsertAbove],
        two_columns: false,
    },
    Rule {
        name: "the sequence begins above what the tag has claimed",
        function: "leaf_last_of_tag",
        replaced: "RETURN greatest(",
        by: "RETURN 0; RETURN greatest(",
        acts: &[Adopt, Release, Take, Insert],
        two_columns: false,
    },
    Rule {
        name: "and above what this transaction has issued of it",
        function: "leaf_last_of_tag",
        replaced: "greatest(stored.max_id, leaf_id_internal.leaf_tag_next($1))",
        by: "stored.max_id",
        acts: &[Begin, Commit, Adopt, Release, Take, Insert],
        two_columns: false,
    },
    Rule {
        name: "a tag that no column uses is dropped",
        function: "leaf_release_column",
        replaced: "DELETE FROM leaf_id.leaf_alloc a WHERE a.biz_tag = this.tag;",
        by: "",
        acts: &[Adopt, Release, Take, Insert],
        two_columns: false,
    },
    Rule {
        name: "a tag that exists goes on above the column",
        function: "leaf_give_tag",
        replaced: "SET max_id = first_id,",
        by: "SET",
        acts: &[Adopt, Insert],
        two_columns: true,
    },
];

/// What an id must be unique among: a column, or the tag.
type Scope = usize;
const TAG: Scope = 2;

/// What a statement gives: ids, and whether they are the tag's; of a move, whether it has moved.
type Answer = Result<Vec<(i64, bool)>, Failure>;

/// A session in a thread of its own, so that it can wait.
struct Actor {
    pid: i32,
    ask: Sender<(Act, String)>,
    answers: Receiver<Answer>,
    /// The statement that is not answered, and whether the other session could be in its way.
    asked: Option<(Act, bool)>,
    is_open: bool,
    is_old: bool,
    has_failed: bool,
    /// Where its transaction has last moved a column: 1, or 2 after the savepoint; 0 for nowhere.
    moved: u8,
    /// `moved` at the savepoint.
    savepoint: Option<u8>,
    /// Ids of what its transaction has made, which come again if that is rolled back.
    own: Vec<(u8, Scope, i64)>,
    /// What its transaction has taken of a sequence.
    of_sequence: Vec<(Scope, i64)>,
}

impl Actor {
    fn new(mut session: Session) -> Self {
        session.run("SET client_min_messages = error");
        let pid = session.pid();
        let (ask, asked) = channel::<(Act, String)>();
        let (answer, answers) = channel();
        thread::spawn(move || {
            for (act, sql) in asked {
                let is_move = act.is_move();
                if is_move {
                    // Of each try; twenty times as long in all.
                    session.run("SET lock_timeout = '30ms'");
                }
                let answered = if is_move || act.is_taking() {
                    session.try_column::<String>(&sql).map(|rows| {
                        let parse = |row: &String| {
                            let (id, is_so) = row.split_once(' ').unwrap();
                            (id.parse().unwrap(), is_so == "t")
                        };
                        rows.iter().map(parse).collect()
                    })
                } else {
                    session.try_run(&sql).map(|()| Vec::new())
                };
                if is_move {
                    // Where the transaction has failed, its end does so.
                    let _ = session.try_run("SET lock_timeout = 0");
                }
                if answer.send(answered).is_err() {
                    break;
                }
            }
        });
        Self {
            pid,
            ask,
            answers,
            asked: None,
            is_open: false,
            is_old: false,
            has_failed: false,
            moved: 0,
            savepoint: None,
            own: Vec::new(),
            of_sequence: Vec::new(),
        }
    }

    /// Whether the next step can be this one.
    fn can(&self, act: Act) -> bool {
        let can = match act {
            Begin | BeginOld | InsertAbove => !self.is_open,
            Commit | Rollback => self.is_open,
            Savepoint => self.is_open && self.savepoint.is_none() && !self.has_failed,
            RollbackTo => self.savepoint.is_some(),
            _ => !self.has_failed,
        };
        can && self.asked.is_none()
    }

    fn forget(&mut self) {
        (self.is_open, self.is_old, self.has_failed) = (false, false, false);
        (self.moved, self.savepoint) = (0, None);
        self.own.clear();
        self.of_sequence.clear();
    }
}

/// One or two tables, and the sessions that use them.
struct World {
    tables: [String; 2],
    tag: String,
    two_columns: bool,
    actors: [Actor; 2],
    monitor: Session,
    /// Ids that must not come again.
    issued: HashSet<(Scope, i64)>,
    /// Ids inserted by choice since the last move: a sequence repeats them, what comes by a move must
    /// not.
    above: Vec<(Scope, i64)>,
    /// Numbers of a sequence whose transaction was rolled back: nothing has waited for their WAL, so
    /// PostgreSQL may issue them again after a crash.
    not_flushed: Vec<(Scope, i64)>,
    /// Whether a column has been moved back to a sequence, which is a new one.
    has_released: bool,
    history: String,
}

impl World {
    fn new(server: &Server, database: &str, name: &str, two_columns: bool) -> Self {
        let mut monitor = server.session_in(database);
        let other = if two_columns { "_other" } else { "" };
        let tables = [name.to_owned(), format!("{name}{other}")];
        for table in &tables {
            monitor.run(&format!(
                "CREATE TABLE IF NOT EXISTS {table} (id bigserial, n int)"
            ));
        }
        Self {
            tables,
            tag: format!("{name}{}", if two_columns { "_both" } else { "" }),
            two_columns,
            actors: [(); 2].map(|()| Actor::new(server.session_in(database))),
            monitor,
            issued: HashSet::new(),
            above: Vec::new(),
            not_flushed: Vec::new(),
            has_released: false,
            history: String::new(),
        }
    }

    /// The column that a session uses.
    fn scope(&self, actor: usize) -> Scope {
        if self.two_columns { actor } else { 0 }
    }

    fn sql(&self, actor: usize, act: Act) -> String {
        let scope = self.scope(actor);
        let (table, tag) = (&self.tables[scope], &self.tag);
        // Nothing is moved where the column has the tag.
        let moves = |call: &str| {
            format!("SELECT '0 ' || CASE WHEN first_id IS NULL THEN 'f' ELSE 't' END FROM {call}")
        };
        match act {
            Begin => "BEGIN".into(),
            BeginOld => {
                "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1".into()
            }
            Commit => "COMMIT".into(),
            Rollback => "ROLLBACK".into(),
            Savepoint => "SAVEPOINT a".into(),
            RollbackTo => "ROLLBACK TO a; RELEASE a".into(),
            Adopt if self.two_columns => moves(&format!("leaf_adopt('{table}', 'id', '{tag}')")),
            Adopt => moves(&format!("leaf_adopt('{table}', 'id')")),
            Release => moves(&format!("leaf_release('{table}', 'id')")),
            Insert => format!(
                "INSERT INTO {table} (n) VALUES (1) RETURNING id || CASE WHEN EXISTS (
                     SELECT FROM pg_attrdef d WHERE d.adrelid = '{table}'::regclass
                     AND pg_get_expr(d.adbin, 0) ~ 'leaf_segment_next') THEN ' t' ELSE ' f' END"
            ),
            InsertAbove => {
                let known = self.issued.iter().chain(&self.above);
                let above = 2 + known.map(|(_, id)| *id).max().unwrap_or(0);
                format!("INSERT INTO {table} VALUES ({above}, 1) RETURNING id || ' f'")
            }
            Take => format!("SELECT leaf_segment_next('{tag}') || ' t'"),
            TakeOfSequence => format!(
                "SELECT nextval(s) || ' f' FROM pg_get_serial_sequence('{table}', 'id') s WHERE s IS NOT NULL"
            ),
        }
    }

    fn can(&self, actor: usize, act: Act) -> bool {
        let other = &self.actors[1 - actor];
        let is_moved = other.moved > 0 || other.asked.is_some_and(|(act, _)| act.is_move());
        // PostgreSQL's own error where a sequence goes while nextval() waits.
        self.actors[actor].can(act) && !(act == TakeOfSequence && is_moved)
    }

    /// Takes a step. An error says what must not be.
    fn step(&mut self, actor: usize, act: Act) -> Result<(), String> {
        let sql = self.sql(actor, act);
        let other = &self.actors[1 - actor];
        let in_the_way = other.is_open || other.asked.is_some();
        let _ = write!(self.history, " {act:?}({actor})");
        self.actors[actor].asked = Some((act, in_the_way));
        self.actors[actor].ask.send((act, sql)).unwrap();
        self.listen(actor)?;
        // It may have let the other one go on.
        self.listen(1 - actor)
    }

    /// Reads the answer to a statement, unless that waits.
    fn listen(&mut self, actor: usize) -> Result<(), String> {
        let began = Instant::now();
        while self.actors[actor].asked.is_some() {
            match self.actors[actor].answers.recv_timeout(PROMPT) {
                Ok(answer) => return self.answered(actor, answer),
                Err(RecvTimeoutError::Disconnected) => return Err("a panic".into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let waits = format!(
                "SELECT coalesce(wait_event_type IN ('Lock', 'Timeout', 'Extension'), false)
                 FROM pg_stat_activity WHERE pid = {}",
                self.actors[actor].pid
            );
            let other = &self.actors[1 - actor];
            let may_wait = other.is_open || other.asked.is_some();
            if may_wait && self.monitor.value(&waits) {
                return Ok(());
            }
            if began.elapsed() > LIMIT {
                return Err(format!("session {actor} has no answer after {LIMIT:?}"));
            }
        }
        Ok(())
    }

    fn answered(&mut self, number: usize, answer: Answer) -> Result<(), String> {
        let scope = self.scope(number);
        let (is_old, is_single) = (self.actors[number].is_old, !self.two_columns);
        let actor = &mut self.actors[number];
        let (act, in_the_way) = actor.asked.take().unwrap();
        let ids = match answer {
            Ok(ids) => ids,
            Err(failure) => {
                let _ = write!(self.history, "={}", failure.state);
                actor.has_failed = actor.is_open;
                let is_expected = match &*failure.state {
                    "55P03" => in_the_way,
                    // The column has been moved there and back since this move was planned: it has
                    // another sequence.
                    "55006" => in_the_way && act.is_move() && self.has_released,
                    // No ids of a tag that the transaction has edited; nothing to release.
                    "55000" => act == Release || actor.moved > 0,
                    "42704" => act == Take,
                    "0A000" => is_old && act.is_move(),
                    // Another session has created the tag while this one was about to.
                    "23505" => in_the_way && act == Adopt && !is_single,
                    _ => false,
                };
                return is_expected.then_some(()).ok_or_else(|| failure.to_string());
            }
        };
        match act {
            Begin | BeginOld => (actor.is_open, actor.is_old) = (true, act == BeginOld),
            Savepoint => actor.savepoint = Some(actor.moved),
            RollbackTo => {
                actor.moved = actor.savepoint.take().unwrap();
                actor.own.retain(|(level, ..)| *level < 2);
                // The savepoint is gone: what was moved before it belongs to the transaction.
                actor.has_failed = false;
            }
            Rollback => {
                self.not_flushed.append(&mut actor.of_sequence);
                actor.forget();
            }
            Commit => {
                if actor.has_failed {
                    self.not_flushed.append(&mut actor.of_sequence);
                } else {
                    let ids = actor.own.iter().map(|(_, scope, id)| (*scope, *id));
                    self.issued.extend(ids);
                    if actor.moved > 0 {
                        self.issued
                            .extend(self.above.extract_if(.., |(of, _)| *of == scope));
                    }
                }
                actor.forget();
            }
            Adopt | Release => {
                self.has_released |= act == Release;
                if ids[0].1 && actor.is_open {
                    actor.moved = if actor.savepoint.is_some() { 2 } else { 1 };
                } else if ids[0].1 {
                    self.issued
                        .extend(self.above.extract_if(.., |(of, _)| *of == scope));
                }
                return Ok(());
            }
            InsertAbove => {
                self.above.push((scope, ids[0].0));
                return Ok(());
            }
            Insert | Take | TakeOfSequence => {}
        }
        for (id, of_tag) in ids {
            let mut scopes = vec![];
            if act != Take || is_single {
                scopes.push(scope);
            }
            if of_tag {
                scopes.push(TAG);
            }
            for scope in scopes {
                self.issued(number, scope, id)?;
                let actor = &mut self.actors[number];
                if actor.is_open && !of_tag {
                    actor.of_sequence.push((scope, id));
                }
            }
        }
        Ok(())
    }

    fn issued(&mut self, number: usize, scope: Scope, id: i64) -> Result<(), String> {
        let actor = &mut self.actors[number];
        let is_own = actor
            .own
            .iter()
            .any(|(_, of, own)| (*of, *own) == (scope, id));
        let is_above = actor.moved > 0 && self.above.contains(&(scope, id));
        if is_own || is_above || self.issued.contains(&(scope, id)) {
            return Err(format!("{id} comes twice"));
        }
        if actor.moved > 0 {
            actor.own.push((actor.moved, scope, id));
        } else {
            self.issued.insert((scope, id));
        }
        Ok(())
    }

    /// Takes random steps of these kinds.
    fn walk(&mut self, acts: &[Act], random: &mut StdRng) -> Result<(), String> {
        for _ in 0..STEPS {
            for actor in 0..2 {
                self.listen(actor)?;
            }
            let steps: Vec<_> = (0..2)
                .flat_map(|actor| acts.iter().map(move |act| (actor, *act)))
                .filter(|(actor, act)| self.can(*actor, *act))
                .collect();
            match steps.choose(random) {
                Some((actor, act)) => self.step(*actor, *act)?,
                // Each waits for the other.
                None => self.settle()?,
            }
        }
        Ok(())
    }

    /// Reads the answers to all statements. A transaction that a statement waits for is rolled back.
    fn settle(&mut self) -> Result<(), String> {
        while self.actors.iter().any(|actor| actor.asked.is_some()) {
            for actor in 0..2 {
                self.listen(actor)?;
            }
            let in_the_way = (0..2).find(|&number| {
                let [actor, other] = [number, 1 - number].map(|number| &self.actors[number]);
                actor.is_open && actor.asked.is_none() && other.asked.is_some()
            });
            if let Some(actor) = in_the_way {
                self.step(actor, Rollback)?;
            }
        }
        Ok(())
    }

    /// Ends all transactions, one by one. A row is inserted then, whatever has happened.
    fn end(&mut self) -> Result<(), String> {
        self.settle()?;
        for number in 0..2 {
            if self.actors[number].is_open {
                self.step(number, Rollback)?;
            }
        }
        for number in 0..2 {
            self.step(number, Insert)?;
            self.step(number, Insert)?;
        }
        Ok(())
    }

    /// All sessions are gone.
    fn crashed(&mut self, server: &Server) {
        let open = self.actors.iter_mut();
        let not_flushed = open.flat_map(|actor| actor.of_sequence.drain(..));
        for id in self.not_flushed.drain(..).chain(not_flushed) {
            self.issued.remove(&id);
        }
        self.monitor = server.session();
        self.actors = [(); 2].map(|()| Actor::new(server.session()));
        self.history += " Crash";
    }
}

/// Some kinds of steps: a history of a few gets further than one of all.
fn some_of(acts: &[Act], random: &mut StdRng) -> Vec<Act> {
    let kinds = random.random_range(4..=acts.len());
    let mut some: Vec<_> = acts.sample(random, kinds).copied().collect();
    // What begins must end, and something is to be moved.
    some.extend([Commit, Adopt]);
    some
}

/// The first of many histories that shows what must not be.
fn broken(
    server: &Server,
    database: &str,
    tries: usize,
    seed: u64,
    acts: impl Fn(&mut StdRng) -> Vec<Act> + Sync,
    two_columns: impl Fn(usize) -> bool + Sync,
) -> Option<String> {
    in_threads(LANES, |lane| {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(lane as u64));
        (lane..tries).step_by(LANES).find_map(|number| {
            let name = format!("t{number}");
            let mut world = World::new(server, database, &name, two_columns(number));
            let acts = acts(&mut random);
            let walked = world.walk(&acts, &mut random);
            let why = walked.and_then(|()| world.end()).err()?;
            Some(format!("{}: {why}", world.history.trim()))
        })
    })
    .into_iter()
    .flatten()
    .min_by_key(String::len)
}

/// Histories of all kinds of steps: `LEAF_ID_MOVES`, or the default.
fn histories() -> usize {
    std::env::var("LEAF_ID_MOVES").map_or(90, |number| number.parse().expect("a number"))
}

fn server() -> Server {
    let server = Server::with_leaf_id(&[("max_connections", "50")]);
    server.allow(Duration::from_secs(3600));
    server
}

#[test]
fn columns_that_two_sessions_move_repeat_no_id() {
    let server = server();
    let seed = random().random();
    let some = |random: &mut StdRng| some_of(&ALL, random);
    let found = broken(&server, "postgres", histories(), seed, some, |number| {
        number % 3 == 0
    });
    assert_eq!(found, None);
}

#[test]
fn a_crash_between_moves_repeats_no_id() {
    let server = server();
    let seed: u64 = random().random();
    let mut worlds: Vec<_> = (0..2 * LANES)
        .map(|lane| World::new(&server, "postgres", &format!("t{lane}"), lane % 3 == 0))
        .collect();
    for round in 0..3 {
        thread::scope(|scope| {
            for (lane, world) in (0..).zip(&mut worlds) {
                let mut random = StdRng::seed_from_u64(seed.wrapping_add(100 * round + lane));
                scope.spawn(move || {
                    let acts = some_of(&ALL, &mut random);
                    let walked = world.walk(&acts, &mut random);
                    assert_eq!(walked, Ok(()), "{}", world.history);
                    // A crash of which no one knows what it has committed proves nothing.
                    let settled = world.settle();
                    assert_eq!(settled, Ok(()), "{}", world.history);
                });
            }
        });
        server.crash();
        for world in &mut worlds {
            world.crashed(&server);
        }
    }
    for world in &mut worlds {
        assert_eq!(world.end(), Ok(()), "{}", world.history);
    }
}

#[test]
fn each_rule_of_a_move_is_needed() {
    let server = server();
    let seed = random().random();
    for (number, rule) in RULES.iter().enumerate() {
        let database = format!("without_{number}");
        server.session().run(&format!("CREATE DATABASE {database}"));
        let mut session = server.session_in(&database);
        session.run("CREATE EXTENSION leaf_id");
        let function: String = session.value(&format!(
            "SELECT pg_get_functiondef('leaf_id_internal.{}'::regproc)",
            rule.function
        ));
        let without = function.replacen(rule.replaced, rule.by, 1);
        assert_ne!(without, function, "{}", rule.name);
        session.run(&without);
        let acts = |_: &mut StdRng| rule.acts.to_vec();
        let found = broken(&server, &database, TRIES, seed, acts, |_| rule.two_columns);
        let found = found.unwrap_or_else(|| panic!("nothing shows that {}", rule.name));
        tell(&format!("without \"{}\": {found}", rule.name));
    }
}
