//! The reasons for the refusal of a request.

use crate::principal::Role;

/// The reason why a request is refused. The caller receives only a status code. The audit log
/// records the name of the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request has no credentials.
    NoCredentials,
    /// This listener does not accept credentials of this kind.
    WrongKind,
    /// The credentials cannot be parsed.
    Malformed,
    /// No entry of the access file has the hash of the token.
    UnknownToken,
    /// No entry of the access file has a name of the certificate.
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
    /// The JSON Web Token lacks a required claim.
    MissingClaim,
    /// The principal does not have the required role.
    NoRole(Role),
    /// The roles of the principal are not valid for this model.
    NoModel,
}

impl Refusal {
    /// Returns `true` if the caller is unknown (HTTP 401), and `false` if the caller is known but
    /// the call is not permitted (HTTP 403).
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
