//! Shared memory. Layout and locking rules: [`area`].

#![allow(unsafe_code)]

mod area;
mod databases;
mod directory;
mod eviction;
mod lock;
mod publish;
mod registry;
mod remote_servers;
mod reserve;
mod saved;
mod slot;
mod slots;
mod snowflake;
mod text;

pub use area::{Area, area, forget_database, init};
pub use directory::RELATIONS;
pub use eviction::ACCOUNTS;
pub use publish::Claimed;
pub use registry::{Explanation, LeaseQuestion, LeaseReply, LeaseStatus, WorkerIdSource};
pub use remote_servers::RemoteServerState;
pub use reserve::Task;
pub use saved::SavedRanges;
pub use slot::{IdRange, Key, Slot, SlotAccess, SlotRef, SlotState, Tag};
pub use snowflake::{Snowflake, Writer};
pub use text::Text;
