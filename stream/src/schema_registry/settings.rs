//! The settings of a registry of schemas, in the form in which a job contains them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::option_value::OptionValue;

/// The settings of a registry of schemas.
///
/// As TOML:
///
/// ```toml
/// url = "https://registry:8081"
/// user = "zillion"
/// password = { file = "/run/secret" }
/// ca = "ca.pem"
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrySettings {
    /// The address of the registry, `http://` or `https://`.
    pub url: String,
    /// The name of the user (basic authentication).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<OptionValue>,
    /// The password of the user: a file or a variable of the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<OptionValue>,
    /// The token (bearer authentication): a file or a variable of the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<OptionValue>,
    /// A file with the certificates of the authorities that are trusted (PEM). Without it, those of
    /// the system are trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The time after which a request has failed, in milliseconds.
    #[serde(default = "default_request_ms")]
    pub request_ms: u64,
    /// The time for which failed requests are repeated, in milliseconds. Then the stream fails.
    #[serde(default = "default_outage_ms")]
    pub outage_ms: u64,
}

fn default_request_ms() -> u64 {
    5_000
}

fn default_outage_ms() -> u64 {
    60_000
}

impl RegistrySettings {
    /// Returns the settings of a registry without authentication.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            user: None,
            password: None,
            token: None,
            ca: None,
            request_ms: default_request_ms(),
            outage_ms: default_outage_ms(),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Returns an error if they contradict each other or contain a secret.
    pub fn check(&self) -> Result<()> {
        let refuse = |problem: &str, remedy| Err(self.error(problem.to_owned(), remedy));
        let place = self.url.strip_prefix("http://").or(self.url.strip_prefix("https://"));
        let Some(place) = place.filter(|place| !place.is_empty()) else {
            return refuse("`url` is no address", "write http://host:port or https://host:port");
        };
        if place.split('/').next().is_some_and(|host| host.contains('@')) {
            // The address is printed, so it is left out here.
            return Err(Error::Registry {
                url: "..".to_owned(),
                problem: "`url` contains a user".to_owned(),
                remedy: "set `user` and `password`",
            });
        }
        if place.contains(['?', '#']) {
            return refuse("`url` has more than a path", "remove `?` and `#` and what is behind");
        }
        for (name, value) in [("password", &self.password), ("token", &self.token)] {
            if matches!(value, Some(OptionValue::Text(_))) {
                let problem = format!("`{name}` is a secret and must not be in the job");
                let remedy = "write { file = \"...\" } or { env = \"...\" }";
                return Err(self.error(problem, remedy));
            }
        }
        if self.user.is_some() != self.password.is_some() {
            return refuse("`user` and `password` belong together", "set both or none");
        }
        if self.user.is_some() && self.token.is_some() {
            return refuse("`token` and `user` are both set", "set one of them");
        }
        if self.ca.is_some() && !self.url.starts_with("https://") {
            return refuse("`ca` has no effect without TLS", "write https:// in `url`");
        }
        for (name, value, most) in
            [("request_ms", self.request_ms, 300_000), ("outage_ms", self.outage_ms, 86_400_000)]
        {
            if !(10..=most).contains(&value) {
                let problem = format!("`{name}` is {value}, outside of 10 to {most}");
                return Err(self.error(problem, "use a value in these bounds"));
            }
        }
        Ok(())
    }

    /// Returns an error about the registry.
    pub(super) fn error(&self, problem: String, remedy: &'static str) -> Error {
        Error::Registry { url: self.url.clone(), problem, remedy }
    }
}
