//! The lease of this server's worker id, launcher side. [`leaf_id_core::lease`] decides; this file
//! connects it to the lease file, the settings, the registrar and the log.

use std::io;

use leaf_id_core::lease::{Effect, Grant, Heard, Lease, LeaseHolder, Question, Status, Step};

use crate::files;
use crate::files::lease::HolderIdentity;
use crate::guc::{self, Registry};
use crate::pg;
use crate::shmem::{Area, LeaseQuestion, LeaseReply, LeaseStatus, Text, WorkerIdSource};

/// Retry interval after a failed write of the lease file, in milliseconds.
const RETRY_MS: i64 = 1000;

/// The launcher's lease.
pub struct LeaseClient {
    area: &'static Area,
    registry: Registry,
    identity: HolderIdentity,
    holder: LeaseHolder,
    /// The lease as stored in the file.
    written: Lease,
    /// A grant not yet written to the file, and whether it is a new one; see [`Effect::Use`].
    pending: Option<(Grant, bool)>,
    asked: Option<(u64, Question)>,
    /// Last problem logged, to log each one once.
    problem: Option<String>,
    file_problem: Option<String>,
    /// Time of the last early request, by the monotonic clock.
    hurried_at_ms: i64,
}

/// A random token. Raises an error if the system has none.
fn token() -> i64 {
    pg::strong_random().cast_signed()
}

fn identity(registry: &Registry) -> HolderIdentity {
    HolderIdentity {
        registry: registry.name(),
        node_name: guc::node_name(),
        epoch_ms: guc::epoch_ms(),
        layout: guc::layout(),
    }
}

impl LeaseClient {
    /// Client of a launcher that starts to lease. `sound`: the reservation file is from this
    /// server's last run, or the server has leased in this run. Otherwise it is unknown which ids
    /// were issued, so the registry must take this for another server.
    pub fn new(area: &'static Area, registry: Registry, sound: bool) -> Self {
        let identity = identity(&registry);
        let written = files::lease::read(&identity).unwrap_or_else(|error| {
            pgrx::warning!(
                "leaf_id: leaf_id_lease.json is not used, and the worker registry is asked for a worker id: {error}"
            );
            Lease::default()
        });
        let lease = if !sound {
            Lease::default()
        } else if registry.is_here() {
            // Another server may have had both the lease and the registry since.
            Lease {
                grant: None,
                ..written
            }
        } else {
            written
        };
        area.registry().tell_lease(|status| {
            *status = LeaseStatus {
                registry: Text::new(&identity.registry),
                ..LeaseStatus::NONE
            };
        });
        let mut client = Self {
            area,
            registry,
            identity,
            holder: LeaseHolder::new(lease),
            written,
            pending: None,
            asked: None,
            problem: None,
            file_problem: None,
            hurried_at_ms: i64::MIN,
        };
        let effect = client.holder.begin(pg::clocks().wall_ms);
        client.follow(effect, WorkerIdSource::File);
        client
    }

    /// True if the settings have not changed.
    pub fn is_current(&self, registry: &Registry) -> bool {
        self.registry == *registry && self.identity == identity(registry)
    }

    /// Requests more time soon, because the recorded reservation is used up. At most once per
    /// [`RETRY_MS`].
    pub fn hurry(&mut self) {
        let now = pg::boot_ms();
        if now.saturating_sub(self.hurried_at_ms) >= RETRY_MS {
            self.hurried_at_ms = now;
            self.holder.hurry();
        }
    }

    /// Handles what is due. Returns the effect on the generator, and the time until the next call,
    /// in milliseconds. A grant is written to the file before it is returned.
    pub fn tend(&mut self) -> (Effect, Option<i64>) {
        let mut effect = self.listen();
        if self.pending.is_some() {
            match self.write_down() {
                Ok(()) => {
                    if let Some((grant, anew)) = self.pending.take() {
                        effect = Effect::Use { grant, anew };
                    }
                }
                Err(again) => return (effect, Some(again)),
            }
        }
        if effect != Effect::Keep {
            return (effect, Some(1));
        }
        match self.holder.step(pg::clocks()) {
            Step::Wait(ms) => (Effect::Keep, ms.map(|ms| ms + 1)),
            Step::Ask => self.ask(),
        }
    }

    /// Handles the reply to the request in flight, if it has arrived.
    fn listen(&mut self) -> Effect {
        let Some((number, question)) = self.asked else {
            return Effect::Keep;
        };
        let Some(reply) = self.area.registry().take_reply(number) else {
            return Effect::Keep;
        };
        self.asked = None;
        match reply {
            LeaseReply::Answered(heard, detail) => {
                let effect = self.holder.hear(&question, &heard, token);
                self.note_answer(&heard, &detail.get(), &effect);
                self.follow(effect, WorkerIdSource::Registry)
            }
            LeaseReply::Failed(error) => self.fail(&error.get()),
        }
    }

    /// The part of an effect that applies at once. A grant is used once it is in the file.
    fn follow(&mut self, effect: Effect, source: WorkerIdSource) -> Effect {
        let Effect::Use { grant, anew } = effect else {
            return effect;
        };
        self.area.registry().tell_lease(|status| {
            status.source = source;
            status.worker_id = grant.worker_id;
            status.until_ms = Some(grant.reserved_until_ms);
        });
        self.pending = Some((grant, anew));
        Effect::Keep
    }

    /// Sends the request that is due. Returns as [`LeaseClient::tend`].
    fn ask(&mut self) -> (Effect, Option<i64>) {
        self.holder.prepare(token);
        if let Err(again) = self.write_down() {
            return (Effect::Keep, Some(again));
        }
        let question = self.holder.ask();
        let name = &self.registry.database;
        let database = pg::transaction(|| match pg::find_database(name) {
            Ok(database) => database.ok_or_else(|| format!("database \"{name}\" does not exist")),
            Err(pg::CatalogLocked) => Err("another session has locked pg_database".into()),
        });
        let database = match database {
            Ok(database) => database,
            Err(error) => return (self.fail(&error), Some(1)),
        };
        let server = self.registry.server.as_deref().unwrap_or_default();
        let number = self.area.registry().ask(LeaseQuestion {
            question,
            node_name: Text::new(&self.identity.node_name),
            database,
            server: Text::new(server),
            timeout_ms: i64::from(guc::CLAIM_TIMEOUT.get()),
            epoch_ms: self.identity.epoch_ms,
            layout: self.identity.layout,
        });
        self.asked = Some((number, question));
        (Effect::Keep, None)
    }

    /// Number of the request in flight, for which a registrar is to be started.
    pub fn question(&self) -> Option<u64> {
        self.asked.map(|(number, _)| number)
    }

    fn write_down(&mut self) -> Result<(), i64> {
        let lease = *self.holder.lease();
        if self.written == lease {
            return Ok(());
        }
        let result: io::Result<()> = files::lease::write(&self.identity, &lease);
        match result {
            Ok(()) => {
                self.written = lease;
                if self.file_problem.take().is_some() {
                    pgrx::log!("leaf_id: leaf_id_lease.json can be written again");
                }
                Ok(())
            }
            Err(error) => {
                let text = format!(
                    "could not write leaf_id_lease.json; no worker id can be leased: {error}"
                );
                if self.file_problem.as_ref() != Some(&text) {
                    pgrx::warning!("leaf_id: {text}");
                    self.area
                        .registry()
                        .tell_lease(|status| status.last_error = Text::new(&text));
                    self.file_problem = Some(text);
                }
                Err(RETRY_MS)
            }
        }
    }

    /// Handles a question that was not sent, or was not answered.
    fn fail(&mut self, error: &str) -> Effect {
        let now = pg::clocks();
        let registry = &self.identity.registry;
        self.area.registry().tell_lease(|status| {
            status.not_renewed_since_ms.get_or_insert(now.wall_ms);
            status.last_error = Text::new(error);
        });
        let effect = match self.holder.grant() {
            Some(_) => "; snowflake ids stop when the lease is used up",
            None => "",
        };
        self.log(format!(
            "no answer from worker registry \"{registry}\"{effect}: {error}"
        ));
        self.holder.fail(now)
    }

    /// Logs a problem once.
    fn log(&mut self, text: String) {
        if self.problem.as_ref() != Some(&text) {
            pgrx::warning!("leaf_id: {text}");
            self.problem = Some(text);
        }
    }

    fn note_answer(&mut self, heard: &Heard, detail: &str, effect: &Effect) {
        let answer = heard.answer;
        // The registry read its clock between the two; assume the middle.
        let here_ms = i64::midpoint(heard.sent.wall_ms, heard.received.wall_ms);
        let offset = here_ms.saturating_sub(answer.registry_ms);
        self.area.registry().tell_lease(|status| {
            status.clock_offset_ms = Some(offset);
            status.peers_offset_ms = answer.peers.offset_ms;
            (status.not_renewed_since_ms, status.last_error) = match answer.outcome {
                Ok(_) => (None, Text::EMPTY),
                Err(_) => {
                    let since_ms = status.not_renewed_since_ms;
                    (since_ms.or(Some(heard.received.wall_ms)), Text::new(detail))
                }
            };
        });
        let registry = &self.identity.registry;
        match answer.outcome {
            Ok(grant) => {
                if self.problem.take().is_some() {
                    let id = grant.worker_id;
                    pgrx::log!("leaf_id: worker registry \"{registry}\" has leased worker id {id}");
                }
            }
            // The request was slow, and the clock may be right.
            Err(Status::Clock) if *effect == Effect::Keep => {}
            Err(status) => {
                // Do not log times and offsets, which differ in each answer.
                let detail = match status {
                    Status::Moved => "it was promoted or restored",
                    Status::Clock => "the clock is off",
                    _ => detail,
                };
                let act = match self.holder.grant() {
                    Some(_) => "does not renew the lease",
                    None => "leases no worker id",
                };
                self.log(format!("worker registry \"{registry}\" {act}: {detail}"));
            }
        }
    }
}

impl Drop for LeaseClient {
    fn drop(&mut self) {
        self.area
            .registry()
            .tell_lease(|status| *status = LeaseStatus::NONE);
    }
}
