//! `zillion table explain`: shows all data of a checkpoint about one key, and how the rules of the
//! table will affect the key.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use zillion_console::print_result;
use zillion_embedding::{AdmissionForecast, EvictionForecast, KeyReport, Outlook};
use zillion_rows::TableClock;

use super::source::OpenTable;
use crate::args::TableExplainArgs;
use crate::ids::hex;
use crate::text::{self, grouped};

#[derive(Serialize)]
struct Report {
    checkpoint: PathBuf,
    step: u64,
    /// The key as `0x` and 16 hexadecimal digits.
    mixed_key: String,
    /// The id in the data; absent if it cannot be computed from the key.
    id: Option<String>,
    #[serde(skip)]
    clock: TableClock,
    /// The event time of the training in seconds since its first step; absent if the tables go by
    /// steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    event_seconds: Option<u32>,
    #[serde(flatten)]
    known: KeyReport,
    words: Vec<String>,
}

pub(crate) fn run(args: &TableExplainArgs) -> Result<()> {
    let mut table = OpenTable::open(&args.source)?;
    let key = table.find_key(&args.key)?;
    if !args.data.is_empty() {
        let keys = std::iter::once(key);
        table.names.find_texts(&table.job, &args.data, keys, &table.workers)?;
    }
    let step = table.checkpoint.manifest.step;
    let outlook = Outlook {
        step,
        is_frozen: table.job.is_frozen(&args.source.table)?,
        shares_limit: table.job.train.max_table_bytes.is_some(),
        event_seconds: table.event_seconds,
    };
    let known = table.view.explain(&table.workers, key, outlook);
    let report = Report {
        checkpoint: table.checkpoint.path().to_owned(),
        step,
        mixed_key: hex(key),
        id: table.names.name(key),
        words: describe(&known, outlook),
        clock: table.clock,
        event_seconds: outlook.event_seconds,
        known,
    };
    print_result(args.source.json, &report, show)
}

/// Describes in sentences how admission, growth and eviction have affected the key and will affect
/// it.
fn describe(known: &KeyReport, outlook: Outlook) -> Vec<String> {
    let mut words = Vec::new();
    words.push(match (known.admission, &known.waiting) {
        (AdmissionForecast::HasRow, _) => "it has a row".to_owned(),
        (AdmissionForecast::NextPush, _) => {
            "it has no row and reads as its initial row; the next push creates its row".to_owned()
        }
        (AdmissionForecast::Filtered { at_least }, _) => format!(
            "it has no row; the table counts occurrences in a Bloom filter, which stores no keys, and creates a \
             row at {}",
            format_occurrences(at_least)
        ),
        (AdmissionForecast::Drawn { p }, _) => {
            format!("it has no row; each occurrence creates the row with a probability of {p}")
        }
        (AdmissionForecast::Frozen, waiting) => match waiting {
            Some(_) => "it waits for its row, and it gets no row while the table is frozen".to_owned(),
            None => "the table has no count of it, and it gets no row while the table is frozen".to_owned(),
        },
        (AdmissionForecast::Never, _) => {
            "it is not in the vocabulary of this dense table: it never gets a row, and its gradients are refused"
                .to_owned()
        }
        (AdmissionForecast::Waits { missing, at_least }, Some(waiting)) => format!(
            "it waits for its row, which the table creates at {}: {} so far, the last in {} {}, {missing} are \
             missing",
            format_occurrences(at_least),
            format_occurrences(waiting.count),
            if outlook.event_seconds.is_some() { "second" } else { "step" },
            grouped(waiting.last_step.into())
        ),
        (AdmissionForecast::Waits { at_least, .. }, None) => format!(
            "the table has no count of it; it gets its row at {}",
            format_occurrences(at_least)
        ),
    });
    if let Some(row) = &known.row
        && let Some(at) = row.grows_at
    {
        // A restored row that already has enough pushes grows at its next push.
        words.push(format!(
            "its row is narrow, and the missing weights read as those of its initial row; {} more pushes make it full",
            grouped(u64::from(at.saturating_sub(row.count).max(1)))
        ));
    }
    describe_eviction(known, outlook, &mut words);
    words
}

fn format_occurrences(n: u32) -> String {
    match n {
        1 => "1 occurrence".to_owned(),
        n => format!("{} occurrences", grouped(n.into())),
    }
}

/// Describes the share of the table's rows with a smaller value than this row.
fn above(share: f64) -> String {
    format!("above {:.1} % of the rows", 100.0 * share)
}

/// Describes in sentences how eviction will affect the key.
fn describe_eviction(known: &KeyReport, outlook: Outlook, words: &mut Vec<String>) {
    match known.eviction {
        Some(EvictionForecast::Goes { at_step, unseen, or_before }) => {
            let what =
                if known.row.is_some() { "its row is evicted" } else { "its count is removed" };
            words.push(format!(
                "if it is not seen again, {what} at the end of step {}, {} steps from now (the table evicts what \
                 was unseen for more than {} steps)",
                grouped(at_step),
                grouped(at_step.saturating_sub(outlook.step)),
                grouped(unseen)
            ));
            if or_before {
                words.push("a table at its limit may evict it earlier".to_owned());
            }
        }
        Some(EvictionForecast::Expires { in_seconds, unseen_seconds, or_before }) => {
            words.push(describe_expiry(known.row.is_some(), in_seconds, unseen_seconds));
            if or_before {
                words.push("a table at its limit may evict it earlier".to_owned());
            }
        }
        Some(EvictionForecast::Pinned) => words.push("it is pinned: its row stays".to_owned()),
        Some(EvictionForecast::Frozen) => {
            words.push("it stays while the table is frozen (`train.freeze_tables`)".to_owned());
        }
        Some(EvictionForecast::Crowded { most_in_slot }) => words.push(match most_in_slot {
            Some(most) => format!(
                "its slot removes counts when it has {} of them and needs room; the longest unseen are removed first",
                grouped(most as u64)
            ),
            None => "its slot removes counts when it has more of them than its share of `train.max_table_bytes` \
                     allows; the longest unseen are removed first"
                .to_owned(),
        }),
        Some(EvictionForecast::Ranked { by, below, most_rows }) => {
            let mut rule = format!("rows are evicted by `{by}`");
            if let Some(below) = below {
                rule += &format!(": those below {below} at the turn of their slot");
            }
            if let Some(rows) = most_rows {
                rule += &format!(", and the lowest when the table has {} rows", grouped(rows));
            }
            // A table without `below` and without a limit of its own shares the limit of all
            // tables, because a job without any of the three is not valid.
            if outlook.shares_limit || (most_rows.is_none() && below.is_none()) {
                rule += ", and the lowest when all tables are at their limit";
            }
            words.push(rule);
        }
        Some(EvictionForecast::Stays) => {
            words.push(match known.row {
                Some(_) => "the table evicts nothing: it stays".to_owned(),
                None => "its count stays until it gets its row".to_owned(),
            });
        }
        None => {}
    }
}

/// Describes when a key is evicted from a table that goes by event time.
fn describe_expiry(has_row: bool, in_seconds: Option<u64>, unseen_seconds: u64) -> String {
    let what = if has_row { "its row is evicted" } else { "its count is removed" };
    let when = in_seconds.map_or_else(String::new, |seconds| {
        format!(", {} seconds of event time from now at the earliest", grouped(seconds))
    });
    format!(
        "if it is not seen again, {what}{when} (the table evicts what was unseen for more than {} \
         seconds of event time, and up to an eighth of that later)",
        grouped(unseen_seconds)
    )
}

/// Describes the time of the last push, and its age.
fn format_age(report: &Report, last: u32) -> String {
    let ago = |now: u64| grouped(now.saturating_sub(last.into()));
    let last = grouped(last.into());
    match (report.clock, report.event_seconds) {
        (TableClock::Steps, _) => format!("step {last}, {} ago", ago(report.step)),
        (TableClock::EventTime, Some(now)) => {
            format!("second {last} of event time, {} ago", ago(now.into()))
        }
        (TableClock::EventTime, None) => format!("second {last} of event time"),
    }
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &Report) {
    let known = &report.known;
    let id = report.id.as_ref().map_or_else(String::new, |id| format!("  {id}"));
    println!("{} (step {}), table {}", report.checkpoint.display(), report.step, known.table);
    println!("key {}{id}, slot {} of 4,096\n", report.mixed_key, grouped(known.slot as u64));
    if let Some(row) = &known.row {
        let line = |what: &str, value: String, rank: String| vec![what.to_owned(), value, rank];
        let mut lines = vec![
            line("pushes", grouped(row.count.into()), above(row.count_above)),
            line("last push", format_age(report, row.last_step), above(row.last_step_above)),
            line("changed in", format!("epoch {}", row.dirty_epoch), String::new()),
            line("norm", format!("{:.4}", row.norm), above(row.norm_above)),
        ];
        for segment in &row.segments {
            lines.push(line(
                &format!("  {} ({})", segment.name, segment.dim),
                format!("{:.4}", segment.norm),
                above(segment.norm_above),
            ));
        }
        println!("{}", text::table(&[], lines, 2));
    }
    for sentence in &report.words {
        println!("{sentence}");
    }
}
