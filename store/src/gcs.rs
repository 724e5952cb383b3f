//! Google Cloud Storage. The credentials are the key of a service account, the login of the user,
//! or those of the machine.

use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};

use crate::client::Client;
use crate::cloud::{client_options, install_tls, no_retries};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::options::Options;

/// The path of the file that `gcloud auth application-default login` writes, relative to the home
/// folder.
const WELL_KNOWN: &str = ".config/gcloud/application_default_credentials.json";

pub(crate) fn client(bucket: &str, environment: &Environment, options: &Options) -> Result<Client> {
    install_tls();
    let base = environment.get("GOOGLE_BASE_URL");
    let is_plain = base.is_some_and(|base| base.starts_with("http://"));
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(bucket)
        .with_client_options(client_options(options).with_allow_http(is_plain))
        .with_retry(no_retries());
    if let Some(base) = base {
        builder = builder.with_base_url(base);
    }
    let unsigned = matches!(environment.get("GOOGLE_SKIP_SIGNATURE"), Some("true" | "1"));
    let mut secrets = Vec::new();
    let from = if unsigned {
        builder = builder.with_config(GoogleConfigKey::SkipSignature, "true");
        "none, requests are not signed".to_owned()
    } else if let Some(key) = environment.get("GOOGLE_SERVICE_ACCOUNT_KEY") {
        secrets.extend(private_keys(key));
        builder = builder.with_service_account_key(key);
        "GOOGLE_SERVICE_ACCOUNT_KEY".to_owned()
    } else {
        let named =
            environment.first(&["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"]);
        let usual = environment.home().map(|home| home.join(WELL_KNOWN));
        let path = match named {
            Some(path) => Some(path.into()),
            None => usual.filter(|path| path.is_file()),
        };
        match path {
            Some(path) => {
                let text = std::fs::read_to_string(&path).map_err(|e| {
                    let reason = format!(
                        "the file `{}` cannot be read ({e}); name a readable file with credentials",
                        path.display()
                    );
                    Error::setting("GOOGLE_APPLICATION_CREDENTIALS", reason)
                })?;
                secrets.extend(private_keys(&text));
                builder = builder.with_application_credentials(path.display().to_string());
                path.display().to_string()
            }
            None => {
                "none in the environment and in gcloud's file, so those of the machine".to_owned()
            }
        }
    };
    let store =
        builder.build().map_err(|e| Error::setting("Google Cloud Storage", e.to_string()))?;
    let place = base.unwrap_or("https://storage.googleapis.com");
    let about = format!("endpoint {place}, bucket {bucket}, credentials: {from}");
    Ok(Client::of(store, about, secrets))
}

/// Returns the secret values in a file of credentials. Returns no value if the file is not a JSON
/// object.
fn private_keys(text: &str) -> Vec<String> {
    let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(text) else {
        return Vec::new();
    };
    let secret = ["private_key", "client_secret", "refresh_token"];
    secret.iter().filter_map(|name| Some(fields.get(*name)?.as_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_every_kind() {
        let home = tempfile::tempdir().unwrap();
        let home_text = home.path().to_str().unwrap();
        let about = |variables: &[(&str, &str)]| {
            let environment = variables.iter().map(|&(n, v)| (n.to_owned(), v.to_owned()));
            client("bucket", &environment.collect(), &Options::default()).map(|c| c.about)
        };
        let unsigned = [("GOOGLE_SKIP_SIGNATURE", "true"), ("GOOGLE_BASE_URL", "http://fake:4443")];
        let message = about(&unsigned).unwrap();
        assert!(
            message.contains("http://fake:4443") && message.contains("not signed"),
            "{message}"
        );
        let missing = [("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/key.json")];
        assert!(about(&missing).unwrap_err().to_string().contains("/nonexistent/key.json"));
        // The store finds the file that gcloud writes to the home folder.
        let path = home.path().join(WELL_KNOWN);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let user = r#"{"type": "authorized_user", "client_id": "c", "client_secret": "hunter22",
                       "refresh_token": "token44"}"#;
        std::fs::write(&path, user).unwrap();
        let message = about(&[("HOME", home_text)]).unwrap();
        assert!(message.contains("application_default_credentials.json"), "{message}");
        let environment = Environment::from([("HOME", home_text)]);
        let client = client("bucket", &environment, &Options::default()).unwrap();
        assert_eq!(client.secrets, ["hunter22", "token44"]);
        assert!(!format!("{client:?}").contains("hunter22"));
    }
}
