//! The settings by which messages become rows. The log records them before the first decision that
//! depends on them, and a decision is repeated with the recorded ones. Those of the job hold for
//! new decisions.

use std::num::NonZeroU32;
use std::time::{SystemTime, UNIX_EPOCH};

use zillion_stream::watermark::TimeRules;
use zillion_stream::{EventTime, RowRules};

use crate::job::OnlineConfig;

/// Returns the settings of a job by which messages become rows.
pub(super) fn rules_of(online: &OnlineConfig) -> RowRules {
    let times = online.time_rules();
    RowRules {
        disorder_ms: times.disorder,
        max_ahead_ms: times.max_ahead,
        accept_jump_after: times.accept_jump_after.get(),
        max_message_bytes: online.max_message_bytes.0,
        start_ms: None,
    }
}

/// Returns the settings that hold from now on, after those that the log has recorded last. The
/// clock of the machine is read once in the life of a log, before its first event.
pub(super) fn rules_after(recorded: Option<RowRules>, online: &OnlineConfig) -> RowRules {
    let start_ms = match recorded {
        Some(recorded) => recorded.start_ms,
        None => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .ok()
            .and_then(|since| i64::try_from(since.as_millis()).ok()),
    };
    RowRules { start_ms, ..rules_of(online) }
}

/// Returns the rules of event times among recorded settings.
pub(super) fn time_rules_of(rules: &RowRules) -> TimeRules {
    TimeRules {
        disorder: rules.disorder_ms,
        max_ahead: rules.max_ahead_ms,
        accept_jump_after: NonZeroU32::new(rules.accept_jump_after).unwrap_or(NonZeroU32::MIN),
        start: rules.start_ms.map(EventTime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_log_stays() {
        let online = OnlineConfig::default();
        let first = rules_after(None, &online);
        assert!(first.start_ms.is_some_and(|start| start > 1_700_000_000_000), "{first:?}");
        let recorded = RowRules { start_ms: Some(7), disorder_ms: 1, ..first };
        assert_eq!(rules_after(Some(recorded), &online), RowRules { start_ms: Some(7), ..first });
        // A log of an earlier version has events already.
        let earlier = RowRules { start_ms: None, ..first };
        assert_eq!(rules_after(Some(earlier), &online), earlier);
    }

    #[test]
    fn recorded_rules_are_those_of_the_job() {
        let online = OnlineConfig { disorder_seconds: 1.5, ..OnlineConfig::default() };
        let rules = rules_of(&online);
        assert_eq!(time_rules_of(&rules), online.time_rules());
        let start = time_rules_of(&RowRules { start_ms: Some(7), ..rules }).start;
        assert_eq!(start, Some(EventTime(7)));
    }
}
