//! Access control of requests: the principal of each, and the audit log.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{Extensions, HeaderMap};
use zillion_access::{AuditEvent, Principal, Role};

use crate::audit::since_1970;
use crate::budget::Holder;
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::gathering::Gathering;
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

/// Returns the small requests of the network thread of a request.
pub(crate) fn find_gathering(extensions: &Extensions) -> Option<Arc<Gathering>> {
    extensions.get::<Arc<Peer>>().map(|peer| peer.gathering.clone())
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
            Err(ServeError::UnknownPath(_)) => {
                self.audit_refusal(&peer.address.to_string(), path, "", ("wrong_listener", ""));
            }
            Err(error) => self.record_refusal(peer, path, error),
            Ok(_) => {}
        }
        caller
    }

    /// Counts a refusal, and writes it to the audit log. Other errors are left alone.
    pub(crate) fn record_refusal(&self, peer: &Peer, path: &str, error: &ServeError) {
        let ServeError::Refused { refusal, caller } = error else { return };
        let from = peer.address.to_string();
        self.audit_refusal(&from, path, caller, (refusal.name(), ""));
    }

    /// Counts a client that was refused in the TLS handshake, and writes it to the audit log. A
    /// connection that ends or stays silent, as those of a health check do, is no refusal.
    pub(crate) fn record_handshake(&self, address: IpAddr, error: &std::io::Error) {
        if error.kind() == std::io::ErrorKind::InvalidData {
            let detail = error.to_string();
            self.audit_refusal(&address.to_string(), "tls", "", ("handshake", &detail));
        }
    }

    /// Counts a refusal, and hands it to the thread that writes the audit log. `outcome` is the
    /// reason, with its detail.
    fn audit_refusal(
        &self,
        from: &str,
        subject: &str,
        who: &str,
        (outcome, detail): (&'static str, &str),
    ) {
        self.metrics().record_refused(outcome);
        let Some(audit) = self.audit_log() else { return };
        let event = AuditEvent { who, from, action: "refuse", subject, outcome, detail };
        audit.push_refusal(&event);
    }

    /// Counts a control action that no client may ask for, and writes it to the audit log.
    pub(crate) fn record_no_control(&self, actor: &Actor, action: &str, model: &str) {
        self.audit_refusal(&actor.from, model, &actor.who, ("no_control", action));
    }

    /// Writes a control action to the audit log, if there is one. The disk is waited for on a
    /// thread of its own.
    ///
    /// # Errors
    /// Returns an error if the entry cannot be written. The action must not be done then.
    pub(crate) async fn audit(
        &self,
        actor: &Actor,
        action: &'static str,
        subject: &str,
        outcome: &'static str,
        detail: String,
    ) -> Result<()> {
        let Some(audit) = self.audit_log() else { return Ok(()) };
        let (log, actor, subject) = (audit.log().clone(), actor.clone(), subject.to_owned());
        let write = move || {
            let (who, from) = (actor.who.as_str(), actor.from.as_str());
            let (subject, detail) = (subject.as_str(), detail.as_str());
            let event = AuditEvent { who, from, action, subject, outcome, detail };
            log.write(&event, since_1970())
        };
        let written = tokio::task::spawn_blocking(write).await;
        let problem = match written {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::error!("{problem}");
        let text = match outcome {
            "asked" => {
                "the audit log cannot be written, so the request was not executed; free disk \
                          space for the log, and send the request again"
                    .to_owned()
            }
            _ => format!(
                "the outcome `{outcome}` could not be written to the audit log; read the log of the \
                 server before you send the request again"
            ),
        };
        Err(ServeError::Internal(text))
    }
}
