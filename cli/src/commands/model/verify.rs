//! `zillion model verify`: reads every byte of a version and checks it.

use anyhow::Result;
use serde_json::json;
use zillion_console::{print_json, print_line};

use crate::args::VerifyArgs;
use crate::operator::open_trusted;
use crate::registry::{newest_version, print_store_retries};

pub(super) fn run(args: &VerifyArgs) -> Result<()> {
    let model = open_trusted(&args.model, &args.trust)?;
    let version = newest_version(&model, args.number.or(args.version))?;
    let verified = model.verify(version, |version| eprintln!("version {}", version.version))?;
    if args.json {
        return print_json(&json!({
            "version": version,
            "versions": verified.versions,
            "files": verified.files,
            "bytes": verified.bytes,
            "rows": verified.rows,
            "store": model.store().stats().sums(),
        }));
    }
    print_line(&format!(
        "version {version} is complete and undamaged: {} versions, {} files, {} bytes, {} rows",
        verified.versions, verified.files, verified.bytes, verified.rows
    ));
    print_store_retries(&model.store().stats().sums());
    Ok(())
}
