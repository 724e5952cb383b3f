//! The support of the `--profile` flag: the timeline of a run as a Chrome trace, and a summary of
//! it as text.
//!
//! The file has the JSON of the Trace Event Format (complete events, `"ph": "X"`, in microseconds),
//! which Perfetto and chrome://tracing can open. Each event has its own line, so that other tools
//! can search the file too.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use zillion_trainer::profile::{Limits, ProfileOptions, Summary, Timeline};
use zillion_trainer::{StageSeconds, TrainReport};

use crate::exit::usage_error;

/// The arguments of a command that can record a timeline of its run.
#[derive(Debug, clap::Args)]
pub struct ProfileArgs {
    /// Record what every thread does: write a Chrome trace for Perfetto to this file, and print a
    /// summary at the end of the run
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Record the first batch and one in N; N is doubled whenever the file would become too large
    #[arg(long, value_name = "N", default_value = "20", requires = "profile")]
    pub profile_every: NonZeroU64,
}

/// The maximum number of spans in a file. One span takes 130 to 200 bytes.
const MOST_SPANS: usize = 90_000;
/// The maximum number of kinds of kernels in the summary.
const LISTED: usize = 16;

/// Returns the options for recording a run, or `None` if `--profile` is absent. Returns an error if
/// no file can be written to the path, so that the user sees the problem before the run begins.
pub fn options(args: &ProfileArgs) -> Result<Option<ProfileOptions>> {
    let Some(path) = &args.profile else { return Ok(None) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) || path.is_dir() {
        let message = format!(
            "--profile {}: the path is not a file in an existing folder; name such a file",
            path.display()
        );
        return usage_error(message);
    }
    Ok(Some(ProfileOptions { every: args.profile_every, most_spans: MOST_SPANS }))
}

/// Measures the limits of the machine and returns the summary of a recorded run, which compares the
/// run with these limits. If `--profile` names a file, writes the trace to this file and prints the
/// summary on stderr. Returns `None` if the run was not recorded.
pub fn report(args: &ProfileArgs, report: &TrainReport) -> Result<Option<Summary>> {
    let Some(timeline) = &report.profile else { return Ok(None) };
    let limits = Limits::probe(timeline.workers)?;
    let summary = timeline.summary(&limits, &report.seconds);
    let Some(path) = &args.profile else { return Ok(Some(summary)) };
    write(path, timeline, &summary, &report.seconds)
        .with_context(|| format!("cannot write {}", path.display()))?;
    for line in format_summary(&summary) {
        eprintln!("{line}");
    }
    eprintln!("profile {} (open it in https://ui.perfetto.dev)", path.display());
    Ok(Some(summary))
}

#[derive(Serialize)]
struct Event<'a> {
    name: String,
    cat: &'static str,
    ph: &'static str,
    ts: f64,
    dur: f64,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Args::is_empty")]
    args: Args<'a>,
}

#[derive(Serialize)]
struct Args<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lane: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

impl Args<'_> {
    fn is_empty(&self) -> bool {
        self.kind.is_none() && self.lane.is_none() && self.name.is_none()
    }
}

#[derive(Serialize)]
struct Other<'a> {
    batches: u64,
    recorded_one_in: u64,
    recorded_steps: Vec<u64>,
    left_out: u64,
    seconds: &'a StageSeconds,
    summary: &'a Summary,
}

fn write(
    path: &Path,
    timeline: &Timeline,
    summary: &Summary,
    seconds: &StageSeconds,
) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\n\"otherData\":")?;
    let other = Other {
        batches: timeline.batches,
        recorded_one_in: timeline.every,
        recorded_steps: timeline.sampled.iter().map(|sampled| sampled.step).collect(),
        left_out: timeline.left_out,
        seconds,
        summary,
    };
    serde_json::to_writer(&mut out, &other)?;
    out.write_all(b",\n\"traceEvents\":[\n")?;
    let names = (0..).zip(&timeline.threads).map(|(tid, name)| {
        let args = Args { kind: None, lane: None, name: Some(name) };
        let name = "thread_name".to_owned();
        Event { name, cat: "__metadata", ph: "M", ts: 0.0, dur: 0.0, pid: 1, tid, args }
    });
    let spans = timeline.spans().into_iter().map(|span| Event {
        name: timeline.name(span),
        cat: timeline.category(span),
        ph: "X",
        ts: span.begin as f64 / 1e3,
        dur: span.nanos as f64 / 1e3,
        pid: 1,
        tid: span.thread,
        args: Args { kind: timeline.kind(span), lane: span.lane, name: None },
    });
    for (at, event) in names.chain(spans).enumerate() {
        if at > 0 {
            out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut out, &event)?;
    }
    out.write_all(b"\n]}\n")?;
    out.into_inner()?.sync_all()?;
    Ok(())
}

/// Formats the summary as lines of text for the user.
fn format_summary(summary: &Summary) -> Vec<String> {
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let limits = &summary.limits;
    let mut lines = vec![format!(
        "profile of {} batches (one in {}); this machine, {} threads side by side: {:.0} GFLOP/s of products, {:.0} GB/s \
         in cache, {:.0} M random rows/s read, {:.0} M updated",
        summary.counted,
        summary.every,
        limits.threads,
        limits.product_flops / 1e9,
        limits.cached_bytes / 1e9,
        limits.row_reads / 1e6,
        limits.row_updates / 1e6
    )];
    let stages: Vec<String> =
        summary.stages.iter().map(|(name, ms)| format!("{name} {ms:.2}")).collect();
    lines.push(format!("ms a batch: {}", stages.join(", ")));
    let tables = &summary.tables;
    if tables.rows > 0.0 {
        lines.push(format!(
            "{:.0} rows a batch: {:.1} M/s pulled ({} of the limit), {:.1} M/s pushed ({})",
            tables.rows,
            tables.pull_mrows_s,
            percent(tables.pull_of_limit),
            tables.push_mrows_s,
            percent(tables.push_of_limit)
        ));
    }
    let width = summary.kernels.iter().take(LISTED).map(|k| k.kind.len()).max().unwrap_or(0).max(6);
    lines.push(format!(
        "{:width$}  nodes  ms/batch  share  GFLOP/s   GB/s  of limit (per thread)",
        "kernel"
    ));
    for kernel in summary.kernels.iter().take(LISTED) {
        let of_limit = kernel.of_limit.map_or_else(|| "-".to_owned(), percent);
        lines.push(format!(
            "{:width$}  {:5}  {:8.3}  {:>5}  {:7.1}  {:5.1}  {of_limit:>8}",
            kernel.kind,
            kernel.nodes,
            kernel.ms,
            percent(kernel.share),
            kernel.gflops,
            kernel.gbytes
        ));
    }
    let rest = summary.kernels.iter().skip(LISTED);
    let (count, share) = rest.fold((0, 0.0), |(n, share), kernel| (n + 1, share + kernel.share));
    if count > 0 {
        lines.push(format!("{count} more kinds: {}", percent(share)));
    }
    if let Some(bound) = summary.bound_samples_per_second {
        lines.push(format!("products alone, at the best rate: {bound:.0} samples/s"));
    }
    let shares =
        summary.shares.sorted().map(|(b, share)| format!("{} {}", b.name(), percent(share)));
    lines.push(format!("bound by {}: {}", summary.bound.name(), shares.join(", ")));
    lines.extend(summary.advice.iter().map(|line| format!("  {line}")));
    lines
}
