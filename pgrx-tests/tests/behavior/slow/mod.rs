//! Long tests: failures of networks, clocks, disks and processes, under load or in sequence. (`make
//! test-all`)

mod adopt_under_load;
mod bad_member;
mod broken_table;
mod central_answers;
mod central_failover;
mod central_network;
mod discarded_caches;
mod explored;
mod full_disk;
mod full_queues;
mod gapless_under_faults;
mod history;
mod hostile_settings;
mod in_the_way;
mod memory;
mod moves;
mod never_waits;
mod opaque_fleet;
mod outage;
mod registry_away;
mod registry_clock;
mod registry_failover;
mod registry_fencing;
mod reserve_worker;
mod slot_eviction;
