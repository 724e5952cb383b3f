//! Tests of the log of requests as a whole: the bounds, a disk that fails, and the end.

mod rows;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use prometheus::Registry;
use zillion_device::Failpoints;
use zillion_device::durable::{Action, Op};
use zillion_feature::{RawColumn, RawValues, Schema, Statistics};

use super::*;
use crate::metrics::{FileEvent, Metrics, RowOutcome};

const PATIENCE: Duration = Duration::from_secs(30);

fn schema(text: &str) -> Schema {
    Schema::from_job(&text.parse::<toml::Table>().unwrap().into()).unwrap()
}

fn encoder() -> Encoder {
    let schema = schema(
        "[features.item]\nkind = 'id'\n[labels.click]\n\
         [columns]\nevent_time = 'time'\nevent_time_unit = 'ms'",
    );
    Encoder::new(&schema, &Statistics::default(), &[]).unwrap()
}

/// A log in a folder, with the series that it counts in.
struct Place {
    folder: tempfile::TempDir,
    metrics: LogMetrics,
    log: Arc<RequestLog>,
    encoder: Encoder,
}

impl Place {
    fn new(settings: &RequestLogSettings, files: &Files) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            RequestLogSettings { folder: Some(folder.path().join("log")), ..settings.clone() };
        let metrics = Metrics::new(&Registry::new()).unwrap().request_log;
        let models = ["m".to_owned()];
        let log = RequestLog::start(&settings, "server", &models, files, &metrics);
        Self { folder, metrics, log: log.unwrap().unwrap(), encoder: encoder() }
    }

    /// Serves the items as one request with an id, and hands its lines over.
    fn serve(&self, id: Option<&str>, items: Vec<i64>) -> Option<(HeaderName, HeaderValue)> {
        let (model, rows) = ("m".into(), items.len());
        let column = RawColumn { values: RawValues::Ints(items), lengths: None, is_shared: false };
        let columns = RawColumns::from([("item".into(), column)]);
        let scores = Scores {
            model: &model,
            version: VersionId(7),
            encoder: &self.encoder,
            rows,
            columns: &columns,
            id,
            outputs: &[],
            logits: &[],
        };
        let sampling = self.log.begin("m", &HeaderMap::new())?;
        sampling.sample(&scores)?.hand_over()
    }

    fn requests(&self, outcome: Logged) -> u64 {
        self.metrics.requests("m", outcome)
    }

    fn rows(&self, outcome: RowOutcome) -> u64 {
        self.metrics.rows("m", outcome)
    }

    /// Returns the lines of the complete files in their order, and the bytes of all files.
    fn lines(&self) -> (Vec<serde_json::Value>, u64) {
        let folder = self.folder.path().join("log/m/server");
        // Before the first file, there may be no folder.
        let entries = fs::read_dir(&folder).into_iter().flatten();
        let mut bytes = 0;
        let mut names: Vec<String> = Vec::new();
        for entry in entries {
            let entry = entry.unwrap();
            // A file may have been renamed since.
            bytes += entry.metadata().map_or(0, |metadata| metadata.len());
            names.push(entry.file_name().into_string().unwrap());
        }
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        let text: String =
            names.iter().map(|name| fs::read_to_string(folder.join(name)).unwrap()).collect();
        (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), bytes)
    }
}

/// Waits until `is_reached` holds.
fn wait_until(what: &str, is_reached: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_reached() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A disk that refuses or delays operations while its switch is on.
#[derive(Debug)]
struct Disk {
    is_bad: AtomicBool,
    /// The error of an operation on a bad disk. Without one, the operation waits for a good disk.
    error: Option<io::ErrorKind>,
}

impl Failpoints for Disk {
    fn before(&self, _: Op, _: &Path) -> Action {
        while self.is_bad.load(Ordering::Relaxed) {
            match self.error {
                Some(error) => return Action::Fail(error.into()),
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
        Action::Proceed
    }
}

fn disk(error: Option<io::ErrorKind>) -> (Arc<Disk>, Files) {
    let disk = Arc::new(Disk { is_bad: AtomicBool::new(false), error });
    (disk.clone(), Files::with_failpoints(disk).scratch())
}

#[test]
fn the_end_completes_the_open_file() {
    let place = Place::new(&RequestLogSettings::default(), &Files::new().scratch());
    let (name, id) = place.serve(Some("r1"), vec![3, 4]).unwrap();
    assert_eq!((name.as_str(), id.to_str().unwrap()), ("x-request-id", "r1"));
    let made = place.serve(None, vec![5]).unwrap().1;
    assert!(place.log.end());
    let (lines, _) = place.lines();
    let texts: Vec<&str> = lines.iter().map(|line| line["request"].as_str().unwrap()).collect();
    assert_eq!(texts, ["r1", "r1", made.to_str().unwrap()]);
    let now = since_1970().as_millis() as u64;
    for (line, (row, item)) in lines.iter().zip([(0, 3), (1, 4), (0, 5)]) {
        assert_eq!((line["served_row"].as_u64(), line["item"].as_i64()), (Some(row), Some(item)));
        assert_eq!(
            (line["served_model"].as_str(), line["served_version"].as_u64()),
            (Some("m"), Some(7))
        );
        let time = line["time"].as_u64().unwrap();
        assert!((now - 60_000..=now).contains(&time), "{time}");
    }
    // Requests after the end are answered, counted and not logged.
    assert_eq!(place.serve(Some("r2"), vec![6]), None);
    assert_eq!((place.requests(Logged::Queued), place.requests(Logged::Ended)), (2, 1));
    assert_eq!((place.rows(RowOutcome::Written), place.log.waiting_bytes()), (3, 0));
    assert!(place.log.end(), "an end that was reached stays");
}

#[test]
fn files_are_completed_after_their_time() {
    let settings = RequestLogSettings { close_ms: Some(10), ..RequestLogSettings::default() };
    let place = Place::new(&settings, &Files::new().scratch());
    place.serve(Some("a"), vec![1]);
    wait_until("the file is completed", || place.lines().0.len() == 1);
    place.serve(Some("b"), vec![2]);
    wait_until("the next file is completed", || place.lines().0.len() == 2);
    assert_eq!(place.metrics.files("m", FileEvent::Completed), 2);
}

#[test]
fn a_slow_disk_delays_no_request_and_fills_a_bounded_queue() {
    let (disk, files) = disk(None);
    disk.is_bad.store(true, Ordering::Relaxed);
    let settings = RequestLogSettings { queue_bytes: Some(64 << 10), ..Default::default() };
    let place = Place::new(&settings, &files);
    // The disk hangs until all requests were answered: one that waited would wait for ever.
    for item in 0..2000 {
        place.serve(None, vec![item]);
    }
    let (queued, full) = (place.requests(Logged::Queued), place.requests(Logged::QueueFull));
    assert!(queued > 100 && full > 100 && queued + full == 2000, "{queued} {full}");
    assert!(place.log.waiting_bytes() <= 64 << 10);
    disk.is_bad.store(false, Ordering::Relaxed);
    assert!(place.log.end());
    assert_eq!((place.lines().0.len() as u64, place.rows(RowOutcome::Written)), (queued, queued));
    assert_eq!(place.log.waiting_bytes(), 0);
}

#[test]
fn a_disk_that_refuses_is_tried_again() {
    for error in [io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem] {
        let (disk, files) = disk(Some(error));
        disk.is_bad.store(true, Ordering::Relaxed);
        let place = Place::new(&RequestLogSettings::default(), &files);
        for item in 0..10 {
            assert!(place.serve(None, vec![item, item]).is_some());
        }
        wait_until("the rows are given up", || place.rows(RowOutcome::Failed) == 20);
        disk.is_bad.store(false, Ordering::Relaxed);
        let mut sent = 0;
        wait_until("the disk is tried again", || {
            place.serve(Some("good"), vec![1]);
            place.rows(RowOutcome::Written) > 0
        });
        // The disk goes bad in the middle of a file, and its write leaves a part of a line.
        disk.is_bad.store(true, Ordering::Relaxed);
        let failed = place.rows(RowOutcome::Failed);
        place.serve(Some("torn"), vec![1]);
        wait_until("the row is given up", || place.rows(RowOutcome::Failed) > failed);
        disk.is_bad.store(false, Ordering::Relaxed);
        wait_until("the disk is tried once more", || {
            let written = place.rows(RowOutcome::Written);
            place.serve(Some("good"), vec![1]);
            place.rows(RowOutcome::Written) > written
        });
        assert!(place.log.end());
        let (lines, _) = place.lines();
        sent += lines.iter().filter(|line| line["request"] == "good").count();
        assert_eq!((lines.len(), lines.len() as u64), (sent, place.rows(RowOutcome::Written)));
    }
}

#[test]
fn the_disk_holds_the_newest_rows_within_the_bound() {
    let bound = 1 << 20;
    let settings = RequestLogSettings {
        max_disk_bytes: Some(bound),
        close_ms: Some(10),
        ..Default::default()
    };
    let place = Place::new(&settings, &Files::new().scratch());
    let mut item = 0;
    while place.metrics.files("m", FileEvent::Removed) < 8 {
        if place.serve(None, (item..item + 500).collect()).is_some() {
            item += 500;
        }
        assert!(place.metrics.disk_bytes() <= bound, "the bound holds all the time");
    }
    assert!(place.log.end());
    let (lines, bytes) = place.lines();
    assert!(bytes <= bound && bytes > bound / 4, "{bytes}");
    assert_eq!(bytes, place.metrics.disk_bytes());
    let items: Vec<i64> = lines.iter().map(|line| line["item"].as_i64().unwrap()).collect();
    let wanted: Vec<i64> = (item - items.len() as i64..item).collect();
    assert_eq!(items, wanted);
    assert_eq!(place.rows(RowOutcome::Written), item as u64);
}

#[test]
fn a_request_that_is_too_large_is_left_out_as_a_whole() {
    let settings = RequestLogSettings { queue_bytes: Some(64 << 10), ..Default::default() };
    let place = Place::new(&settings, &Files::new().scratch());
    assert_eq!(place.serve(None, (0..5000).collect()), None);
    assert!(place.serve(Some("small"), vec![1]).is_some());
    assert!(place.log.end());
    assert_eq!((place.requests(Logged::TooLong), place.lines().0.len()), (1, 1));
}

#[test]
fn a_sample_has_whole_requests_and_grows_with_its_share() {
    let make = |share| RequestLogSettings { share: Some(share), ..Default::default() };
    let [small, large] = [0.1, 0.5].map(|share| Place::new(&make(share), &Files::new().scratch()));
    let mut counts = [0, 0];
    for number in 0..2000 {
        let id = format!("r{number}");
        let sampled = [&small, &large].map(|place| place.serve(Some(&id), vec![1, 2]).is_some());
        assert!(!sampled[0] || sampled[1], "{id}");
        assert_eq!(sampled[0], small.serve(Some(&id), vec![3]).is_some(), "an id decides");
        counts.iter_mut().zip(sampled).for_each(|(count, is)| *count += u32::from(is));
    }
    assert!((130..270).contains(&counts[0]) && (900..1100).contains(&counts[1]), "{counts:?}");
    let made = (0..2000).filter(|_| large.serve(None, vec![1]).is_some()).count();
    assert!((850..1150).contains(&made), "{made}");
    assert!(small.log.end() && large.log.end());
    let (lines, _) = large.lines();
    let pairs = lines.iter().filter(|line| line["served_row"] == 1).count();
    assert_eq!((pairs, lines.len()), (counts[1] as usize, 2 * counts[1] as usize + made));
}

#[test]
fn nothing_is_sampled_of_a_model_with_a_share_of_0() {
    let settings: RequestLogSettings = toml::from_str("[models.m]\nshare = 0").unwrap();
    let place = Place::new(&settings, &Files::new().scratch());
    assert_eq!(place.serve(Some("r"), vec![1]), None);
    assert!(place.log.end());
    let all = [Logged::Queued, Logged::Unfit].map(|outcome| place.requests(outcome));
    assert_eq!(all, [0, 0]);
}
