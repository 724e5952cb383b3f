//! The other end of a connection, and the permission of its requests.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, header};
use zillion_access::{
    CertificateNames, Credentials, Identities, Principal, Refusal, Reloading, Role,
};

use super::listener::{Api, Proof};
use crate::budget::Holder;
use crate::error::{Result, ServeError};
use crate::gathering::Gathering;

/// The rules of a listener that its requests must meet.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) apis: BTreeSet<Api>,
    pub(crate) proofs: BTreeSet<Proof>,
    pub(crate) identities: Option<Arc<Reloading<Identities, zillion_access::Error>>>,
    /// The principal of callers that need no proof.
    pub(crate) anonymous: Arc<Principal>,
}

impl Rules {
    /// Returns the rules of a listener that answers all calls of every caller.
    pub(crate) fn open() -> Self {
        let anonymous = Arc::new(Principal::anonymous());
        Self { apis: Api::ALL.into(), proofs: BTreeSet::new(), identities: None, anonymous }
    }
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// The names in the certificate that the client showed, if it showed one.
    pub(crate) certificate: Option<CertificateNames>,
    pub(crate) rules: Arc<Rules>,
    /// The number of streams of the connection that watch the health of the server.
    pub(crate) watches: Arc<AtomicUsize>,
    /// The small requests that the network thread of the connection scores together.
    pub(crate) gathering: Arc<Gathering>,
}

impl Api {
    /// Returns the role that a call of this group needs. Health is for everybody.
    fn role(self) -> Option<Role> {
        match self {
            Self::Infer => Some(Role::Score),
            Self::Meta => Some(Role::Read),
            Self::Health => None,
            Self::Metrics => Some(Role::Metrics),
            Self::Control => Some(Role::Operate),
        }
    }
}

impl Peer {
    /// Returns the holder of the bytes of a request by `caller`.
    pub(crate) fn holder<'a>(&self, caller: &'a Arc<Principal>) -> Holder<'a> {
        match Arc::ptr_eq(caller, &self.rules.anonymous) {
            true => Holder::of_address(self.address),
            false => Holder::Principal(&caller.name),
        }
    }

    /// Returns the principal that makes a request, from the head of the request alone.
    ///
    /// # Errors
    /// Returns an error if the listener does not answer calls of `api`, or the caller may not make
    /// them.
    pub(crate) fn authorize(
        &self,
        api: Api,
        path: &str,
        model: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<Arc<Principal>> {
        if !self.rules.apis.contains(&api) {
            return Err(ServeError::unknown_path(path));
        }
        let Some(role) = api.role().filter(|_| !self.rules.proofs.is_empty()) else {
            return Ok(self.rules.anonymous.clone());
        };
        let caller = self
            .identify(headers)
            .map_err(|refusal| ServeError::Refused { refusal, caller: String::new() })?;
        match caller.check(role, model) {
            Ok(()) => Ok(caller),
            Err(refusal) => Err(ServeError::Refused { refusal, caller: caller.name.clone() }),
        }
    }

    fn identify(&self, headers: &HeaderMap) -> Result<Arc<Principal>, Refusal> {
        let bearer = match headers.get(header::AUTHORIZATION) {
            None => None,
            Some(value) => {
                let text = value.to_str().map_err(|_| Refusal::Malformed)?;
                let (scheme, token) = text.split_once(' ').ok_or(Refusal::Malformed)?;
                if !scheme.eq_ignore_ascii_case("bearer") {
                    return Err(Refusal::WrongKind);
                }
                Some(token.trim())
            }
        };
        if let Some(bearer) = bearer {
            // The parts of a JSON Web Token are joined by dots, which our tokens never contain.
            let proof = if bearer.contains('.') { Proof::Jwt } else { Proof::Token };
            if !self.rules.proofs.contains(&proof) {
                return Err(Refusal::WrongKind);
            }
        }
        let certificate =
            self.certificate.as_ref().filter(|_| self.rules.proofs.contains(&Proof::Mtls));
        let identities = self.rules.identities.as_ref().ok_or(Refusal::NoCredentials)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        identities.get().identify(&Credentials { bearer, certificate }, now)
    }

    /// Returns a peer that may make all calls.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self::of_principal(Principal::anonymous())
    }

    /// Returns a peer whose calls are those of a principal.
    #[cfg(test)]
    pub(crate) fn of_principal(principal: Principal) -> Self {
        let rules = Arc::new(Rules { anonymous: Arc::new(principal), ..Rules::open() });
        Self {
            address: IpAddr::from([127, 0, 0, 1]),
            certificate: None,
            rules,
            watches: Arc::default(),
            gathering: Arc::default(),
        }
    }
}
