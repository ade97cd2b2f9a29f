//! The worker registry: which server issues snowflake ids with which worker id. Without the
//! tables that it is kept in, and without the clocks.
//!
//! Why no id comes twice. Let R be [`Row::reserved_until_ms`] of a worker id.
//! 1. A holder issues ids with times up to an R that was committed here while it was the
//!    recorded holder, and that it was told.
//! 2. R never goes down. A change of the holder, but for the registry's own server (below), is
//!    one transaction: it returns a floor of at
//!    least R to the new holder, whose ids all carry later times, and from then on the old
//!    one cannot raise R any more.
//! 3. Whoever asks again, because the answer was lost, is told that floor again.
//!
//! So the ids of two holders are apart, whatever their clocks do and whenever they stop. The
//! lease decides only when the id may be given to somebody else.
//!
//! What a promotion, or a restore from a dump, has forgotten is not here to be compared. So
//! on another timeline, or in another place, nothing is given away before one lease has
//! passed; until then holders renew, or enter again what they hold, and afterwards new
//! holders start above a floor that is fixed then, once: all that was forgotten is below it.
//!
//! The clock of a registry that was promoted is another one. So a worker id is given to
//! somebody else only when its lease has ended by that clock too: once
//! [`Bounds::max_skew_ms`] has passed since its end by this one.
//!
//! The worker id of the server that the registry is on is kept for that, whichever it is
//! ([`Row::host`]): after a promotion it passes on at once, as a worker id does that is not
//! leased, since its predecessor is off and nobody else can have it.
//!
//! # One bad member harms itself
//!
//! A member says what it likes about its clock, its name and its needs, so nothing of that
//! is believed further than the registry's owner allows ([`Bounds`]):
//! * The length of a lease, the clock skew, the lead over the clock and what is reserved are
//!   clamped, and the answer says to what. Clamping is safe: a holder uses no more than it was told.
//! * A node's name belongs to the role that claimed it first; other roles are refused.
//! * One role has at most [`Bounds::max_ids_per_role`] worker ids. Beyond that it may only
//!   have again those of its own whose leases have ended.
//! * Clocks are compared with the median of the other servers', and with one vote per role:
//!   a role with many invented nodes has no more weight than one with a single node. Among
//!   the nodes of one role nobody can be told from an invention, so where all members log in
//!   with the same role, each node has a vote. Give members roles of their own where they
//!   do not trust each other.
//!
//! # How it is driven
//!
//! [`decide`] is called again and again, each time with what is known of the tables. It
//! answers [`Next::LockRegistry`] or [`Next::LockRow`] until what the decision depends on is
//! locked: the registry's row for a claim, and for a renewal as long as nothing is given
//! away; then rows of worker ids. So renewals do not wait for one another.

mod decide;
mod peers;
mod terms;

pub use decide::decide;
pub use terms::{
    Bounds, Decision, Event, Grace, Granted, Here, Hold, Holder, LARGEST_LEAD_MS, LARGEST_SKEW_MS,
    LAST_MS, LONGEST_LEASE_MS, LONGEST_NAME, LeaseRequest, Next, Peers, Place, Refusal, Registry,
    Reply, Requester, Row, Tables,
};
