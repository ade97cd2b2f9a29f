//! Would catch: a server that refuses snowflake ids, while its standby, promoted in its place,
//! issues some of them again (I7). The standby's files are from before the cause of the refusal.

use std::collections::HashSet;
use std::time::Duration;

use leaf_id_tests::{DAMAGES, Server, Stop, in_threads, now_ms, wait_until};

const LIMIT: Duration = Duration::from_secs(30);
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const RESERVATION: &str = "1s";
const MAX_CLOCK_LEAD: &str = "60s";
/// Less than that, and more than a promotion takes.
const LEAD_MS: i64 = 30_000;
/// Times of the primary's last ids extend over at least this much, so that the standby's first id
/// falls among them even if its launcher is late.
const SPREAD_MS: i64 = 6000;
/// Worker id that no server has had.
const NEW_WORKER_ID: &str = "77";

/// Why the primary refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Its ids would be smaller than earlier ones.
    LaterEpoch,
    /// So would they with this.
    NarrowerLayout,
    /// The worker id was retired by `leaf_snowflake_reset`, after it had issued ids while the clock
    /// was an hour ahead, and is configured again.
    RetiredWorkerId,
    /// The reservation file was damaged while ids led the clock.
    DamagedFile,
}

/// What the promoted standby does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promoted {
    Refuses,
    IssuesNewIds,
    Repeats,
}

struct Case {
    cause: Cause,
    /// SQLSTATE, and a part of DETAIL or HINT.
    refusal: (&'static str, &'static str),
    /// [`NEW_WORKER_ID`] is configured on the standby, too.
    has_new_worker_id: bool,
    promoted: Promoted,
}

const CASES: [Case; 5] = [
    Case {
        cause: Cause::LaterEpoch,
        refusal: ("55000", "leaf_id.epoch"),
        has_new_worker_id: false,
        promoted: Promoted::Refuses,
    },
    Case {
        cause: Cause::NarrowerLayout,
        refusal: ("55000", "leaf_id.snowflake_layout"),
        has_new_worker_id: false,
        promoted: Promoted::Refuses,
    },
    // An assumption (ARCHITECTURE.md): only the file of the server that was reset knows the retired
    // worker ids. docs/troubleshooting.md says what to do.
    Case {
        cause: Cause::RetiredWorkerId,
        refusal: ("55000", "with times until"),
        has_new_worker_id: false,
        promoted: Promoted::Repeats,
    },
    Case {
        cause: Cause::RetiredWorkerId,
        refusal: ("55000", "with times until"),
        has_new_worker_id: true,
        promoted: Promoted::IssuesNewIds,
    },
    Case {
        cause: Cause::DamagedFile,
        refusal: ("58030", "leaf_id_reservation.json"),
        has_new_worker_id: false,
        promoted: Promoted::IssuesNewIds,
    },
];

#[test]
fn a_standby_repeats_no_snowflake_id_that_its_primary_refuses() {
    in_threads(CASES.len(), |i| CASES[i].test());
}

impl Case {
    fn test(&self) {
        // Soon after the epoch, ids with one bit less exceed earlier ones once the time since the
        // epoch has doubled.
        let epoch_ms = now_ms() - 1000;
        let primary = Server::with_clock(
            0,
            &[
                ("leaf_id.epoch", &epoch_ms.to_string()),
                ("leaf_id.worker_id", "0"),
                ("leaf_id.timestamp_reservation", RESERVATION),
                ("leaf_id.max_clock_lead", MAX_CLOCK_LEAD),
            ],
        );
        let mut issued = vec![primary.session().next_snowflake()];
        let standby = primary.backup().with_clock(0).start_standby(&primary, &[]);
        standby.replay_all_of(&primary);
        // The standby's file is now so old that ids exceed those it bounds with the later epoch and
        // the narrower layout, too.
        for server in [&primary, &standby] {
            server.clock().set(MINUTE_MS);
        }
        self.bring_about(&primary, epoch_ms, &mut issued);
        self.assert_refuses(&primary);
        primary.kill_9();

        if let Some((name, value)) = self.setting(epoch_ms) {
            standby.set(name, &value);
            standby.restart();
        }
        if self.has_new_worker_id {
            standby.set("leaf_id.worker_id", NEW_WORKER_ID);
        }
        standby.promote();
        if self.promoted == Promoted::Refuses {
            self.assert_refuses(&standby);
            return;
        }
        let repeated = count_repeated(&standby, epoch_ms, &issued);
        println!(
            "{:?}: {repeated} of {} ids came again",
            self.cause,
            issued.len()
        );
        let repeats = self.promoted == Promoted::Repeats;
        assert_eq!(repeated > 0, repeats, "{:?}", self.cause);
    }

    /// The setting that causes the refusal. The administrator changes it on both servers.
    fn setting(&self, epoch_ms: i64) -> Option<(&'static str, String)> {
        match self.cause {
            Cause::LaterEpoch => Some(("leaf_id.epoch", (epoch_ms + 40_000).to_string())),
            Cause::NarrowerLayout => Some(("leaf_id.snowflake_layout", "41/10/11".into())),
            Cause::RetiredWorkerId | Cause::DamagedFile => None,
        }
    }

    /// Makes the primary refuse, after it has issued ids with times spread over [`SPREAD_MS`].
    fn bring_about(&self, primary: &Server, epoch_ms: i64, issued: &mut Vec<i64>) {
        let clock = primary.clock();
        let ahead_ms = match self.cause {
            Cause::LaterEpoch | Cause::NarrowerLayout => MINUTE_MS,
            Cause::RetiredWorkerId => MINUTE_MS + HOUR_MS,
            Cause::DamagedFile => MINUTE_MS + LEAD_MS,
        };
        let mut session = primary.session();
        session.be_patient();
        clock.set(ahead_ms);
        let begin_ms = clock.now_ms();
        for passed_ms in (0..=SPREAD_MS).step_by(20) {
            // However long the calls take.
            clock.set(clock.ahead_ms() + begin_ms + passed_ms - clock.now_ms());
            issued.extend(session.ids("SELECT leaf_snowflake_next_batch(1000)"));
        }
        clock.set(MINUTE_MS);
        match self.cause {
            Cause::LaterEpoch | Cause::NarrowerLayout => {
                let (name, value) = self.setting(epoch_ms).unwrap();
                primary.set(name, &value);
                drop(session);
                primary.restart();
            }
            Cause::RetiredWorkerId => {
                primary.set("leaf_id.worker_id", NEW_WORKER_ID);
                wait_until(LIMIT, "the reset", || {
                    let reset = "SELECT leaf_id.leaf_snowflake_reset(now())";
                    session.try_run(reset).is_ok()
                });
                issued.push(session.next_snowflake());
                primary.set("leaf_id.worker_id", "0");
                // Until then, there are ids of the new worker id.
                wait_until(LIMIT, "the old worker id", || {
                    let ids = session.try_column::<i64>("SELECT leaf_snowflake_next()");
                    issued.extend(ids.iter().flatten());
                    ids.is_err()
                });
            }
            Cause::DamagedFile => {
                primary.stop(Stop::Immediate);
                let (_, damage) = DAMAGES[0];
                damage(&primary.data_dir().join("leaf_id_reservation.json"));
                primary.launch();
            }
        }
    }

    fn assert_refuses(&self, server: &Server) {
        let (state, part) = self.refusal;
        wait_until(LIMIT, "the refusal", || {
            let mut session = server.session();
            session.run("SET leaf_id.refill_timeout = '1s'");
            match session.try_column::<i64>("SELECT leaf_snowflake_next()") {
                Ok(ids) => panic!("{:?}: {ids:?}", self.cause),
                Err(failure) => failure.state == state && failure.to_string().contains(part),
            }
        });
    }
}

/// Number of these ids that a server issues again when its clock reaches their times.
fn count_repeated(server: &Server, epoch_ms: i64, issued: &[i64]) -> usize {
    let time_of = |id: &i64| (id >> 22) + epoch_ms;
    let from_ms = issued.iter().map(time_of).max().unwrap() - SPREAD_MS;
    let mut session = server.session();
    session.be_patient();
    let mut ids = vec![session.next_snowflake()];
    let clock = server.clock();
    let is_to_come = clock.now_ms() < from_ms;
    for _ in 0..4 {
        // Held back, so that no time passes between batches: together they are all ids of about
        // 100 ms, whichever part of the spread that is.
        if is_to_come {
            clock.set(clock.ahead_ms() + from_ms - clock.now_ms());
        }
        ids.extend(session.ids("SELECT leaf_snowflake_next_batch(100000)"));
    }
    let issued: HashSet<_> = issued.iter().collect();
    ids.iter().filter(|id| issued.contains(id)).count()
}
