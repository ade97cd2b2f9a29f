//! The lease of this server's worker id, launcher side. [`leaf_id_core::lease`] decides; this file
//! connects it to the lease file, the settings, the registrar and the log.

use leaf_id_core::lease::{Effect, Heard, Lease, LeaseHolder, Question, Status, Step};

use crate::files;
use crate::files::lease::HolderIdentity;
use crate::guc::{self, Registry};
use crate::pg;
use crate::shmem::{Area, LeaseQuestion, LeaseReply, LeaseStatus, Text, WorkerIdSource};

/// Min interval of early requests, in milliseconds.
const HURRY_MS: i64 = 1000;

/// The launcher's lease.
pub struct LeaseClient {
    area: &'static Area,
    registry: Registry,
    identity: HolderIdentity,
    holder: LeaseHolder,
    /// The lease as stored in the file; `None` if unknown, after a write that failed.
    written: Option<Lease>,
    asked: Option<(u64, Question)>,
    /// Last problem logged, to log each one once.
    problem: Option<String>,
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
        Self {
            area,
            registry,
            identity,
            holder: LeaseHolder::new(lease, token),
            written: Some(written),
            asked: None,
            problem: None,
            hurried_at_ms: i64::MIN,
        }
    }

    /// True if the settings have not changed.
    pub fn is_current(&self, registry: &Registry) -> bool {
        self.registry == *registry && self.identity == identity(registry)
    }

    /// Requests more time soon, because the recorded reservation is used up. At most once per
    /// [`HURRY_MS`].
    pub fn hurry(&mut self) {
        let now = pg::boot_ms();
        if now.saturating_sub(self.hurried_at_ms) >= HURRY_MS {
            self.hurried_at_ms = now;
            self.holder.hurry();
        }
    }

    /// The effect of the grant in the file.
    pub fn begin(&self) -> Effect {
        let effect = self.holder.begin();
        self.note_use(&effect, WorkerIdSource::File);
        effect
    }

    /// Handles what is due. Returns the effect on the generator, and the time until the next call,
    /// in milliseconds. A grant is in the file before it is returned.
    pub fn tend(&mut self) -> (Effect, Option<i64>) {
        let effect = self.listen();
        if effect != Effect::Keep {
            return (effect, Some(1));
        }
        match self.holder.step(pg::clocks()) {
            Step::Wait(ms) => (Effect::Keep, ms.map(|ms| ms + 1)),
            Step::Ask => {
                let effect = self.ask();
                // If no request could be sent, try again.
                (effect, self.asked.is_none().then_some(1))
            }
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
        let (heard, detail) = match reply {
            LeaseReply::Answered(heard, detail) => (heard, detail),
            LeaseReply::Failed(error) => return self.fail(&error.get()),
        };
        let mut holder = self.holder;
        let effect = holder.hear(&question, &heard, token);
        // What is not in the file must not be used: as if the answer had been lost.
        if let Err(error) = self.write(*holder.lease()) {
            return self.fail(&error);
        }
        self.holder = holder;
        self.note_answer(&heard, &detail.get(), &effect);
        self.note_use(&effect, WorkerIdSource::Registry);
        effect
    }

    /// Sends the request that is due.
    fn ask(&mut self) -> Effect {
        if let Err(error) = self.write(*self.holder.lease()) {
            return self.fail(&error);
        }
        let name = &self.registry.database;
        let database = pg::transaction(|| match pg::find_database(name) {
            Ok(database) => database.ok_or_else(|| format!("database \"{name}\" does not exist")),
            Err(pg::CatalogLocked) => Err("another session has locked pg_database".into()),
        });
        let database = match database {
            Ok(database) => database,
            Err(error) => return self.fail(&error),
        };
        let question = self.holder.ask();
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
        Effect::Keep
    }

    /// Number of the request in flight, for which a registrar is to be started.
    pub fn question(&self) -> Option<u64> {
        self.asked.map(|(number, _)| number)
    }

    /// Writes a lease to the file, unless it is there.
    fn write(&mut self, lease: Lease) -> Result<(), String> {
        if self.written == Some(lease) {
            return Ok(());
        }
        let result = files::lease::write(&self.identity, &lease);
        self.written = result.is_ok().then_some(lease);
        result.map_err(|error| format!("could not write leaf_id_lease.json: {error}"))
    }

    /// Handles a request that was not sent, not answered, or whose answer cannot be written.
    fn fail(&mut self, error: &str) -> Effect {
        let now = pg::clocks();
        let registry = &self.identity.registry;
        self.area.registry().tell_lease(|status| {
            status.not_renewed_since_ms.get_or_insert(now.wall_ms);
            status.last_error = Text::new(error);
        });
        let effect = match self.holder.lease().grant {
            Some(_) => "; snowflake ids stop when the lease is used up",
            None => "",
        };
        self.log(format!(
            "could not lease from worker registry \"{registry}\"{effect}: {error}"
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
                let act = match self.holder.lease().grant {
                    Some(_) => "does not renew the lease",
                    None => "leases no worker id",
                };
                self.log(format!("worker registry \"{registry}\" {act}: {detail}"));
            }
        }
    }

    fn note_use(&self, effect: &Effect, source: WorkerIdSource) {
        if let Effect::Use { grant, .. } = effect {
            self.area.registry().tell_lease(|status| {
                status.source = source;
                status.worker_id = grant.worker_id;
                status.until_ms = Some(grant.reserved_until_ms);
            });
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
