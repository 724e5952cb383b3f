//! The run that moves a pointer. Two runs over streams that moved one pointer would replace each
//! other's versions every second, and a new run would replace a model that has learned for weeks.

use zillion_registry::Model;

use super::RunId;
use super::branch::Branch;
use crate::error::{Error, Result};
use crate::job::PublishConfig;

/// The beginning of the name of a run in the log of a pointer.
const RUN: &str = "run ";

/// Returns the name of a run in the log of a pointer.
pub(super) fn name_run(run: &RunId) -> String {
    format!("{RUN}{}", run.0)
}

/// Checks that the pointer was not moved by another run last. An operator can move it to a version
/// of this run. A run that is new here may take the pointer over if the job says so: one that has
/// never moved the pointer (`has_moved`) and has none of the newest versions.
pub(super) fn check_owner(
    branch: &mut Branch,
    (model, run): (&Model, &RunId),
    config: &PublishConfig,
    has_moved: bool,
) -> Result<()> {
    let Some(pointer) = config.pointer() else { return Ok(()) };
    let own = name_run(run);
    let last = branch.find_last_move(model, pointer)?;
    let Some(last) = last.filter(|last| last.by.starts_with(RUN) && last.by != own).cloned() else {
        return Ok(());
    };
    let place = format!(
        "pointer `{pointer}` of model `{}` was moved to version {} by {}",
        model.name(),
        last.to.version,
        last.by
    );
    let is_known = has_moved || branch.has_own_version(model)?;
    let problem = match (is_known, config.take_over) {
        (false, true) => return Ok(()),
        (false, false) => format!(
            "{place}, and this run would replace it by its first version; set `publish.take_over = \
             true` if this is meant, or choose another pointer (`publish.promote`) or another model \
             (`publish.model`)"
        ),
        (true, _) => format!(
            "{place}, so two runs publish to it; stop one of them or choose another pointer for it \
             (`publish.promote`), and promote a version of the run that stays"
        ),
    };
    Err(Error::Refused(problem))
}
