//! The log of requests: what was served, in the columns of the stream that training reads.
//!
//! A sampled request becomes one JSON line for each row: the raw values under the names of the
//! stream's columns, the event time, the id of the request, the version that answered, and its
//! scores. The lines are files of a followed folder: `<folder>/<model>/<server>` is a partition.
//!
//! # Concurrency
//! The thread that scores writes the lines, because the values are borrowed from the body. A
//! bounded queue takes the lines when the answer is ready, or refuses them, so that neither the
//! disk nor a full queue delays an answer. One thread writes the files ([`writer`]).

mod bounded;
mod inputs;
mod lines;
mod partition;
mod queue;
mod settings;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use zillion_device::Files;
use zillion_feature::random::{combine, mix64};
use zillion_feature::{Encoder, FeatureKey, RawColumns};
use zillion_registry::VersionId;

use self::lines::{Served, Unlogged};
use self::queue::{Lines, Queue, Refused};
use self::writer::Writer;
use crate::audit::since_1970;
use crate::error::{Result, ServeError};
use crate::metrics::{LogMetrics, Logged};
use crate::score::Output;

pub use self::settings::{ModelLogSettings, RequestLogSettings};

/// The longest time that the end of a server waits for the disk.
const LONGEST_END: Duration = Duration::from_secs(5);

/// The pause between two attempts to tell the thread that the log ends.
const END_PAUSE: Duration = Duration::from_millis(2);

/// The longest id of a request in bytes, as in the v2 protocol.
const LONGEST_ID: usize = 1024;

/// The most reasons that are logged once.
const MOST_REASONS: usize = 1000;

/// The salt of the sample, so that it is independent of other choices by the same ids.
const SALT: u64 = 0x7265_7175_6573_7473;

/// The log of the requests of a server.
#[derive(Debug)]
pub(crate) struct RequestLog {
    settings: RequestLogSettings,
    id_header: HeaderName,
    queue: Queue,
    metrics: LogMetrics,
    /// The number of this process in the ids that it makes.
    process: u64,
    /// The number of ids that were made.
    made: AtomicU64,
    /// The reasons for which requests were not logged, each reported once.
    reported: Mutex<BTreeSet<String>>,
    ended: Mutex<Receiver<()>>,
}

impl RequestLog {
    /// Starts the log, if the settings name a folder. `server` is the name of the server, and
    /// `models` are the models whose folders are created at once.
    ///
    /// # Errors
    /// Returns an error if the settings cannot be used, or if the thread cannot be started. A
    /// folder that cannot be written is no error: it is reported and tried again.
    pub(crate) fn start(
        settings: &RequestLogSettings,
        server: &str,
        models: &[String],
        files: &Files,
        metrics: &LogMetrics,
    ) -> Result<Option<Arc<Self>>> {
        let internal = |error: String| ServeError::Internal(error);
        settings.check(server).map_err(|e| internal(format!("`serve.request_log`: {e}")))?;
        let (Some(folder), Some(id_header)) = (&settings.folder, settings.parse_id_header()) else {
            return Ok(None);
        };
        let (queue, receiver) = Queue::new(settings.queue_bytes());
        let (end, ended) = mpsc::channel();
        let shared = (metrics.clone(), queue.waiting().clone());
        let writer = Writer::new(settings, folder.clone(), server, files.clone(), shared);
        let models = models.iter().filter(|model| settings.share_of(model) > 0.0);
        let models = models.cloned().collect();
        let write = move || {
            writer.run(models, &receiver);
            // Lines that come now are refused.
            drop(receiver);
            // The server may not wait for the end.
            let _ = end.send(());
        };
        let thread = thread::Builder::new().name("request-log".to_owned()).spawn(write);
        thread.map_err(|e| internal(format!("cannot start the thread of the request log: {e}")))?;
        let moment = since_1970().as_nanos() as u64;
        let process = combine(moment, u64::from(std::process::id()));
        Ok(Some(Arc::new(Self {
            settings: settings.clone(),
            id_header,
            queue,
            metrics: metrics.clone(),
            process: combine(process, FeatureKey::from_text(server).0),
            made: AtomicU64::new(0),
            reported: Mutex::default(),
            ended: Mutex::new(ended),
        })))
    }

    /// Returns the name of the header with the id of a request.
    pub(crate) fn id_header(&self) -> &HeaderName {
        &self.id_header
    }

    /// Returns the bytes of lines that wait to be written.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.queue.waiting().bytes()
    }

    /// Begins the sampling of a request. Returns `None` if no request of the model is logged.
    pub(crate) fn begin(self: &Arc<Self>, model: &str, headers: &HeaderMap) -> Option<Sampling> {
        let share = self.settings.share_of(model);
        if share <= 0.0 {
            return None;
        }
        let id = headers.get(&self.id_header).and_then(|id| id.to_str().ok());
        let header_id = id.filter(|id| is_id(id)).map(str::to_owned);
        Some(Sampling { log: self.clone(), share, header_id })
    }

    /// Ends the log: lines that wait are written, and the open files are completed. Waits for this
    /// for some seconds at most. Returns whether all was written in this time.
    pub(crate) fn end(&self) -> bool {
        let until = Instant::now() + LONGEST_END;
        loop {
            match self.queue.push_end() {
                Ok(()) | Err(Refused::Ended) => break,
                Err(Refused::Full) if Instant::now() >= until => return false,
                Err(Refused::Full) => thread::sleep(END_PAUSE),
            }
        }
        // A thread that hangs in the kernel ends with the process.
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.saturating_duration_since(Instant::now());
        !matches!(ended.recv_timeout(left), Err(mpsc::RecvTimeoutError::Timeout))
    }

    /// Counts a request of the sample that has no lines, and logs a new reason.
    fn refuse(&self, model: &str, outcome: Logged, reason: &str) {
        self.metrics.record_request(model, outcome);
        let text = format!("requests of model `{model}` are not logged: {reason}");
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() < MOST_REASONS && !reported.contains(&text) {
            tracing::warn!("{text}");
            reported.insert(text);
        }
    }
}

/// Returns whether a text of a client can be the id of a request.
fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST_ID
}

/// Returns whether the request with this hash belongs to the sample. A larger share keeps the
/// requests of the smaller one.
fn is_sampled(hash: u64, share: f64) -> bool {
    // The upper 53 bits are exact as a float.
    let part = (mix64(combine(SALT, hash)) >> 11) as f64 / (1u64 << 53) as f64;
    part < share
}

/// A request that is logged if it belongs to the sample.
#[derive(Debug)]
pub(crate) struct Sampling {
    log: Arc<RequestLog>,
    share: f64,
    /// The id in the header of the request.
    header_id: Option<String>,
}

/// A scored request and its version, as the log sees them.
pub(crate) struct Scores<'a> {
    pub(crate) model: &'a Arc<str>,
    pub(crate) version: VersionId,
    pub(crate) encoder: &'a Encoder,
    pub(crate) rows: usize,
    pub(crate) columns: &'a RawColumns<'a>,
    /// The id in the body of the request.
    pub(crate) id: Option<&'a str>,
    pub(crate) outputs: &'a [Output],
    pub(crate) logits: &'a [Vec<f32>],
}

impl Sampling {
    /// Writes the lines of a request that was scored. Returns `None` if it does not belong to the
    /// sample, or cannot be logged, which is counted.
    pub(crate) fn sample(&self, scores: &Scores<'_>) -> Option<Sample> {
        let log = &self.log;
        let usual = ModelLogSettings::default();
        let settings = log.settings.models.get(&**scores.model).unwrap_or(&usual);
        let own = match self.read_own_id(scores, settings) {
            Ok(own) => own,
            Err(reason) => {
                log.refuse(scores.model, Logged::Unfit, &reason);
                return None;
            }
        };
        let sent = own.as_deref().or(scores.id).filter(|id| is_id(id));
        let id = match sent.or(self.header_id.as_deref()) {
            Some(id) if is_sampled(FeatureKey::from_text(id).0, self.share) => id.to_owned(),
            Some(_) => return None,
            None => {
                let number = log.made.fetch_add(1, Ordering::Relaxed);
                if !is_sampled(combine(log.process, number), self.share) {
                    return None;
                }
                format!("{:016x}-{number:x}", log.process)
            }
        };
        let Scores { version, encoder, rows, columns, outputs, logits, .. } = *scores;
        let (model, time) = (&**scores.model, since_1970());
        let served =
            Served { model, version, encoder, rows, columns, outputs, logits, id: &id, time };
        let room = log.queue.room();
        match lines::write(&served, log.settings.id_column(), settings, room) {
            Ok(bytes) => {
                let lines = Lines { model: scores.model.clone(), bytes, rows: rows as u64 };
                Some(Sample { log: log.clone(), lines, id })
            }
            Err(Unlogged::NoRoom) if room < log.settings.queue_bytes() => {
                log.metrics.record_request(model, Logged::QueueFull);
                None
            }
            Err(Unlogged::NoRoom | Unlogged::LongLine) => {
                log.metrics.record_request(model, Logged::TooLong);
                None
            }
            Err(Unlogged::Unfit(reason)) => {
                log.refuse(model, Logged::Unfit, &reason);
                None
            }
        }
    }

    /// Reads the id of a request from the input that the settings name, if they name one.
    fn read_own_id(
        &self,
        scores: &Scores<'_>,
        settings: &ModelLogSettings,
    ) -> std::result::Result<Option<String>, String> {
        let Some(name) = &settings.id_input else { return Ok(None) };
        let encoder = scores.encoder;
        let own = inputs::read_id(encoder, scores.columns, scores.rows, name)?;
        let id_column = self.log.settings.id_column();
        if own.is_none() && inputs::is_id_input(encoder, id_column, settings) {
            return Err(format!(
                "the request has no value of the input `{name}`, which is the id of the request \
                 and the column `{id_column}`; send a value"
            ));
        }
        Ok(own)
    }
}

/// The lines of a request that is answered.
#[derive(Debug)]
pub(crate) struct Sample {
    log: Arc<RequestLog>,
    lines: Lines,
    id: String,
}

impl Sample {
    /// Hands the lines over to be written, without waiting. Returns the id of the request in the
    /// form of its header if they were taken, and if a header can hold the id.
    pub(crate) fn hand_over(self) -> Option<(HeaderName, HeaderValue)> {
        let Self { log, lines, id } = self;
        let model = lines.model.clone();
        let pushed = log.queue.push(lines);
        let outcome = match pushed {
            Ok(()) => Logged::Queued,
            Err(Refused::Full) => Logged::QueueFull,
            Err(Refused::Ended) => Logged::Ended,
        };
        log.metrics.record_request(&model, outcome);
        pushed.ok()?;
        Some((log.id_header().clone(), HeaderValue::from_str(&id).ok()?))
    }
}
