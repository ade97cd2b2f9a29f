//! The worker registry: decides which server issues snowflake ids with which worker id, and up to
//! which time. No access to its tables or to the clocks.
//!
//! # Why no id comes twice
//!
//! A grant is a segment of time, (floor, R], of a worker id. R ([`Row::reserved_until_ms`]) is
//! committed before it is reported, and never lowered.
//!
//! 1. A renewal raises R for the holder. It shows the token of the row, which is drawn anew each
//!    time: of two servers that were resumed from one memory image, only the first to renew has it.
//! 2. Another holder gets the worker id only when R has passed by every clock that the registry may
//!    have, [`Bounds::max_skew_ms`] after it has passed by this one. Its floor is at least R.
//! 3. A server that repeats its request after a lost answer is known by the token that it asked to
//!    be recorded, and gets the same floor again.
//!
//! So the segments of two holders are disjoint, whatever their clocks do and whenever they stop.
//!
//! R is at most G ([`Bounds::grant_ahead_ms`]) ahead of both the registry's clock and the member's.
//! So a registry that was promoted, or restored from a dump, knows a bound of everything that it
//! may have forgotten: MF ([`Registry::moved_floor_ms`]), fixed at its first use. Until MF has
//! passed by every clock, it trusts no row that has passed and no token. A holder whose row is
//! there, under its name, shows the segment that it has, and goes on. All others wait. Later holders
//! start above MF.
//!
//! The worker id of the registry's own server is kept for that server, whichever it is
//! ([`Row::host`]). After a promotion it passes on at once, like a worker id set by hand: the
//! predecessor is down, and no other server can have it.
//!
//! # Misbehaving members
//!
//! * A member may claim anything about its clock, its name and what it holds. Its clock can only
//!   lower R. What it holds counts only where it is the holder on record, and up to MF.
//! * Node names are scoped by role: another role's node of the same name is another node.
//! * A role has at most [`Bounds::max_ids_per_role`] worker ids. Beyond that it can only reuse its
//!   own worker ids that have passed.
//! * A name has at most [`MAX_PER_NAME`] worker ids that have not passed. So a server that crashes
//!   again and again, or is cloned, does not take them all.
//! * A clock is compared with the median of the other members', with one vote per role: a role with
//!   many made-up nodes has no more weight than a role with one. Real and made-up nodes of one role
//!   cannot be distinguished. So if all members log in with the same role, each node has a vote.
//!   Members that do not trust each other need separate roles.
//!
//! # Protocol
//!
//! The caller invokes [`decide`] repeatedly, each time with the current contents of the tables. It
//! returns [`Next::LockRegistry`] or [`Next::LockRow`] until everything the decision depends on is
//! locked. A renewal locks its own row only, so renewals do not wait for one another. Everything
//! else locks the registry's row first.

mod decide;
mod peers;
mod terms;

pub use decide::{MAX_PER_NAME, decide};
pub(crate) use terms::LONGEST_NAME;
pub use terms::{
    Bounds, Decision, Here, Hold, Holder, LAST_MS, LeaseRequest, Next, Place, Registry, Reply,
    Requester, Row, Tables,
};
