//! Clients that start together and run one statement over and over.

use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::Session;

use crate::chart::Position;
use crate::fixture::Fixture;

/// How many sessions run at once.
pub const SESSIONS: [usize; 6] = [1, 2, 4, 8, 16, 64];

/// Connected clients.
pub struct Clients {
    sessions: Vec<Session>,
    pids: Vec<i32>,
}

/// What the clients did.
pub struct Throughput {
    /// Statements that were run.
    pub statements: u64,
    /// Until the last client was done.
    pub seconds: f64,
}

impl Throughput {
    /// Statements per second, of all clients together.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^52 statements")]
    pub fn per_second(&self) -> f64 {
        self.statements as f64 / self.seconds
    }
}

impl Clients {
    /// Connects so many clients.
    #[must_use]
    pub fn connect(fixture: &Fixture, count: usize) -> Self {
        let mut sessions: Vec<_> = (0..count).map(|_| fixture.session()).collect();
        let pids = sessions.iter_mut().map(Session::pid).collect();
        Self { sessions, pids }
    }

    /// The processes that serve the first so many clients.
    #[must_use]
    pub fn pids(&self, count: usize) -> &[i32] {
        &self.pids[..count]
    }

    /// The session of the first client, for what has to be done between runs.
    pub fn one(&mut self) -> &mut Session {
        &mut self.sessions[0]
    }

    /// Has the first so many clients each run its statement until the time is over. All
    /// are prepared before the first one starts; a statement that has begun is finished
    /// and counts, with the time that it takes.
    pub fn run(
        &mut self,
        count: usize,
        lasts: Duration,
        statement: impl Fn(usize) -> String,
    ) -> Throughput {
        let sessions = &mut self.sessions[..count];
        let prepared: Vec<_> = sessions
            .iter_mut()
            .enumerate()
            .map(|(index, session)| {
                let sql = statement(index);
                let prepared = session
                    .prepare(&sql)
                    .unwrap_or_else(|error| panic!("{sql}\n{error}"));
                (session, prepared, sql)
            })
            .collect();
        let together = Barrier::new(count);
        let done: Vec<(u64, Instant, Instant)> = thread::scope(|scope| {
            let threads: Vec<_> = prepared
                .into_iter()
                .map(|(session, prepared, sql)| {
                    let together = &together;
                    scope.spawn(move || {
                        together.wait();
                        let began = Instant::now();
                        let mut statements = 0;
                        while began.elapsed() < lasts {
                            session
                                .query_one(&prepared, &[])
                                .unwrap_or_else(|error| panic!("{sql}\n{error}"));
                            statements += 1;
                        }
                        (statements, began, Instant::now())
                    })
                })
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined
                .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let began = done.iter().map(|(_, began, _)| *began).min();
        let ended = done.iter().map(|(.., ended)| *ended).max();
        let seconds = began.zip(ended).map_or(0.0, |(began, ended)| {
            ended.duration_since(began).as_secs_f64()
        });
        Throughput {
            statements: done.iter().map(|(statements, ..)| statements).sum(),
            seconds,
        }
    }
}

/// As the horizontal axis of a chart, in powers of two.
pub fn positions() -> Vec<Position> {
    let position = |sessions: usize| Position {
        step: sessions.ilog2(),
        name: sessions.to_string(),
    };
    SESSIONS.map(position).into()
}

/// User and system time of these processes so far, in clock ticks of 10 ms.
#[must_use]
pub fn cpu_ticks(pids: &[i32]) -> (u64, u64) {
    pids.iter()
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name is in brackets, and may hold anything; utime is the 14th field.
            let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
            let user: u64 = fields.next()?.parse().ok()?;
            let system: u64 = fields.next()?.parse().ok()?;
            Some((user, system))
        })
        .fold((0, 0), |(user, system), (u, s)| (user + u, system + s))
}
