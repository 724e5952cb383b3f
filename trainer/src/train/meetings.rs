//! The meetings of a trainer with the other trainers.

/// The largest number of meetings that a trainer remembers.
const MOST_MEETINGS: usize = 4096;

/// The meetings of a trainer with the others, and the work that it owes after a loss.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    /// The number of moments at which a meeting has begun or has ended. The number is odd in a
    /// meeting.
    pub(super) moments: u64,
    /// Whether the round of local steps must end before the next step.
    pub(super) owes_round: bool,
    /// Whether the trainers must meet before the next step.
    pub(super) owes_meeting: bool,
    /// The step of each meeting, and the number of this trainer's pushes before it.
    cuts: Vec<(u64, u64)>,
    /// The number of this trainer's pushes when the run went on after a loss; 0 if it never did.
    pub(super) continued_at: u64,
}

impl Meetings {
    /// Records that all pushes before a step are applied on every server.
    pub(super) fn record(&mut self, step: u64, pushes: u64) {
        if self.cuts.len() == MOST_MEETINGS {
            self.cuts.remove(0);
        }
        self.cuts.push((step, pushes));
    }

    /// Returns the number of pushes before the meeting at a step; `None` if it is not known.
    pub(super) fn pushes_at(&self, step: u64) -> Option<u64> {
        self.cuts.iter().rev().find(|(at, _)| *at == step).map(|&(_, pushes)| pushes)
    }

    /// Returns whether the run has begun, and so knows a first step.
    pub(super) fn has_begun(&self) -> bool {
        !self.cuts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pushes_before_a_meeting_are_known_for_a_while() {
        let mut meetings = Meetings::default();
        for step in 0..=MOST_MEETINGS as u64 {
            meetings.record(2 * step, step);
        }
        assert_eq!(meetings.pushes_at(0), None);
        assert_eq!(meetings.pushes_at(2), Some(1));
        assert_eq!(meetings.pushes_at(3), None);
        assert_eq!(meetings.pushes_at(2 * MOST_MEETINGS as u64), Some(MOST_MEETINGS as u64));
    }
}
