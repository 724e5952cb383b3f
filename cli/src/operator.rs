//! The parts of commands by which operators change a registry: trusted keys, the key that signs,
//! and the audit log.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use zillion_access::{AuditEvent, AuditLog, TrustedKeys};
use zillion_console::exit::usage_error;
use zillion_console::open_registry;
use zillion_registry::{Model, PointerMove, Registry, Signer};
use zillion_trainer::Published;

use crate::args::{ModelRef, OperatorArgs, TrustArgs};
use crate::registry::current_user;

/// Returns the registry with the trusted keys in `folder`. If `folder` is `None`, returns the
/// registry unchanged.
pub(crate) fn trust(registry: Registry, folder: Option<&Path>) -> Result<Registry> {
    Ok(match folder {
        Some(folder) => registry.with_trusted_keys(TrustedKeys::load(folder)?),
        None => registry,
    })
}

/// Opens a model for reading, with the trusted keys that the arguments name.
pub(crate) fn open_trusted(args: &ModelRef, keys: &TrustArgs) -> Result<Model> {
    Ok(trust(open_registry(&args.registry)?, keys.trust.as_deref())?.model(&args.model)?)
}

/// Opens a model for an operator, with the trusted keys and the key that signs.
pub(crate) fn open_for_operator(
    args: &ModelRef,
    keys: &TrustArgs,
    operator: &OperatorArgs,
) -> Result<Model> {
    let registry = trust(open_registry(&args.registry)?, keys.trust.as_deref())?;
    check_key_path(operator.sign.as_deref())?;
    let signer = operator.sign.as_deref().map(|key| Signer::load(key, operator.valid_for));
    let registry = signer.transpose()?.into_iter().fold(registry, Registry::with_signer);
    Ok(registry.model(&args.model)?)
}

/// Checks that the argument for the path of a key is not the key itself, because error messages
/// print this path.
///
/// # Errors
/// Returns an error if the text is a key in PEM.
pub(crate) fn check_key_path(path: Option<&Path>) -> Result<()> {
    if path.is_some_and(|path| path.to_string_lossy().contains("-----BEGIN")) {
        return usage_error(
            "--sign (or ZILLION_SIGN_KEY) holds a key instead of the path of its file; write the key to a file \
             that only its owner can read",
        );
    }
    Ok(())
}

/// Returns the path of the key that signs the versions that training publishes. Returns `None` if
/// the environment names no key.
pub(crate) fn sign_key_of_environment() -> Option<PathBuf> {
    std::env::var_os("ZILLION_SIGN_KEY").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Executes an action of an operator. Writes the request for the action to the audit log before the
/// action, and the result after the action. If the log cannot be written, the action is not
/// executed.
///
/// # Errors
/// Returns the error of the action, or an error if the log cannot be opened or written.
pub(crate) fn audited<T>(
    operator: &OperatorArgs,
    action: &str,
    model: &str,
    asked: &str,
    act: impl FnOnce() -> Result<T>,
    describe: impl FnOnce(&T) -> String,
) -> Result<T> {
    let Some(path) = &operator.audit_log else { return act() };
    let trail = Trail::open(path, action, model)?;
    let write = |outcome: &str, detail: &str| trail.write(outcome, detail);
    write("asked", asked)?;
    let done = act();
    let written = match &done {
        Ok(value) => write("done", &describe(value)),
        Err(error) => write("failed", &format!("{error:#}")),
    };
    let value = done?;
    written.with_context(|| {
        format!("{action} of model `{model}` was done, but could not be written to the audit log")
    })?;
    Ok(value)
}

/// The audit log of one action on one model.
pub(crate) struct Trail {
    log: AuditLog,
    who: String,
    from: String,
    action: String,
    model: String,
}

impl Trail {
    /// Opens the audit log for an action of the user of this process.
    ///
    /// # Errors
    /// Returns an error if the log cannot be opened or its chain is broken.
    pub(crate) fn open(path: &Path, action: &str, model: &str) -> Result<Self> {
        let log = AuditLog::open(path, since_1970())?;
        let (action, model) = (action.to_owned(), model.to_owned());
        Ok(Self { log, who: current_user(), from: host_name(), action, model })
    }

    /// Writes a line about the action, and synchronises it.
    ///
    /// # Errors
    /// Returns an error if the line cannot be written.
    pub(crate) fn write(&self, outcome: &str, detail: &str) -> Result<(), zillion_access::Error> {
        let Self { who, from, action, model, .. } = self;
        let event = AuditEvent { who, from, action, subject: model, outcome, detail };
        self.log.write(&event, since_1970())
    }
}

/// Describes a publication for the audit log.
pub(crate) fn describe_publication(published: &Published, pointer: &str) -> String {
    let version = &published.version;
    let moved = published.moved.as_ref();
    let moved = moved.map_or("no pointer moved".to_owned(), |entry| describe_move(pointer, entry));
    format!("version {} with hash {}; {moved}", version.version, version.chain)
}

/// Describes a move of a pointer for the audit log, with the id of the key that signed it.
pub(crate) fn describe_move(pointer: &str, entry: &PointerMove) -> String {
    let from = entry.from.map_or("nothing".to_owned(), |from| format!("version {from}"));
    let keys: Vec<&str> = entry.signatures.iter().map(|s| s.key.0.as_str()).collect();
    let signed = match keys.is_empty() {
        true => "not signed".to_owned(),
        false => format!("signed with key {}", keys.join(", ")),
    };
    format!(
        "pointer {pointer} from {from} to version {}, move {}, {signed}",
        entry.to.version, entry.number
    )
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the name of the machine, or an empty text if it has none.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
