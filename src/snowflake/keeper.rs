//! The launcher's side of the snowflake generator: executes the steps of [`leaf_id_core::keeper`].
//!
//! Sessions write the reservation file in two cases: if the launcher is late
//! ([`renew_late`](super::reservation::renew_late)), and for `leaf_snowflake_reset`
//! ([`reset`](super::reset::reset)). Whichever process writes is the one [`Writer`]: the file, the
//! reservation in shared memory and the open state of the generator change together.

use std::io;
use std::sync::atomic::Ordering;

use leaf_id_core::keeper::{
    Action, Configured, File, Found, Input, Look, Message, Registry, Seen, Then,
};
use leaf_id_core::lease::Effect;
use leaf_id_core::sometimes;
use leaf_id_core::state::State;

use super::reservation::{max_lead_ms, reservation_ms, reserve, used_before};
use crate::files::protocol;
use crate::files::reservation::{self as file, Reservation};
use crate::guc::{self, WorkerId};
use crate::lease::client::LeaseClient;
use crate::pg::{self, WaitEvent};
use crate::shmem::{Area, Snowflake, Writer};

/// Retry interval while a session is the writer, in milliseconds.
const BUSY_MS: i64 = 10;
/// Max wait of an exiting launcher for a session that is the writer, in milliseconds.
const WRITER_GRACE_MS: i64 = 1000;

/// The launcher's state for the generator.
pub struct Keeper {
    area: &'static Area,
    snowflake: &'static Snowflake,
    epoch_ms: i64,
    machine: leaf_id_core::keeper::Keeper,
    /// Lease client, if the worker id is `auto`.
    client: Option<LeaseClient>,
}

impl Keeper {
    /// For a launcher that has just started.
    pub fn new(area: &'static Area) -> Self {
        let snowflake = &area.snowflake;
        let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
        let resets = snowflake.resets.load(Ordering::Acquire);
        let kept_worker_id = snowflake.kept_worker_id(|| match guc::worker_id() {
            WorkerId::Fixed(worker_id) => Some(worker_id),
            WorkerId::Unset | WorkerId::Auto => None,
        });
        Self {
            area,
            snowflake,
            epoch_ms,
            machine: leaf_id_core::keeper::Keeper::new(
                epoch_ms,
                snowflake.generator.layout(),
                resets,
                pg::in_recovery(),
                kept_worker_id,
            ),
            client: None,
        }
    }

    /// Number of the registry request that needs a registrar.
    pub fn question(&self) -> Option<u64> {
        self.client.as_ref()?.question()
    }

    /// Runs one turn. Returns the time to the next one, in milliseconds.
    pub fn tend(&mut self) -> Option<i64> {
        let snowflake = self.snowflake;
        let configured = guc::worker_id();
        snowflake.configure(configured, guc::is_worker_id_invalid());
        self.machine.heed(self.configured(configured));
        snowflake.keep_worker_id(self.machine.kept_worker_id());
        let Some(writer) = snowflake.try_write() else {
            sometimes!("snowflake: the launcher waits for a session that writes");
            return Some(BUSY_MS);
        };
        let mut input = Input::Look(self.look(configured));
        let waits = loop {
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
                    issued,
                } => {
                    let result = reserve(snowflake, &writer, worker_id, until_ms, issued);
                    let healed = result.map(|damage| damage.map(|damage| damage.to_string()));
                    Input::Written(healed.map_err(|error| error.to_string()))
                }
                Then::Wait(ms) => break ms,
            };
            // The file may have taken long. Since then the worker id may have been given to another
            // server: start over, with the settings of now.
            if pg::reload_is_asked() && !matches!(input, Input::Lease { .. }) {
                break Some(0);
            }
        };
        snowflake.keep_worker_id(self.machine.kept_worker_id());
        waits
    }

    fn look(&self, configured: WorkerId) -> Look {
        let snowflake = self.snowflake;
        Look {
            configured: self.configured(configured),
            in_recovery: pg::in_recovery(),
            registry_is_here: guc::worker_registry().is_some_and(|registry| registry.is_here()),
            resets: snowflake.resets.load(Ordering::Acquire),
            wanted: snowflake.reservation_wanted.swap(0, Ordering::AcqRel) != 0,
            reservation_ms: reservation_ms(),
            write_ms: snowflake.write_ms(),
            max_lead_ms: max_lead_ms(),
            max_burst_ms: i64::from(guc::MAX_BURST_LEAD.get()),
            led: snowflake.has_led(),
        }
    }

    fn configured(&self, configured: WorkerId) -> Configured {
        match configured {
            WorkerId::Unset => Configured::Unset,
            WorkerId::Fixed(worker_id) => Configured::Fixed(worker_id),
            WorkerId::Auto => Configured::Leased(self.registry()),
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
        // Before reading the clock: a concurrently issued id must not appear to lead it.
        let last = generator.last();
        Seen {
            last_ms: last.ms + self.epoch_ms,
            last_worker_id: (!self.snowflake.is_leased()).then_some(last.worker_id),
            is_open: generator.is_open(),
            lead: generator.lead(),
            reserved_until_ms: generator.reserved_until() + self.epoch_ms,
            now_ms: pg::now_ms(),
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
            Action::SetLead(lead) => snowflake.generator.set_lead(lead),
            Action::ShowLead(reason) => snowflake.show_lead(reason),
            Action::SetRecorded(until_ms) => snowflake.set_recorded(writer, until_ms),
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

    /// Advances the lease, after creating the client if a new lease begins. `begin`: true if the
    /// lease file of an earlier run may be used.
    fn lease(&mut self, begin: Option<bool>) -> (Effect, Option<i64>) {
        if let Some(own) = begin
            && let Some(registry) = guc::worker_registry()
        {
            let client = self
                .client
                .insert(LeaseClient::new(self.area, registry, own));
            let effect = client.begin();
            if effect != Effect::Keep {
                return (effect, Some(1));
            }
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
        pristine: pg::is_pristine(),
        found,
    }
}

fn log(message: &Message) {
    match message {
        Message::FileProblem(text) => {
            pgrx::warning!(
                "leaf_id: could not read or write leaf_id_reservation.json; snowflake ids stop once the current reservation is used up: {text}"
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
            "leaf_id: leaf_id_reservation.json was rewritten without the worker ids that were used before: {damage}"
        ),
    }
}

/// Closes the generator when the launcher exits, and writes the exact last timestamp, so that the
/// next start issues at once.
///
/// # Errors
/// The file could not be written: the next start continues above the reservation.
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
    // Closed without being the writer: what the writer stores is further ahead, and safe.
    if writer.is_none() {
        return Ok(());
    }
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    if was_open {
        file::write(&Reservation {
            worker_id: last.worker_id,
            leased: snowflake.is_leased(),
            reserved_until_ms: last.ms + epoch_ms,
            epoch_ms,
            layout: snowflake.generator.layout(),
            clean: true,
            issued: true,
            used: used_before(last.worker_id, i64::MIN)?.0,
        })?;
    }
    Ok(())
}
