//! The access file. It lists tokens, certificates and JSON Web Tokens, and the principals whose
//! identities they prove.
//!
//! ```toml
//! [[token]]
//! name = "ranker"
//! sha256 = "…"                 # of the token; `zillion access token` prints both
//! roles = ["score"]
//! models = ["ctr"]             # absent: all models
//! expires = 2027-01-01T00:00:00Z
//! quota = { concurrent = 64, rows_per_second = 100000 }
//!
//! [[certificate]]
//! name = "operator"
//! san = "spiffe://example.org/operator"
//! roles = ["read", "operate", "metrics"]
//!
//! [jwt]
//! issuer = "https://login.example.org"
//! audience = "zillion"
//! keys = "jwks.json"           # beside the access file
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use subtle::ConstantTimeEq;
use toml::value::Datetime;

use crate::certificate::CertificateNames;
use crate::error::{Error, Result};
use crate::jwt::{JwtSettings, JwtVerifier};
use crate::principal::{Models, Principal, Role};
use crate::quota::Quota;
use crate::refusal::Refusal;
use crate::token::{from_hex, token_digest};

/// The maximum number of bytes of a bearer token. Signed tokens with many claims have about 2 KiB.
const MOST_TOKEN_BYTES: usize = 8 << 10;

/// The maximum number of bytes of an access file, and of a key set.
const MOST_FILE_BYTES: u64 = 4 << 20;

/// The credentials in a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credentials<'a> {
    /// The token of the header `Authorization: Bearer`.
    pub bearer: Option<&'a str>,
    /// The names in the client's certificate, which TLS has verified.
    pub certificate: Option<&'a CertificateNames>,
}

impl<'a> Credentials<'a> {
    /// Creates credentials that consist only of a bearer token.
    pub fn bearer(token: &'a str) -> Self {
        Self { bearer: Some(token), certificate: None }
    }
}

/// The identities that a server knows.
#[derive(Debug, Default)]
pub struct Identities {
    tokens: Vec<TokenEntry>,
    certificates: BTreeMap<String, Arc<Principal>>,
    jwt: Option<JwtVerifier>,
}

#[derive(Debug)]
struct TokenEntry {
    sha256: [u8; 32],
    /// The time at which the token expires, in seconds since 1970, or `None` if it never expires.
    expires: Option<u64>,
    principal: Arc<Principal>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<TokenSection>,
    #[serde(default)]
    certificate: Vec<CertificateSection>,
    jwt: Option<JwtSettings>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenSection {
    name: String,
    sha256: String,
    roles: BTreeSet<Role>,
    models: Option<BTreeSet<String>>,
    expires: Option<Datetime>,
    #[serde(default)]
    quota: Quota,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CertificateSection {
    name: String,
    san: String,
    roles: BTreeSet<Role>,
    models: Option<BTreeSet<String>>,
    #[serde(default)]
    quota: Quota,
}

impl Identities {
    /// Reads an access file and the key set that it names.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or if an entry is not valid.
    pub fn load(path: &Path) -> Result<Self> {
        Self::parse(&read_text(path)?, path)
    }

    /// Reads the identities from the text of an access file. Error messages contain `path`, and the
    /// path of the key set is relative to the folder of `path`.
    ///
    /// # Errors
    /// Returns an error if an entry is not valid or if the key set cannot be read.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let invalid = |reason: String| Error::invalid(path, reason);
        let file: File = toml::from_str(text).map_err(|e| invalid(e.to_string()))?;
        let mut tokens: Vec<TokenEntry> = Vec::with_capacity(file.token.len());
        for section in file.token {
            let name = section.name;
            check_entry(&name, &section.roles).map_err(&invalid)?;
            let sha256 = from_hex(&section.sha256).ok_or_else(|| {
                invalid(format!(
                    "token `{name}`: `sha256` is not 64 hexadecimal digits; make a token with \
                     `zillion access token`, which prints its hash"
                ))
            })?;
            if tokens.iter().any(|token| token.sha256 == sha256) {
                return Err(invalid(format!(
                    "token `{name}`: another entry has the same `sha256`; give each caller a token \
                     of its own"
                )));
            }
            let expires = section.expires.map(|expires| {
                seconds_since_1970(&expires).ok_or_else(|| {
                    invalid(format!(
                        "token `{name}`: `expires` is `{expires}`; write a time with its zone, as \
                         in 2027-01-01T00:00:00Z"
                    ))
                })
            });
            let principal = principal(name, section.roles, section.models, section.quota);
            tokens.push(TokenEntry { sha256, expires: expires.transpose()?, principal });
        }
        let mut certificates = BTreeMap::new();
        for section in file.certificate {
            check_entry(&section.name, &section.roles).map_err(&invalid)?;
            let principal =
                principal(section.name.clone(), section.roles, section.models, section.quota);
            if certificates.insert(section.san.clone(), principal).is_some() {
                return Err(invalid(format!(
                    "certificate `{}`: another entry has the same `san`, `{}`; remove one of the \
                     two entries",
                    section.name, section.san
                )));
            }
        }
        let jwt = match file.jwt {
            Some(settings) => {
                if settings.keys.to_string_lossy().contains("://") {
                    return Err(invalid(format!(
                        "jwt: `keys` is `{}`, and key sets are not read over the network; let \
                         another program write the key set to a file and renew it",
                        settings.keys.display()
                    )));
                }
                let keys = beside(path, &settings.keys);
                let text = read_text(&keys)?;
                Some(JwtVerifier::new(settings, &text, &keys, path)?)
            }
            None => None,
        };
        Ok(Self { tokens, certificates, jwt })
    }

    /// Lists the files that contain the identities of the access file `path`: the access file
    /// itself and its key set.
    pub fn files(path: &Path) -> Vec<PathBuf> {
        let mut files = vec![path.to_owned()];
        let parsed = read_text(path).ok().and_then(|text| toml::from_str::<File>(&text).ok());
        files.extend(parsed.and_then(|file| file.jwt).map(|jwt| beside(path, &jwt.keys)));
        files
    }

    /// Returns the principal that the credentials prove. `now` is in seconds since 1970. If there
    /// are a bearer token and a certificate, only the token is used: a proxy may have a
    /// certificate, and the token then names the caller behind the proxy.
    ///
    /// # Errors
    /// Returns the reason for the refusal if the credentials prove no principal.
    pub fn identify(
        &self,
        credentials: &Credentials<'_>,
        now: u64,
    ) -> Result<Arc<Principal>, Refusal> {
        match (credentials.bearer, credentials.certificate) {
            (Some(bearer), _) => self.identify_bearer(bearer, now),
            (None, Some(certificate)) => {
                let mut names = certificate.names.iter();
                let found = names.find_map(|name| self.certificates.get(name));
                found.cloned().ok_or(Refusal::UnknownCertificate)
            }
            (None, None) => Err(Refusal::NoCredentials),
        }
    }

    fn identify_bearer(&self, bearer: &str, now: u64) -> Result<Arc<Principal>, Refusal> {
        if bearer.is_empty() || bearer.len() > MOST_TOKEN_BYTES {
            return Err(Refusal::Malformed);
        }
        // The three parts of a JSON Web Token are joined by dots, which our tokens never contain.
        if bearer.contains('.') {
            let jwt = self.jwt.as_ref().ok_or(Refusal::WrongKind)?;
            return jwt.verify(bearer, now).map(Arc::new);
        }
        let digest = token_digest(bearer);
        // Every entry is compared, in constant time, so the time of an answer reveals nothing about
        // the hashes.
        let mut found = None;
        for entry in &self.tokens {
            if bool::from(entry.sha256.ct_eq(&digest)) {
                found = Some(entry);
            }
        }
        let entry = found.ok_or(Refusal::UnknownToken)?;
        match entry.expires {
            Some(expires) if now >= expires => Err(Refusal::Expired),
            _ => Ok(entry.principal.clone()),
        }
    }
}

fn principal(
    name: String,
    roles: BTreeSet<Role>,
    models: Option<BTreeSet<String>>,
    quota: Quota,
) -> Arc<Principal> {
    let models = models.map_or(Models::All, Models::Only);
    Arc::new(Principal { name, roles, models, quota })
}

fn check_entry(name: &str, roles: &BTreeSet<Role>) -> Result<(), String> {
    if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
        return Err(
            "an entry has a `name` that is empty, is longer than 100 bytes or contains control \
             characters; write a name of 1 to 100 bytes, because the audit log shows it"
                .to_owned(),
        );
    }
    if name.contains(':') || name == "anonymous" {
        return Err(format!(
            "the name `{name}` could be taken for another caller: `jwt:…` names the subjects of \
             JSON Web Tokens, and `anonymous` callers that prove nothing; choose a name without `:`"
        ));
    }
    if roles.is_empty() {
        return Err(format!(
            "`{name}`: `roles` is empty; list at least one of score, read, metrics, operate, \
             publish"
        ));
    }
    Ok(())
}

/// Returns the path of the file `name`, relative to the folder of the file `path`.
fn beside(path: &Path, name: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(name)
}

/// Reads a text file, and refuses a file of more than [`MOST_FILE_BYTES`] bytes.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let file = fs::File::open(path).map_err(Error::file("read", path))?;
    let mut text = String::new();
    // A device file reports no size, so the bytes are counted while they are read.
    let read = file.take(MOST_FILE_BYTES + 1).read_to_string(&mut text);
    if read.map_err(Error::file("read", path))? as u64 > MOST_FILE_BYTES {
        let reason = format!("the file has more than {MOST_FILE_BYTES} bytes; shorten it");
        return Err(Error::invalid(path, reason));
    }
    Ok(text)
}

/// Returns the seconds from 1970 to a time with a time zone, or `None` if a part of the time is
/// missing.
fn seconds_since_1970(time: &Datetime) -> Option<u64> {
    use toml::value::Offset;
    let (date, clock, offset) = (time.date?, time.time?, time.offset?);
    let minutes = match offset {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    // The number of days from 1970 to a Gregorian date. Years are counted from March.
    let (year, month, day) = (i64::from(date.year), i64::from(date.month), i64::from(date.day));
    let year = if month <= 2 { year - 1 } else { year };
    let (century, of_century) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = of_century * 365 + of_century / 4 - of_century / 100 + day_of_year;
    let days = century * 146_097 + day_of_era - 719_468;
    let second = i64::from(clock.second.unwrap_or(0));
    let seconds = (i64::from(clock.hour) * 60 + i64::from(clock.minute)) * 60 + second;
    u64::try_from(days * 86_400 + seconds - minutes * 60).ok()
}

#[cfg(test)]
mod tests;
