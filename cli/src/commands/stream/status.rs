//! `zillion stream status`: the place of a run in its streams.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Serialize;
use zillion_console::{print_json, print_line};
use zillion_stream::DecisionLog;
use zillion_trainer::{
    HISTORY_FILE, NeededMessages, PAUSED, STATUS_FILE, StreamStatus, list_needed,
};

use super::find_streams;
use crate::args::StreamRunArgs;
use crate::text::{bytes, grouped, table};

/// The age in seconds from which a run is called slow to write its status.
const OLD_SECONDS: f64 = 10.0;

/// The status in the form for scripts.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    status: &'a StreamStatus,
    /// The messages that a rewind to the oldest kept checkpoint needs.
    needed: &'a [NeededMessages],
}

pub(super) fn run(args: &StreamRunArgs) -> Result<()> {
    let folder = find_streams(&args.run)?;
    let path = folder.join(STATUS_FILE);
    let text = std::fs::read(&path).with_context(|| {
        format!("cannot read `{}`; start the run, which writes its status there", path.display())
    })?;
    let status: StreamStatus = serde_json::from_slice(&text)
        .with_context(|| format!("`{}` is not the status of a run", path.display()))?;
    let needed = list_needed(&args.run)?;
    if args.json {
        return print_json(&Shown { status: &status, needed: &needed });
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64;
    let seconds = |ms: i64| (now - ms) as f64 / 1000.0;
    let age = seconds(status.at_ms as i64);
    // A run holds the lock of its log. The system releases it when the run ends in whatever way.
    let log = folder.join("log");
    let is_running = log.is_dir() && DecisionLog::is_in_use(&log)?;
    let mut state = match (is_running, status.feed.is_paused, status.feed.is_replaying) {
        (false, ..) => "not running".to_owned(),
        (_, true, _) => "paused".to_owned(),
        (_, _, true) => "repeating its log".to_owned(),
        _ => "running".to_owned(),
    };
    if !is_running && folder.join(PAUSED).exists() {
        state += ", and paused at its next start";
    }
    if !is_running || age > OLD_SECONDS {
        state += &format!(" (last status {age:.0} s ago)");
    }
    print_line(&format!("state      {state}"));
    let feed = &status.feed;
    let watermark = feed.watermark_ms.map(|ms| format!("{:.1} s behind now", seconds(ms)));
    print_line(&format!("watermark  {}", watermark.as_deref().unwrap_or("none yet")));
    print_line(&format!(
        "batches    {} ({} full, {} by linger), {} rows of {} messages",
        grouped(feed.batches),
        grouped(feed.full),
        grouped(feed.lingered),
        grouped(feed.rows),
        grouped(feed.messages)
    ));
    print_line(&format!(
        "rejected   {} messages, of these {} by their time",
        grouped(feed.rejected),
        grouped(feed.refused_times)
    ));
    if let Some(join) = &feed.join {
        print_line(&format!(
            "join       {} rows pending ({} on disk, {} of memory), {} early feedback",
            grouped(join.pending_rows),
            bytes(join.disk_bytes),
            bytes(join.memory_bytes),
            grouped(join.early_feedback)
        ));
        print_line(&format!(
            "feedback   {} joined, {} without an impression, {} late",
            grouped(join.counters.joined_feedback),
            grouped(join.counters.unmatched_feedback),
            grouped(join.counters.late_feedback)
        ));
    }
    if let Some(version) = status.version {
        print_line(&format!("version    {version}"));
    }
    if let Some(seconds) = status.held_seconds {
        print_line(&format!(
            "gate       holds versions for {seconds:.0} s of event time; the last verdict in `{}` has \
             the reason",
            folder.join(HISTORY_FILE).display()
        ));
    }
    let rows = feed.partitions.iter().map(|partition| {
        vec![
            partition.stream.clone(),
            partition.partition.clone(),
            partition.next.to_string(),
            partition.lag.to_string(),
            partition.newest_ms.map_or("-".to_owned(), |ms| format!("{:.1} s", seconds(ms))),
            if partition.is_idle { "idle" } else { "" }.to_owned(),
        ]
    });
    let heads = ["stream", "partition", "next", "lag", "newest event", ""];
    print_line(&table(&heads, rows, 2));
    for messages in &needed {
        print_line(&describe_needed(messages));
    }
    Ok(())
}

/// Returns a line that says which messages of a partition may be removed.
fn describe_needed(messages: &NeededMessages) -> String {
    let NeededMessages { stream, partition, offset, file } = messages;
    let place = match file {
        Some(file) => format!("file `{file}`"),
        None => format!("offset {offset}"),
    };
    format!(
        "needed     {stream}, partition {partition}: from {place} on; earlier messages may be removed"
    )
}
