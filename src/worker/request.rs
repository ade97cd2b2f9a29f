//! A slot's request, from its acceptance until it is cleared, and everything that an allocator does
//! in shared memory for it ([`Request::complete`]).
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | Due | due; ids claimed | cleared |
//! | | no row | Missed |
//! | | the row names a source server | Asked |
//! | | an error | Due, later |
//! | Missed | as Due, at once; still no row | Held |
//! | Asked | an answer | Received |
//! | | a refusal, or a timeout | Due, Held |
//! | Received | the answer is recorded in the local row | cleared |
//! | | an error | Received, later; the server is not asked again |
//! | any but Asked | a final error, which a retry would not change | Held |
//! | Held | timeout, or an edit of the row | cleared; sessions request again |
//! | any | eviction of the slot | cleared; ids claimed for it become a gap |
//!
//! Eviction is detected the next time the request is serviced. Until then, nothing done for the
//! request modifies another tag's slot.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leaf_id_core::segment::{Refused, SegmentRequest};

use crate::error::RefillError;
use crate::pg::Name;
use crate::shmem::Access;
use crate::shmem::{Area, Claimed, Key, Slot, SlotState};
use crate::tags::claim::{ClaimAnswer, TagSource};

/// Initial and max retry interval of a tag.
const BACK_OFF: Duration = Duration::from_millis(50);
const MAX_BACK_OFF: Duration = Duration::from_millis(500);
/// Time for which a request stays closed after a final error.
const HOLD: Duration = Duration::from_secs(1);

/// A request that an allocator has accepted.
pub struct Request {
    /// Sequence number of the request in this allocator.
    pub number: u64,
    /// The slot.
    pub slot: &'static Slot,
    /// The tag, as long as the request is open.
    pub key: Key,
    accepted: SegmentRequest,
    state: RequestState,
    /// Next retry interval; never reset.
    back_off: Duration,
}

/// See the table in this file's header.
enum RequestState {
    Due(Instant),
    Missed,
    Asked,
    Received {
        received: Box<Received>,
        due: Instant,
    },
    Held {
        version: u64,
        until: Instant,
    },
}

/// A claim by another server, not yet recorded in the local row.
#[derive(Clone, Copy)]
pub struct Received {
    /// The tag's row when that server was asked.
    pub source: TagSource,
    /// The answer.
    pub answer: ClaimAnswer,
    /// Adaptive step of the request.
    pub step: u32,
}

/// Snapshot of a slot.
pub struct Seen {
    /// The buffer's version.
    pub version: u64,
    /// Cached state of the tag.
    pub state: SlotState,
    /// One past the last id published.
    pub high: i64,
}

/// Outcome of a request, or of one step of it.
pub enum Outcome<'a> {
    /// The slot was evicted, or the allocator exits.
    Dropped,
    /// The time of a held request is over, or the row was edited.
    Ended,
    /// Claims are not allowed now.
    Closed,
    /// There is a spare already: a session requested it just before it was published.
    HasSpare,
    /// The row matches the saved range.
    Fits { version: u64, access: Access },
    /// The row does not match the saved range.
    Outdated,
    /// Ids were claimed.
    Claimed { version: u64, claimed: Claimed },
    /// Ids were claimed, but the wait for a standby was canceled.
    Unacknowledged { version: u64, claimed: Claimed },
    /// Another server's claim was recorded in the local row.
    Noted {
        version: u64,
        answer: ClaimAnswer,
        claimed: Claimed,
    },
    /// The row has changed since another server was asked.
    Replaced,
    /// The request to another server is outdated, or was not sent in time.
    Stale,
    /// Another server must be asked.
    Sourced { version: u64, server: Name },
    /// Another server has claimed ids.
    Answered(Received),
    /// No ids. The error is recorded for `version` of the slot.
    Failed {
        version: u64,
        error: RefillError,
        text: Option<&'a str>,
    },
}

/// Next action for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// None; the request is cleared.
    Cleared,
    /// Keep the request until it is due.
    Kept,
    /// Claim more for the request, at once.
    More,
}

impl Request {
    /// Accepts a posted request; `None` if it was withdrawn.
    pub fn accept(area: &Area, slot: &'static Slot, number: u64) -> Option<Self> {
        let (accepted, key) = area.queues().accept(slot)?;
        Some(Self {
            number,
            slot,
            key,
            accepted,
            state: RequestState::Due(Instant::now()),
            back_off: BACK_OFF,
        })
    }

    /// Time of the next action; `None` while another server has the request.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        match self.state {
            RequestState::Due(at) | RequestState::Received { due: at, .. } => Some(at),
            RequestState::Missed => Some(now),
            RequestState::Asked => None,
            // The row was edited since the error, which may no longer apply.
            RequestState::Held { version, .. } if self.slot.buffer.version() != version => {
                Some(now)
            }
            RequestState::Held { until, .. } => Some(until),
        }
    }

    /// True if the request has a final error, and only needs to be cleared.
    pub fn is_held(&self) -> bool {
        matches!(self.state, RequestState::Held { .. })
    }

    /// Another server's answer, if not recorded yet.
    pub fn received(&self) -> Option<Received> {
        match &self.state {
            RequestState::Received { received, .. } => Some(**received),
            _ => None,
        }
    }

    /// Longest range that a session is waiting for, in ids; 0 if none.
    pub fn range_len(&self) -> u32 {
        self.accepted.range_len
    }

    /// Current state of the slot; `None` if it was evicted.
    pub fn look(&self, area: &Area) -> Option<Seen> {
        let buffer = self.slot.buffer;
        area.with_request(self.slot, &self.accepted, |state| Seen {
            version: buffer.version(),
            state: *state,
            high: buffer.high(),
        })
    }

    /// Applies an outcome to shared memory. If ids were claimed, this is part of the claim that the
    /// launcher waits for.
    pub fn complete(&mut self, area: &Area, outcome: Outcome<'_>) -> Next {
        match outcome {
            Outcome::Dropped => self.drop_claimed(area),
            Outcome::Ended => self.clear(area),
            Outcome::Closed => self.put_off(),
            Outcome::HasSpare => {
                self.slot.forget_wanted();
                self.clear(area)
            }
            Outcome::Fits { version, access } => {
                match area.publish_saved_range(self.slot, version, access) {
                    Ok(()) => self.clear(area),
                    Err(_) => self.drop_saved(area),
                }
            }
            Outcome::Outdated => self.drop_saved(area),
            Outcome::Claimed { version, claimed } => self.arrive(area, version, &claimed),
            Outcome::Unacknowledged { version, claimed } => {
                self.lose_unacknowledged(area, version, &claimed)
            }
            Outcome::Noted {
                version,
                answer,
                claimed,
            } => self.arrive_from_server(area, version, &answer, &claimed),
            Outcome::Replaced | Outcome::Stale => {
                self.lose_answer(area);
                self.state = RequestState::Due(Instant::now());
                Next::Kept
            }
            Outcome::Sourced { version, server } => self.leave_to(area, version, &server),
            Outcome::Answered(received) => {
                self.state = RequestState::Received {
                    received: Box::new(received),
                    due: Instant::now(),
                };
                Next::More
            }
            Outcome::Failed {
                version,
                error,
                text,
            } => self.fail(area, version, error, text),
        }
    }

    fn clear(&self, area: &Area) -> Next {
        area.queues().clear_request(self.slot, &self.accepted);
        Next::Cleared
    }

    /// Leaves the request open for a retry. No tag holds up another.
    fn put_off(&mut self) -> Next {
        let at = Instant::now() + self.back_off;
        self.back_off = (self.back_off * 2).min(MAX_BACK_OFF);
        if let RequestState::Received { due, .. } = &mut self.state {
            *due = at;
        } else {
            self.state = RequestState::Due(at);
        }
        Next::Kept
    }

    fn fail(&mut self, area: &Area, version: u64, error: RefillError, text: Option<&str>) -> Next {
        // The row may have been replaced while its lock was waited for: look again, in a new
        // transaction.
        if error == RefillError::NoSuchTag && !matches!(self.state, RequestState::Missed) {
            self.state = RequestState::Missed;
            return Next::Kept;
        }
        let is_final = error.is_final();
        if is_final {
            self.lose_answer(area);
        }
        area.note(self.slot, version, error, text);
        if !is_final {
            return self.put_off();
        }
        // Otherwise it would be requested again with every id taken.
        self.state = RequestState::Held {
            version,
            until: Instant::now() + HOLD,
        };
        Next::Kept
    }

    fn leave_to(&mut self, area: &Area, version: u64, server: &Name) -> Next {
        let server = area
            .remote_servers()
            .update(self.key.database, server, |_| {});
        area.note(self.slot, version, RefillError::Asked { server }, None);
        self.state = RequestState::Asked;
        Next::Kept
    }

    /// Publishes a claim that is committed and flushed; nobody may see it earlier (I1). If it is
    /// too short for a range, the session requests again, and the next claim is longer.
    fn arrive(&mut self, area: &Area, version: u64, claimed: &Claimed) -> Next {
        area.note_claim(self.slot, &self.accepted, claimed);
        let published = area.publish(self.slot, &self.accepted, version, claimed);
        // Overtaken by a previous allocator, whose segment is no longer the spare: claim again.
        if published == Err(Refused::OutOfOrder) && !self.slot.buffer.has_spare() {
            return Next::Kept;
        }
        self.clear(area)
    }

    fn arrive_from_server(
        &mut self,
        area: &Area,
        version: u64,
        answer: &ClaimAnswer,
        claimed: &Claimed,
    ) -> Next {
        area.with_request(self.slot, &self.accepted, |state| {
            let there = &self.slot.server_max_step;
            there.store(answer.max_step, Ordering::Relaxed);
            // Ranges returned since are older, and would be out of order (I4).
            state.drop_saved();
        });
        self.lose(area, answer.len - claimed.len);
        self.arrive(area, version, claimed)
    }

    /// The ids must not be visible (I1), but the claim is recorded.
    fn lose_unacknowledged(&mut self, area: &Area, version: u64, claimed: &Claimed) -> Next {
        area.note_claim(self.slot, &self.accepted, claimed);
        let text = Some("the claim was canceled, not acknowledged");
        area.note(self.slot, version, RefillError::Failed, text);
        self.lose(area, claimed.len);
        self.put_off()
    }

    /// The saved ranges do not match the row any more. They become a gap, and ids are claimed.
    fn drop_saved(&mut self, area: &Area) -> Next {
        area.with_request(self.slot, &self.accepted, SlotState::drop_saved);
        Next::More
    }

    /// Gives up the request and ids claimed for it, which become a gap.
    fn drop_claimed(&mut self, area: &Area) -> Next {
        self.lose_answer(area);
        self.clear(area)
    }

    fn lose(&self, area: &Area, ids: u32) {
        if ids > 0 {
            area.lose(self.slot, &self.accepted, ids);
        }
    }

    fn lose_answer(&self, area: &Area) {
        self.lose(
            area,
            self.received().map_or(0, |received| received.answer.len),
        );
    }
}
