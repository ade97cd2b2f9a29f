//! One round of sessions that take ids, each statement timed, while another session looks
//! at the tag.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::Session;

use crate::figures::{HundredthsOfPercent, percentile};

/// How often the other session looks.
const LOOK: Duration = Duration::from_millis(20);
/// The largest segment of a tag with the defaults.
const MAX_STEP: f64 = 1_000_000.0;

/// What is to be run.
pub struct Load<'a> {
    /// Name of the tag or of the sequence.
    pub source: &'a str,
    /// A tag; otherwise a sequence.
    pub leaf: bool,
    /// Ids of one statement.
    pub at_once: u32,
    /// For how long statements are begun.
    pub lasts: Duration,
}

/// One statement.
pub struct Sample {
    /// Since the start of the round.
    pub began: Duration,
    /// Until its row was there.
    pub took_ns: u64,
}

/// Calls that found no id.
#[derive(Clone, Copy, Default)]
pub struct Waits {
    /// How many.
    pub count: f64,
    /// Milliseconds, of all of them.
    pub ms: f64,
}

/// What a round came to.
pub struct Round {
    /// Of all sessions.
    pub ids_per_second: f64,
    /// The round's own 99.9th percentile, in nanoseconds.
    pub p999_ns: f64,
    /// When segments had become long enough, if they have.
    pub grown: Option<Duration>,
    /// Until then; of the whole round, if they have not.
    pub cold: Waits,
    /// After that.
    pub warm: Option<Waits>,
    /// Milliseconds of each claim that was seen.
    pub claims_ms: Vec<f64>,
}

/// What the other session sees.
#[derive(Clone, Copy, Default)]
struct Look {
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
        let (samples, looks) = thread::scope(|scope| {
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
            let mut looks = Vec::new();
            while self.leaf && start.elapsed() < lasts {
                looks.push(self.look(monitor, start));
                thread::sleep(LOOK);
            }
            let mut samples = Vec::new();
            for thread in threads {
                let own = thread.join();
                samples.extend(own.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            (samples, looks)
        });
        let elapsed = start.elapsed();
        let last = self.leaf.then(|| self.look(monitor, start));
        let round = self.round(&samples, &looks, last, elapsed);
        (samples, round)
    }

    fn look(&self, monitor: &mut Session, start: Instant) -> Look {
        let sql = "SELECT coalesce(waits, 0)::float8, coalesce(waited_ms, 0)::float8, step::float8,
                       coalesce(refills, 0)::float8, coalesce(last_refill_ms, 0)::float8
                   FROM leaf_segment_status WHERE tag = $1";
        let row = monitor
            .query_one(sql, &[&self.source])
            .unwrap_or_else(|error| panic!("{sql}\n{error}"));
        Look {
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
        looks: &[Look],
        last: Option<Look>,
        elapsed: Duration,
    ) -> Round {
        let mut took: Vec<_> = samples.iter().map(|sample| sample.took_ns).collect();
        took.sort_unstable();
        let ids_per_second = samples.len() as f64 * f64::from(self.at_once) / elapsed.as_secs_f64();
        let enough = ids_per_second.min(MAX_STEP);
        let grown = looks.iter().find(|look| look.step >= enough);
        let all = last.unwrap_or_default().waits;
        let cold = grown.map_or(all, |look| look.waits);
        let mut claims_ms = Vec::new();
        let mut refills = 0.0;
        for look in looks.iter().chain(&last) {
            if look.refills > refills {
                refills = look.refills;
                claims_ms.push(look.last_refill_ms);
            }
        }
        Round {
            ids_per_second,
            p999_ns: percentile(&took, HundredthsOfPercent(9990)) as f64,
            grown: grown.map(|look| look.at),
            cold,
            warm: grown.map(|_| Waits {
                count: all.count - cold.count,
                ms: all.ms - cold.ms,
            }),
            claims_ms,
        }
    }
}
