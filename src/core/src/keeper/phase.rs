//! State kept between the steps of a turn.

use super::turn::{FOR_EVER, Look};
use crate::lease::Grant;
use crate::reservation::{Floor, Terms};

/// A turn in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) look: Look,
    pub(super) was_reset: bool,
    /// Time until the lease is due again.
    pub(super) lease_again_ms: Option<i64>,
    /// Time until the next check for a lead.
    pub(super) lead_again_ms: Option<i64>,
}

impl Turn {
    pub(super) fn terms(&self) -> Terms {
        Terms {
            reservation_ms: self.look.reservation_ms,
            max_lead_ms: self.look.max_lead_ms,
        }
    }
}

/// A worker id that may be used, with its limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usable {
    pub(super) worker_id: u16,
    /// The floor of this run; `None` if only the grant's floor applies.
    pub(super) floor: Option<Floor>,
    pub(super) grant: Option<Grant>,
}

impl Usable {
    pub(super) fn recorded_until_ms(&self) -> i64 {
        self.grant.map_or(FOR_EVER, |grant| grant.reserved_until_ms)
    }
}

/// The operation whose result is the next input.
#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    /// None: a turn begins.
    Idle,
    /// Reading the file for the floor.
    Floor(Turn),
    /// Advancing the lease.
    Leasing(Turn),
    /// Reading the file before opening the generator.
    Opening(Turn, Usable),
    /// Writing the reservation.
    Writing(Turn, Writing),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Writing {
    pub(super) worker_id: u16,
    pub(super) since_ms: i64,
    /// Floor to open the generator above; `None` if it is open.
    pub(super) above: Option<Floor>,
    pub(super) terms: Terms,
}

/// The lease of the worker id.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lease {
    /// No lease, and none requested.
    None,
    /// Requested; nothing may be used yet.
    Asked,
    /// Granted.
    Granted(Grant),
}

/// Identity under which a worker id was leased in this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeasedAs {
    /// Not leased so far.
    None,
    /// This server, whose floor bounds the ids it has issued.
    Itself,
    /// Another server, since the floor does not bound them (see [`Floor::is_own`]); the registry
    /// does.
    Another,
}
