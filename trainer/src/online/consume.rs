//! The consumption of streams without training, to measure the feed alone.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zillion_device::Files;
use zillion_feature::Statistics;

use super::feed::{Feed, Live};
use super::item::Item;
use super::setup::{FeedSetup, lock_run};
use super::status::FeedStatus;
use crate::error::Result;
use crate::job::Job;

/// Consumes the streams of a job until at least `rows` rows were cut into batches, on the calling
/// thread. Batches are dropped, and versions and checkpoints of the model are not written. The log
/// of decisions is in the folder `run`. Returns the state at the end.
///
/// # Errors
/// Returns an error if a stream or the log of decisions cannot be read or written.
pub fn consume_streams(job: Job, files: Files, run: &Path, rows: u64) -> Result<FeedStatus> {
    let setup = FeedSetup {
        job: Arc::new(job),
        statistics: Statistics::default(),
        files,
        run: run.to_owned(),
        start: None,
        only_replays: false,
    };
    let (stop, forget) = (AtomicBool::new(rows == 0), AtomicU64::new(0));
    let lock = lock_run(run, &setup.files)?;
    let mut feed = Feed::open(setup, &lock)?;
    let mut cut = 0;
    feed.run(&mut Live::new(&stop, &forget), &mut |item| {
        if let Item::Batch(fed) = item {
            cut += fed.batch.rows as u64;
        }
        stop.store(cut >= rows, Ordering::Relaxed);
        true
    })?;
    Ok(feed.status(false, false))
}
