//! `zillion model promote`: a pointer moves to a version`.

use anyhow::Result;
use zillion_console::print_line;
use zillion_registry::MoveKind;

use super::describe::move_line;
use crate::args::PromoteArgs;
use crate::registry::{current_user, open_model, print_store_retries};

pub(super) fn run(args: &PromoteArgs) -> Result<()> {
    let model = open_model(&args.model)?;
    // A version that cannot be loaded must not become anybody's.
    model.check_files(args.version)?;
    let kind = MoveKind::Promote;
    let entry = model.promote(&args.to, args.version, kind, &current_user(), args.note.clone())?;
    print_line(&move_line(&entry));
    print_store_retries(&model.store().stats().sums());
    Ok(())
}
