//! State kept between the steps of a turn.

use super::turn::{Configured, FOR_EVER, File, Found, Look};
use crate::layout::Layout;
use crate::lease::Grant;
use crate::reservation::{Floor, Reader, Terms};

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
            write_ms: self.look.write_ms,
        }
    }
}

impl File {
    pub(super) fn reader(&self, turn: &Turn) -> Reader {
        Reader {
            system_identifier: self.system_identifier,
            timeline: self.timeline,
            leased: matches!(turn.look.configured, Configured::Leased(_)),
        }
    }

    /// True if ids were issued with another epoch or layout.
    pub(super) fn is_of_other_ids(&self, epoch_ms: i64, layout: Layout) -> bool {
        match &self.found {
            Found::Contents { stored, .. } => {
                (stored.epoch_ms, stored.layout) != (epoch_ms, layout)
            }
            Found::Nothing | Found::Damaged(_) | Found::Unreadable(_) => false,
        }
    }

    /// True unless it says that ids may have been issued.
    pub(super) fn is_unissued(&self, turn: &Turn) -> bool {
        match &self.found {
            Found::Nothing => true,
            Found::Contents { stored, .. } => stored.is_unissued(self.reader(turn)),
            Found::Damaged(_) | Found::Unreadable(_) => false,
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

/// What is so once the reservation is written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Makes {
    /// The generator is to be opened above this floor.
    Open(Floor),
    /// The reservation of an open one was renewed.
    Renewed,
    /// The first call finds all that it needs.
    Ready,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Writing {
    pub(super) worker_id: u16,
    pub(super) since_ms: i64,
    pub(super) makes: Makes,
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
