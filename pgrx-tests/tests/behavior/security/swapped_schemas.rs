//! Would catch: a superuser's call that alters another role's table, because the schemas of the two were
//! renamed between a look at a name and its use.
//!
//! The roles are those of `whose_object_counts`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leaf_id_tests::{Failure, Server, Session, each, tell, wait_until, while_repeating};

use super::whose_object_counts::{session_of, shop};

/// mallory owns schemas `a` and `b`. Her table is `a.t`, and keeper's is `b.t`, beside a sequence with
/// the name of hers.
struct Swap {
    server: Server,
    admin: Session,
    mallory: Session,
    hers: u32,
    his: u32,
    /// Of the other table.
    owner: &'static str,
    /// What that role owns, before.
    kept: String,
    is_swapped: bool,
}

const SWAP: &str =
    "ALTER SCHEMA a RENAME TO c; ALTER SCHEMA b RENAME TO a; ALTER SCHEMA c RENAME TO b";

impl Swap {
    /// `his` is the column of `b.t`, and of which role.
    fn new(owner: &'static str, his: &str) -> Self {
        let (server, mut admin) = shop();
        admin.run("GRANT CREATE ON DATABASE postgres TO mallory");
        let mut mallory = session_of(&server, "mallory");
        mallory.run("CREATE SCHEMA a; CREATE SCHEMA b; GRANT USAGE, CREATE ON SCHEMA b TO keeper");
        session_of(&server, owner).run(&format!(
            "CREATE TABLE b.t (id {his}, note text); CREATE SEQUENCE IF NOT EXISTS b.t_id_seq;
             ALTER SEQUENCE b.t_id_seq CYCLE"
        ));
        let his = admin.value("SELECT 'b.t'::regclass::oid");
        let mut swap = Self {
            server,
            admin,
            mallory,
            hers: 0,
            his,
            owner,
            kept: String::new(),
            is_swapped: false,
        };
        swap.kept = swap.state_of_his();
        swap
    }

    /// Makes mallory's table, whose column takes its ids from a tag already if it is to be released.
    fn make(&mut self, hers: &str, is_release: bool) {
        if self.is_swapped {
            self.mallory.run(SWAP);
            self.is_swapped = false;
        }
        self.mallory.run(&format!(
            "DROP TABLE IF EXISTS a.t; CREATE TABLE a.t (id {hers}, note text)"
        ));
        self.hers = self.admin.value("SELECT 'a.t'::regclass::oid");
        if is_release {
            let call = self.call(false);
            self.admin.run(&call);
        }
    }

    /// All that says where the other column takes its ids from, and what his sequences are; by oid.
    fn state_of_his(&mut self) -> String {
        self.admin.value(&format!(
            "SELECT concat_ws('|', a.attidentity, a.attnotnull, md5(d.adbin::text), c.relowner, c.relacl, (
                 SELECT string_agg(concat_ws(':', q.oid, q.relacl, s.seqcycle, s.seqstart, s.seqincrement, s.seqmax,
                     pg_sequence_last_value(q.oid)), ',' ORDER BY q.oid)
                 FROM pg_sequence s JOIN pg_class q ON q.oid = s.seqrelid WHERE q.relowner = c.relowner))
             FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id'
             LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
             WHERE c.oid = {}",
            self.his
        ))
    }

    /// Where mallory's column takes its ids from: an identity, a default, or nothing. A sequence that
    /// is not the column's is as bad.
    fn source_of_hers(&mut self) -> String {
        self.admin.value(&format!(
            "SELECT CASE WHEN a.attidentity <> '' THEN 'identity'
                 WHEN EXISTS (
                     SELECT FROM pg_depend u JOIN pg_class q ON q.oid = u.refobjid AND q.relkind = 'S'
                     WHERE u.classid = 'pg_attrdef'::regclass AND u.objid = d.oid AND NOT EXISTS (
                         SELECT FROM pg_depend o
                         WHERE o.classid = 'pg_class'::regclass AND o.objid = q.oid AND o.deptype = 'a'
                             AND o.refobjid = a.attrelid AND o.refobjsubid = a.attnum)) THEN 'nothing of its own'
                 ELSE coalesce(pg_get_expr(d.adbin, 0), 'nothing') END
             FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = {} AND a.attname = 'id'",
            self.hers
        ))
    }

    /// The call that moves mallory's column, to a tag or back.
    fn call(&self, is_release: bool) -> String {
        let hers = self.hers;
        if is_release {
            format!("SELECT leaf_release({hers}::regclass, 'id')")
        } else {
            format!("SELECT leaf_adopt({hers}::regclass, 'id', 't')")
        }
    }

    /// Runs a call, and swaps the schemas in mallory's transaction once pg_locks has such a lock of the
    /// caller. True if it was still there then.
    fn during(&mut self, call: &str, lock: &str) -> (Result<(), Failure>, bool) {
        let pid = self.admin.pid();
        let lock = format!("SELECT FROM pg_locks l WHERE l.pid = {pid} AND {lock}");
        let (admin, mallory) = (&mut self.admin, &mut self.mallory);
        self.is_swapped = true;
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| admin.try_run(call));
            let swapped = mallory.try_run(&format!(
                "DO $$ DECLARE until CONSTANT timestamptz := clock_timestamp() + interval '20 s';
                 BEGIN
                     WHILE NOT EXISTS ({lock}) LOOP
                         IF clock_timestamp() > until THEN RAISE EXCEPTION 'no lock'; END IF;
                     END LOOP;
                 END $$; {SWAP}"
            ));
            let hit = swapped.is_ok() && mallory.value(&format!("SELECT EXISTS ({lock})"));
            let committed = mallory.try_run("COMMIT");
            let called = calling.join().unwrap();
            println!("{call}: {called:?}, hit {hit}");
            swapped.and(committed).unwrap();
            (called, hit)
        })
    }

    /// Nothing of another role has changed, and mallory's column has a source. What is in the other
    /// schema may be her own.
    #[track_caller]
    fn assert_right(&mut self, called: &Result<(), Failure>) {
        let (now, source) = (self.state_of_his(), self.source_of_hers());
        let is_kept = self.owner == "mallory" || now == self.kept;
        assert!(
            is_kept && !source.starts_with("nothing"),
            "after {called:?}, the other role's column and sequences are {now}, before {}; \
             hers takes its ids from {source}",
            self.kept
        );
    }

    /// Rows of mallory's get ids above those that there are.
    #[track_caller]
    fn assert_goes_on(&mut self) {
        let table: String = self
            .admin
            .value(&format!("SELECT {}::regclass::text", self.hers));
        let last: i64 = self
            .admin
            .value(&format!("SELECT coalesce(max(id), 0) FROM {table}"));
        let next: i64 = self.admin.value(&format!(
            "INSERT INTO {table} (note) VALUES ('next') RETURNING id"
        ));
        assert!(next > last, "{next} after {last}");
    }
}

const IN_USE: &str = "BEGIN; SELECT nextval('a.t_id_seq')";

/// When a call waits, or takes long, and has looked up names before.
struct Moment {
    hers: &'static str,
    /// The owner of the other table.
    owner: &'static str,
    his: &'static str,
    is_release: bool,
    /// Mallory's sequence is in use, by a transaction that ends with the swap; or else the table has
    /// many rows and no index.
    is_in_use: bool,
    /// The lock by which the moment shows.
    lock: &'static str,
}

/// The caller waits for a sequence.
const WAITS: &str = "NOT l.granted AND l.mode = 'AccessExclusiveLock'";

/// Tries a moment until it was hit three times.
fn swap_at(moment: &Moment) {
    let start = Instant::now();
    let mut swap = Swap::new(moment.owner, moment.his);
    let (mut hits, mut calls, mut refused) = (0, 0, 0);
    while hits < 3 && start.elapsed() < Duration::from_secs(60) {
        swap.make(moment.hers, moment.is_release);
        swap.mallory.run(if moment.is_in_use {
            IN_USE
        } else {
            "INSERT INTO a.t SELECT n, 'row' FROM generate_series(1, 1000000) n"
        });
        let call = swap.call(moment.is_release);
        let (called, hit) = swap.during(&call, moment.lock);
        calls += 1;
        hits += usize::from(hit);
        refused += usize::from(called.is_err());
        swap.assert_right(&called);
        if called.is_ok() {
            swap.assert_goes_on();
        }
    }
    let name = if moment.is_release {
        "leaf_release"
    } else {
        "leaf_adopt"
    };
    tell(&format!(
        "{name} of {}: {hits} of {calls} calls were hit, {refused} refused",
        moment.hers
    ));
    assert!(hits > 0, "the moment was never hit");
}

/// Before: the other table gets an identity, hers has none and no default, and the call succeeds.
#[test]
fn schemas_are_swapped_while_leaf_release_reads_the_table() {
    each(["keeper", "mallory"], |owner| {
        swap_at(&Moment {
            hers: "bigserial",
            owner,
            his: "bigint NOT NULL",
            is_release: true,
            is_in_use: false,
            lock: "l.granted AND l.mode = 'RowExclusiveLock'
                 AND l.relation = (SELECT c.oid FROM pg_class c WHERE c.relname = 'leaf_alloc')",
        });
    });
}

/// No name is used after the rows are read.
#[test]
fn schemas_are_swapped_while_leaf_adopt_reads_the_table() {
    for hers in ["bigserial", "bigint GENERATED BY DEFAULT AS IDENTITY"] {
        swap_at(&Moment {
            hers,
            owner: "keeper",
            his: "bigint NOT NULL",
            is_release: false,
            is_in_use: false,
            // Of the sequence, which is dropped before that.
            lock: "l.granted AND l.mode = 'AccessExclusiveLock'
                 AND l.relation IN (SELECT c.oid FROM pg_class c WHERE c.relname = 't_id_seq')",
        });
    }
}

/// Before: keeper's sequence is altered.
#[test]
fn schemas_are_swapped_while_leaf_adopt_waits_for_a_sequence() {
    swap_at(&Moment {
        hers: "bigserial",
        owner: "keeper",
        his: "bigserial",
        is_release: false,
        is_in_use: true,
        lock: WAITS,
    });
}

/// Before: an error, as mallory's column is an identity still.
#[test]
fn schemas_are_swapped_while_leaf_adopt_waits_for_an_identity() {
    swap_at(&Moment {
        hers: "bigint GENERATED BY DEFAULT AS IDENTITY",
        owner: "keeper",
        his: "bigint GENERATED BY DEFAULT AS IDENTITY",
        is_release: false,
        is_in_use: true,
        lock: WAITS,
    });
}

/// Between the name that a call has made of an oid and the statement that uses it: an event trigger of
/// the administrator's waits there until the schemas are swapped. Without the check that ends a call,
/// the other role's table or sequence is altered, and the call succeeds.
#[test]
fn schemas_are_swapped_between_a_name_and_its_statement() {
    // What is called, what may be NULL, the command, and how many of it come before. (Once the call has
    // created a sequence, its schema cannot be renamed.)
    let moments = [
        (true, "note", "ALTER TABLE", 0),
        (true, "note", "ALTER TABLE", 1),
        (true, "id", "CREATE SEQUENCE", 0),
        (false, "note", "ALTER SEQUENCE", 0),
        (false, "note", "ALTER TABLE", 0),
        (false, "note", "DROP SEQUENCE", 0),
    ];
    each(moments, |&(is_release, nullable, command, before)| {
        let his = if is_release {
            "bigint NOT NULL"
        } else {
            "bigserial"
        };
        // Another owner's table is refused by PostgreSQL there.
        let owner = if before == 1 { "mallory" } else { "keeper" };
        let mut swap = Swap::new(owner, his);
        swap.make("bigserial", is_release);
        swap.mallory
            .run(&format!("ALTER TABLE a.t ALTER {nullable} DROP NOT NULL"));
        let mut other = swap.server.session();
        other.run(
            "ALTER SEQUENCE b.t_id_seq RENAME TO other_id_seq; CREATE TABLE public.swapped ();
             CREATE FUNCTION public.pause() RETURNS event_trigger LANGUAGE plpgsql AS $$
             DECLARE
                 before integer := nullif(current_setting('swap.before', true), '');
             BEGIN
                 IF current_setting('swap.command', true) = tg_tag THEN
                     PERFORM set_config('swap.before', (before - 1)::text, false);
                     WHILE before = 0 AND NOT EXISTS (SELECT FROM public.swapped) LOOP
                         PERFORM pg_sleep(0.01);
                     END LOOP;
                 END IF;
             END $$;
             CREATE EVENT TRIGGER pause ON ddl_command_start EXECUTE FUNCTION public.pause()",
        );
        swap.admin.run(&format!(
            "SET swap.command = '{command}'; SET swap.before = {before}"
        ));
        let pauses = format!(
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {} AND wait_event = 'PgSleep'",
            swap.admin.pid()
        );
        let call = swap.call(is_release);
        let (admin, mallory) = (&mut swap.admin, &mut swap.mallory);
        let called = std::thread::scope(|scope| {
            let calling = scope.spawn(|| admin.try_run(&call));
            wait_until(Duration::from_secs(30), command, || other.value(&pauses));
            mallory.run(SWAP);
            other.run("INSERT INTO public.swapped DEFAULT VALUES");
            calling.join().unwrap()
        });
        println!("{command} {before}: {called:?}");
        if before == 1 {
            // The other table has the identity; only the check that ends the call sees that.
            called.as_ref().unwrap_err().is("55006");
        }
        swap.assert_right(&called);
    });
}

/// Without a known moment; as an identity, and, where ids may be NULL, with a sequence.
#[test]
fn schemas_are_swapped_all_the_time() {
    each(["note", "id"], |nullable| {
        let mut swap = Swap::new("keeper", "bigint NOT NULL");
        // PostgreSQL's, of names that are looked up while they change.
        swap.server.expect_internal_errors();
        swap.make("bigserial", false);
        swap.mallory
            .run(&format!("ALTER TABLE a.t ALTER {nullable} DROP NOT NULL"));
        let mut mallory = session_of(&swap.server, "mallory");
        let swaps = AtomicUsize::new(0);
        let disturb = || {
            mallory.run(SWAP);
            swaps.fetch_add(1, Ordering::Relaxed);
        };
        let (start, mut calls, mut refused) = (Instant::now(), 0, 0);
        while_repeating(disturb, || {
            while start.elapsed() < Duration::from_secs(6) {
                let is_release = swap.source_of_hers().contains("leaf_segment_next");
                let call = swap.call(is_release);
                let called = swap.admin.try_run(&call);
                calls += 1;
                refused += usize::from(called.is_err());
                swap.assert_right(&called);
            }
        });
        tell(&format!(
            "{nullable} may be NULL: {calls} calls beside {} swaps, {refused} refused",
            swaps.into_inner()
        ));
    });
}
