//! The audit log: a hash chain that records every control action, refused caller and pointer move.
//!
//! A line is a JSON object. The first field of a line is the hash of the previous line. Its last
//! field, `hash`, is the BLAKE3 hash of the text of the line before this field. If a line is
//! changed, removed or inserted, the chain is broken at this place. If lines at the end are
//! removed, the rest is still a valid chain. To detect this, compare the last hash, which `zillion
//! audit verify` prints, with the last hash of a copy of the log.
//!
//! # Crash consistency
//! A line is written with one call and synchronised before the action is reported as done. If the
//! last line has no end, its action was never reported as done. When the log is opened, such a line
//! is removed, and a line that records the removal is written.

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

/// The maximum number of refused callers per second that have a line of their own. Further refusals
/// in the same second are only counted, and one line records their number. So a flood of wrong
/// tokens cannot fill the disk.
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
    /// The second in which `refusals` are counted, since 1970.
    second: u64,
    refusals: u32,
}

impl AuditLog {
    /// Opens a log, or creates it if it does not exist. Verifies all lines first. `now` is the time
    /// since 1970.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written, if another process writes to it, or
    /// if its chain is broken.
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
    /// Returns an error if the line cannot be written and synchronised. Then the caller must not
    /// perform the control action.
    pub fn write(&self, event: &AuditEvent<'_>, now: Duration) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.flush_refusals(&mut state, now)?;
        self.append(&mut state, event, now)?;
        state.file.sync_data().map_err(Error::file("synchronise", &self.path))
    }

    /// Writes that a caller was refused. The line is not synchronised. Refusals above the maximum
    /// rate are only counted, and a later line records their number.
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

    /// Writes the number of the refusals in an earlier second that were only counted, if there are
    /// any.
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
