//! The registry of a publisher.

use std::sync::Arc;

use zillion_config::ConfigError;
use zillion_device::{Clock, Files};
use zillion_registry::{Registry, Signer};

use crate::error::Result;
use crate::job::PublishConfig;

/// Opens the registry of a publisher, with the key that signs if one is named.
pub(super) fn open_registry(
    config: &PublishConfig,
    files: &Files,
    clock: Arc<dyn Clock>,
) -> Result<Registry> {
    let signer = match (&config.sign, config.valid_for) {
        (Some(key), validity) => Some(Signer::load(key, validity)?),
        (None, None) => None,
        (None, Some(_)) => {
            let problem = "has no effect, because only signed moves expire; set `publish.sign`, \
                           or remove this key";
            return Err(ConfigError::at("publish.valid_for", problem).into());
        }
    };
    let registry = Registry::create(&config.registry, files.clone(), clock)?;
    Ok(signer.into_iter().fold(registry, Registry::with_signer))
}
