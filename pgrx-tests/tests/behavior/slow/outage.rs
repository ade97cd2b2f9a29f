//! Would catch: a central server whose outage has an effect too soon, since cached ids do not last
//! a quarter of an hour; views that do not show how long they will last; a step that shrinks
//! because of the outage, so that the next one has an effect sooner; and a server that recovers
//! only on the next request.
//!
//! The servers' clocks run at an accelerated rate.

use std::time::Duration;

use leaf_id_tests::{CENTRAL, Clock, Failure, Server, Session, Stop, random, wait_until};
use rand::RngExt;
use rand::rngs::StdRng;

const LIMIT: Duration = Duration::from_secs(60);
const MINUTE_MS: i64 = 60_000;
const STEP: i32 = 10;
/// Claims of constant length after which the step counts as settled.
const SETTLED: i64 = 4;

/// A member whose tag `t` is used at a constant rate, and its central server.
struct Usage {
    central: Server,
    member: Server,
    clock: Clock,
    session: Session,
    random: StdRng,
    /// Ids per minute.
    rate: i32,
}

impl Usage {
    fn new() -> Self {
        let mut random = random();
        // A segment must last clearly between 15 and 30 minutes: the test's clock advances by
        // minutes, so near a boundary the step would alternate.
        let length = STEP << random.random_range(7..14);
        let rate = length / random.random_range(18..27);
        println!("{rate} ids a minute");
        let central = Server::with_leaf_id(&[]);
        central.admit_members();
        central.session().create_tag("t");
        let member = Server::start_unrelated_with_clock(1, 0, &[("leaf_id.claim_timeout", "2s")]);
        member.source_from(&[central.dir()]);
        let mut session = member.session();
        session.create_sourced_tag("t", STEP, 10_000_000);
        session.run("SET leaf_id.refill_timeout = '30s'");
        Self {
            clock: member.clock(),
            central,
            member,
            session,
            random,
            rate,
        }
    }

    /// Takes the ids of a minute, and advances the clock by it.
    fn pass_a_minute(&mut self) -> Result<(), Failure> {
        let taken = self.session.try_take("t", self.rate);
        self.clock.set(self.clock.ahead_ms() + MINUTE_MS);
        taken.map(|_| ())
    }

    /// Advances the clock while the central server is available.
    #[track_caller]
    fn pass(&mut self, minutes: i64) {
        for minute in 0..minutes {
            self.pass_a_minute()
                .unwrap_or_else(|failure| panic!("in minute {minute}: {failure}"));
            self.session.wait_for_spare("t");
        }
    }

    /// Advances the clock until the step is settled, then by a random time, so that the next claim
    /// may be near or far.
    #[track_caller]
    fn settle(&mut self) {
        let (mut step, mut since) = (0, 0);
        for _ in 0..2000 {
            self.pass(1);
            let refills = self.session.figure("t", "refills");
            let now = self.session.figure("t", "step");
            if now != step {
                (step, since) = (now, refills);
            }
            if refills - since >= SETTLED {
                let more = self.random.random_range(0..40);
                return self.pass(more);
            }
        }
        panic!("{} a minute do not settle, at {step} now", self.rate);
    }

    /// Stops the central server, and advances the clock until no ids are left. Returns the number
    /// of minutes.
    fn use_up_what_is_cached(&mut self) -> i64 {
        self.central.stop(Stop::Fast);
        self.session.run("SET leaf_id.refill_timeout = '200ms'");
        let mut minutes = 0;
        let failure = loop {
            match self.pass_a_minute() {
                Ok(()) => minutes += 1,
                Err(failure) => break failure,
            }
            assert!(minutes < 1000, "there is no end of them");
        };
        failure.is("55P03").details(CENTRAL);
        minutes
    }

    fn number(&mut self, sql: &str) -> f64 {
        self.session.value(&format!(
            "SELECT ({sql})::float8 FROM leaf_id.tags_detail WHERE tag = 't'"
        ))
    }
}

#[test]
fn what_is_cached_lasts_a_quarter_of_an_hour() {
    let mut usage = Usage::new();
    usage.settle();
    let minutes = usage.use_up_what_is_cached();
    println!("it lasted {minutes} minutes");
    assert!((13..=60).contains(&minutes), "{minutes}");
}

#[test]
fn the_view_tells_since_when_and_how_long() {
    let mut usage = Usage::new();
    usage.settle();
    let away: bool = usage.session.value(
        "SELECT server = 'leaf_central' AND server_away_since IS NULL
         FROM leaf_id.tags_detail WHERE tag = 't'",
    );
    assert!(away, "it is there");
    let foretold = usage.number("extract(epoch FROM cached_for) / 60");
    let before = usage.clock.now_ms();
    let minutes = usage.use_up_what_is_cached();
    println!("{foretold} minutes were foretold, and it was {minutes}");
    let minutes = minutes as f64;
    assert!(
        foretold > minutes * 0.7 - 2.0 && foretold < minutes * 1.4 + 2.0,
        "{foretold} minutes were foretold, and it was {minutes}"
    );
    let since = usage.number("extract(epoch FROM server_away_since) * 1000");
    let now = usage.clock.now_ms();
    assert!(
        since >= before as f64 && since <= now as f64,
        "{since} is not in {before}..{now}"
    );
    assert!(usage.number("extract(epoch FROM cached_for)") <= 60.0);
    let (state, error): (String, String) = {
        let sql = "SELECT state, last_error FROM leaf_id.fleet WHERE name = $1";
        let row = usage.session.query_one(sql, &[&CENTRAL]).unwrap();
        (row.get(0), row.get(1))
    };
    println!("{state}: {error}");
    usage.central.launch();
    usage.session.run("SET leaf_id.refill_timeout = '30s'");
    usage.pass(1);
    let back: bool = usage.session.value(
        "SELECT bool_and(server_away_since IS NULL) FROM leaf_id.tags_detail WHERE tag = 't'",
    );
    assert!(back, "it is back");
}

/// The last segment before the outage lasted longer than ever, but only because no other was
/// available.
#[test]
fn a_long_outage_does_not_shrink_the_step() {
    let mut usage = Usage::new();
    usage.settle();
    let before = usage.session.figure("t", "step");
    usage.use_up_what_is_cached();
    for _ in 0..50 {
        usage.clock.set(usage.clock.ahead_ms() + MINUTE_MS);
    }
    usage
        .session
        .fails("SELECT leaf_segment_next('t')")
        .is("55P03");
    usage.central.launch();
    usage.session.run("SET leaf_id.refill_timeout = '30s'");
    usage.pass(1);
    let after = usage.session.figure("t", "step");
    assert!(after >= before, "{before}, then {after}");
    // The next outage is survived, too.
    usage.pass(60);
    let minutes = usage.use_up_what_is_cached();
    assert!(minutes >= 13, "{minutes}");
}

#[test]
fn refills_go_on_by_themselves() {
    let mut usage = Usage::new();
    usage.pass(1);
    usage.use_up_what_is_cached();
    let cached = "coalesce(current_remaining, 0) + coalesce(spare_remaining, 0)";
    assert!(usage.session.figure("t", cached) < i64::from(usage.rate));
    let refills = usage.session.figure("t", "refills");
    usage.central.launch();
    wait_until(LIMIT, "a segment that no session waits for", || {
        usage.session.figure("t", "refills") > refills
    });
    assert_eq!(usage.member.log().matches("is back").count(), 1);
}
