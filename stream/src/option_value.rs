//! The values of settings that may be secrets.
//!
//! A secret is never part of the settings: they name the file or the variable of the environment
//! that has it. So no error and no log can contain it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zillion_device::DeviceError;

use crate::error::{Error, Result};

/// The value of a setting, or the place of the value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OptionValue {
    /// The value itself. It is refused for secrets.
    Text(String),
    /// The value is the contents of a file, without the end of its last line.
    File(SecretFile),
    /// The value is that of a variable of the environment.
    Variable(SecretVariable),
}

/// A file that contains the value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretFile {
    /// The path of the file.
    pub file: PathBuf,
}

/// A variable of the environment that contains the value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretVariable {
    /// The name of the variable.
    pub env: String,
}

impl OptionValue {
    /// Reads the value of the setting `name`.
    ///
    /// # Errors
    /// Returns an error if its file cannot be read or its variable is not set.
    pub(crate) fn read(&self, name: &str) -> Result<String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(SecretFile { file }) => {
                let text = std::fs::read_to_string(file);
                let text = text.map_err(|e| DeviceError::file("read", file, e))?;
                Ok(text.trim_end_matches(['\n', '\r']).to_owned())
            }
            Self::Variable(SecretVariable { env }) => std::env::var(env)
                .map_err(|_| Error::Variable { setting: name.to_owned(), variable: env.clone() }),
        }
    }
}
