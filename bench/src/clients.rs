//! Clients that start together and repeat a statement.

use std::panic::resume_unwind;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{Server, Session};

use crate::servers;

/// Connected clients.
pub struct Clients(Vec<Session>);

/// Results of a run.
pub struct Run {
    /// Nanoseconds of each statement, sorted.
    pub took: Vec<u64>,
    /// Time until the last client was done.
    seconds: f64,
}

impl Run {
    /// Statements per second, of all clients together.
    pub fn per_second(&self) -> f64 {
        self.statements() / self.seconds
    }

    /// Number of statements.
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^52 statements")]
    pub fn statements(&self) -> f64 {
        self.took.len() as f64
    }
}

impl Clients {
    /// Connects this many clients.
    pub fn connect(server: &Server, count: usize) -> Self {
        Self((0..count).map(|_| servers::session(server)).collect())
    }

    /// Runs a prepared statement in the first `count` clients until the time is up. A statement in
    /// progress is finished, and counts with its full duration.
    pub fn run(
        &mut self,
        count: usize,
        lasts: Duration,
        statement: impl Fn(usize) -> String,
    ) -> Run {
        let clients = self.0[..count].iter_mut().enumerate();
        let clients: Vec<_> = clients
            .map(|(index, session)| {
                let sql = statement(index);
                let prepared = session.prepare(&sql);
                let prepared = prepared.unwrap_or_else(|error| panic!("{sql}\n{error}"));
                (session, prepared, sql)
            })
            .collect();
        let together = Barrier::new(count);
        let work = |(session, prepared, sql): (&mut Session, _, String)| {
            let mut took = Vec::new();
            together.wait();
            let start = Instant::now();
            let mut began = start;
            while began - start < lasts {
                session
                    .execute(&prepared, &[])
                    .unwrap_or_else(|error| panic!("{sql}\n{error}"));
                let ended = Instant::now();
                took.push(u64::try_from((ended - began).as_nanos()).unwrap_or(u64::MAX));
                began = ended;
            }
            (took, start, began)
        };
        let work = &work;
        let done: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = clients
                .into_iter()
                .map(|client| scope.spawn(move || work(client)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        let start = done.iter().map(|(_, start, _)| *start).min();
        let end = done.iter().map(|(.., end)| *end).max();
        let lasted = start.zip(end).map(|(start, end)| end - start);
        let mut took: Vec<_> = done.into_iter().flat_map(|(took, ..)| took).collect();
        took.sort_unstable();
        Run {
            took,
            seconds: lasted.unwrap_or_default().as_secs_f64(),
        }
    }
}
