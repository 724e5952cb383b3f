//! `zillion ps explain`: shows all data of a live table about one key.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use zillion_console::print_result;
use zillion_feature::FeatureKey;
use zillion_ps::admin::proto::{ExplainResponse, Row};

use super::access::{Access, find_servers};
use crate::args::{KeyType, PsExplainArgs};
use crate::ids::{IdKind, hex};
use crate::text::{self, grouped};

pub(crate) fn run(args: &PsExplainArgs) -> Result<()> {
    let key = make_key(args)?;
    let access = Access::open(&args.access)?;
    let mut failure = None;
    for server in &find_servers(&args.servers, &args.etcd)? {
        let asked = access
            .connect(server)
            .and_then(|mut client| client.explain(&args.table, key.0).map_err(anyhow::Error::from));
        match asked {
            Ok(found) if found.is_owner => {
                let report = report(args, server, key, &found);
                return print_result(args.json, &report, |report| show(report, &found));
            }
            Ok(_) => {}
            // Another server may own the key.
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    bail!(
        "none of these servers owns the slot {} of the key {}; name all servers of the run with --ps",
        key.slot(),
        hex(key)
    )
}

/// Returns the key of the id.
fn make_key(args: &PsExplainArgs) -> Result<FeatureKey> {
    let text = args.key.as_str();
    let hash = text.strip_prefix("0x").unwrap_or(text);
    let hash = || u64::from_str_radix(hash, 16).ok().map(FeatureKey);
    let (key, form) = match args.key_type {
        Some(KeyType::I64) => (IdKind::Signed.make_key(text), "a whole number"),
        Some(KeyType::U64) => (IdKind::Unsigned.make_key(text), "a whole number from 0 on"),
        Some(KeyType::String) => (IdKind::Text.make_key(text), "a text"),
        Some(KeyType::Hash) => (hash(), "a key in hexadecimal"),
        None if text.starts_with("0x") => (hash(), "a key in hexadecimal"),
        None => {
            let number = IdKind::Signed.make_key(text).or_else(|| IdKind::Unsigned.make_key(text));
            (number, "a whole number")
        }
    };
    key.with_context(|| format!("the key `{text}` is not {form}; give its type with --key-type (i64, u64, string or hash)"))
}

fn report(args: &PsExplainArgs, server: &str, key: FeatureKey, found: &ExplainResponse) -> Value {
    let row = found.row.as_ref().map(|row| {
        let segments = row.segments.iter().map(|segment| {
            json!({ "name": segment.name, "weights": segment.weights, "state": segment.state })
        });
        json!({
            "count": row.count,
            "last_step": row.last_step,
            "dirty_epoch": row.dirty_epoch,
            "is_narrow": row.is_narrow,
            "shows": row.used.map(|used| used.shows),
            "clicks": row.used.map(|used| used.clicks),
            "segments": segments.collect::<Vec<_>>(),
        })
    });
    let waiting = found
        .waiting
        .map(|waiting| json!({ "count": waiting.count, "last_step": waiting.last_step }));
    json!({
        "server": found.server,
        "address": server,
        "run": found.run,
        "generation": found.generation,
        "step": found.step,
        "table": args.table,
        "rows": found.rows,
        "mixed_key": hex(key),
        "slot": key.slot(),
        "row": row,
        "waiting": waiting,
        "admission": { "kind": found.admission, "at_least": found.at_least },
    })
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &Value, found: &ExplainResponse) {
    let text_of = |name: &str| report[name].as_str().unwrap_or_default().to_owned();
    println!(
        "server {} at {}, run {}, generation {}, step {}, table {}",
        found.server,
        text_of("address"),
        found.run,
        found.generation,
        grouped(found.step),
        text_of("table")
    );
    println!("key {}, slot {} of 4,096\n", text_of("mixed_key"), report["slot"]);
    if let Some(row) = &found.row {
        println!("{}", text::table(&[], lines(row, found.step), 2));
    }
    println!("{}", describe(found));
}

/// Returns the lines about a row.
fn lines(row: &Row, step: u64) -> Vec<Vec<String>> {
    let line = |what: &str, value: String| vec![what.to_owned(), value];
    let age = step.saturating_sub(row.last_step.into());
    let last = format!("step {}, {} ago", grouped(row.last_step.into()), grouped(age));
    let mut lines = vec![
        line("pushes", grouped(row.count.into())),
        line("last push", last),
        line("changed in", format!("epoch {}", row.dirty_epoch)),
    ];
    if let Some(used) = row.used {
        lines.push(line("use", format!("{} shows, {} clicks", used.shows, used.clicks)));
    }
    for segment in &row.segments {
        let name = format!("  {} ({})", segment.name, segment.weights.len());
        lines.push(line(&name, format!("{:?}", segment.weights)));
        if !segment.state.is_empty() {
            lines.push(line("    optimizer", format!("{:?}", segment.state)));
        }
    }
    lines
}

/// Describes in a sentence whether the key has a row, and what admission does with it.
fn describe(found: &ExplainResponse) -> String {
    let at_least = found.at_least;
    match (&found.row, found.admission.as_str(), found.waiting) {
        (Some(row), ..) if row.is_narrow => {
            "its row is narrow: the missing weights read as those of its initial row".to_owned()
        }
        (Some(_), ..) => "it has a row".to_owned(),
        (None, "dense", _) => {
            "it is not in the vocabulary of this dense table, and never gets a row".to_owned()
        }
        (None, "count", Some(waiting)) => format!(
            "it waits for its row, which the table creates at {at_least} occurrences: {} so far, \
             the last in step {}",
            waiting.count,
            grouped(waiting.last_step.into())
        ),
        (None, "count", None) => {
            format!("the table has no count of it; it gets its row at {at_least} occurrences")
        }
        (None, "bloom", _) => format!(
            "it has no row; the table counts occurrences in a Bloom filter, which stores no keys, \
             and creates a row at {at_least} occurrences"
        ),
        (None, "probability", _) => {
            "it has no row; each occurrence creates the row with some probability".to_owned()
        }
        (None, ..) => {
            "it has no row and reads as its initial row; the next push creates its row".to_owned()
        }
    }
}
