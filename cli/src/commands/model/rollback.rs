//! `zillion model rollback`: moves a pointer back.

use anyhow::Result;
use zillion_console::print_line;

use super::describe::format_move;
use crate::args::RollbackArgs;
use crate::registry::{current_user, open_model, print_store_retries};

pub(super) fn run(args: &RollbackArgs) -> Result<()> {
    let model = open_model(&args.model)?;
    if let Some(to) = args.to {
        model.check_files(to)?;
    }
    let entry = model.rollback(&args.pointer, args.to, &current_user(), args.note.clone())?;
    print_line(&format_move(&entry));
    print_store_retries(&model.store().stats().sums());
    Ok(())
}
