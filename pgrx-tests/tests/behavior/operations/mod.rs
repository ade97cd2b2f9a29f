//! Administration: installation, settings, backup, restart, failover, removal.

mod asynchronous_commit;
mod backup;
mod database_lifecycle;
mod dump_restore;
mod failover;
mod libpq;
mod monitoring;
mod problems;
mod refusals;
mod restarts;
mod script;
mod settings;
mod standby;
mod synchronous;
mod trusted;
mod upgrade;
