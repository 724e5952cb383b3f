//! Access control of requests: the principal of each, and the audit log.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{Extensions, HeaderMap};
use zillion_access::{AuditEvent, Principal, Role};

use crate::budget::Holder;
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::network::{Api, Peer};

/// The caller of a control action, for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The name of the principal.
    pub who: String,
    /// The address that the request came from.
    pub from: String,
}

impl Actor {
    /// Reads the actor that the guard of a request left in its extensions.
    ///
    /// # Errors
    /// Returns an error if the request did not pass a guard, which is a bug.
    pub(crate) fn read(extensions: &Extensions) -> Result<Self> {
        let unguarded = || ServeError::Internal("a request passed no guard".to_owned());
        let caller = extensions.get::<Arc<Principal>>().ok_or_else(unguarded)?;
        let peer = extensions.get::<Arc<Peer>>().ok_or_else(unguarded)?;
        Ok(Self { who: caller.name.clone(), from: peer.address.to_string() })
    }
}

/// Returns the principal that a guard left in the extensions of a request, after a check of its
/// role for a model.
///
/// # Errors
/// Returns [`ServeError::Refused`] if the principal may not make the call.
pub(crate) fn check_model(
    domain: &Domain,
    extensions: &Extensions,
    role: Role,
    model: &str,
) -> Result<()> {
    let unguarded = || ServeError::Internal("a request passed no guard".to_owned());
    let caller = extensions.get::<Arc<Principal>>().ok_or_else(unguarded)?;
    let peer = extensions.get::<Arc<Peer>>().ok_or_else(unguarded)?;
    caller.check(role, Some(model)).map_err(|refusal| {
        let error = ServeError::Refused { refusal, caller: caller.name.clone() };
        domain.record_refusal(peer, model, &error);
        error
    })
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the holder of the bytes of a request. The caller is `known`, or the one that a guard
/// left in the extensions.
///
/// # Errors
/// Returns an error if the request did not pass a guard, which is a bug.
pub(crate) fn find_holder<'a>(
    extensions: &'a Extensions,
    known: Option<&'a Arc<Principal>>,
) -> Result<Holder<'a>> {
    let unguarded = || ServeError::Internal("a request passed no guard".to_owned());
    let caller = known.or_else(|| extensions.get()).ok_or_else(unguarded)?;
    Ok(extensions.get::<Arc<Peer>>().ok_or_else(unguarded)?.holder(caller))
}

impl Domain {
    /// Returns the principal that makes a request, from the head of the request alone. A refusal
    /// goes into the audit log.
    ///
    /// # Errors
    /// Returns an error if the listener does not answer calls of `api`, or the caller may not make
    /// them.
    pub(crate) fn authorize(
        &self,
        extensions: &Extensions,
        headers: &HeaderMap,
        api: Api,
        path: &str,
        model: Option<&str>,
    ) -> Result<Arc<Principal>> {
        let unguarded = || ServeError::Internal("a request came without its peer".to_owned());
        let peer = extensions.get::<Arc<Peer>>().ok_or_else(unguarded)?;
        let caller = peer.authorize(api, path, model, headers);
        match &caller {
            // The call is unknown here, and another listener answers it.
            Err(ServeError::UnknownPath(_)) => self.audit_refusal(peer, path, "", "wrong_listener"),
            Err(error) => self.record_refusal(peer, path, error),
            Ok(_) => {}
        }
        caller
    }

    /// Counts a refusal, and writes it to the audit log. Other errors are left alone.
    pub(crate) fn record_refusal(&self, peer: &Peer, path: &str, error: &ServeError) {
        let ServeError::Refused { refusal, caller } = error else { return };
        self.audit_refusal(peer, path, caller, refusal.name());
    }

    fn audit_refusal(&self, peer: &Peer, path: &str, caller: &str, reason: &'static str) {
        self.metrics().record_refused(reason);
        let Some(log) = self.audit_log() else { return };
        let from = peer.address.to_string();
        let event = AuditEvent {
            who: caller,
            from: &from,
            action: "refuse",
            subject: path,
            outcome: reason,
            detail: "",
        };
        if let Err(error) = log.write_refusal(&event, since_1970()) {
            tracing::error!("{error}");
        }
    }

    /// Writes a control action to the audit log, if there is one.
    ///
    /// # Errors
    /// Returns an error if the entry cannot be written. The action must not be done then.
    pub(crate) fn audit(
        &self,
        actor: &Actor,
        action: &str,
        subject: &str,
        outcome: &str,
        detail: &str,
    ) -> Result<()> {
        let Some(log) = self.audit_log() else { return Ok(()) };
        let event =
            AuditEvent { who: &actor.who, from: &actor.from, action, subject, outcome, detail };
        log.write(&event, since_1970()).map_err(|error| {
            tracing::error!("{error}");
            ServeError::Internal(
                "the audit log cannot be written, so the request was not executed; free disk \
                 space for the log, and send the request again"
                    .to_owned(),
            )
        })
    }
}
