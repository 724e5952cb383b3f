//! `zillion model quarantine`: takes a version and all that build on it out of use, or lifts that.

use std::collections::BTreeMap;

use anyhow::Result;
use zillion_console::print_line;
use zillion_registry::PointerMove;

use super::describe::format_move;
use crate::args::QuarantineArgs;
use crate::operator::{audited, describe_move, open_for_operator};
use crate::registry::{current_user, given_version, print_store_retries};

pub(super) fn run(args: &QuarantineArgs) -> Result<()> {
    let version = given_version(args.number.or(args.version))?;
    let model = open_for_operator(&args.model, &args.trust, &args.operator)?;
    let (user, reason) = (current_user(), args.reason.as_str());
    let action = if args.lift { "lift" } else { "quarantine" };
    let asked = format!("{action} of version {version}: {reason}");
    let act = || -> Result<BTreeMap<String, PointerMove>> {
        Ok(match args.lift {
            true => model.lift_quarantine(version, &user, reason)?,
            false => model.quarantine(version, &user, reason)?,
        })
    };
    let describe = |moves: &BTreeMap<String, PointerMove>| {
        let each = moves.iter().map(|(pointer, entry)| describe_move(pointer, entry));
        each.collect::<Vec<_>>().join("; ")
    };
    let moves = audited(&args.operator, action, model.name(), &asked, act, describe)?;
    for (pointer, entry) in &moves {
        print_line(&format!("{pointer}: {}", format_move(entry)));
    }
    print_store_retries(&model.store().stats().sums());
    Ok(())
}
