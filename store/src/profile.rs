//! A profile in AWS's files `~/.aws/credentials` and `~/.aws/config`: keys, region and endpoint.
//!
//! A profile may ask for a way of signing in that Zillion does not support: credentials from a
//! program, single sign-on, or an assumed role. Such a profile is an error with a remedy. A request
//! with the wrong credentials would be worse than no request.

use std::path::PathBuf;

use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::ini::{self, Section, Sections};

/// The settings of a profile.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) name: String,
    pub(crate) keys: Option<Keys>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    /// The path of the file with a token, and the role to which the token gives access. `None` if
    /// the profile does not use such a token.
    pub(crate) web_identity: Option<(String, String)>,
}

/// A pair of static credentials: an access key and its secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

/// Writes the value without its secrets.
impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Profile");
        shown.field("name", &self.name).field("has_keys", &self.keys.is_some());
        shown.field("region", &self.region).field("endpoint", &self.endpoint);
        shown.finish_non_exhaustive()
    }
}

/// Writes only the name of the type, because the values are secrets.
impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Profile {
    /// Loads the profile that the environment names, or the profile `default` if it names none.
    /// Without files, the profile is empty. If `wants_keys` is false, the environment has
    /// credentials, and the profile's way of signing in is ignored.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if the named profile does not exist. Also
    /// returns an error if the profile requests an unsupported way to sign in.
    pub(crate) fn load(environment: &Environment, wants_keys: bool) -> Result<Self> {
        let credentials = file(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials")?;
        let config = file(environment, "AWS_CONFIG_FILE", "config")?;
        let named = environment.first(&["AWS_PROFILE", "AWS_DEFAULT_PROFILE"]);
        let name = named.unwrap_or("default");
        let of_config = match name {
            "default" => config.get("profile default").or_else(|| config.get("default")),
            name => config.get(&format!("profile {name}")),
        };
        let of_credentials = credentials.get(name);
        if let (Some(_), None, None) = (named, of_config, of_credentials) {
            return Err(profile_error(
                name,
                "the profile does not exist; add it to `~/.aws/credentials`, or as `[profile …]` to `~/.aws/config`",
            ));
        }
        let mut section = of_config.cloned().unwrap_or_default();
        if let Some(of_credentials) = of_credentials {
            section.extend(of_credentials);
        }
        Self::read(name, &section, &config, wants_keys)
    }

    fn read(name: &str, section: &Section, config: &Sections, wants_keys: bool) -> Result<Self> {
        let owned = |key: &str| section.get(key).map(str::to_owned);
        let mut profile = Self {
            name: name.to_owned(),
            region: owned("region"),
            endpoint: owned("endpoint_url"),
            ..Self::default()
        };
        if let Some(services) = section.get("services") {
            let Some(services) = config.get(&format!("services {services}")) else {
                return Err(profile_error(
                    name,
                    "the section `[services …]` that `services` of the profile names is missing; add it to `~/.aws/config`",
                ));
            };
            if let Some(endpoint) = services.get("s3.endpoint_url") {
                profile.endpoint = Some(endpoint.to_owned());
            }
        }
        if !wants_keys {
            return Ok(profile);
        }
        profile.web_identity = owned("web_identity_token_file").zip(owned("role_arn"));
        if profile.web_identity.is_some() {
            return Ok(profile);
        }
        refuse_other_ways(name, section)?;
        profile.keys = match (owned("aws_access_key_id"), owned("aws_secret_access_key")) {
            (Some(id), Some(secret)) => {
                Some(Keys { id, secret, token: owned("aws_session_token") })
            }
            (None, None) => None,
            _ => {
                let reason = "the profile has only one of `aws_access_key_id` and \
                              `aws_secret_access_key`; add the missing key";
                return Err(profile_error(name, reason));
            }
        };
        Ok(profile)
    }
}

/// Returns an error if the profile requests an unsupported way to sign in.
fn refuse_other_ways(name: &str, section: &Section) -> Result<()> {
    let exported = "first run `eval \"$(aws configure export-credentials --profile PROFILE --format env)\"`, which sets \
                    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN";
    let asks = |key: &str| {
        let what = match key {
            "credential_process" => "gets its credentials from a program (`credential_process`)",
            "role_arn" | "source_profile" | "credential_source" => {
                "assumes a role (`role_arn`, `source_profile`)"
            }
            "web_identity_token_file" => "has a `web_identity_token_file` without a `role_arn`",
            "login_session" => "signs in with a browser (`login_session`)",
            key if key.starts_with("sso_") => "signs in with single sign-on (`sso_…`)",
            _ => return None,
        };
        Some(what)
    };
    match section.keys().find_map(asks) {
        Some(what) => Err(profile_error(
            name,
            &format!("the profile {what}, which Zillion does not support; {exported}"),
        )),
        None => Ok(()),
    }
}

/// Reads the sections of one of the two files. The environment variable `variable` can name the
/// file. Without it, a missing file gives no sections.
fn file(environment: &Environment, variable: &str, usual: &str) -> Result<Sections> {
    let named = environment.get(variable).map(PathBuf::from);
    let is_named = named.is_some();
    let Some(path) = named.or_else(|| environment.home().map(|home| home.join(".aws").join(usual)))
    else {
        return Ok(Sections::new());
    };
    let refuse = |reason: String| Error::setting(path.display().to_string(), reason);
    match std::fs::read_to_string(&path) {
        Ok(text) => ini::parse(&text)
            .map_err(|(line, what)| refuse(format!("line {line} is invalid: {what}"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_named => {
            Ok(Sections::new())
        }
        Err(error) => {
            Err(refuse(format!("the file cannot be read ({error}); check its permissions")))
        }
    }
}

fn profile_error(profile: &str, reason: &str) -> Error {
    Error::setting(format!("AWS profile `{profile}`"), reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads the profile from a home folder with the given contents of the two files.
    fn load(credentials: &str, config: &str, more: &[(&str, &str)]) -> Result<Profile> {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".aws");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("credentials"), credentials).unwrap();
        std::fs::write(folder.join("config"), config).unwrap();
        let home = ("HOME", home.path().to_str().unwrap());
        let all = more.iter().chain([&home]);
        let environment = all.map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Profile::load(&environment, true)
    }

    fn message(credentials: &str, config: &str, more: &[(&str, &str)]) -> String {
        load(credentials, config, more).unwrap_err().to_string()
    }

    const KEYS: &str = "[default]\naws_access_key_id = A\naws_secret_access_key = hunter22\n\
                        [dev]\naws_access_key_id = D\naws_secret_access_key = hunter33\n\
                        aws_session_token = token44\n";

    #[test]
    fn the_named_profile_gives_keys_region_and_endpoint() {
        let config = "[default]\nregion = eu-west-1\n[profile dev]\nregion = us-east-2\n\
                      endpoint_url = http://all\nservices = mine\n[services mine]\n\
                      dynamodb =\n  endpoint_url = http://other\ns3 =\n  endpoint_url = http://s3\n";
        let default = load(KEYS, config, &[]).unwrap();
        assert_eq!(default.region.as_deref(), Some("eu-west-1"));
        assert_eq!(default.keys.map(|keys| (keys.id, keys.token)), Some(("A".into(), None)));
        let dev = load(KEYS, config, &[("AWS_PROFILE", "dev")]).unwrap();
        assert_eq!(dev.region.as_deref(), Some("us-east-2"));
        assert_eq!(dev.endpoint.as_deref(), Some("http://s3"));
        assert_eq!(dev.keys.unwrap().token.as_deref(), Some("token44"));
    }

    #[test]
    fn missing_files_are_no_error_unless_named() {
        let nowhere = Environment::from([("HOME", "/nonexistent")]);
        assert_eq!(Profile::load(&nowhere, true).unwrap().keys, None);
        let named = Environment::from([("AWS_CONFIG_FILE", "/nonexistent/config")]);
        let refused = Profile::load(&named, true).unwrap_err().to_string();
        assert!(refused.contains("/nonexistent/config"), "{refused}");
        assert!(message(KEYS, "", &[("AWS_PROFILE", "none")]).contains("none"));
    }

    #[test]
    fn unsupported_ways_of_signing_in_are_refused() {
        for line in [
            "credential_process = /bin/x",
            "sso_session = s",
            "sso_start_url = https://x",
            "role_arn = arn:aws:iam::1:role/x",
            "source_profile = other",
            "login_session = x",
        ] {
            let alone = message("", &format!("[profile dev]\n{line}\n"), &[("AWS_PROFILE", "dev")]);
            let key = line.split(' ').next().unwrap();
            let named = if key.starts_with("sso_") { "sso_" } else { key };
            assert!(alone.contains(named) && alone.contains("export-credentials"), "{alone}");
            // The profile is refused even if it has keys too, because AWS's tools would not use
            // them.
            let with_keys =
                message(KEYS, &format!("[profile dev]\n{line}\n"), &[("AWS_PROFILE", "dev")]);
            assert!(with_keys.contains("does not support"), "{with_keys}");
        }
        let half = message("[default]\naws_access_key_id = A\n", "", &[]);
        assert!(half.contains("has only one of"), "{half}");
        let role = "[default]\nrole_arn = arn\nweb_identity_token_file = /token\n";
        assert!(load("", role, &[]).unwrap().web_identity.is_some());
    }

    #[test]
    fn environment_credentials_override_the_profile() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("config");
        std::fs::write(&path, "[default]\nsso_session = x\nregion = r\n").unwrap();
        let environment = Environment::from([("AWS_CONFIG_FILE", path.to_str().unwrap())]);
        assert_eq!(Profile::load(&environment, false).unwrap().region.as_deref(), Some("r"));
    }

    #[test]
    fn secrets_are_not_printed() {
        let profile = load(KEYS, "", &[("AWS_PROFILE", "dev")]).unwrap();
        let shown = format!("{profile:?} {:?}", profile.keys);
        assert!(!shown.contains("hunter") && !shown.contains("token44"), "{shown}");
        let broken = message("[default]\nhunter22\n", "", &[]);
        assert!(broken.contains("line 2") && !broken.contains("hunter22"), "{broken}");
    }
}
