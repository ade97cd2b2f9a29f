//! The launcher's part of the snowflake generator: it does what [`leaf_id_core::keeper`] says.
//!
//! A session writes the reservation file in two cases: where the launcher is late
//! ([`renew_late`](super::reservation::renew_late)), and for `leaf_snowflake_reset`
//! ([`reset`](super::reset::reset)). Whoever does is the one [`Writer`]: what is in the file,
//! what is reserved in shared memory and whether the generator is open change together.

use std::io;
use std::sync::atomic::Ordering;

use leaf_id_core::keeper::{
    Action, Configured, File, Found, Input, Look, Message, Registry, Seen, Then,
};
use leaf_id_core::lease::Effect;
use leaf_id_core::state::State;

use super::reservation::{max_lead_ms, reservation_ms, reserve, used_before};
use crate::files::reservation::{self as file, Reservation};
use crate::files::{lease, protocol};
use crate::guc::{self, WorkerId};
use crate::lease::client::LeaseClient;
use crate::pg::{self, WaitEvent};
use crate::shmem::{Area, Snowflake, Writer};

/// How soon the launcher looks again while a session is the writer, in milliseconds.
const BUSY_MS: i64 = 10;
/// How long a launcher that ends waits for a session that is the writer, in milliseconds.
const WRITER_GRACE_MS: i64 = 1000;

/// What the launcher needs to keep the generator.
pub struct Keeper {
    area: &'static Area,
    snowflake: &'static Snowflake,
    epoch_ms: i64,
    machine: leaf_id_core::keeper::Keeper,
    /// The lease of the worker id, where that is `auto`.
    client: Option<LeaseClient>,
}

impl Keeper {
    /// Of a launcher that has just started.
    pub fn new(area: &'static Area) -> Self {
        let snowflake = &area.snowflake;
        let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
        let resets = snowflake.resets.load(Ordering::Acquire);
        Self {
            area,
            snowflake,
            epoch_ms,
            machine: leaf_id_core::keeper::Keeper::new(
                epoch_ms,
                snowflake.generator.layout(),
                resets,
                pg::in_recovery(),
            ),
            client: None,
        }
    }

    /// The number of a question to the worker registry that a registrar is to ask.
    pub fn question(&self) -> Option<u64> {
        self.client.as_ref()?.question()
    }

    /// Does what is due, and returns when to look again, in milliseconds.
    pub fn tend(&mut self) -> Option<i64> {
        let snowflake = self.snowflake;
        let configured = guc::worker_id();
        snowflake.configure(configured);
        let Some(writer) = snowflake.try_write() else {
            return Some(BUSY_MS);
        };
        let mut input = Input::Look(self.look(configured));
        loop {
            let step = self.machine.step(&self.seen(), input);
            for action in step.actions {
                self.act(&writer, action);
            }
            snowflake.show(step.shown);
            input = match step.then {
                Then::Read => Input::File(read_file()),
                Then::Lease { begin } => {
                    let (effect, again_ms) = self.lease(begin);
                    Input::Lease { effect, again_ms }
                }
                Then::Reserve {
                    worker_id,
                    until_ms,
                    unknown_since_ms,
                } => {
                    let result = reserve(snowflake, &writer, worker_id, until_ms, unknown_since_ms);
                    let healed = result.map(|damage| damage.map(|damage| damage.to_string()));
                    Input::Written(healed.map_err(|error| error.to_string()))
                }
                Then::Wait(ms) => return ms,
            };
        }
    }

    fn look(&self, configured: WorkerId) -> Look {
        let snowflake = self.snowflake;
        Look {
            configured: match configured {
                WorkerId::Unset => Configured::Unset,
                WorkerId::Fixed(worker_id) => Configured::Fixed(worker_id),
                WorkerId::Auto => Configured::Leased(self.registry()),
            },
            in_recovery: pg::in_recovery(),
            registry_is_here: guc::worker_registry().is_some_and(|registry| registry.is_here()),
            resets: snowflake.resets.load(Ordering::Acquire),
            wanted: snowflake.reservation_wanted.swap(0, Ordering::AcqRel) != 0,
            reservation_ms: reservation_ms(),
            max_lead_ms: max_lead_ms(),
            max_burst_ms: i64::from(guc::MAX_BURST_LEAD.get()),
            led: snowflake.has_led(),
        }
    }

    fn registry(&self) -> Registry {
        match (guc::worker_registry(), &self.client) {
            (None, _) => Registry::Unset,
            (Some(registry), Some(client)) if client.is_current(&registry) => Registry::Same,
            (Some(_), _) => Registry::Other,
        }
    }

    fn seen(&self) -> Seen {
        let generator = &self.snowflake.generator;
        // Before the clock: an id that is issued meanwhile does not look like one of later.
        let last = generator.last();
        Seen {
            last_ms: last.ms + self.epoch_ms,
            last_worker_id: (!self.snowflake.is_leased()).then_some(last.worker_id),
            lead: self.snowflake.lead(),
            reserved_until_ms: generator.reserved_until() + self.epoch_ms,
            now_ms: pg::now_ms(),
            boot_ms: pg::boot_ms(),
        }
    }

    fn act(&mut self, writer: &Writer<'_>, action: Action) {
        let snowflake = self.snowflake;
        match action {
            Action::Close => {
                snowflake.generator.close();
            }
            Action::Open {
                worker_id,
                above_ms,
            } => {
                let above_ms = above_ms.saturating_sub(self.epoch_ms).max(0);
                snowflake.generator.open(worker_id, above_ms);
            }
            Action::ShowFloor(floor) => snowflake.show_floor(floor),
            Action::SetLead(lead) => snowflake.set_lead(lead),
            Action::ShowLead(reason) => snowflake.show_lead(reason),
            Action::SetLease {
                until_boot_ms,
                recorded_until_ms,
            } => snowflake.set_lease(writer, until_boot_ms, recorded_until_ms),
            Action::StopLeasing => self.client = None,
            Action::Hurry => {
                if let Some(client) = self.client.as_mut() {
                    client.hurry();
                }
            }
            Action::Wake => snowflake.wake(),
            Action::Log(message) => log(&message),
        }
    }

    /// Does what is due of the lease; with a new one that may use what is remembered of an
    /// earlier one, if it is to begin.
    fn lease(&mut self, begin: Option<bool>) -> (Effect, Option<i64>) {
        if let Some(own) = begin
            && let Some(registry) = guc::worker_registry()
        {
            self.client = Some(LeaseClient::new(self.area, registry, own));
        }
        match self.client.as_mut() {
            Some(client) => client.tend(),
            None => (Effect::Keep, None),
        }
    }
}

fn read_file() -> File {
    let found = match file::read() {
        Ok(None) => Found::Nothing,
        Ok(Some(found)) => Found::Contents {
            stored: found.stored,
            worker_id: (!found.leased).then_some(found.worker_id),
            retired: found
                .used
                .iter()
                .filter(|used| used.retired)
                .map(|used| (used.worker_id, used.until_ms))
                .collect(),
        },
        Err(error) if protocol::is_damage(&error) => Found::Damaged(error.to_string()),
        Err(error) => Found::Unreadable(error.to_string()),
    };
    File {
        system_identifier: pg::system_identifier(),
        timeline: pg::timeline(),
        found,
    }
}

fn log(message: &Message) {
    match message {
        Message::FileProblem(text) => {
            pgrx::warning!(
                "leaf_id: could not read or write leaf_id_reservation.json, without which snowflake ids end: {text}"
            );
        }
        Message::Leading(lead_ms, reason) => pgrx::log!(
            "leaf_id: times of snowflake ids are {lead_ms} ms ahead of the clock: {}",
            reason.text()
        ),
        Message::LeadOver => {
            pgrx::log!("leaf_id: times of snowflake ids are not ahead of the clock any more");
        }
        Message::FileMended => pgrx::log!("leaf_id: snowflake timestamps can be reserved again"),
        Message::FileHealed(damage) => pgrx::log!(
            "leaf_id: leaf_id_reservation.json was written anew, without the worker ids that were used before: {damage}"
        ),
    }
}

/// Closes the generator because the launcher ends, and leaves the exact last timestamp: the
/// next start issues at once.
///
/// # Errors
/// The file could not be written: the next start goes on above what was reserved.
pub fn stop(snowflake: &Snowflake) -> io::Result<()> {
    let mut patience_ms = WRITER_GRACE_MS;
    let mut writer = snowflake.try_write();
    while writer.is_none() && patience_ms > 0 {
        pg::sleep_us(1000, WaitEvent::Launcher);
        patience_ms -= 1;
        writer = snowflake.try_write();
    }
    let was_open = snowflake.generator.is_open();
    let last = snowflake.generator.close();
    snowflake.show(State::Starting);
    // Without being the writer: what that one writes is further ahead, and safe.
    if !was_open || writer.is_none() {
        return Ok(());
    }
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    file::write(&Reservation {
        worker_id: last.worker_id,
        leased: snowflake.is_leased(),
        reserved_until_ms: last.ms + epoch_ms,
        epoch_ms,
        layout: snowflake.generator.layout(),
        clean: true,
        unknown_since_ms: snowflake.unknown_since_ms(),
        used: used_before(last.worker_id, i64::MIN)?.0,
    })?;
    if snowflake.is_leased() {
        lease::mark_clean()?;
    }
    Ok(())
}
