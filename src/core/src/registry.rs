//! The worker registry: decides which server issues snowflake ids with which worker id. No access
//! to its tables or to the clocks.
//!
//! Uniqueness argument. Let R be [`Row::reserved_until_ms`] of a worker id.
//! 1. A holder issues ids with timestamps up to an R that was committed here while it was the
//!    recorded holder and that was reported to it.
//! 2. R is never lowered. A change of holder, except for the registry's own server (below), is one
//!    transaction: it returns a floor of at least R to the new holder, all of whose ids have later
//!    timestamps, and from then on the old holder cannot raise R.
//! 3. A server that repeats its request after a lost answer gets the same floor again.
//!
//! So the ids of two holders are disjoint, whatever their clocks do and whenever they stop. The
//! lease only decides when the worker id may be reassigned.
//!
//! A promoted registry, or one restored from a dump, may have lost leases. So on another timeline
//! or at another place, nothing is assigned for the duration of one lease, the grace. During the
//! grace holders renew, or reenter what they hold. Afterwards new holders start above a floor fixed
//! once, at the end of the grace: everything lost is below it.
//!
//! A promoted registry also has another clock. So a worker id is reassigned only once its lease has
//! ended by that clock, too: [`Bounds::max_skew_ms`] after its end by this one.
//!
//! The worker id of the registry's own server is reserved for that server, whichever it is
//! ([`Row::host`]). After a promotion it passes on at once, like a worker id that is not leased:
//! the predecessor is down, and nobody else can have it.
//!
//! # Misbehaving members
//!
//! A member may claim anything about its clock, its name and its needs, so the owner's [`Bounds`]
//! limit all of it:
//! * Lease duration, clock skew, lead over the clock and reservation are clamped, and the answer
//!   contains the clamped values. Clamping is safe: a holder uses no more than was reported to it.
//! * Node names are scoped by role: another role's node of the same name is another node.
//! * A role has at most [`Bounds::max_ids_per_role`] worker ids. Beyond that it can only reuse its
//!   own worker ids whose leases have ended.
//! * A clock is compared with the median of the other members', with one vote per role: a role with
//!   many made-up nodes has no more weight than a role with one. Real and made-up nodes of one role
//!   cannot be distinguished. So if all members log in with the same role, each node has a vote.
//!   Members that do not trust each other need separate roles.
//!
//! # Protocol
//!
//! The caller invokes [`decide`] repeatedly, each time with the current contents of the tables. It
//! returns [`Next::LockRegistry`] or [`Next::LockRow`] until everything the decision depends on is
//! locked. The registry's row is locked for a claim, and for a renewal during the grace or after a
//! move; then rows of worker ids. So renewals do not normally wait for one another.

mod decide;
mod peers;
mod terms;

pub use decide::decide;
pub(crate) use terms::LONGEST_NAME;
pub use terms::{
    Bounds, Decision, Event, Grace, Granted, Here, Hold, Holder, LARGEST_LEAD_MS, LAST_MS,
    LeaseRequest, Next, Peers, Place, Refusal, Registry, Reply, Requester, Row, Tables,
};
