//! The audit entries of versions and pointer moves that a loader refused, because no trusted key
//! signed them, or because they came a second time or too late. They are synchronised, and a flood
//! of refused callers hides none of them.

use std::time::{SystemTime, UNIX_EPOCH};

use zillion_access::{AuditEvent, AuditLog};
use zillion_registry::Error as RegistryError;
use zillion_scorer::Error;

/// Returns the name of the reason for which a loader refused what the registry showed, or `None` if
/// the failure has nothing to do with trust.
fn refusal_name(error: &Error) -> Option<&'static str> {
    match error {
        Error::Registry(RegistryError::Access(_)) => Some("untrusted_version"),
        Error::Registry(RegistryError::Replayed { .. }) => Some("replayed_move"),
        Error::Registry(RegistryError::Expired { .. }) => Some("expired_move"),
        _ => None,
    }
}

/// Writes to the audit log that a loader refused a version or a pointer move.
pub(crate) fn record_refused_version(
    log: Option<&AuditLog>,
    model: &str,
    registry: &str,
    error: &Error,
) {
    let (Some(log), Some(outcome)) = (log, refusal_name(error)) else { return };
    let detail = error.to_string();
    let event = AuditEvent {
        who: "",
        from: registry,
        action: "refuse",
        subject: model,
        outcome,
        detail: &detail,
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if let Err(error) = log.write_refused_version(&event, now) {
        tracing::error!("{error}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use zillion_registry::VersionId;

    use super::*;

    #[test]
    fn only_failures_of_trust_are_audited() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path, Duration::ZERO).expect("a log");
        let expired = RegistryError::Expired {
            model: "ctr".to_owned(),
            pointer: "stable".to_owned(),
            number: 7,
        };
        let absent = RegistryError::NoVersion { model: "ctr".to_owned(), version: VersionId(1) };
        // A flood of refused callers in the same second hides nothing.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for at in 0..5000 {
            let flood = AuditEvent { action: "refuse", ..AuditEvent::default() };
            log.write_refusal(&flood, now + Duration::from_millis(at)).expect("a line");
        }
        for error in [expired, absent] {
            let error = Error::Registry(error);
            record_refused_version(Some(&log), "ctr", "s3://models", &error);
            record_refused_version(None, "ctr", "s3://models", &error);
        }
        let text = std::fs::read_to_string(&path).expect("a log");
        let found: Vec<&str> =
            text.lines().filter(|line| line.contains("\"subject\":\"ctr\"")).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("expired_move") && found[0].contains("move 7"), "{found:?}");
    }
}
