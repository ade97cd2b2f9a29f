//! Why no snowflake id is issued.

use crate::numbered::numbered;

numbered! {
    /// Why the generator is closed, or will be when its reservation is used up, although a
    /// worker id is configured. Times in Unix milliseconds.
    Refusal {
        /// The reservation lies too far ahead.
        ReservationAhead {
            /// Its end.
            until_ms
        } => "refused: reservation far ahead of the clock",
        /// A reset has left this worker id behind, with times to come.
        WorkerIdRetired {
            /// Their end.
            until_ms
        } => "refused: worker id left behind by a reset",
        /// The epoch was moved later: the same instants would give smaller ids again.
        EpochMovedLater {
            /// The earlier one.
            stored_ms
        } => "refused: epoch was moved later",
        /// The reservation file could not be read or written.
        FileProblem => "reservation file cannot be read or written",
        /// A worker id is to be leased, and no registry is set.
        NoRegistrySet => "no worker registry",
        /// The registry has not given a worker id yet.
        NoAnswer => "worker registry does not answer",
        /// The lease of the worker id has ended.
        LeaseEnded => "lease ended",
        /// Another server has this node's lease.
        HeldByOther => "refused: another server has the worker id of this node",
        /// All worker ids are leased or retired.
        NoFreeWorkerId => "refused: no free worker id",
        /// The clock is off.
        ClockSkew {
            /// By how much, in milliseconds: ahead; negative is behind.
            by_ms
        } => "refused: clock is off",
        /// The registry was promoted or restored, and gives nothing away for a while.
        RegistryGrace => "worker registry gives nothing away yet",
        /// The worker id was taken away; another one is asked for.
        WorkerIdLost => "worker id was taken away",
        /// The registry's servers have another epoch.
        OtherEpoch => "refused: epoch is not that of the worker registry",
        /// This node's name belongs to another role in the registry.
        OtherRole => "refused: name of this node belongs to another role",
    }
}
