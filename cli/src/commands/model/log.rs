//! `zillion model log`: lists the moves of a pointer.

use anyhow::Result;
use zillion_console::{print_json, print_line};

use super::describe::format_move;
use crate::args::LogArgs;
use crate::registry::open_model;

pub(super) fn run(args: &LogArgs) -> Result<()> {
    let model = open_model(&args.model)?;
    let moves = model.moves(&args.pointer, args.before, args.limit)?;
    if moves.is_empty() {
        // A pointer that was never set is an error; an empty log would hide a misspelt name.
        model.pointer(&args.pointer)?;
    }
    if args.json {
        return print_json(&moves);
    }
    for entry in &moves {
        print_line(&format!("{}  {}", entry.number, format_move(entry)));
    }
    if let Some(versions) = moves.first().map(|newest| &newest.quarantined)
        && !versions.is_empty()
        && args.before.is_none()
    {
        let versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
        print_line(&format!("in quarantine: {}", versions.join(", ")));
    }
    Ok(())
}
