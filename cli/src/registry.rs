//! The parts of a registry that several commands use: a model, a version, and the folder of the
//! cache.

use std::path::PathBuf;

use anyhow::Result;
use zillion_console::exit::Stop;
use zillion_console::open_registry;
use zillion_registry::{Model, VersionId, default_cache};
use zillion_store::{Environment, StoreSums};

use crate::args::ModelRef;

/// Returns the model that the arguments name.
pub(crate) fn open_model(args: &ModelRef) -> Result<Model> {
    Ok(open_registry(&args.registry)?.model(&args.model)?)
}

/// Returns the given version, or else the version that the pointer names.
pub(crate) fn pointed_version(
    model: &Model,
    version: Option<VersionId>,
    pointer: &str,
) -> Result<VersionId> {
    Ok(match version {
        Some(version) => version,
        None => model.pointer(pointer)?.to.version,
    })
}

/// Returns the given version, or else the newest version of the model.
pub(crate) fn newest_version(model: &Model, version: Option<VersionId>) -> Result<VersionId> {
    match version {
        Some(version) => Ok(version),
        None => model.latest()?.ok_or_else(|| {
            zillion_registry::Error::NoModel { model: model.name().to_owned() }.into()
        }),
    }
}

/// Returns the version that a command was given. The error never occurs in practice, because the
/// command line requires a version.
pub(crate) fn given_version(version: Option<VersionId>) -> Result<VersionId> {
    version.ok_or_else(|| {
        Stop::Usage("no version is given; give the number of a version".to_owned()).into()
    })
}

/// Returns the cache folder of a command: the given folder, or else the default folder of the
/// registry.
pub(crate) fn cache_folder(named: Option<&PathBuf>, registry: &str) -> Result<PathBuf> {
    match named {
        Some(folder) => Ok(folder.clone()),
        None => default_cache(registry, &Environment::process()).map_err(name_cache_option),
    }
}

/// Adds the option `--cache` to an error that names the setting `cache`.
fn name_cache_option(error: zillion_registry::Error) -> anyhow::Error {
    match &error {
        zillion_registry::Error::Store(zillion_store::Error::StoreSetting { setting, .. })
            if setting == "cache" =>
        {
            anyhow::anyhow!("{error} (option `--cache`)")
        }
        _ => error.into(),
    }
}

/// Prints on stderr how often requests to the store were retried. Retries explain why a command
/// that succeeded took long.
pub(crate) fn print_store_retries(sums: &StoreSums) {
    if sums.retries > 0 {
        eprintln!(
            "the store got {} requests, {} of them repeated after a failure; the pauses before them took {:.1} s",
            sums.requests, sums.retries, sums.backoff_seconds
        );
    }
}

/// Returns the name of the user who runs the command, or `unknown` if the system does not know the
/// name.
pub(crate) fn current_user() -> String {
    let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    of("USER")
        .or_else(|| of("LOGNAME"))
        .or_else(user_number)
        .unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the user's number and the name of the machine, or `None` if the system does not report
/// them. They replace the name of a user without a name, as in containers.
fn user_number() -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let user = std::fs::metadata("/proc/self").ok()?.uid();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(format!("user {user} on {}", host.trim()))
}
