//! The reasons for which a caller is refused.

use crate::principal::Role;

/// The reason why a request is refused. The caller sees a code and no detail; the audit log gets
/// the name of the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request has no credentials.
    NoCredentials,
    /// The credentials are of a kind that this listener does not take.
    WrongKind,
    /// The credentials cannot be read.
    Malformed,
    /// No token has this hash.
    UnknownToken,
    /// No entry names this certificate.
    UnknownCertificate,
    /// The JSON Web Token names a key that is not in the key set.
    UnknownKey,
    /// The algorithm of the JSON Web Token is not allowed.
    WrongAlgorithm,
    /// The signature of the JSON Web Token does not match.
    WrongSignature,
    /// The credentials are no longer valid.
    Expired,
    /// The credentials are not valid yet.
    NotYetValid,
    /// Another issuer made the JSON Web Token.
    WrongIssuer,
    /// The JSON Web Token is meant for another service.
    WrongAudience,
    /// A claim that must be there is missing.
    MissingClaim,
    /// The principal does not have this role.
    NoRole(Role),
    /// The roles of the principal do not hold for this model.
    NoModel,
}

impl Refusal {
    /// Returns whether the caller is unknown (HTTP 401), as opposed to known and not permitted
    /// (HTTP 403).
    pub fn is_unauthenticated(self) -> bool {
        !matches!(self, Self::NoRole(_) | Self::NoModel)
    }

    /// Returns the name of the reason in the audit log and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoCredentials => "no_credentials",
            Self::WrongKind => "wrong_kind",
            Self::Malformed => "malformed",
            Self::UnknownToken => "unknown_token",
            Self::UnknownCertificate => "unknown_certificate",
            Self::UnknownKey => "unknown_key",
            Self::WrongAlgorithm => "wrong_algorithm",
            Self::WrongSignature => "wrong_signature",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::WrongIssuer => "wrong_issuer",
            Self::WrongAudience => "wrong_audience",
            Self::MissingClaim => "missing_claim",
            Self::NoRole(_) => "no_role",
            Self::NoModel => "no_model",
        }
    }
}
