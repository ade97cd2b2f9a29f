//! Whether ids lead the clock, and why: what sessions are shown, and the log is told.

use super::turn::{Action, Message, Seen};
use crate::reservation::{Floor, Reason};
use crate::state::LeadReason;

/// How often the launcher looks at least whether ids still lead the clock, in milliseconds.
const LOOK_MS: i64 = 1000;

/// What was found.
#[derive(Debug)]
pub(super) struct Leading {
    /// Why ids lead, if they do.
    next: LeadReason,
    /// Why they do.
    reason: Option<LeadReason>,
}

impl Leading {
    pub(super) const NONE: Self = Self {
        next: LeadReason::ClockSetBack,
        reason: None,
    };

    /// The generator was opened above a floor.
    pub(super) fn opened(&mut self, above: Floor, now_ms: i64) {
        self.next = match above.reason {
            _ if above.ms <= now_ms => LeadReason::ClockSetBack,
            Reason::Crash => LeadReason::Crash,
            Reason::Registry => LeadReason::Registry,
            _ if above.unknown_since_ms.is_some() => LeadReason::Unknown,
            _ => LeadReason::EarlierIds,
        };
    }

    /// Of an open generator: what is to be done, and when to look again. `led`: a session has
    /// seen that ids lead by more than a burst may.
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
            // Whatever makes ids lead from now on, it is not what they were opened above.
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
