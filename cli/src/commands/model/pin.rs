//! `zillion model pin`: protects a version from `zillion model gc`, or ends the protection.

use anyhow::Result;
use zillion_console::print_line;
use zillion_registry::VersionId;

use crate::args::PinArgs;
use crate::registry::{current_user, given_version, open_model};

pub(super) fn run(args: &PinArgs) -> Result<()> {
    let version = given_version(args.number.or(args.version))?;
    let model = open_model(&args.model)?;
    if args.remove {
        model.unpin(version)?
    } else {
        model.pin(version, &current_user())?
    }
    let pins: Vec<String> = model.pins()?.iter().map(VersionId::to_string).collect();
    let pins = if pins.is_empty() { "none".to_owned() } else { pins.join(", ") };
    print_line(&format!("pinned: {pins}"));
    Ok(())
}
