//! The thread that writes the lines of requests to files.
//!
//! # Bounds
//! The files of all models have at most `max_disk_bytes` bytes together. At the bound, the oldest
//! complete file is removed, as a broker of messages does with its oldest segment: the newest rows
//! are worth the most, and a log that stops would need a person before it goes on.
//!
//! # Failures
//! After an operation that the disk refuses, the lines that come within the next second are given
//! up and counted, and then the disk is tried again. The first failure and the recovery are logged.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use zillion_device::{DeviceError, Files};

use super::partition::Partition;
use super::queue::{Lines, Message, Waiting};
use super::settings::RequestLogSettings;
use crate::audit::since_1970;
use crate::metrics::{FileEvent, LogMetrics, RowOutcome};

/// The number of bytes that are collected before they are written, if more lines wait.
const BUFFER_BYTES: usize = 256 << 10;

/// The pause between a failure of the disk and the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The longest wait for a message while no file grows.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The writer of all files of a server.
#[derive(Debug)]
pub(super) struct Writer {
    folder: PathBuf,
    server: String,
    files: Files,
    metrics: LogMetrics,
    waiting: Waiting,
    max_disk_bytes: u64,
    file_bytes: u64,
    close_time: Duration,
    models: BTreeMap<Arc<str>, ModelFiles>,
}

/// The files of a model, and the lines that are about to be written.
#[derive(Debug)]
struct ModelFiles {
    partition: Partition,
    buffer: Vec<u8>,
    rows: u64,
    /// The moment from which on the disk is tried again, after a failure.
    retry_at: Option<Instant>,
}

impl Writer {
    /// Creates a writer of the folder `folder` for a server.
    pub(super) fn new(
        settings: &RequestLogSettings,
        folder: PathBuf,
        server: &str,
        files: Files,
        (metrics, waiting): (LogMetrics, Waiting),
    ) -> Self {
        Self {
            folder,
            server: server.to_owned(),
            files,
            metrics,
            waiting,
            max_disk_bytes: settings.max_disk_bytes(),
            file_bytes: settings.file_bytes(),
            close_time: settings.close_time(),
            models: BTreeMap::new(),
        }
    }

    /// Writes lines until the queue ends. The folders of `models`, and those in which an earlier
    /// process of this server has left files, are prepared first.
    pub(super) fn run(mut self, models: Vec<String>, receiver: &Receiver<Message>) {
        let known = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let known = known.filter(|entry| entry.path().join(&self.server).is_dir());
        let known: Vec<String> =
            known.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        for model in models.into_iter().chain(known) {
            let model: Arc<str> = model.into();
            if let Err(error) = self.files_of(&model).partition.prepare() {
                self.fail(&model, &error);
            }
        }
        self.report_bytes();
        loop {
            match receiver.recv_timeout(self.wait_time()) {
                Ok(Message::Lines(lines)) => {
                    if !self.collect(lines, receiver) {
                        break;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => break,
            }
            self.close_due();
        }
        while let Ok(Message::Lines(lines)) = receiver.try_recv() {
            self.add(lines);
        }
        self.flush();
        for model in self.names() {
            self.close(&model);
        }
        self.report_bytes();
        // A request may have been answered since.
        while let Ok(Message::Lines(lines)) = receiver.try_recv() {
            self.metrics.record_rows(&lines.model, RowOutcome::Failed, lines.rows, 0);
            self.waiting.release(lines.bytes.len());
        }
    }

    /// Writes lines, and those that wait behind them. Returns whether the log goes on.
    fn collect(&mut self, lines: Lines, receiver: &Receiver<Message>) -> bool {
        let mut bytes = lines.bytes.len();
        self.add(lines);
        let mut goes_on = true;
        while bytes < BUFFER_BYTES
            && goes_on
            && let Ok(message) = receiver.try_recv()
        {
            match message {
                Message::Lines(lines) => {
                    bytes += lines.bytes.len();
                    self.add(lines);
                }
                Message::End => goes_on = false,
            }
        }
        self.flush();
        goes_on
    }

    fn add(&mut self, lines: Lines) {
        let files = self.files_of(&lines.model);
        files.rows += lines.rows;
        match files.buffer.is_empty() {
            true => files.buffer = lines.bytes,
            false => files.buffer.extend_from_slice(&lines.bytes),
        }
    }

    /// Writes the collected lines of all models.
    fn flush(&mut self) {
        for model in self.names() {
            let files = self.files_of(&model);
            let lines = std::mem::take(&mut files.buffer);
            let rows = std::mem::take(&mut files.rows);
            if lines.is_empty() {
                continue;
            }
            let outcome = self.write(&model, &lines);
            let bytes = lines.len() as u64;
            self.metrics.record_rows(&model, outcome, rows, bytes);
            self.waiting.release(lines.len());
            if self.files_of(&model).partition.growing_bytes() >= self.file_bytes {
                self.close(&model);
            }
        }
        self.report_bytes();
    }

    fn write(&mut self, model: &Arc<str>, lines: &[u8]) -> RowOutcome {
        if self.is_paused(model) {
            return RowOutcome::Failed;
        }
        // The files of an earlier process count too.
        if let Err(error) = self.files_of(model).partition.prepare() {
            self.fail(model, &error);
            return RowOutcome::Failed;
        }
        if !self.make_room(lines.len() as u64) {
            return RowOutcome::NoRoom;
        }
        let now = u64::try_from(since_1970().as_micros()).unwrap_or(u64::MAX);
        match self.files_of(model).partition.append(lines, now) {
            Ok(()) => {
                self.succeed(model);
                RowOutcome::Written
            }
            Err(error) => {
                self.fail(model, &error);
                RowOutcome::Failed
            }
        }
    }

    /// Removes the oldest files until there is room for more bytes. Returns whether there is.
    fn make_room(&mut self, more: u64) -> bool {
        if self.bytes().saturating_add(more) <= self.max_disk_bytes {
            return true;
        }
        self.models.values_mut().for_each(|files| files.partition.forget_removed());
        while self.bytes().saturating_add(more) > self.max_disk_bytes {
            let oldest = |(model, files): (&Arc<str>, &ModelFiles)| {
                files.partition.oldest().map(|number| (number, model.clone()))
            };
            let Some((_, model)) = self.models.iter().filter_map(oldest).min() else {
                return false;
            };
            if let Err(error) = self.files_of(&model).partition.remove_oldest() {
                self.fail(&model, &error);
                return false;
            }
            self.metrics.record_file(&model, FileEvent::Removed);
        }
        true
    }

    /// Completes the files whose time has passed.
    fn close_due(&mut self) {
        let now = Instant::now();
        for model in self.names() {
            let began = self.files_of(&model).partition.began();
            if began.is_some_and(|began| now.duration_since(began) >= self.close_time)
                && !self.is_paused(&model)
            {
                self.close(&model);
                self.report_bytes();
            }
        }
    }

    /// Completes the file of a model, if one grows.
    fn close(&mut self, model: &Arc<str>) {
        match self.files_of(model).partition.close() {
            Ok(true) => {
                self.succeed(model);
                self.metrics.record_file(model, FileEvent::Completed);
            }
            Ok(false) => {}
            Err(error) => self.fail(model, &error),
        }
    }

    /// Returns the time until the next file is to be completed.
    fn wait_time(&self) -> Duration {
        let due = |files: &ModelFiles| {
            let due = files.partition.began()? + self.close_time;
            Some(files.retry_at.map_or(due, |retry_at| due.max(retry_at)))
        };
        let next = self.models.values().filter_map(due).min();
        next.map_or(LONGEST_WAIT, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Records that the disk takes lines, and logs the end of a failure.
    fn succeed(&mut self, model: &Arc<str>) {
        if self.files_of(model).retry_at.take().is_some() {
            tracing::info!("the request log of model `{model}` is written again");
        }
    }

    /// Records that the disk refuses an operation, and logs the first of several such failures.
    fn fail(&mut self, model: &Arc<str>, error: &DeviceError) {
        let files = self.files_of(model);
        if files.retry_at.is_none() {
            tracing::error!(
                "the request log of model `{model}` loses rows until the disk takes them again: \
                 {error}"
            );
        }
        files.retry_at = Some(Instant::now() + RETRY_AFTER);
        self.metrics.record_failure(model);
    }

    fn is_paused(&mut self, model: &Arc<str>) -> bool {
        let retry_at = self.files_of(model).retry_at;
        retry_at.is_some_and(|retry_at| Instant::now() < retry_at)
    }

    fn names(&self) -> Vec<Arc<str>> {
        self.models.keys().cloned().collect()
    }

    fn files_of(&mut self, model: &Arc<str>) -> &mut ModelFiles {
        self.models.entry(model.clone()).or_insert_with(|| {
            let folder = self.folder.join(&**model).join(&self.server);
            let partition = Partition::new(self.files.clone(), folder);
            ModelFiles { partition, buffer: Vec::new(), rows: 0, retry_at: None }
        })
    }

    fn bytes(&self) -> u64 {
        self.models.values().map(|files| files.partition.bytes()).sum()
    }

    fn report_bytes(&self) {
        self.metrics.set_disk_bytes(self.bytes());
    }
}
