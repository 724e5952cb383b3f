//! The verification of an audit log.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;

use super::files;
use super::line::{BEFORE_HASH, CONTINUE, FIRST, MOST_LINE_BYTES};
use crate::error::{Error, Result};

/// The outcome of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditReport {
    /// The number of the first line that is there: 1, unless the oldest files were moved away.
    pub first: u64,
    /// The number of valid lines before the first problem.
    pub lines: u64,
    /// The hash of the last valid line.
    pub last_hash: String,
    /// The first problem, with its file and the number of its line there, if the chain is broken.
    pub problem: Option<String>,
    /// The number of bytes of a last line without an end, which a crash leaves, or `None` if there
    /// is no such line.
    pub torn_bytes: Option<u64>,
}

impl AuditReport {
    fn empty() -> Self {
        let last_hash = FIRST.to_owned();
        Self { first: 1, lines: 0, last_hash, problem: None, torn_bytes: None }
    }
}

#[derive(Deserialize)]
struct Head {
    prev: String,
    number: u64,
    action: String,
}

/// Verifies all lines of an audit log, those of its full files included.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub fn verify_audit_log(path: &Path) -> Result<AuditReport> {
    verify_audit_log_with(path, |_, _| {})
}

/// Verifies all lines of an audit log like [`verify_audit_log`], and calls `seen` with the number
/// and the hash of each valid line. The first call is for the line before the first one that is
/// there: line 0 stands for the begin of the log, and has the hash that an empty log reports.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub fn verify_audit_log_with(path: &Path, mut seen: impl FnMut(u64, &str)) -> Result<AuditReport> {
    let mut report = AuditReport::empty();
    for (_, full) in files::list_full(path)? {
        verify_file(&full, &mut report, &mut seen)?;
        if report.problem.is_some() {
            return Ok(report);
        }
        // A file is full after a whole line.
        if report.torn_bytes.take().is_some() {
            report.problem = Some(format!("the last line of {} has no end", quote_name(&full)));
            return Ok(report);
        }
    }
    verify_file(path, &mut report, &mut seen)?;
    if report.lines == 0 && report.problem.is_none() {
        seen(0, FIRST);
    }
    Ok(report)
}

/// Verifies the newest file of a log, and that it continues the file before it.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub(super) fn verify_newest(path: &Path) -> Result<AuditReport> {
    let (mut report, mut before) = (AuditReport::empty(), None);
    verify_file(path, &mut report, &mut |_, hash| {
        before.get_or_insert_with(|| hash.to_owned());
    })?;
    let Some((_, full)) = files::list_full(path)?.pop() else { return Ok(report) };
    if report.problem.is_some() {
        return Ok(report);
    }
    if report.lines == 0 {
        let torn_bytes = report.torn_bytes;
        let mut report = AuditReport::empty();
        verify_file(&full, &mut report, &mut |_, _| {})?;
        if report.torn_bytes.is_some() {
            report.problem = Some(format!("the last line of {} has no end", quote_name(&full)));
        }
        return Ok(AuditReport { torn_bytes, ..report });
    }
    if before != files::read_last_hash(&full)? {
        report.problem =
            Some(format!("{} does not continue {}", quote_name(path), quote_name(&full)));
    }
    Ok(report)
}

/// Verifies the lines of a file, which continue those of `report`.
fn verify_file(
    path: &Path,
    report: &mut AuditReport,
    seen: &mut impl FnMut(u64, &str),
) -> Result<()> {
    let file = File::open(path).map_err(Error::file("read", path))?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = (&mut reader).take(MOST_LINE_BYTES).read_until(b'\n', &mut line);
        let read = read.map_err(Error::file("read", path))?;
        if read == 0 {
            break;
        }
        // Only the end of the file tears a line.
        if line.last() != Some(&b'\n') && (read as u64) < MOST_LINE_BYTES {
            report.torn_bytes = Some(read as u64);
            break;
        }
        line.pop();
        let Some((head, hash)) = read_line(&line).filter(|(head, _)| report.is_next(head)) else {
            report.problem = Some(format!(
                "line {number} of {} was changed, or lines before it were removed",
                quote_name(path)
            ));
            break;
        };
        if report.lines == 0 {
            report.first = head.number;
            seen(head.number - 1, &head.prev);
        }
        report.lines += 1;
        seen(head.number, &hash);
        report.last_hash = hash;
    }
    Ok(())
}

impl AuditReport {
    /// Returns whether a line follows the lines before it. The first line that is there may
    /// continue a file that was moved away.
    fn is_next(&self, head: &Head) -> bool {
        let is_begin = self.lines == 0 && head.action == CONTINUE && head.number > 1;
        is_begin || (head.prev == self.last_hash && head.number == self.first + self.lines)
    }
}

/// Reads a line, and returns its fields and its hash, or `None` if the hash is not that of the
/// line.
fn read_line(line: &[u8]) -> Option<(Head, String)> {
    let text = std::str::from_utf8(line).ok()?;
    let at = text.rfind(BEFORE_HASH)?;
    let hash = text[at + BEFORE_HASH.len()..].strip_suffix("\"}")?;
    if blake3::hash(&line[..at]).to_hex().as_str() != hash {
        return None;
    }
    Some((serde_json::from_str(text).ok()?, hash.to_owned()))
}

/// Returns the name of a file, without its folder.
fn quote_name(path: &Path) -> String {
    format!("`{}`", path.file_name().unwrap_or_default().display())
}
