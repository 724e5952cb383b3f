//! The audit log: every control action, refused identity and pointer move, as a hash chain.
//!
//! A line is a JSON object. Its last field, `hash`, is the BLAKE3 hash of the line before this
//! field, which begins with the hash of the previous line. So a line that is changed, removed or
//! put between others breaks the chain at its place. Lines that are cut off at the end leave a
//! valid chain: compare the last hash with the one in a copy of the log, as `zillion audit verify`
//! prints it.
//!
//! # Crash consistency
//! A line is written with one call and synchronised before the action is reported as done. A last
//! line without an end belongs to an action that was not reported: opening the log removes it, and
//! writes a line that says so.

mod line;
mod verify;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub use self::line::AuditEvent;
pub use self::verify::{AuditReport, verify_audit_log, verify_audit_log_with};
use crate::error::{Error, Result};

/// The largest number of refused callers that are written in a second. Further ones are counted
/// and written as one line, so that a flood of wrong tokens fills no disk.
const REFUSALS_PER_SECOND: u32 = 250;

/// An open audit log. Only one process may write to a file.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// The number of the next line.
    number: u64,
    /// The hash of the last line.
    hash: String,
    /// The second in which refusals are counted, and their number.
    second: u64,
    refusals: u32,
}

impl AuditLog {
    /// Opens a log, or creates it. All lines are verified first. `now` is the time since 1970.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written, another process writes to it, or its
    /// chain is broken.
    pub fn open(path: &Path, now: Duration) -> Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.create(true).read(true).append(true).open(path);
        let file = file.map_err(Error::file("open", path))?;
        if file.try_lock().is_err() {
            let reason = "another process writes to this audit log; give each server its own file";
            return Err(Error::invalid(path, reason));
        }
        let report = verify_audit_log(path)?;
        if let Some(problem) = &report.problem {
            return Err(Error::invalid(
                path,
                format!("{problem}; keep the file as evidence, and name another file"),
            ));
        }
        let length = file.metadata().map_err(Error::file("read", path))?.len();
        let torn = report.torn_bytes.unwrap_or(0);
        file.set_len(length - torn).map_err(Error::file("write", path))?;
        let state = State {
            file,
            number: report.lines + 1,
            hash: report.last_hash,
            second: 0,
            refusals: 0,
        };
        let log = Self { path: path.to_owned(), state: Mutex::new(state) };
        if torn > 0 {
            let detail = format!("{torn} bytes of a line without an end were removed");
            let outcome = "done";
            let event =
                AuditEvent { action: "recover", outcome, detail: &detail, ..AuditEvent::default() };
            log.write(&event, now)?;
        }
        Ok(log)
    }

    /// Writes an event. `now` is the time since 1970.
    ///
    /// # Errors
    /// Returns an error if the line cannot be written and synchronised. A control action must not
    /// be done then.
    pub fn write(&self, event: &AuditEvent<'_>, now: Duration) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.flush_refusals(&mut state, now)?;
        self.append(&mut state, event, now)?;
        state.file.sync_data().map_err(Error::file("synchronise", &self.path))
    }

    /// Writes that a caller was refused. The line is not synchronised, and refusals above the rate
    /// are written as a count.
    ///
    /// # Errors
    /// Returns an error if the line cannot be written.
    pub fn write_refusal(&self, event: &AuditEvent<'_>, now: Duration) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.flush_refusals(&mut state, now)?;
        state.refusals += 1;
        match state.refusals <= REFUSALS_PER_SECOND {
            true => self.append(&mut state, event, now),
            false => Ok(()),
        }
    }

    /// Writes the number of refusals of an earlier second that were only counted.
    fn flush_refusals(&self, state: &mut State, now: Duration) -> Result<()> {
        if state.second == now.as_secs() {
            return Ok(());
        }
        let unwritten = state.refusals.saturating_sub(REFUSALS_PER_SECOND);
        (state.second, state.refusals) = (now.as_secs(), 0);
        if unwritten == 0 {
            return Ok(());
        }
        let detail = format!("{unwritten} more refusals in a second were only counted");
        let event = AuditEvent {
            action: "refuse",
            outcome: "counted",
            detail: &detail,
            ..AuditEvent::default()
        };
        self.append(state, &event, now)
    }

    fn append(&self, state: &mut State, event: &AuditEvent<'_>, now: Duration) -> Result<()> {
        let (line, hash) = line::format_line(state.number, &state.hash, event, now);
        state.file.write_all(line.as_bytes()).map_err(Error::file("write", &self.path))?;
        state.number += 1;
        state.hash = hash;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
