//! `zillion audit`: verifies audit logs.

use anyhow::{Result, bail};
use serde_json::json;
use zillion_access::verify_audit_log_with;
use zillion_console::{print_json, print_line};

use crate::args::{AuditCommand, AuditVerifyArgs};

pub(crate) fn run(command: &AuditCommand) -> Result<()> {
    match command {
        AuditCommand::Verify(args) => verify(args),
    }
}

/// Verifies the chain of a log. A chain does not show that lines at its end were removed. Therefore
/// the caller can give the last hash of an earlier verification, and the log must still contain
/// this hash.
fn verify(args: &AuditVerifyArgs) -> Result<()> {
    let mut found = None;
    let report = verify_audit_log_with(&args.file, |line, hash| {
        if args.last.as_deref().is_some_and(|last| last.trim().eq_ignore_ascii_case(hash)) {
            found = Some(line);
        }
    })?;
    if args.json {
        print_json(&json!({
            "first_line": report.first,
            "lines": report.lines,
            "last_hash": report.last_hash,
            "problem": report.problem,
            "torn_bytes": report.torn_bytes,
            "found_at_line": found,
        }))?;
    }
    let shown = args.file.display();
    if let Some(problem) = &report.problem {
        bail!(
            "`{shown}`: {problem}; keep the file as evidence (its first {} lines are valid)",
            report.lines
        );
    }
    if args.last.is_some() && found.is_none() {
        bail!(
            "`{shown}`: no line has the hash of --last, because the last lines were cut off or \
             the file is another log; compare it with a copy of the log"
        );
    }
    if args.json {
        return Ok(());
    }
    print_line(&format!("{} lines, last hash {}", report.lines, report.last_hash));
    if report.first > 1 {
        print_line(&format!(
            "the log begins with line {}: the files before it are not there",
            report.first
        ));
    }
    if let Some(line) = found {
        print_line(&format!("the given hash is that of line {line}"));
    }
    if let Some(bytes) = report.torn_bytes {
        eprintln!("{bytes} bytes of a line without an end follow, which a crash leaves");
    }
    Ok(())
}
