//! `zillion model promote` and `zillion model rollback`: move a pointer to a version, and move it
//! back.

use anyhow::Result;
use zillion_console::print_line;
use zillion_registry::{Model, MoveKind, PointerMove};

use super::describe::format_move;
use crate::args::{PromoteArgs, RollbackArgs};
use crate::operator::{audited, describe_move, open_for_operator};
use crate::registry::{current_user, given_version, print_store_retries};

pub(super) fn promote(args: &PromoteArgs) -> Result<()> {
    let version = given_version(args.number.or(args.version))?;
    let model = open_for_operator(&args.model, &args.trust, &args.operator)?;
    let asked = format!("pointer {} to version {version}", args.to);
    let act = || -> Result<PointerMove> {
        // A pointer must not name a version whose files are missing.
        model.check_files(version)?;
        let (kind, note) = (MoveKind::Promote, args.note.clone());
        Ok(model.promote(&args.to, version, kind, &current_user(), note)?)
    };
    let describe = |entry: &PointerMove| describe_move(&args.to, entry);
    let entry = audited(&args.operator, "promote", model.name(), &asked, act, describe)?;
    print_move(&model, &entry);
    Ok(())
}

pub(super) fn roll_back(args: &RollbackArgs) -> Result<()> {
    let model = open_for_operator(&args.model, &args.trust, &args.operator)?;
    let to = args.to.map_or("the version before".to_owned(), |to| format!("version {to}"));
    let asked = format!("pointer {} to {to}", args.pointer);
    let act = || -> Result<PointerMove> {
        if let Some(to) = args.to {
            model.check_files(to)?;
        }
        Ok(model.rollback(&args.pointer, args.to, &current_user(), args.note.clone())?)
    };
    let describe = |entry: &PointerMove| describe_move(&args.pointer, entry);
    let entry = audited(&args.operator, "rollback", model.name(), &asked, act, describe)?;
    print_move(&model, &entry);
    Ok(())
}

fn print_move(model: &Model, entry: &PointerMove) {
    print_line(&format_move(entry));
    print_store_retries(&model.store().stats().sums());
}
