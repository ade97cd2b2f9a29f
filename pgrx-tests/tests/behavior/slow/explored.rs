//! Random histories of the explorer of rows (`src/core/tests/row_explorer`), repeated on servers.
//!
//! Would catch: a server that does not do what the explorer's worlds say it does, so that what these
//! prove would hold for no server. A step that a world refuses must fail, and any other must not;
//! in a gapless series, rows and marks must be those of the world; no id may come twice.
//!
//! A server claims more than a world does, since it claims ahead: ids of tags are not compared, and
//! a server skips more after a promotion.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, fs};

use leaf_id_tests::{Backup, Server, Session, in_threads, random, tell, wait_until};
use rand::RngExt;

const THREADS: usize = 3;
const LIMIT: Duration = Duration::from_secs(60);

/// For a thousand histories, a hundred of them with failovers.
const TEST_LIMIT: Duration = Duration::from_secs(3600);

/// One step: its name, the number in it, and what the world says.
struct Step<'a> {
    text: &'a str,
    name: &'a str,
    number: usize,
    shown: &'a str,
}

impl<'a> Step<'a> {
    fn of(text: &'a str) -> Self {
        let (step, shown) = text.split_once('=').unwrap();
        let (name, number) = match step.split_once('(') {
            Some((name, number)) => (name, number.trim_end_matches(')').parse().unwrap()),
            None => (step, 0),
        };
        Self {
            text,
            name,
            number,
            shown,
        }
    }

    fn is_refused(&self) -> bool {
        self.shown == "refused"
    }
}

/// Histories made by the explorer, or those of the file that `LEAF_ID_HISTORIES` names.
fn histories() -> String {
    if let Some(file) = env::var_os("LEAF_ID_HISTORIES") {
        return fs::read_to_string(file).unwrap();
    }
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let file = env::temp_dir().join(format!("leaf_id-histories.{}", std::process::id()));
    let seed: u64 = random().random();
    let output = Command::new("cargo")
        .args([
            "test",
            "--package",
            "leaf_id_core",
            "--test",
            "row_explorer",
            "--",
        ])
        .args(["--exact", "row_explorer::servers::histories_for_servers"])
        .current_dir(workspace)
        .env("LEAF_ID_HISTORIES", &file)
        .env("LEAF_ID_SEED", seed.to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    text
}

/// The two tables of a world: name and key of each.
type Tables = [(&'static str, &'static str); 2];
const TAGS: Tables = [("leaf_alloc", "biz_tag"), ("leaf_high_mark", "tag")];
const SERIES: Tables = [("leaf_gapless", "series"), ("leaf_gapless_mark", "series")];

/// Begins to rewrite a table as pg_repack does: a copy, which a trigger keeps up to date.
fn begin_copy(session: &mut Session, (table, key): (&str, &str)) {
    drop_copy(session, table);
    session.keep_copy(table);
    session.run(&format!(
        "CREATE FUNCTION log_of_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF TG_OP <> 'INSERT' THEN
                 DELETE FROM public.copy_of_{table} WHERE {key} = OLD.{key};
                 IF TG_OP = 'UPDATE' AND NOT FOUND THEN
                     RETURN NULL;
                 END IF;
             END IF;
             IF TG_OP <> 'DELETE' THEN
                 INSERT INTO public.copy_of_{table} SELECT NEW.*;
             END IF;
             RETURN NULL;
         END $$;
         CREATE TRIGGER zz_log AFTER INSERT OR UPDATE OR DELETE ON leaf_id.{table}
             FOR EACH ROW EXECUTE FUNCTION log_of_{table}()"
    ));
}

/// Removes the copy of a tool that was ended.
fn drop_copy(session: &mut Session, table: &str) {
    session.run(&format!(
        "DROP FUNCTION IF EXISTS log_of_{table} CASCADE; DROP TABLE IF EXISTS copy_of_{table}"
    ));
}

fn end_copy(session: &mut Session, table: &str) {
    session.run(&format!("DROP FUNCTION log_of_{table} CASCADE"));
    session.set_back(table);
}

/// Takes a step of a tool that rewrites a table. True if it was one.
fn copy(session: &mut Session, tables: Tables, step: &Step<'_>) -> bool {
    let [rows, marks] = tables;
    match step.name {
        "CopyRows" => begin_copy(session, rows),
        "CopyMarks" => begin_copy(session, marks),
        "PutRows" => end_copy(session, rows.0),
        "PutMarks" => end_copy(session, marks.0),
        _ => return false,
    }
    true
}

/// Removes tags, series and copies of an earlier history.
fn clear(session: &mut Session) {
    for (table, _) in [TAGS, SERIES].concat() {
        drop_copy(session, table);
        session.run(&format!("DELETE FROM leaf_id.{table}"));
    }
}

/// Ids of each name that must not come again.
#[derive(Default)]
struct Issued([BTreeSet<i64>; 2]);

impl Issued {
    fn add(&mut self, name: usize, id: i64) {
        assert!(
            self.0[name].insert(id),
            "{id} comes twice under name {name}"
        );
    }

    fn add_all(&mut self, name: usize, ids: &BTreeSet<i64>) {
        self.0[name].extend(ids);
    }
}

/// An open transaction: what it means for the ids of each name. As in the world.
#[derive(Default)]
struct Open {
    ids: [BTreeSet<i64>; 2],
    edits: [Edit; 2],
    savepoint: Option<[Edit; 2]>,
}

#[derive(Clone, Copy, Default)]
struct Edit {
    is_edited: bool,
    is_renamed: bool,
    is_reset: bool,
}

impl Open {
    fn commit(self, issued: &mut Issued) {
        let before = issued.0.clone();
        for (name, edit) in self.edits.iter().enumerate() {
            if !edit.is_edited {
                continue;
            }
            if edit.is_reset {
                issued.0[name].clear();
            } else {
                issued.add_all(name, &self.ids[name]);
            }
            if edit.is_renamed {
                issued.add_all(name, &before[1 - name]);
                issued.add_all(name, &self.ids[1 - name]);
            }
        }
    }
}

/// Sessions of one server: one with a transaction, and another one.
struct Sessions {
    main: Session,
    other: Session,
    is_open: bool,
}

impl Sessions {
    fn new(server: &Server) -> Self {
        let [main, other] = [(); 2].map(|()| {
            let mut session = server.session();
            session.run("SET lock_timeout = '10s'; SET client_min_messages = error");
            session.be_patient();
            session
        });
        Self {
            main,
            other,
            is_open: false,
        }
    }

    /// Runs a statement in the transaction, which begins if there is none.
    fn edit(&mut self, sql: &str) {
        if !std::mem::replace(&mut self.is_open, true) {
            self.main.run("BEGIN");
        }
        self.main.run(sql);
    }

    fn end(&mut self, how: &str) {
        self.main.run(how);
        self.is_open = false;
    }

    /// The steps that all transactions have. False if this is none of them.
    fn transact(&mut self, step: &Step<'_>) -> bool {
        match step.name {
            "Savepoint" => self.edit("SAVEPOINT s"),
            "RollbackTo" => self.edit("ROLLBACK TO s; RELEASE s"),
            "Rollback" => self.end("ROLLBACK"),
            "Commit" => self.end("COMMIT"),
            _ => return false,
        }
        true
    }
}

/// A transaction that edits tags.
fn savepoints(sessions: &mut Sessions, steps: &[Step<'_>]) {
    let mut issued = Issued::default();
    let mut open: Option<Open> = None;
    for step in steps {
        let (name, to) = (step.number, 1 - step.number);
        let next = format!("SELECT leaf_segment_next('t{name}')");
        if step.is_refused() {
            sessions.edit("SAVEPOINT refused");
            sessions.main.fails(&next).is("55000");
            sessions.edit("ROLLBACK TO refused; RELEASE refused");
            continue;
        }
        let edit = match step.name {
            "Create" => format!(
                "INSERT INTO leaf_id.leaf_alloc (biz_tag, step, max_step) VALUES ('t{name}', 1, 1)"
            ),
            "Drop" => format!("DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't{name}'"),
            "Rename" => {
                format!("UPDATE leaf_id.leaf_alloc SET biz_tag = 't{to}' WHERE biz_tag = 't{name}'")
            }
            "Reset" => format!("SELECT leaf_tag_reset('t{name}', 1, force => true)"),
            _ => String::new(),
        };
        if !edit.is_empty() {
            sessions.edit(&edit);
            let open = open.get_or_insert_default();
            open.edits[name].is_edited = true;
            match step.name {
                "Rename" => {
                    open.edits[to].is_edited = true;
                    open.edits[to].is_renamed = !open.edits[name].is_reset;
                }
                "Reset" => {
                    open.edits[name].is_renamed = false;
                    open.edits[name].is_reset = true;
                }
                _ => {}
            }
            continue;
        }
        if sessions.transact(step) {
            match step.name {
                "Savepoint" => {
                    let open = open.get_or_insert_default();
                    open.savepoint = Some(open.edits);
                }
                "RollbackTo" => {
                    let open = open.as_mut().unwrap();
                    open.edits = open.savepoint.take().unwrap();
                }
                "Rollback" => open = None,
                _ => open.take().unwrap().commit(&mut issued),
            }
            continue;
        }
        match step.name {
            "Use" => {
                let id = sessions.main.value(&next);
                match &mut open {
                    Some(open) if open.edits[name].is_edited => {
                        assert!(!issued.0[name].contains(&id), "{id} comes twice");
                        assert!(open.ids[name].insert(id), "{id} comes twice");
                    }
                    _ => issued.add(name, id),
                }
            }
            "OtherUses" => issued.add(name, sessions.other.value(&next)),
            "OtherDrops" => sessions.other.run(&format!(
                "DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't{name}'"
            )),
            _ => assert!(copy(&mut sessions.other, TAGS, step), "{}", step.text),
        }
    }
}

/// A transaction that takes numbers and edits series.
fn gapless(sessions: &mut Sessions, steps: &[Step<'_>]) {
    for step in steps {
        let (name, to) = (step.number, 1 - step.number);
        let next = format!("SELECT leaf_id.leaf_gapless_next('t{name}')");
        match step.name {
            "Next" => sessions.edit(&next),
            "Create" => sessions.edit(&format!(
                "INSERT INTO leaf_id.leaf_gapless VALUES ('t{name}', 0)"
            )),
            "Drop" => sessions.edit(&format!(
                "DELETE FROM leaf_id.leaf_gapless WHERE series = 't{name}'"
            )),
            "Rename" => sessions.edit(&format!(
                "UPDATE leaf_id.leaf_gapless SET series = 't{to}' WHERE series = 't{name}'"
            )),
            "OtherNext" => sessions.other.run(&next),
            "DropAndForget" => {
                sessions.other.run(&format!(
                    "SELECT leaf_id.leaf_gapless_drop('t{name}', forget => true)"
                ));
            }
            _ => assert!(
                sessions.transact(step) || copy(&mut sessions.other, SERIES, step),
                "{}",
                step.text
            ),
        }
        let shown = [0, 1].map(|name| {
            sessions.main.value::<String>(&format!(
                "SELECT coalesce((SELECT last_number::text FROM leaf_id.leaf_gapless WHERE series = 't{name}'), '-')
                     || ',' || coalesce((SELECT high FROM leaf_id.leaf_gapless_mark WHERE series = 't{name}'), 0)"
            ))
        });
        assert_eq!(shown.join(" "), step.shown, "{}", step.text);
    }
}

/// A server, and those that it has replaced.
struct Fleet {
    servers: Vec<Server>,
    standbys: [Option<Backup>; 2],
    aside: Option<String>,
}

impl Fleet {
    fn new() -> Self {
        // Only the history of timelines is archived, for all servers.
        let server = Server::with_leaf_id(&[
            // Of claims, twice as many as a world that loses one makes, and one claimed ahead.
            ("leaf_id.failover_skip", "4"),
            ("archive_mode", "on"),
        ]);
        server.allow(TEST_LIMIT);
        let fleet = Self {
            servers: vec![server],
            standbys: [const { None }; 2],
            aside: None,
        };
        let timelines = fleet.timelines();
        fs::create_dir(&timelines).unwrap();
        fleet.servers[0].give(&timelines);
        let archive = format!(
            "case %f in *.history) cp %p {}/%f;; esac",
            timelines.display()
        );
        fleet.server().configure("archive_command", &archive);
        fleet
    }

    fn timelines(&self) -> PathBuf {
        self.servers[0].dir().join("timelines")
    }

    fn server(&self) -> &Server {
        self.servers.last().unwrap()
    }

    fn follow(&mut self, number: usize) {
        let backup = self.server().backup();
        if let Some(old) = self.standbys[number].replace(backup) {
            discard(&old);
        }
    }

    fn promote(&mut self, number: usize) {
        self.server().kill_9();
        let timelines = self.timelines();
        let restore = format!("cp {}/%f %p", timelines.display());
        let backup = self.standbys[number].take().unwrap();
        let conf = [
            ("recovery_target_timeline", "current"),
            ("restore_command", &*restore),
        ];
        let promoted = backup.recover(self.server(), ("recovery_target", "immediate"), &conf);
        promoted.allow(TEST_LIMIT);
        let history: String = promoted
            .session()
            .value("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '.history'");
        wait_until(LIMIT, "the archiver", || timelines.join(&history).exists());
        self.servers.push(promoted);
        let mut session = self.session();
        for (table, _) in TAGS {
            drop_copy(&mut session, table);
        }
    }

    fn preload(&self, library: &str) {
        self.server().configure("shared_preload_libraries", library);
        self.server().restart();
    }

    fn session(&self) -> Session {
        let mut session = self.server().session();
        session.run("SET client_min_messages = error");
        session.be_patient();
        session
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.standbys.iter().flatten().for_each(discard);
    }
}

fn discard(backup: &Backup) {
    let _ = fs::remove_dir_all(backup.data_dir().parent().unwrap());
}

/// A primary with two standbys.
fn failover(steps: &[Step<'_>]) {
    let mut fleet = Fleet::new();
    let mut issued = Issued::default();
    let mut session = fleet.session();
    for step in steps {
        let (name, to) = (step.number, 1 - step.number);
        let create = format!(
            "INSERT INTO leaf_id.leaf_alloc (biz_tag, step, max_step) VALUES ('t{name}', 2, 2)"
        );
        let next = format!("SELECT leaf_segment_next('t{name}')");
        let update = |columns: &str| {
            format!("UPDATE leaf_id.leaf_alloc SET {columns} WHERE biz_tag = 't{name}'")
        };
        match step.name {
            "Create" => session.run(&create),
            "CreateAndUse" => {
                session.run("BEGIN");
                session.run(&create);
                issued.add(name, session.value(&next));
                session.run("COMMIT");
            }
            "Drop" => session.run(&format!(
                "DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't{name}'"
            )),
            "Rename" => {
                session.run(&update(&format!("biz_tag = 't{to}'")));
                let brought = issued.0[name].clone();
                issued.add_all(to, &brought);
            }
            "Reset" => {
                session.run(&format!(
                    "SELECT leaf_tag_reset('t{name}', 1, force => true)"
                ));
                session.run(&update("step = 2, max_step = 2"));
                issued.0[name].clear();
            }
            "Forget" => {
                session.run(&format!(
                    "DELETE FROM leaf_id.leaf_high_mark WHERE tag = 't{name}'"
                ));
                issued.0[name].clear();
            }
            "Raise" => session.run(&update("max_id = max_id + 8")),
            "Lower" if step.is_refused() => {
                // A tool may have set the row back to 1, where the world has claimed again since.
                let state = session.fails(&update("max_id = max_id - 1")).state;
                assert!(["55000", "23514"].contains(&&*state), "{state}");
            }
            // It has not issued an id yet.
            "Lower" => session.run(&update("max_id = 1")),
            "Widen" => session.run(&update("step = 4, max_step = 4")),
            "Narrow" => session.run(&update("step = 2, max_step = 2")),
            "Use" => issued.add(name, session.value(&next)),
            "PutAside" => {
                fleet.aside = session.value(&format!(
                    "SELECT to_json(a)::text FROM leaf_id.leaf_alloc a WHERE biz_tag = 't{name}'"
                ));
                assert!(fleet.aside.is_some());
            }
            "PutBack" => session.run(&format!(
                "INSERT INTO leaf_id.leaf_alloc
                 SELECT * FROM json_populate_record(NULL::leaf_id.leaf_alloc, $json${}$json$)",
                fleet.aside.take().unwrap()
            )),
            "Follow" => fleet.follow(step.number),
            "Crash" | "Unload" | "Restart" | "Promote" => {
                drop(session);
                match step.name {
                    "Crash" => {
                        fleet.server().kill_9();
                        fleet.server().launch();
                    }
                    "Unload" => fleet.preload(""),
                    "Restart" => fleet.preload("leaf_id"),
                    _ => fleet.promote(step.number),
                }
                session = fleet.session();
            }
            _ => assert!(copy(&mut session, TAGS, step), "{}", step.text),
        }
    }
}

/// Steps that a thousand histories must have taken, each of them in some world.
const TAKEN: [&str; 9] = [
    "Use",
    "Next",
    "Rename",
    "RollbackTo",
    "Crash",
    "Restart",
    "Promote",
    "PutRows",
    "PutMarks",
];

#[test]
fn servers_do_what_the_worlds_say() {
    let histories = histories();
    let histories: Vec<_> = histories.lines().collect();
    assert!(!histories.is_empty());
    // A hundred may have none with a promotion.
    if histories.len() >= 1_000 {
        for step in TAKEN {
            let text = format!("\t{step}");
            let is_taken = histories.iter().any(|history| history.contains(&text));
            assert!(is_taken, "{step} is not taken");
        }
    }
    let next = AtomicUsize::new(0);
    let steps_taken: usize = in_threads(THREADS, |_| {
        let server = Server::with_leaf_id(&[]);
        server.allow(TEST_LIMIT);
        let mut sessions = Sessions::new(&server);
        let mut taken = 0;
        while let Some(history) = histories.get(next.fetch_add(1, Ordering::Relaxed)) {
            let printed = Printed(history);
            let mut texts = history.split('\t');
            let world = texts.next().unwrap();
            let steps: Vec<_> = texts.map(Step::of).collect();
            match world {
                "savepoints" => savepoints(&mut sessions, &steps),
                "gapless" => gapless(&mut sessions, &steps),
                "failover" => failover(&steps),
                _ => panic!("no such world"),
            }
            if std::mem::take(&mut sessions.is_open) {
                sessions.main.run("ROLLBACK");
            }
            clear(&mut sessions.other);
            taken += steps.len();
            std::mem::forget(printed);
        }
        taken
    })
    .into_iter()
    .sum();
    tell(&format!(
        "{} histories of the explorer, {steps_taken} steps, are the same on servers",
        histories.len()
    ));
}

/// Prints the history at hand if the test fails in it.
struct Printed<'a>(&'a str);

impl Drop for Printed<'_> {
    fn drop(&mut self) {
        eprintln!("in the history:\n{}", self.0);
    }
}
