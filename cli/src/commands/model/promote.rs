//! `zillion model promote`: moves a pointer to a version.

use anyhow::Result;
use zillion_console::print_line;
use zillion_registry::MoveKind;

use super::describe::format_move;
use crate::args::PromoteArgs;
use crate::registry::{current_user, given_version, open_model, print_store_retries};

pub(super) fn run(args: &PromoteArgs) -> Result<()> {
    let version = given_version(args.number.or(args.version))?;
    let model = open_model(&args.model)?;
    // A pointer must not name a version whose files are missing.
    model.check_files(version)?;
    let kind = MoveKind::Promote;
    let entry = model.promote(&args.to, version, kind, &current_user(), args.note.clone())?;
    print_line(&format_move(&entry));
    print_store_retries(&model.store().stats().sums());
    Ok(())
}
