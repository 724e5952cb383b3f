//! `zillion table explain`: shows all that a checkpoint holds about one key, and the effect that
//! the rules of its table will have on it.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use zillion_console::exit::Stop;
use zillion_console::{compute_pool, print_json};
use zillion_embedding::{AdmissionForecast, EvictionForecast, KeyReport, Outlook};
use zillion_feature::FeatureKey;
use zillion_trainer::Checkpoint;

use super::key_names::KeyNames;
use super::named::find_table;
use crate::args::TableExplainArgs;
use crate::text::{self, grouped};

#[derive(Serialize)]
struct Report {
    checkpoint: PathBuf,
    step: u64,
    /// The key as `0x` and 16 hexadecimal digits.
    mixed_key: String,
    /// The id in the data, where it can be recovered from the key.
    id: Option<String>,
    #[serde(flatten)]
    known: KeyReport,
    words: Vec<String>,
}

pub(crate) fn run(args: &TableExplainArgs) -> Result<()> {
    let checkpoint = Checkpoint::find(&args.checkpoint)?;
    let job = checkpoint.job()?;
    let spec = find_table(&job, &args.table)?;
    let mut names = KeyNames::of(&job, &args.table);
    let keys = names.keys(&args.key);
    let Some(&first) = keys.first() else {
        let message = format!("not an id that this table's features can have: --key {}", args.key);
        return Err(Stop::Usage(message).into());
    };
    let workers = compute_pool(args.threads)?;
    let view = checkpoint.table(spec.clone(), &workers)?;
    let known = |key: &&FeatureKey| view.get(**key).is_some() || view.waiting(**key).is_some();
    let key = keys.iter().find(known).copied().unwrap_or(first);
    if !args.data.is_empty() {
        names.look(&job, &args.data, std::iter::once(key), &workers)?;
    }
    let step = checkpoint.manifest.step;
    let outlook = Outlook {
        step,
        is_frozen: job.is_frozen(&spec.name)?,
        shares_limit: job.train.max_table_bytes.is_some(),
    };
    let known = view.explain(&workers, key, outlook);
    let report = Report {
        checkpoint: checkpoint.path().to_owned(),
        step,
        mixed_key: format!("{:#018x}", key.0),
        id: names.name(key),
        words: words(&known, outlook),
        known,
    };
    match args.json {
        true => print_json(&report)?,
        false => show(&report),
    }
    Ok(())
}

/// Describes in sentences the effect that admission, growth and eviction have had on the key and
/// will have.
fn words(known: &KeyReport, outlook: Outlook) -> Vec<String> {
    let mut words = Vec::new();
    words.push(match (known.admission, &known.waiting) {
        (AdmissionForecast::HasRow, _) => "it has a row".to_owned(),
        (AdmissionForecast::NextPush, _) => {
            "it has no row and reads as its initial row; the next push makes its row".to_owned()
        }
        (AdmissionForecast::Filtered { at_least }, _) => format!(
            "it has no row; the table counts keys in a filter, which does not tell them apart by name, and makes \
             their rows at {}",
            occurrences(at_least)
        ),
        (AdmissionForecast::Drawn { p }, _) => {
            format!("it has no row; each occurrence makes it with a chance of {p}")
        }
        (AdmissionForecast::Frozen, waiting) => match waiting {
            Some(_) => "it waits for its row, and the table is frozen: it gets none while that is so".to_owned(),
            None => "the table knows nothing of it and is frozen: it gets no row while that is so".to_owned(),
        },
        (AdmissionForecast::Never, _) => {
            "it is not in the vocabulary of this dense table: it never gets a row, and its gradients are refused"
                .to_owned()
        }
        (AdmissionForecast::Waits { missing, at_least }, Some(waiting)) => format!(
            "it waits for its row, which the table makes at {}: {} so far, the last in step {}, {missing} are missing",
            occurrences(at_least),
            occurrences(waiting.count),
            grouped(waiting.last_step.into())
        ),
        (AdmissionForecast::Waits { at_least, .. }, None) => format!(
            "the table knows nothing of it; it gets its row at {}",
            occurrences(at_least)
        ),
    });
    if let Some(row) = &known.row
        && let Some(at) = row.grows_at
    {
        // A restored row that already has enough pushes grows at its next push.
        words.push(format!(
            "its row is narrow, and what it does not have reads as its initial row: {} more pushes make it full",
            grouped(u64::from(at.saturating_sub(row.count).max(1)))
        ));
    }
    match known.eviction {
        Some(EvictionForecast::Goes { at_step, unseen, or_before }) => {
            let what = if known.row.is_some() { "its row goes" } else { "its count is forgotten" };
            words.push(format!(
                "if it is not seen again, {what} at the end of step {}, {} steps from now (the table lets go \
                 what was unseen for more than {} steps)",
                grouped(at_step),
                grouped(at_step.saturating_sub(outlook.step)),
                grouped(unseen)
            ));
            if or_before {
                words.push("or sooner, where a limit makes room for others".to_owned());
            }
        }
        Some(EvictionForecast::Pinned) => words.push("it is pinned: its row stays".to_owned()),
        Some(EvictionForecast::Frozen) => {
            words.push("the table is frozen (`train.freeze_tables`): it stays while that is so".to_owned());
        }
        Some(EvictionForecast::Crowded { most_in_slot }) => words.push(match most_in_slot {
            Some(most) => format!(
                "its count goes where its slot has {} of them and needs room: those that were not seen for longest go first",
                grouped(most as u64)
            ),
            None => "its count goes where its slot has more of them than its part of `train.max_table_bytes` allows: \
                     those that were not seen for longest go first"
                .to_owned(),
        }),
        Some(EvictionForecast::Ranked { by, below, most_rows }) => {
            let mut said = format!("rows go by `{by}`");
            if let Some(below) = below {
                said += &format!(", those below {below} at their slot's turn");
            }
            if let Some(rows) = most_rows {
                said += &format!(", and the least when the table has {} rows", grouped(rows));
            }
            // A table without `below` and without a limit of its own shares the limit of all
            // tables, because a job without any of the three is not valid.
            if outlook.shares_limit || (most_rows.is_none() && below.is_none()) {
                said += ", and the least when all tables are at their limit";
            }
            words.push(said);
        }
        Some(EvictionForecast::Stays) => {
            words.push(match known.row {
                Some(_) => "the table evicts nothing: it stays".to_owned(),
                None => "its count stays until it has its row".to_owned(),
            });
        }
        None => {}
    }
    words
}

fn occurrences(n: u32) -> String {
    match n {
        1 => "1 occurrence".to_owned(),
        n => format!("{} occurrences", grouped(n.into())),
    }
}

/// Describes the share of the table's rows that rank below a row.
fn above(share: f64) -> String {
    format!("above {:.1} % of the rows", 100.0 * share)
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &Report) {
    let known = &report.known;
    let id = report.id.as_ref().map_or_else(String::new, |id| format!("  {id}"));
    println!("{} (step {}), table {}", report.checkpoint.display(), report.step, known.table);
    println!("key {}{id}, slot {} of 4,096\n", report.mixed_key, grouped(known.slot as u64));
    if let Some(row) = &known.row {
        let line = |what: &str, value: String, rank: String| vec![what.to_owned(), value, rank];
        let age = report.step.saturating_sub(row.last_step.into());
        let mut lines = vec![
            line("pushes", grouped(row.count.into()), above(row.count_above)),
            line(
                "last push",
                format!("step {}, {} ago", grouped(row.last_step.into()), grouped(age)),
                above(row.last_step_above),
            ),
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
        println!("{}", text::table(&lines, 2));
    }
    for sentence in &report.words {
        println!("{sentence}");
    }
}
