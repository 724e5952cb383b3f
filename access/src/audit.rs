//! The audit log: a hash chain that records every control action, refused caller and pointer move.
//!
//! A line is a JSON object. The first field of a line is the hash of the previous line. Its last
//! field, `hash`, is the BLAKE3 hash of the text of the line before this field. If a line is
//! changed, removed or inserted, the chain is broken at this place. If lines at the end are
//! removed, the rest is still a valid chain. To detect this, compare the last hash, which `zillion
//! audit verify` prints, with the last hash of a copy of the log.
//!
//! # Size
//! A file that has [`LARGEST_FILE`] bytes becomes `<name>.1`, `<name>.2` and so on, the oldest with
//! the smallest number, and the log goes on in a new file. The first line of the new file has the
//! action `continue` and the last hash of the file before it. Callers without a right could make
//! the log grow without end, so that their lines have a budget: see [`Budget`].
//!
//! # Crash consistency
//! A line is written with one call and synchronised before the action is reported as done. A write
//! that fails is taken back, so that the next line begins where the last whole one ended. A last
//! line without an end belongs to an action that was not reported: opening the log removes it, and
//! writes a line that says so.

mod budget;
mod files;
mod line;
mod queue;
mod verify;

use std::fs::File;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::budget::Budget;
pub use self::line::AuditEvent;
use self::line::CONTINUE;
pub use self::queue::AuditQueue;
pub use self::verify::{AuditReport, verify_audit_log, verify_audit_log_with};
use crate::error::{Error, Result};

/// The number of bytes after which the log goes on in a new file.
const LARGEST_FILE: u64 = 256 << 20;

/// The budget of refused callers: a flood of wrong tokens must not fill the disk.
const REFUSALS: Budget = Budget::new("refusals", 250, 64 << 20);

/// The budget of refused versions and moves. It is separate, so that a flood of refused callers
/// hides none of them.
const REFUSED_VERSIONS: Budget = Budget::new("refused versions and moves", 50, 16 << 20);

/// An open audit log. Only one process may write to a file.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    largest_file: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// The number of bytes of the whole lines in the file.
    length: u64,
    /// Whether the file may have a part of a line after them.
    is_torn: bool,
    /// The length at which the log goes on in a new file.
    rotate_at: u64,
    /// The number of the next line.
    number: u64,
    /// The hash of the last line.
    hash: String,
    refusals: Budget,
    refused_versions: Budget,
    /// Writes a line to the file. A test puts a disk without space in its place.
    put: fn(&mut File, &[u8]) -> io::Result<()>,
}

impl AuditLog {
    /// Opens a log, or creates it. The lines of its newest file are verified first. `now` is the
    /// time since 1970.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written, if another process writes to it, or
    /// if its chain is broken.
    pub fn open(path: &Path, now: Duration) -> Result<Self> {
        Self::open_sized(path, LARGEST_FILE, now)
    }

    fn open_sized(path: &Path, largest_file: u64, now: Duration) -> Result<Self> {
        let file = files::open_locked(path)?;
        let report = verify::verify_newest(path)?;
        if let Some(problem) = &report.problem {
            return Err(Error::invalid(
                path,
                format!("{problem}; keep the file as evidence, and name another file"),
            ));
        }
        let torn = report.torn_bytes.unwrap_or(0);
        let length = file.metadata().map_err(Error::file("read", path))?.len() - torn;
        file.set_len(length).map_err(Error::file("write", path))?;
        let state = State {
            file,
            length,
            is_torn: false,
            rotate_at: largest_file,
            number: report.first + report.lines,
            hash: report.last_hash,
            refusals: REFUSALS,
            refused_versions: REFUSED_VERSIONS,
            put: |file, line| file.write_all(line),
        };
        let log = Self { path: path.to_owned(), largest_file, state: Mutex::new(state) };
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
        let mut state = self.lock();
        self.write_counts(&mut state, now, true)?;
        self.append(&mut state, event, now)?;
        state.file.sync_data().map_err(Error::file("synchronise", &self.path))
    }

    /// Writes that a caller was refused. The line is not synchronised. Refusals above the budget
    /// are written as a count.
    ///
    /// # Errors
    /// Returns an error if the line cannot be written.
    pub fn write_refusal(&self, event: &AuditEvent<'_>, now: Duration) -> Result<()> {
        let mut state = self.lock();
        self.write_counts(&mut state, now, false)?;
        if state.refusals.take_line(now) {
            let bytes = self.append(&mut state, event, now)?;
            state.refusals.take_bytes(bytes);
        }
        Ok(())
    }

    /// Writes that a version or a pointer move of the registry was refused, and synchronises the
    /// line. These lines have a budget of their own, and those above it are written as a count.
    ///
    /// # Errors
    /// Returns an error if the line cannot be written and synchronised.
    pub fn write_refused_version(&self, event: &AuditEvent<'_>, now: Duration) -> Result<()> {
        let mut state = self.lock();
        self.write_counts(&mut state, now, false)?;
        if state.refused_versions.take_line(now) {
            let bytes = self.append(&mut state, event, now)?;
            state.refused_versions.take_bytes(bytes);
            state.file.sync_data().map_err(Error::file("synchronise", &self.path))?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts refusals that were not handed to the log, because there were too many.
    fn count_refusals(&self, number: u64) {
        self.lock().refusals.count(number);
    }

    /// Writes the numbers of events that were only counted, if they are due or `is_last` is set.
    fn flush(&self, now: Duration, is_last: bool) -> Result<()> {
        self.write_counts(&mut self.lock(), now, is_last)
    }

    fn write_counts(&self, state: &mut State, now: Duration, is_forced: bool) -> Result<()> {
        let budgets: [fn(&mut State) -> &mut Budget; 2] =
            [|state| &mut state.refusals, |state| &mut state.refused_versions];
        for budget in budgets {
            let due = budget(state).due_count(now, is_forced);
            let Some(number) = due else { continue };
            let detail = format!("{number} more {} were only counted", budget(state).name());
            let event = AuditEvent {
                action: "refuse",
                outcome: "counted",
                detail: &detail,
                ..AuditEvent::default()
            };
            self.append(state, &event, now)?;
            budget(state).end_count(now);
        }
        Ok(())
    }

    /// Appends a line, and returns its number of bytes. A full file is replaced by a new one first.
    fn append(&self, state: &mut State, event: &AuditEvent<'_>, now: Duration) -> Result<u64> {
        if state.length >= state.rotate_at
            && let Err(error) = self.rotate(state)
        {
            tracing::error!("the audit log stays in its file: {error}");
            state.rotate_at += self.largest_file;
        }
        if state.length == 0 && state.number > 1 {
            let detail = "the lines before this one are in an earlier file";
            let begin =
                AuditEvent { action: CONTINUE, outcome: "done", detail, ..AuditEvent::default() };
            self.append_line(state, &begin, now)?;
        }
        self.append_line(state, event, now)
    }

    fn append_line(&self, state: &mut State, event: &AuditEvent<'_>, now: Duration) -> Result<u64> {
        if state.is_torn {
            self.cut(state)?;
        }
        let (line, hash) = line::format_line(state.number, &state.hash, event, now);
        state.is_torn = true;
        if let Err(error) = (state.put)(&mut state.file, line.as_bytes()) {
            // Where this fails too, the next line tries it again before it is written.
            let _ = self.cut(state);
            return Err(Error::file("write", &self.path)(error));
        }
        state.is_torn = false;
        state.length += line.len() as u64;
        state.number += 1;
        state.hash = hash;
        Ok(line.len() as u64)
    }

    /// Removes the part of a line that a failed write has left.
    fn cut(&self, state: &mut State) -> Result<()> {
        let length = state.file.metadata().map_err(Error::file("read", &self.path))?.len();
        if length > state.length {
            state.file.set_len(state.length).map_err(Error::file("write", &self.path))?;
        }
        state.is_torn = false;
        Ok(())
    }

    /// Gives the present file the next number, and goes on in a new file.
    fn rotate(&self, state: &mut State) -> Result<()> {
        state.file.sync_data().map_err(Error::file("synchronise", &self.path))?;
        state.file = files::rotate(&self.path)?;
        state.length = 0;
        state.rotate_at = self.largest_file;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
