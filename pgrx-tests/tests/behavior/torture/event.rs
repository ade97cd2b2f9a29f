//! What a torture test says of its events.

use std::fmt::Debug;
use std::time::Duration;

use leaf_id_tests::Failure;

/// Defines the kinds of events, and a list of all of them.
macro_rules! events {
    ($($event:ident)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Event {
            $($event,)*
        }

        const EVENTS: &[Event] = &[$(Event::$event),*];
    };
}
pub(super) use events;

/// An event that affects servers under load.
pub(super) trait Happening: Copy + Debug + Ord + 'static {
    /// All kinds.
    const ALL: &'static [Self];

    /// True if it takes milliseconds, and leaves no server without ids.
    fn is_cheap(self) -> bool;

    /// Time limit for the next id of each kind after it, unless another event begins before.
    fn recovers(self) -> Duration;

    /// Ids it may lose.
    fn loss(self) -> Loss;

    /// True if the event explains a session's error.
    fn explains(self, failure: &Failure) -> bool;

    /// True if the event interrupts a claim, which is then repeated, each time after a longer while.
    /// Several of them explain a call that waits too long.
    fn delays(self) -> bool {
        false
    }
}

/// Causes of lost ids that are neither requested by failed calls nor counted by a view, the most
/// expensive first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    /// Cached ids are lost.
    Crash,
    /// A committed claim is lost before its publication.
    Worker,
    /// No ids are lost, which is not trivial.
    CleanRestart,
    /// No ids are lost: those dropped by an edit are counted by the status view.
    Nothing,
}

impl Loss {
    /// As in bench/results/night.md.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Crash => "cached at a crash",
            Self::Worker => "claimed by an ended worker",
            Self::CleanRestart => "by a clean restart",
            Self::Nothing => "by any other event",
        }
    }
}
