//! The audit log of a server, and the queue of refused callers before it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zillion_access::{AuditEvent, AuditLog, AuditQueue};

use crate::error::{Result, ServeError};

/// The audit log, and the queue of refused callers, whose thread waits for the disk.
#[derive(Debug)]
pub(crate) struct Audit {
    log: Arc<AuditLog>,
    refusals: AuditQueue,
}

impl Audit {
    /// Starts the thread that writes refusals.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub(crate) fn start(log: Arc<AuditLog>) -> Result<Self> {
        let refusals = AuditQueue::start(log.clone(), since_1970);
        let refusals = refusals.map_err(|error| ServeError::Internal(error.to_string()))?;
        Ok(Self { log, refusals })
    }

    /// Returns the log, whose lines are waited for.
    pub(crate) fn log(&self) -> &Arc<AuditLog> {
        &self.log
    }

    /// Hands over a refusal to be written, without waiting.
    pub(crate) fn push_refusal(&self, event: &AuditEvent<'_>) {
        self.refusals.push(event, since_1970());
    }
}

/// Returns the time since 1970.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
