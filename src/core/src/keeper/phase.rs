//! What the state machine remembers from one step of a turn to the next.

use super::turn::{FOR_EVER, Look};
use crate::lease::Grant;
use crate::reservation::{Floor, Terms};

/// A turn that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) look: Look,
    pub(super) was_reset: bool,
    /// When the lease is to be looked after again.
    pub(super) lease_again_ms: Option<i64>,
    /// When to look again whether ids lead the clock.
    pub(super) lead_again_ms: Option<i64>,
}

impl Turn {
    pub(super) fn terms(&self, grant: Option<Grant>) -> Terms {
        Terms {
            reservation_ms: self.look.reservation_ms,
            configured_lead_ms: self.look.max_lead_ms,
            granted_lead_ms: grant.map_or(FOR_EVER, |grant| grant.max_lead_ms),
        }
    }
}

/// A worker id that may be used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usable {
    pub(super) worker_id: u16,
    /// What this run's place in time says; `None`: the grant alone does.
    pub(super) floor: Option<Floor>,
    pub(super) grant: Option<Grant>,
}

impl Usable {
    pub(super) fn recorded_until_ms(&self) -> i64 {
        self.grant.map_or(FOR_EVER, |grant| grant.reserved_until_ms)
    }
}

/// What the next input is the result of.
#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    /// Nothing: a turn begins.
    Idle,
    /// The file is read for the floor.
    Floor(Turn),
    /// The lease is looked after.
    Leasing(Turn),
    /// The file is read before the generator is opened.
    Opening(Turn, Usable),
    /// The reservation is written.
    Writing(Turn, Writing),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Writing {
    pub(super) worker_id: u16,
    pub(super) since_ms: i64,
    /// The generator is to be opened above this floor. `None`: it is open.
    pub(super) above: Option<Floor>,
    pub(super) terms: Terms,
}

/// The lease of the worker id.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lease {
    /// There is none, and none is asked for.
    None,
    /// Nothing of it may be used.
    Asked,
    /// This may be used.
    Granted(Grant),
}

/// As whom a worker id was leased in this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeasedAs {
    /// None was.
    Nobody,
    /// This server: its floor says what it has issued.
    Itself,
    /// Another server, because the floor does not tell, see [`Floor::is_own`]: the registry
    /// knows what was issued.
    Another,
}
