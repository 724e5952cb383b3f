//! Access control: the identities of callers, the calls that each caller may make, and the audit
//! log.
//!
//! A *principal* is a caller that has proved its identity with a token, a JSON Web Token or a
//! client certificate. A principal has roles, a set of models for which the roles are valid, and a
//! quota. The crate also contains the TLS settings of a listener, the ed25519 signatures of
//! versions and pointer moves, and the hash-chained audit log.
//!
//! The crate does not know any network protocol. HTTP and gRPC adapters pass the credentials from
//! the head of a request to this crate, and convert a [`Refusal`] to their own status codes.
//!
//! ```
//! use zillion_access::{Credentials, Identities, Role, hash_token};
//!
//! let file = format!(
//!     "[[token]]\nname = 'ranker'\nsha256 = '{}'\nroles = ['score']\nmodels = ['ctr']\n",
//!     hash_token("zln_secret")
//! );
//! let identities = Identities::parse(&file, std::path::Path::new("access.toml")).unwrap();
//! let now = 1_800_000_000;
//! let caller = identities.identify(&Credentials::bearer("zln_secret"), now).unwrap();
//! assert_eq!(caller.name, "ranker");
//! assert!(caller.check(Role::Score, Some("ctr")).is_ok());
//! assert!(caller.check(Role::Operate, Some("ctr")).is_err());
//! ```

mod audit;
mod certificate;
mod error;
mod identities;
mod jwt;
mod principal;
mod quota;
mod refusal;
mod reload;
mod signature;
mod tls;
mod token;

pub use audit::{
    AuditEvent, AuditLog, AuditQueue, AuditReport, verify_audit_log, verify_audit_log_with,
};
pub use certificate::CertificateNames;
pub use error::{Error, Result};
pub use identities::{Credentials, Identities};
pub use principal::{Models, Principal, Role};
pub use quota::{OpenRequest, Quota, QuotaUse, Usage};
pub use refusal::Refusal;
pub use reload::Reloading;
pub use signature::{
    KeyId, KeyKind, Signature, SigningKey, TrustedKeys, pointer_statement, version_statement,
};
pub use tls::{ClientTlsFiles, TlsFiles, client_names};
pub use token::{hash_token, new_token};
