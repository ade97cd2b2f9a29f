//! Publishing claimed ids in a slot's buffers, with the counters.

use core::sync::atomic::Ordering;

use leaf_id_core::segment::{Refused, Remainders, SegmentRequest};
use leaf_id_core::sometimes;
use leaf_id_core::step::Pace;

use super::area::Area;
use super::slot::{IdRange, Slot, SlotAccess, SlotState};
use crate::error::RefillError;
use crate::pg;

/// A longer wait for a standby during a claim counts as a failure, in microseconds.
const STANDBY_US: i64 = 1_000_000;

/// A committed claim, not yet published.
#[derive(Clone, Copy)]
pub struct Claimed {
    /// First id.
    pub first: i64,
    /// Number of ids.
    pub len: u32,
    /// `incarnation` of the row.
    pub row_incarnation: i64,
    /// The adaptive step after this claim.
    pub pace: Pace,
    /// The row's `max_step`.
    pub max_step: u32,
    /// Ids skipped before the first one because of a failover.
    pub skipped: u64,
    /// Roles that may take from the segment.
    pub access: SlotAccess,
}

impl Claimed {
    /// One past the last id.
    pub fn end(&self) -> i64 {
        self.first + i64::from(self.len)
    }
}

impl Area {
    /// Publishes a claim for `request` that began in `version` of the slot and is now durable (I1).
    /// If the row was replaced since the last publication, a new version is started first.
    ///
    /// # Errors
    /// See [`Refused`]; the claimed ids become a gap and are counted as lost.
    pub fn publish(
        &self,
        slot: &Slot,
        request: &SegmentRequest,
        version: u64,
        claimed: &Claimed,
    ) -> Result<(), Refused> {
        let now = pg::now_timestamp();
        let us = now.saturating_sub(slot.wanted_since()).max(0);
        let published = self.with_request(slot, request, |state| {
            slot.max_step.store(claimed.max_step, Ordering::Relaxed);
            let mut version = version;
            let replaced =
                state.row_incarnation != 0 && state.row_incarnation != claimed.row_incarnation;
            // Rights changed by an edit without a trigger: end the version, so that sessions check
            // again.
            let regranted = ![SlotAccess::Unknown, claimed.access].contains(&slot.access());
            if slot.buffer.version() == version && (replaced || regranted) {
                sometimes!("publish: the row was replaced, unseen");
                state.lost += slot.invalidate().count();
                version = slot.buffer.version();
            }
            let issued = state.issued(&slot.buffer.remainders());
            let published = slot.buffer.publish(version, claimed.first, claimed.len);
            match published {
                Ok(()) => {
                    slot.allow(claimed.access);
                    if state.last_refill > 0 {
                        let us = now.saturating_sub(state.last_refill);
                        state.paced_us = u64::try_from(us).unwrap_or(0);
                        state.paced_ids = issued.saturating_sub(state.issued_at_refill);
                    }
                    state.issued_at_refill = issued;
                    state.row_incarnation = claimed.row_incarnation;
                    state.max_id = claimed.end();
                    state.pace = claimed.pace;
                    state.refills = state.refills.saturating_add(1);
                    state.last_refill = now;
                    state.last_refill_us = u32::try_from(us).unwrap_or(u32::MAX);
                    state.refill_error = None;
                    slot.unusable.store(0, Ordering::Relaxed);
                    // Sessions starved until now have waited for this segment.
                    slot.starved.store(0, Ordering::Relaxed);
                    slot.forget_wanted();
                }
                Err(_) => {
                    sometimes!("publish: the version has ended");
                    state.lost += u64::from(claimed.len);
                }
            }
            state.published += u64::from(claimed.len);
            published
        });
        published.unwrap_or_else(|| {
            self.directory.lose_evicted(claimed.len.into());
            Err(Refused::Changed)
        })
    }

    /// As [`Self::with_state`], if `request` is still in flight. `None` if the slot has been
    /// evicted; it may belong to another tag.
    pub fn with_request<T>(
        &self,
        slot: &Slot,
        request: &SegmentRequest,
        body: impl FnOnce(&mut SlotState) -> T,
    ) -> Option<T> {
        self.with_state(slot, |state| {
            slot.buffer.is_in_flight(request).then(|| body(state))
        })
    }

    /// Records a committed claim: the row's `max_id` and the skipped ids.
    pub fn note_claim(&self, slot: &Slot, request: &SegmentRequest, claimed: &Claimed) {
        self.with_request(slot, request, |state| {
            // A claim from another row is recorded when it is published.
            if state.row_incarnation == claimed.row_incarnation {
                state.max_id = claimed.end();
            }
            // A source server may say any number.
            state.skipped = state.skipped.saturating_add(claimed.skipped);
        });
    }

    /// Counts a committed claim of `ids` ids that will not be published.
    pub fn lose(&self, slot: &Slot, request: &SegmentRequest, ids: u32) {
        let counted = self.with_request(slot, request, |state| {
            state.published += u64::from(ids);
            state.lost += u64::from(ids);
        });
        if counted.is_none() {
            self.directory.lose_evicted(ids.into());
        }
    }

    /// Republishes the next saved range. The caller has verified the tag's row in `version`.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn publish_saved_range(
        &self,
        slot: &Slot,
        version: u64,
        access: SlotAccess,
    ) -> Result<(), Refused> {
        self.with_state(slot, |state| {
            let Some(range) = state.next_saved() else {
                return Ok(());
            };
            slot.buffer.publish(version, range.first, range.len)?;
            slot.allow(access);
            state.published += u64::from(range.len);
            if let Some(saved) = state.saved.iter_mut().find(|saved| **saved == range) {
                *saved = IdRange::NONE;
            }
            state.refill_error = None;
            slot.forget_wanted();
            Ok(())
        })
    }

    /// The state and the remainders of both buffers, consistently.
    pub fn look(&self, slot: &Slot) -> (SlotState, Remainders) {
        self.with_state(slot, |state| (*state, slot.buffer.remainders()))
    }

    /// The slot's last failure as a sentence, if one occurred since the last refill and the last
    /// edit. Waiting for a standby is a failure only after [`STANDBY_US`].
    pub fn explain(&self, state: &SlotState) -> Option<String> {
        let error = state.refill_error?;
        if error == RefillError::AwaitsStandby && pg::now_timestamp() - state.error_at < STANDBY_US
        {
            return None;
        }
        let server = error
            .server()
            .and_then(|server| self.remote_servers().find(server));
        let name = server.map_or_else(String::new, |server| server.server().text());
        error.sentence(&name, &state.text.get()).or_else(|| {
            // Not a failure yet, unless the server is down.
            let server = server?;
            server.last_error()?;
            Some(server.explain())
        })
    }

    /// Runs `body` with the slot's state, under the slot's lock. It must not fail or wait.
    pub fn with_state<T>(&self, slot: &Slot, body: impl FnOnce(&mut SlotState) -> T) -> T {
        self.directory.slots().with_state(slot, body)
    }

    /// Records an error for `version` of the slot, unless that version has ended. The request stays
    /// open.
    pub fn note(&self, slot: &Slot, version: u64, refill_error: RefillError, text: Option<&str>) {
        self.directory
            .slots()
            .note(slot, version, refill_error, text);
    }
}
