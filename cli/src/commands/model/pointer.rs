//! `zillion model promote` and `zillion model rollback`: move a pointer to a version, and move it
//! back.

use anyhow::Result;
use zillion_console::print_line;
use zillion_registry::{Model, MoveKind, PointerMove};

use super::describe::format_move;
use crate::args::{PromoteArgs, RollbackArgs};
use crate::registry::{current_user, given_version, open_model, print_store_retries};

pub(super) fn promote(args: &PromoteArgs) -> Result<()> {
    let version = given_version(args.number.or(args.version))?;
    let model = open_model(&args.model)?;
    // A pointer must not name a version whose files are missing.
    model.check_files(version)?;
    let kind = MoveKind::Promote;
    let entry = model.promote(&args.to, version, kind, &current_user(), args.note.clone())?;
    print_move(&model, &entry);
    Ok(())
}

pub(super) fn roll_back(args: &RollbackArgs) -> Result<()> {
    let model = open_model(&args.model)?;
    if let Some(to) = args.to {
        model.check_files(to)?;
    }
    let entry = model.rollback(&args.pointer, args.to, &current_user(), args.note.clone())?;
    print_move(&model, &entry);
    Ok(())
}

fn print_move(model: &Model, entry: &PointerMove) {
    print_line(&format_move(entry));
    print_store_retries(&model.store().stats().sums());
}
