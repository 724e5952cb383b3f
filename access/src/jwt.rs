//! JSON Web Tokens: claims that an issuer has signed. The keys of a key set verify the signatures.
//!
//! The crate `jsonwebtoken` parses and validates tokens. Only signatures with a private key are
//! allowed. The algorithm `none` is refused, and so is HMAC, because a server would have to share
//! the issuer's secret key.

mod provider;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{Jwk, JwkSet, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::principal::{Models, Principal, Role};
use crate::quota::Quota;
use crate::refusal::Refusal;

/// The algorithms that are allowed if the settings list none.
const USUAL_ALGORITHMS: [&str; 3] = ["RS256", "ES256", "EdDSA"];

/// The settings of JSON Web Tokens in the access file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JwtSettings {
    /// The issuer that the claim `iss` must name.
    issuer: String,
    /// The name of this service, which the claim `aud` must contain.
    audience: String,
    /// The path of the key set (RFC 7517), relative to the access file.
    pub(crate) keys: PathBuf,
    /// The names of the algorithms that tokens may use, or `None` for the usual algorithms.
    algorithms: Option<Vec<String>>,
    /// The name of the claim that lists the roles.
    #[serde(default = "roles_claim")]
    roles_claim: String,
    /// The name of the claim that lists the models. A token without this claim gives access to all
    /// models.
    #[serde(default = "models_claim")]
    models_claim: String,
    /// The maximum difference between the clocks of the issuer and of this server, in seconds.
    #[serde(default = "leeway")]
    leeway_s: u64,
    /// The quota of each principal.
    #[serde(default)]
    quota: Quota,
}

fn roles_claim() -> String {
    "roles".to_owned()
}

fn models_claim() -> String {
    "models".to_owned()
}

fn leeway() -> u64 {
    60
}

/// A verifier of JSON Web Tokens.
#[derive(Debug)]
pub(crate) struct JwtVerifier {
    settings: JwtSettings,
    validation: Validation,
    keys: Vec<Key>,
}

/// A public key of the key set.
#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The algorithms that the key may verify: the one that the set names for it, or those of its
    /// kind.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl Key {
    /// Returns whether the key may have signed a token with this header.
    fn fits(&self, header: &Header) -> bool {
        let is_named = header.kid.is_none() || header.kid == self.id;
        is_named && self.algorithms.contains(&header.alg)
    }

    /// Reads a key of a key set, or returns `None` if it verifies no signatures of a known kind.
    fn read(jwk: &Jwk) -> Option<Self> {
        let common = &jwk.common;
        let is_for_signatures =
            common.public_key_use.as_ref().is_none_or(|of| *of == PublicKeyUse::Signature);
        let operations = common.key_operations.as_ref();
        let verifies = operations.is_none_or(|all| all.contains(&KeyOperations::Verify));
        if !is_for_signatures || !verifies {
            return None;
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        let family = key.family();
        if family == jsonwebtoken::AlgorithmFamily::Hmac {
            return None;
        }
        let mut algorithms = family.algorithms().to_vec();
        if let Some(own) = common.key_algorithm {
            let own = own.to_string();
            algorithms.retain(|algorithm| own.parse() == Ok(*algorithm));
        }
        (!algorithms.is_empty()).then(|| Self { id: common.key_id.clone(), algorithms, key })
    }
}

impl JwtVerifier {
    /// Creates a verifier from the settings in the access file `file`. `text` is the text of the
    /// key set in the file `keys`.
    ///
    /// # Errors
    /// Returns an error if an algorithm is not allowed or if the key set is not valid.
    pub(crate) fn new(settings: JwtSettings, text: &str, keys: &Path, file: &Path) -> Result<Self> {
        provider::install();
        let names = settings.algorithms.clone();
        let names = names.unwrap_or_else(|| USUAL_ALGORITHMS.map(str::to_owned).into());
        let algorithms = names.iter().map(|name| allowed_algorithm(name).ok_or(name));
        let algorithms = algorithms.collect::<Result<Vec<_>, _>>().map_err(|name| {
            Error::invalid(
                file,
                format!(
                    "jwt: algorithm `{name}` is not allowed; choose from RS256, RS384, RS512, \
                     PS256, PS384, PS512, ES256, ES384, EdDSA"
                ),
            )
        })?;
        let Some(&first) = algorithms.first() else {
            return Err(Error::invalid(
                file,
                "jwt: `algorithms` is empty; name at least one \
                                             algorithm",
            ));
        };
        let mut validation = Validation::new(first);
        validation.algorithms = algorithms;
        validation.set_issuer(&[&settings.issuer]);
        validation.set_audience(&[&settings.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        // The crate would compare times with its own clock. Instead, `check_times` compares them
        // with the clock of the caller, which a test can set.
        validation.validate_exp = false;
        validation.validate_nbf = false;

        let set: JwkSet = serde_json::from_str(text).map_err(|e| {
            Error::invalid(
                keys,
                format!(
                    "the file is not a JSON Web Key Set ({e}); write the public keys of the token \
                 issuer into it (RFC 7517)"
                ),
            )
        })?;
        // Other kinds of keys, as those for encryption, may stand in a set.
        let usable: Vec<Key> = set.keys.iter().filter_map(Key::read).collect();
        if usable.is_empty() {
            let reason = "the key set has no public key of a known kind; it needs an RSA, EC or \
                          Ed25519 key for signatures";
            return Err(Error::invalid(keys, reason));
        }
        Ok(Self { settings, validation, keys: usable })
    }

    /// Returns the principal that a token names. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// Returns the reason for the refusal if the token is not valid.
    pub(crate) fn verify(&self, token: &str, now: u64) -> Result<Principal, Refusal> {
        let header = decode_header(token).map_err(|e| refusal(e.kind()))?;
        if !self.validation.algorithms.contains(&header.alg) {
            return Err(Refusal::WrongAlgorithm);
        }
        // An extension that must be understood (RFC 7515) is not understood here.
        if header.crit.is_some() {
            return Err(Refusal::Malformed);
        }
        let mut validation = self.validation.clone();
        // The crate requires that all allowed algorithms fit the key. The algorithm of the header
        // was checked above, so it is the only one that is passed on.
        validation.algorithms = vec![header.alg];
        let mut last = Refusal::UnknownKey;
        for key in self.keys.iter().filter(|key| key.fits(&header)) {
            match decode::<Map<String, Value>>(token, &key.key, &validation) {
                Ok(decoded) => return self.check_claims(&decoded.claims, now),
                Err(error) => last = refusal(error.kind()),
            }
            // Another key may have made the signature.
            if last != Refusal::WrongSignature {
                break;
            }
        }
        Err(last)
    }

    fn check_claims(&self, claims: &Map<String, Value>, now: u64) -> Result<Principal, Refusal> {
        self.check_times(claims, now)?;
        self.principal(claims)
    }

    fn check_times(&self, claims: &Map<String, Value>, now: u64) -> Result<(), Refusal> {
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(Refusal::Malformed),
        };
        let (now, leeway) = (now as f64, self.settings.leeway_s as f64);
        let expires = time("exp")?.ok_or(Refusal::MissingClaim)?;
        if now >= expires + leeway {
            return Err(Refusal::Expired);
        }
        match time("nbf")? {
            Some(begins) if now + leeway < begins => Err(Refusal::NotYetValid),
            _ => Ok(()),
        }
    }

    fn principal(&self, claims: &Map<String, Value>) -> Result<Principal, Refusal> {
        let name = claims.get("sub").and_then(Value::as_str).ok_or(Refusal::MissingClaim)?;
        if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
            return Err(Refusal::Malformed);
        }
        let roles = claims.get(&self.settings.roles_claim).ok_or(Refusal::MissingClaim)?;
        // The same claim may contain roles of other services.
        let roles = texts(roles)?.into_iter();
        let roles: BTreeSet<Role> =
            roles.filter_map(|role| serde_json::from_value(Value::String(role)).ok()).collect();
        let models = match claims.get(&self.settings.models_claim) {
            None => Models::All,
            Some(models) => Models::Only(texts(models)?.into_iter().collect()),
        };
        // A subject is not a name of the access file: no entry there may have a colon.
        Ok(Principal { name: format!("jwt:{name}"), roles, models, quota: self.settings.quota })
    }
}

/// Reads a claim that lists texts. The claim is an array, or one text with spaces between the items
/// (`scope` in RFC 8693).
fn texts(claim: &Value) -> Result<Vec<String>, Refusal> {
    match claim {
        Value::String(text) => Ok(text.split_whitespace().map(str::to_owned).collect()),
        Value::Array(list) => {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            list.iter().map(text).collect::<Option<_>>().ok_or(Refusal::Malformed)
        }
        _ => Err(Refusal::Malformed),
    }
}

fn allowed_algorithm(name: &str) -> Option<Algorithm> {
    let algorithm: Algorithm = name.parse().ok()?;
    let is_hmac = matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512);
    (!is_hmac).then_some(algorithm)
}

fn refusal(kind: &ErrorKind) -> Refusal {
    match kind {
        ErrorKind::InvalidSignature => Refusal::WrongSignature,
        ErrorKind::InvalidIssuer => Refusal::WrongIssuer,
        ErrorKind::InvalidAudience => Refusal::WrongAudience,
        ErrorKind::MissingRequiredClaim(_) => Refusal::MissingClaim,
        ErrorKind::ExpiredSignature => Refusal::Expired,
        ErrorKind::ImmatureSignature => Refusal::NotYetValid,
        ErrorKind::InvalidAlgorithm
        | ErrorKind::InvalidAlgorithmName
        | ErrorKind::UnsupportedAlgorithm
        | ErrorKind::MissingAlgorithm => Refusal::WrongAlgorithm,
        _ => Refusal::Malformed,
    }
}

#[cfg(test)]
mod tests;
