//! Azure Blob Storage and Data Lake Storage. A store needs a storage account and one of several
//! kinds of credentials.

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use crate::client::Client;
use crate::cloud::{client_options, install_tls, no_retries};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::options::Options;

/// The environment variables that are passed to the client under their own names.
const PASSED_ON: [&str; 20] = [
    "AZURE_AUTHORITY_HOST",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_MSI_ENDPOINT",
    "AZURE_MSI_RESOURCE_ID",
    "AZURE_OBJECT_ID",
    "AZURE_SKIP_SIGNATURE",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_AUTHORITY_HOST",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_USE_EMULATOR",
    "AZURE_TENANT_ID",
];

/// The environment variables whose values are secrets.
const SECRET: [&str; 6] = [
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
];

/// The pairs of variable names: a name that the tools of Azure read, and the name that the client
/// expects for the same setting.
const SYNONYMS: [(&str, &str); 2] = [
    ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"),
    ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
];

pub(crate) fn client(
    container: &str,
    account: Option<&str>,
    environment: &Environment,
    options: &Options,
) -> Result<Client> {
    install_tls();
    if environment.get("AZURE_STORAGE_CONNECTION_STRING").is_some() {
        let reason = "connection strings are not supported; set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY instead";
        return Err(Error::setting("AZURE_STORAGE_CONNECTION_STRING", reason));
    }
    let emulated = matches!(environment.get("AZURE_STORAGE_USE_EMULATOR"), Some("true" | "1"));
    let endpoint = environment.get("AZURE_STORAGE_ENDPOINT");
    let is_plain = emulated || endpoint.is_some_and(|e| e.starts_with("http://"));
    let mut builder = MicrosoftAzureBuilder::new()
        .with_container_name(container)
        .with_client_options(client_options(options).with_allow_http(is_plain))
        .with_retry(no_retries());
    let synonym = |name| SYNONYMS.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours);
    let mut secrets = Vec::new();
    let mut used = Vec::new();
    for (variable, value) in environment.iter() {
        let name = synonym(variable).unwrap_or(variable);
        if !PASSED_ON.contains(&name) {
            continue;
        }
        let key: AzureConfigKey = name.to_ascii_lowercase().parse().map_err(|_| {
            Error::setting(
                variable,
                "this version of Zillion does not support this variable; unset it",
            )
        })?;
        builder = builder.with_config(key, value);
        used.push(variable.to_owned());
        if SECRET.contains(&name) {
            secrets.push(value.to_owned());
        }
    }
    if let Some(account) = account {
        builder = builder.with_account(account);
    }
    let named = environment.first(&["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"]);
    let Some(account) = account.or(named).or(emulated.then_some("devstoreaccount1")) else {
        let reason = "the storage account is missing; set this variable, or name the account in the URL \
                      (`abfss://container@account.dfs.core.windows.net/…`)";
        return Err(Error::setting("AZURE_STORAGE_ACCOUNT", reason));
    };
    let about = format!(
        "account {account}, container {container}, settings: {}",
        if used.is_empty() { "none".to_owned() } else { used.join(", ") }
    );
    let store = builder.build().map_err(|e| Error::setting("Azure", e.to_string()))?;
    Ok(Client::of(store, about, secrets))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(account: Option<&str>, variables: &[(&str, &str)]) -> Result<Client> {
        let environment = variables.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
        client("container", account, &environment, &Options::default())
    }

    #[test]
    fn every_variable_is_known_to_the_client() {
        for name in PASSED_ON {
            assert!(name.to_ascii_lowercase().parse::<AzureConfigKey>().is_ok(), "{name}");
        }
        assert!(SECRET.iter().all(|name| PASSED_ON.contains(name)));
        assert!(SYNONYMS.iter().all(|(_, ours)| PASSED_ON.contains(ours)));
    }

    #[test]
    fn an_account_by_variable_or_url() {
        let key = [("AZURE_STORAGE_KEY", "aHVudGVyMjI="), ("AZURE_STORAGE_ACCOUNT", "acme")];
        let client = open(None, &key).unwrap();
        assert!(client.about.contains("account acme"), "{}", client.about);
        assert_eq!(client.secrets, ["aHVudGVyMjI="]);
        assert!(!format!("{client:?}").contains("aHVudGVyMjI="));
        assert!(open(Some("other"), &key[..1]).unwrap().about.contains("account other"));
        let message = open(None, &key[..1]).unwrap_err().to_string();
        assert!(message.contains("AZURE_STORAGE_ACCOUNT"), "{message}");
        let string = [("AZURE_STORAGE_CONNECTION_STRING", "AccountKey=hunter22")];
        let message = open(None, &string).unwrap_err().to_string();
        assert!(
            message.contains("AZURE_STORAGE_KEY") && !message.contains("hunter22"),
            "{message}"
        );
        let emulated = open(None, &[("AZURE_STORAGE_USE_EMULATOR", "true")]).unwrap();
        assert!(emulated.about.contains("devstoreaccount1"), "{}", emulated.about);
    }
}
