//! The settings by which messages become rows. The log records them before the first decision that
//! depends on them, and a decision is repeated with the same settings only.

use std::time::{SystemTime, UNIX_EPOCH};

use zillion_stream::RowRules;

use crate::error::{Error, Result};
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

/// Checks that decision `number` can be repeated by a job with the settings `given`. `recorded` are
/// the settings with which the decision was made; `None` if the log is one of an earlier version.
pub(super) fn check_rules(number: u64, recorded: Option<RowRules>, given: RowRules) -> Result<()> {
    let Some(recorded) = recorded else { return Ok(()) };
    let seconds = |ms: u64| (ms as f64 / 1000.0).to_string();
    let keys = [
        ("disorder_seconds", seconds(recorded.disorder_ms), seconds(given.disorder_ms)),
        ("max_ahead_seconds", seconds(recorded.max_ahead_ms), seconds(given.max_ahead_ms)),
        (
            "accept_jump_after",
            recorded.accept_jump_after.to_string(),
            given.accept_jump_after.to_string(),
        ),
        (
            "max_message_bytes",
            recorded.max_message_bytes.to_string(),
            given.max_message_bytes.to_string(),
        ),
    ];
    match keys.into_iter().find(|(_, recorded, given)| recorded != given) {
        None => Ok(()),
        Some((key, recorded, given)) => {
            Err(Error::RulesChanged { key, recorded, given, decision: number })
        }
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
        check_rules(7, Some(recorded), RowRules { disorder_ms: 1, ..rules_of(&online) }).unwrap();
    }

    #[test]
    fn each_changed_setting_is_named() {
        let rules = rules_of(&OnlineConfig::default());
        check_rules(7, None, rules).unwrap();
        check_rules(7, Some(rules), rules).unwrap();
        for (key, other) in [
            ("`online.disorder_seconds`", RowRules { disorder_ms: 1500, ..rules }),
            ("`online.max_ahead_seconds`", RowRules { max_ahead_ms: 1, ..rules }),
            ("`online.accept_jump_after`", RowRules { accept_jump_after: 1, ..rules }),
            ("`online.max_message_bytes`", RowRules { max_message_bytes: 1, ..rules }),
        ] {
            let error = check_rules(7, Some(rules), other).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("decision 7"), "{error}");
        }
    }
}
