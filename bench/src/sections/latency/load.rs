//! One round: sessions take ids and time each statement, while another session watches the tag.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::Session;

use crate::figures::{HundredthsOfPercent, percentile};

/// How often the other session reads the tag's status.
const INTERVAL: Duration = Duration::from_millis(20);
/// The default max_step of a tag.
const MAX_STEP: f64 = 1_000_000.0;

/// What is run.
pub struct Load<'a> {
    /// Name of the tag or of the sequence.
    pub source: &'a str,
    /// A tag; otherwise a sequence.
    pub leaf: bool,
    /// Ids per statement.
    pub at_once: u32,
    /// No statement starts after this time.
    pub lasts: Duration,
}

/// One statement.
pub struct Sample {
    /// Since the start of the round.
    pub began: Duration,
    /// Until its result had arrived.
    pub took_ns: u64,
}

/// Calls that had to wait for a segment.
#[derive(Clone, Copy, Default)]
pub struct Waits {
    /// How many.
    pub count: f64,
    /// Milliseconds in total.
    pub ms: f64,
}

/// The figures of a round.
pub struct Round {
    /// Of all sessions.
    pub ids_per_second: f64,
    /// The round's own 99.9th percentile, in nanoseconds.
    pub p999_ns: f64,
    /// When the step had grown, if it has.
    pub grown: Option<Duration>,
    /// Until then; in the whole round, if it has not.
    pub cold: Waits,
    /// After that.
    pub warm: Option<Waits>,
    /// Milliseconds of each claim that was seen.
    pub claims_ms: Vec<f64>,
}

/// What the other session reads.
#[derive(Clone, Copy, Default)]
struct Status {
    at: Duration,
    waits: Waits,
    step: f64,
    refills: f64,
    last_refill_ms: f64,
}

impl Load<'_> {
    /// Runs it in all sessions at once.
    pub fn run(&self, sessions: &mut [Session], monitor: &mut Session) -> (Vec<Sample>, Round) {
        let call = if self.leaf {
            format!("leaf_segment_next('{}')", self.source)
        } else {
            format!("nextval('{}')", self.source)
        };
        let sql = if self.at_once == 1 {
            format!("SELECT {call}")
        } else {
            format!(
                "SELECT count({call}) FROM generate_series(1, {})",
                self.at_once
            )
        };
        let prepared: Vec<_> = sessions
            .iter_mut()
            .map(|session| {
                let prepared = session
                    .prepare(&sql)
                    .unwrap_or_else(|error| panic!("{sql}\n{error}"));
                (session, prepared)
            })
            .collect();
        let together = Barrier::new(prepared.len() + 1);
        let (lasts, sql, together) = (self.lasts, &sql, &together);
        let start = Instant::now();
        let (samples, statuses) = thread::scope(|scope| {
            let threads: Vec<_> = prepared
                .into_iter()
                .map(|(session, prepared)| {
                    scope.spawn(move || {
                        let mut samples = Vec::new();
                        together.wait();
                        loop {
                            let began = start.elapsed();
                            if began >= lasts {
                                return samples;
                            }
                            session
                                .query_one(&prepared, &[])
                                .unwrap_or_else(|error| panic!("{sql}\n{error}"));
                            let took = start.elapsed().saturating_sub(began);
                            samples.push(Sample {
                                began,
                                took_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
                            });
                        }
                    })
                })
                .collect();
            together.wait();
            let mut statuses = Vec::new();
            while self.leaf && start.elapsed() < lasts {
                statuses.push(self.status(monitor, start));
                thread::sleep(INTERVAL);
            }
            let mut samples = Vec::new();
            for thread in threads {
                let own = thread.join();
                samples.extend(own.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            (samples, statuses)
        });
        let elapsed = start.elapsed();
        let last = self.leaf.then(|| self.status(monitor, start));
        let round = self.round(&samples, &statuses, last, elapsed);
        (samples, round)
    }

    fn status(&self, monitor: &mut Session, start: Instant) -> Status {
        let sql = "SELECT coalesce(waits, 0)::float8, coalesce(waited_ms, 0)::float8, step::float8,
                       coalesce(refills, 0)::float8, coalesce(last_refill_ms, 0)::float8
                   FROM leaf_segment_status WHERE tag = $1";
        let row = monitor
            .query_one(sql, &[&self.source])
            .unwrap_or_else(|error| panic!("{sql}\n{error}"));
        Status {
            at: start.elapsed(),
            waits: Waits {
                count: row.get(0),
                ms: row.get(1),
            },
            step: row.get(2),
            refills: row.get(3),
            last_refill_ms: row.get(4),
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "fewer than 2^52 statements and ns"
    )]
    fn round(
        &self,
        samples: &[Sample],
        statuses: &[Status],
        last: Option<Status>,
        elapsed: Duration,
    ) -> Round {
        let mut took: Vec<_> = samples.iter().map(|sample| sample.took_ns).collect();
        took.sort_unstable();
        let ids_per_second = samples.len() as f64 * f64::from(self.at_once) / elapsed.as_secs_f64();
        let enough = ids_per_second.min(MAX_STEP);
        let grown = statuses.iter().find(|status| status.step >= enough);
        let all = last.unwrap_or_default().waits;
        let cold = grown.map_or(all, |status| status.waits);
        let mut claims_ms = Vec::new();
        let mut refills = 0.0;
        for status in statuses.iter().chain(&last) {
            if status.refills > refills {
                refills = status.refills;
                claims_ms.push(status.last_refill_ms);
            }
        }
        Round {
            ids_per_second,
            p999_ns: percentile(&took, HundredthsOfPercent(9990)) as f64,
            grown: grown.map(|status| status.at),
            cold,
            warm: grown.map(|_| Waits {
                count: all.count - cold.count,
                ms: all.ms - cold.ms,
            }),
            claims_ms,
        }
    }
}
