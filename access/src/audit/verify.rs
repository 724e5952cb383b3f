//! The verification of an audit log.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;

use super::line::{BEFORE_HASH, FIRST};
use crate::error::{Error, Result};

/// The maximum number of bytes of a line. The longest line that the server can write has about 10
/// KiB.
const MOST_LINE_BYTES: u64 = 64 << 10;

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditReport {
    /// The number of valid lines before the first problem.
    pub lines: u64,
    /// The hash of the last valid line.
    pub last_hash: String,
    /// The first problem, with the number of its line in the file, or `None` if the chain is valid.
    pub problem: Option<String>,
    /// The number of bytes of a last line without an end, which a crash leaves, or `None` if there
    /// is no such line.
    pub torn_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Head {
    prev: String,
    number: u64,
}

/// Verifies all lines of an audit log.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn verify_audit_log(path: &Path) -> Result<AuditReport> {
    verify_audit_log_with(path, |_, _| {})
}

/// Verifies all lines of an audit log like [`verify_audit_log`], and calls `seen` with the number
/// and the hash of each valid line. The first call has the number 0 and the hash that an empty log
/// reports.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn verify_audit_log_with(path: &Path, mut seen: impl FnMut(u64, &str)) -> Result<AuditReport> {
    let file = File::open(path).map_err(Error::file("read", path))?;
    let mut reader = BufReader::new(file);
    let mut report =
        AuditReport { lines: 0, last_hash: FIRST.to_owned(), problem: None, torn_bytes: None };
    seen(0, FIRST);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = (&mut reader).take(MOST_LINE_BYTES).read_until(b'\n', &mut line);
        if read.map_err(Error::file("read", path))? == 0 {
            break;
        }
        if line.pop() != Some(b'\n') {
            report.torn_bytes = Some(line.len() as u64 + 1);
            break;
        }
        match check_line(&line, &report) {
            Some(hash) => {
                report.lines += 1;
                seen(report.lines, &hash);
                report.last_hash = hash;
            }
            None => {
                report.problem = Some(format!(
                    "line {number} of the audit log was changed, or lines before it were removed"
                ));
                break;
            }
        }
    }
    Ok(report)
}

/// Returns the hash of a line, or `None` if the line is damaged or does not follow the lines
/// `before` it.
fn check_line(line: &[u8], before: &AuditReport) -> Option<String> {
    let text = std::str::from_utf8(line).ok()?;
    let at = text.rfind(BEFORE_HASH)?;
    let hash = text[at + BEFORE_HASH.len()..].strip_suffix("\"}")?;
    if blake3::hash(&line[..at]).to_hex().as_str() != hash {
        return None;
    }
    let head: Head = serde_json::from_str(text).ok()?;
    let follows = head.prev == before.last_hash && head.number == before.lines + 1;
    follows.then(|| hash.to_owned())
}
