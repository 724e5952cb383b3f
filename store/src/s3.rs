//! The protocol of Amazon S3 and of other stores that support it: endpoint, region and credentials.

use std::fs;

use object_store::Certificate;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use crate::client::Client;
use crate::cloud::{client_options, install_tls, no_retries};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::profile::{Keys, Profile};

/// The variables that are passed to `object_store` under their own names. This module reads further
/// variables itself.
const PASSED_ON: [&str; 15] = [
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_ENDPOINT_URL_STS",
    "AWS_IMDSV1_FALLBACK",
    "AWS_METADATA_ENDPOINT",
    "AWS_REQUEST_PAYER",
    "AWS_ROLE_SESSION_NAME",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SKIP_SIGNATURE",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_UNSIGNED_PAYLOAD",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
];

/// The settings of an S3 client, from the environment variables and from the files of AWS.
pub(crate) struct Setup {
    region: String,
    endpoint: Option<String>,
    credentials: Credentials,
    /// The variables that are passed to the client without changes.
    passed_on: Vec<(AmazonS3ConfigKey, String)>,
    /// The certificate authorities, as PEM, that are trusted in addition to those of the system.
    /// `None` if there are none.
    authorities: Option<Vec<u8>>,
}

/// The kinds of credentials for requests.
enum Credentials {
    Keys(Keys, &'static str),
    /// The credentials of a role, for which the token in a file is exchanged.
    WebIdentity(String, String),
    /// The credentials of the container or the machine. They are requested when they are needed.
    Machine,
    /// No credentials. Requests are not signed.
    Unsigned,
}

impl Setup {
    /// Reads the environment variables and the files that they name.
    ///
    /// # Errors
    /// Returns [`Error::StoreSetting`] if two settings contradict each other.
    pub(crate) fn resolve(environment: &Environment) -> Result<Self> {
        let refuse = |setting: &str, reason: &str| Err(Error::setting(setting, reason));
        let owned = |name: &str| environment.get(name).map(str::to_owned);
        let is_true =
            |name: &str| environment.get(name).is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let keys = match (owned("AWS_ACCESS_KEY_ID"), owned("AWS_SECRET_ACCESS_KEY")) {
            (Some(id), Some(secret)) => {
                Some(Keys { id, secret, token: owned("AWS_SESSION_TOKEN") })
            }
            (None, None) => None,
            (id, _) => {
                let (present, missing) = match id {
                    Some(_) => ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
                    None => ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
                };
                let reason = format!(
                    "this variable is missing, but {present} is set; set both variables or \
                         neither"
                );
                return refuse(missing, &reason);
            }
        };
        let web_identity = owned("AWS_WEB_IDENTITY_TOKEN_FILE").zip(owned("AWS_ROLE_ARN"));
        let unsigned = matches!(environment.get("AWS_SKIP_SIGNATURE"), Some("true" | "1"));
        let has_own = keys.is_some() || web_identity.is_some() || unsigned;
        let profile = Profile::load(environment, !has_own)?;
        let credentials = match (keys, web_identity) {
            _ if unsigned => Credentials::Unsigned,
            (Some(keys), _) => Credentials::Keys(keys, "AWS_ACCESS_KEY_ID of the environment"),
            (None, Some((file, role))) => Credentials::WebIdentity(file, role),
            (None, None) => match (profile.web_identity, profile.keys) {
                (Some((file, role)), _) => Credentials::WebIdentity(file, role),
                (None, Some(keys)) => Credentials::Keys(keys, "AWS's files, by profile"),
                (None, None) => {
                    let is_container =
                        environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").is_some()
                            || environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI").is_some();
                    let is_off = is_true("AWS_EC2_METADATA_DISABLED");
                    if is_off && !is_container {
                        return refuse(
                            "credentials for S3",
                            "no credentials are set; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE \
                             (AWS_EC2_METADATA_DISABLED switches off the credentials of the machine)",
                        );
                    }
                    Credentials::Machine
                }
            },
        };
        let endpoint = match is_true("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") {
            true => None,
            false => {
                let endpoint = environment.first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
                endpoint.map(str::to_owned).or(profile.endpoint)
            }
        };
        if let Some(endpoint) = &endpoint
            && !endpoint.starts_with("http://")
            && !endpoint.starts_with("https://")
        {
            return refuse(
                "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL",
                "the endpoint must begin with `http://` or `https://`",
            );
        }
        if endpoint.as_ref().is_some_and(|endpoint| endpoint.contains('@')) {
            return refuse(
                "AWS_ENDPOINT_URL",
                "credentials do not belong in an endpoint; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            );
        }
        let region = environment.first(&["AWS_REGION", "AWS_DEFAULT_REGION"]).map(str::to_owned);
        let mut passed_on = Vec::new();
        for name in PASSED_ON {
            if let Some(value) = owned(name) {
                let key = name.to_ascii_lowercase().parse().map_err(|_| {
                    Error::setting(
                        name,
                        "this version of Zillion does not support this variable; unset it",
                    )
                })?;
                passed_on.push((key, value));
            }
        }
        let authorities = read_authorities(environment)?;
        Ok(Self {
            region: region.or(profile.region).unwrap_or_else(|| "us-east-1".to_owned()),
            endpoint,
            credentials,
            passed_on,
            authorities,
        })
    }

    /// Creates the client of a bucket.
    ///
    /// # Errors
    /// Returns [`Error::StoreSetting`] if the client refuses a setting.
    pub(crate) fn client(self, bucket: &str, options: &Options) -> Result<Client> {
        install_tls();
        let refuse = |e: object_store::Error| Error::setting("S3", e.to_string());
        let is_plain = self.endpoint.as_deref().is_some_and(|e| e.starts_with("http://"));
        let mut client = client_options(options).with_allow_http(is_plain);
        if let Some(pem) = &self.authorities {
            for certificate in Certificate::from_pem_bundle(pem).map_err(refuse)? {
                client = client.with_root_certificate(certificate);
            }
        }
        // A bucket with dots in its name does not match the certificate of its host.
        let by_host = self.endpoint.is_none() && !bucket.contains('.');
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(&self.region)
            .with_client_options(client)
            .with_retry(no_retries())
            .with_virtual_hosted_style_request(by_host)
            // Not every store can remove many objects at once.
            .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true");
        for (key, value) in self.passed_on {
            builder = builder.with_config(key, value);
        }
        let place = match &self.endpoint {
            Some(endpoint) => {
                builder = builder.with_endpoint(endpoint);
                format!("endpoint {endpoint}")
            }
            None => format!("Amazon's endpoint of region {}", self.region),
        };
        let mut secrets = Vec::new();
        let from = match self.credentials {
            Credentials::Keys(keys, from) => {
                builder =
                    builder.with_access_key_id(keys.id).with_secret_access_key(keys.secret.clone());
                secrets.push(keys.secret);
                if let Some(token) = keys.token {
                    builder = builder.with_token(token.clone());
                    secrets.push(token);
                }
                from
            }
            Credentials::WebIdentity(file, role) => {
                builder = builder
                    .with_config(AmazonS3ConfigKey::WebIdentityTokenFile, file)
                    .with_config(AmazonS3ConfigKey::RoleArn, role);
                "a web identity"
            }
            Credentials::Machine => {
                "none in the environment and in AWS's files, so those of the container or the machine"
            }
            Credentials::Unsigned => "none, requests are not signed",
        };
        let about =
            format!("{place}, region {}, bucket {bucket}, credentials: {from}", self.region);
        Ok(Client::of(builder.build().map_err(refuse)?, about, secrets))
    }
}

/// Writes the settings without the credentials.
/// Reads the certificates of the authorities that AWS_CA_BUNDLE names. Returns `None` if the
/// variable is not set.
fn read_authorities(environment: &Environment) -> Result<Option<Vec<u8>>> {
    let Some(path) = environment.get("AWS_CA_BUNDLE") else { return Ok(None) };
    let read = fs::read(path).map_err(|error| {
        let reason = format!(
            "the file `{path}` cannot be read ({error}); name a readable file with certificates in \
             PEM"
        );
        Error::setting("AWS_CA_BUNDLE", reason)
    });
    read.map(Some)
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Setup");
        shown.field("region", &self.region).field("endpoint", &self.endpoint);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [(&str, &str); 3] = [
        ("AWS_ACCESS_KEY_ID", "AKIA"),
        ("AWS_SECRET_ACCESS_KEY", "hunter22"),
        ("AWS_SESSION_TOKEN", "token44"),
    ];

    fn with(more: &[(&str, &str)]) -> Environment {
        let all = KEYS.iter().chain(more);
        all.map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn about(more: &[(&str, &str)]) -> String {
        let setup = Setup::resolve(&with(more)).unwrap();
        setup.client("bucket", &Options::default()).unwrap().about
    }

    #[test]
    fn endpoint_and_region_of_the_environment() {
        assert!(about(&[]).contains("Amazon's endpoint of region us-east-1"));
        let of = about(&[("AWS_REGION", "eu-west-1"), ("AWS_DEFAULT_REGION", "x")]);
        assert!(of.contains("region eu-west-1"), "{of}");
        let urls = [("AWS_ENDPOINT_URL", "http://all:1"), ("AWS_ENDPOINT_URL_S3", "http://s3:2")];
        assert!(about(&urls).contains("endpoint http://s3:2"));
        assert!(about(&urls[..1]).contains("endpoint http://all:1"));
        let ignored = [urls[0], ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")];
        assert!(about(&ignored).contains("Amazon's endpoint"));
    }

    #[test]
    fn every_passed_variable_is_known_to_the_client() {
        for name in PASSED_ON {
            let known = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>();
            assert!(known.is_ok(), "{name}");
        }
    }

    #[test]
    fn conflicting_settings_are_refused() {
        let message = |variables: &[(&str, &str)]| {
            let environment = variables.iter().map(|&(n, v)| (n.to_owned(), v.to_owned()));
            Setup::resolve(&environment.collect()).unwrap_err().to_string()
        };
        assert!(message(&[("AWS_ACCESS_KEY_ID", "x")]).contains("AWS_SECRET_ACCESS_KEY"));
        let secret = message(&[("AWS_SECRET_ACCESS_KEY", "hunter22")]);
        assert!(secret.contains("AWS_ACCESS_KEY_ID") && !secret.contains("hunter22"), "{secret}");
        assert!(
            message(&[("AWS_EC2_METADATA_DISABLED", "true")]).contains("no credentials are set")
        );
        let endpoint = [KEYS[0], KEYS[1], ("AWS_ENDPOINT_URL", "host:9000")];
        assert!(message(&endpoint).contains("http://"));
        let endpoint = [KEYS[0], KEYS[1], ("AWS_ENDPOINT_URL", "http://a:hunter22@host")];
        let refused = message(&endpoint);
        assert!(refused.contains("do not belong") && !refused.contains("hunter22"), "{refused}");
        let bundle = message(&[KEYS[0], KEYS[1], ("AWS_CA_BUNDLE", "/nonexistent")]);
        assert!(bundle.contains("/nonexistent"), "{bundle}");
    }

    #[test]
    fn secrets_are_not_printed() {
        let setup = Setup::resolve(&with(&[])).unwrap();
        let before = format!("{setup:?}");
        let client = setup.client("bucket", &Options::default()).unwrap();
        let shown = format!("{before} {} {:?} {:?}", client.about, client, with(&[]));
        assert!(!shown.contains("hunter22") && !shown.contains("token44"), "{shown}");
        assert_eq!(client.secrets, ["hunter22", "token44"]);
    }
}
