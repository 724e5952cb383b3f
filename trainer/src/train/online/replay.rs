//! The place of the versions of a replay.

use std::sync::Arc;

use zillion_device::{Files, SystemClock};
use zillion_registry::Registry;

use crate::error::{Error, Result};
use crate::job::Job;

/// Checks that a replay of a job publishes into a model without versions. In the model of the
/// original run, it would lead the pointer through all old states.
///
/// # Errors
/// Returns an error if the model has a version, or if the registry cannot be opened.
pub fn check_replay_target(job: &Job, files: &Files) -> Result<()> {
    let Some(publish) = &job.publish else { return Ok(()) };
    let clock = Arc::new(SystemClock::new());
    let registry = Registry::create(&publish.registry, files.scratch(), clock)?;
    let name = publish.model.as_deref().unwrap_or(&job.name);
    let Some(newest) = registry.model(name)?.latest()? else { return Ok(()) };
    Err(Error::Refused(format!(
        "model `{name}` in the registry `{}` has versions up to {newest}, and a replay would add old \
         states of the run and move the pointer to each of them; name another registry \
         (`publish.registry`) or another model (`publish.model`)",
        publish.registry
    )))
}
