//! Detects that ids lead the clock, and the reason; for the views and the log.

use super::turn::{Action, Message, Seen};
use crate::reservation::{Floor, Reason};
use crate::state::LeadReason;

/// Max interval between checks for the end of a lead, in milliseconds.
const LOOK_MS: i64 = 1000;

/// State of the detection.
#[derive(Debug, Clone)]
pub(super) struct Leading {
    /// Reason for the next lead, if one is detected.
    next: LeadReason,
    /// Reason for the current lead.
    reason: Option<LeadReason>,
}

impl Leading {
    pub(super) const NONE: Self = Self {
        next: LeadReason::ClockSetBack,
        reason: None,
    };

    /// Notes that the generator was opened above a floor.
    pub(super) fn opened(&mut self, above: Floor, now_ms: i64) {
        self.next = match above.reason {
            _ if above.ms <= now_ms => LeadReason::ClockSetBack,
            Reason::Crash => LeadReason::Crash,
            Reason::Registry => LeadReason::Registry,
            Reason::CleanStop | Reason::LauncherRestart | Reason::Reset | Reason::NewCluster => {
                LeadReason::EarlierIds
            }
            Reason::NoFile
            | Reason::CopiedFile
            | Reason::NewTimeline
            | Reason::OtherCluster
            | Reason::OtherWorkerId => LeadReason::Unknown,
        };
    }

    /// Checks an open generator, and returns the time to the next check. `led`: a session has
    /// reported ids that lead by more than a burst.
    pub(super) fn follow(
        &mut self,
        seen: &Seen,
        led: bool,
        actions: &mut Vec<Action>,
    ) -> Option<i64> {
        let lead_ms = seen.last_ms - seen.now_ms;
        if self.reason.is_none() && (led || lead_ms > seen.lead.burst_ms) {
            let reason = self.next;
            self.reason = Some(reason);
            actions.push(Action::ShowLead(Some(reason)));
            actions.push(Action::Log(Message::Leading(lead_ms.max(1), reason)));
        }
        if lead_ms <= 0 {
            // The floor is behind the clock: a later lead has another cause.
            self.next = LeadReason::ClockSetBack;
            if self.reason.take().is_some() {
                actions.push(Action::ShowLead(None));
                actions.push(Action::Log(Message::LeadOver));
            }
        }
        self.reason
            .map(|_| lead_ms.clamp(1, LOOK_MS).saturating_add(1))
    }
}
