//! The files of `src/shmem` as they ship.

#![allow(
    unsafe_code,
    dead_code,
    unused_imports,
    reason = "as in src/shmem.rs; the models call some of it"
)]

#[path = "../../../shmem/area.rs"]
mod area;
#[path = "../../../shmem/databases.rs"]
mod databases;
#[path = "../../../shmem/directory.rs"]
mod directory;
#[path = "../../../shmem/eviction.rs"]
mod eviction;
#[path = "../../../shmem/lock.rs"]
mod lock;
#[path = "../../../shmem/publish.rs"]
mod publish;
#[path = "../../../shmem/registry.rs"]
mod registry;
#[path = "../../../shmem/remote_servers.rs"]
mod remote_servers;
#[path = "../../../shmem/reserve.rs"]
mod reserve;
#[path = "../../../shmem/saved.rs"]
mod saved;
#[path = "../../../shmem/slot.rs"]
mod slot;
#[path = "../../../shmem/slots.rs"]
mod slots;
#[path = "../../../shmem/snowflake.rs"]
mod snowflake;
#[path = "../../../shmem/text.rs"]
mod text;

pub use area::{Area, area, init};
pub use publish::Claimed;
pub use slot::{Key, Slot, SlotAccess, SlotRef, SlotState, Tag};
