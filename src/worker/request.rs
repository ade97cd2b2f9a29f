//! A slot's request, from its acceptance until it is cleared; and all that an allocator does in
//! shared memory for it ([`Request::complete`]).
//!
//! | state | leaves by | to |
//! | --- | --- | --- |
//! | Due | its time, and a claim | cleared |
//! | | no row | Missed |
//! | | a row that names a source server | Asked |
//! | | an error | Due later |
//! | Missed | as Due, at once; no row | Held |
//! | Asked | an answer | Received |
//! | | a refusal, or nothing in time | Due, Held |
//! | Received | a note of it here | cleared |
//! | | an error | Received, again later: that server is not asked again |
//! | any but Asked | an answer that asking again does not change | Held |
//! | Held | its time, or an edit of the row | cleared: sessions ask again |
//! | any | an eviction of the slot | cleared; what was claimed for it is a gap |
//!
//! It is noticed when it is come to next that the slot was evicted. Until then, nothing that
//! is done for the request touches what is another tag's by now.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leaf_id_core::segment::{Refused, SegmentRequest};

use crate::error::RefillError;
use crate::pg::Name;
use crate::shmem::Access;
use crate::shmem::{Area, Claimed, Key, Slot, SlotState};
use crate::tags::claim::{ClaimAnswer, TagSource};

/// How an allocator backs off from a tag: first, and at most.
const BACK_OFF: Duration = Duration::from_millis(50);
const MAX_BACK_OFF: Duration = Duration::from_millis(500);
/// How long a request stays closed after an answer that asking again will not change.
const HOLD: Duration = Duration::from_secs(1);

/// A request that an allocator has accepted.
pub struct Request {
    /// Counts the requests of this allocator.
    pub number: u64,
    /// The slot.
    pub slot: &'static Slot,
    /// Whose it is, as long as the request is open.
    pub key: Key,
    accepted: SegmentRequest,
    state: RequestState,
    /// How long it is put off next; over all of its life.
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

/// Ids that another server has claimed, before that is written down here.
#[derive(Clone, Copy)]
pub struct Received {
    /// The tag's row when that server was asked.
    pub source: TagSource,
    /// What it has answered.
    pub answer: ClaimAnswer,
    /// The adaptive step that it was asked with.
    pub step: u32,
}

/// What a slot is like at one moment.
pub struct Seen {
    /// The buffer's version.
    pub version: u64,
    /// What is remembered about the tag.
    pub state: SlotState,
    /// One past the last id published.
    pub high: i64,
}

/// What came of a request, or of a step for it.
pub enum Outcome<'a> {
    /// The slot was evicted, or the allocator leaves.
    Dropped,
    /// It was held for long enough, or the row was edited.
    Ended,
    /// No claim may begin.
    Closed,
    /// The spare is there: a session that had looked before it came has asked again.
    HasSpare,
    /// The row fits what is saved of its ids.
    Fits { version: u64, access: Access },
    /// It does not.
    Outdated,
    /// Ids are claimed.
    Claimed { version: u64, claimed: Claimed },
    /// Ids are claimed; but the wait for a standby was canceled.
    Unacknowledged { version: u64, claimed: Claimed },
    /// What another server has claimed is written down here.
    Noted {
        version: u64,
        answer: ClaimAnswer,
        claimed: Claimed,
    },
    /// The row is not the one any more for which another server was asked.
    Replaced,
    /// Another server was not asked in time.
    Stale,
    /// Another server is to be asked.
    Sourced { version: u64, server: Name },
    /// Another server has claimed ids.
    Answered(Received),
    /// No ids; what is noted at the slot, whose version it is about.
    Failed {
        version: u64,
        error: RefillError,
        text: Option<&'a str>,
    },
}

/// What is to be done next for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is cleared.
    Cleared,
    /// It is to be kept, until it is due.
    Kept,
    /// More is to be claimed for it, at once.
    More,
}

impl Request {
    /// Accepts what was posted; `None` if it was withdrawn.
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

    /// When to come to it; `None` while another server has it.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        match self.state {
            RequestState::Due(at) | RequestState::Received { due: at, .. } => Some(at),
            RequestState::Missed => Some(now),
            RequestState::Asked => None,
            // The row was edited since the answer: it may be another one now.
            RequestState::Held { version, .. } if self.slot.buffer.version() != version => {
                Some(now)
            }
            RequestState::Held { until, .. } => Some(until),
        }
    }

    /// Whether it was answered, and nothing is left but to let sessions ask again.
    pub fn is_held(&self) -> bool {
        matches!(self.state, RequestState::Held { .. })
    }

    /// What another server has answered, while it is not written down.
    pub fn received(&self) -> Option<Received> {
        match &self.state {
            RequestState::Received { received, .. } => Some(**received),
            _ => None,
        }
    }

    /// The longest range that a session waits for; 0 for none.
    pub fn range_len(&self) -> u32 {
        self.accepted.range_len
    }

    /// What the slot is like now; `None` if it was evicted.
    pub fn look(&self, area: &Area) -> Option<Seen> {
        let buffer = self.slot.buffer;
        area.with_request(self.slot, &self.accepted, |state| Seen {
            version: buffer.version(),
            state: *state,
            high: buffer.high(),
        })
    }

    /// Does in shared memory what is to be done for this outcome. Where ids are claimed, in
    /// the claim that the launcher waits for.
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

    /// The request stays open, for a later try. No tag holds up another.
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
        // The row may have been replaced while its lock was waited for: one more look, in a new
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
        // It must not be asked for again with every id that is taken.
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

    /// A claim is committed and flushed: only now may anybody see it (I1). For a range that is longer
    /// than a claim may be at once, the session finds it too short, and asks again: the next one is
    /// longer.
    fn arrive(&mut self, area: &Area, version: u64, claimed: &Claimed) -> Next {
        area.note_claim(self.slot, &self.accepted, claimed);
        let published = area.publish(self.slot, &self.accepted, version, claimed);
        // Overtaken by an allocator before us: what it published is there.
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
            // What was given back since is older, and would come out of order (I4).
            state.drop_saved();
        });
        self.lose(area, answer.len - claimed.len);
        self.arrive(area, version, claimed)
    }

    /// Nothing of it may be seen (I1); that it is claimed is remembered.
    fn lose_unacknowledged(&mut self, area: &Area, version: u64, claimed: &Claimed) -> Next {
        area.note_claim(self.slot, &self.accepted, claimed);
        let text = Some("the claim was canceled, not acknowledged");
        area.note(self.slot, version, RefillError::Failed, text);
        self.lose(area, claimed.len);
        self.put_off()
    }

    /// What is saved does not fit the row any more: it is a gap, and ids are claimed.
    fn drop_saved(&mut self, area: &Area) -> Next {
        area.with_request(self.slot, &self.accepted, SlotState::drop_saved);
        Next::More
    }

    /// What was claimed for it is a gap.
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
