//! `zillion model gc`: removes the files that no version in use needs.

use std::time::Duration;

use anyhow::Result;
use zillion_console::{print_json, print_line};
use zillion_registry::Retention;

use crate::args::GcArgs;
use crate::registry::{open_model, print_store_retries};

pub(super) fn run(args: &GcArgs) -> Result<()> {
    let retention = Retention {
        keep: args.keep,
        keep_for: Duration::from_secs(args.keep_for),
        grace: Duration::from_secs(args.grace),
        history: args.history,
    };
    let model = open_model(&args.model)?;
    let done = model.collect(retention, args.dry_run)?;
    let store = model.store().stats().sums();
    if args.json {
        let mut summary = serde_json::to_value(done)?;
        summary["store"] = serde_json::to_value(store)?;
        return print_json(&summary);
    }
    let verb = if args.dry_run { "would remove" } else { "removed" };
    print_line(&format!(
        "{verb} {} files of {} bytes and {} unfinished writes; {} versions in use need {} files",
        done.removed_files, done.removed_bytes, done.leftovers, done.kept_versions, done.kept_files
    ));
    if args.history {
        print_line(&format!(
            "{verb} {} manifests and {} moves of pointers",
            done.removed_manifests, done.removed_moves
        ));
    }
    print_store_retries(&store);
    Ok(())
}
