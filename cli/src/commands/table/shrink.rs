//! `zillion table shrink`: writes a copy of a checkpoint without the rarely used rows of one table.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use serde::Serialize;
use zillion_console::exit::{refuse, usage_error};
use zillion_console::{compute_pool, data_settings, durable_files, print_result};
use zillion_device::Workers;
use zillion_embedding::{Keep, Order, TableSize};
use zillion_reader::Dataset;
use zillion_trainer::{Checkpoint, EvalReport, Loaded};

use super::source::find_table;
use crate::args::{ShrinkBy, TableShrinkArgs};
use crate::report;
use crate::text::{self, bytes, figure, grouped};

#[derive(Serialize)]
struct Report {
    checkpoint: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    out: Option<PathBuf>,
    table: String,
    before: TableSize,
    after: TableSize,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluated: Option<Evaluated>,
}

/// The metrics of the same rows with both checkpoints.
#[derive(Serialize)]
struct Evaluated {
    before: EvalReport,
    after: EvalReport,
}

pub(crate) fn run(args: &TableShrinkArgs) -> Result<()> {
    let checkpoint = Checkpoint::find(&args.source.checkpoint)?;
    let job = checkpoint.job()?;
    let spec = find_table(&job, &args.source.table)?;
    let keep = choose_rule(args)?;
    let out = args.out.as_deref().filter(|_| !args.dry_run);
    if let Some(out) = out {
        let is_taken = std::fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some());
        if is_taken || out.is_file() {
            return refuse(format!(
                "the folder {} exists and is not empty; choose another one with --out",
                out.display()
            ));
        }
    }
    let workers = compute_pool(args.source.threads)?;
    let durable = durable_files()?;
    let shrunk = checkpoint.shrink(spec, keep, out.map(|out| (out, &durable)), &workers)?;
    let evaluated = match (out, args.eval.is_empty()) {
        (Some(out), false) => Some(Evaluated {
            before: evaluate(checkpoint.path().to_owned(), &args.eval, &workers)?,
            after: evaluate(out.to_owned(), &args.eval, &workers)?,
        }),
        _ => None,
    };
    let report = Report {
        checkpoint: checkpoint.path().to_owned(),
        out: out.map(ToOwned::to_owned),
        table: args.source.table.clone(),
        before: shrunk.before,
        after: shrunk.after,
        evaluated,
    };
    print_result(args.source.json, &report, show)
}

/// Returns the rule that the command line gives. The parser ensures that there is exactly one rule.
fn choose_rule(args: &TableShrinkArgs) -> Result<Keep> {
    let by = match args.by {
        ShrinkBy::Count => Order::Count,
        ShrinkBy::LastStep => Order::Recent,
        ShrinkBy::Norm => Order::Norm,
    };
    if let Some(rows) = args.keep_rows {
        return Ok(Keep::First { rows, by });
    }
    if let Some(count) = args.min_count {
        return Ok(Keep::Count(count));
    }
    if let Some(steps) = args.unseen_steps {
        return Ok(Keep::Seen(steps));
    }
    match args.min_norm {
        Some(norm) if norm.is_finite() && norm >= 0.0 => Ok(Keep::Norm(norm)),
        Some(norm) => usage_error(format!(
            "--min-norm {norm} is not a norm; give a finite number of at least 0"
        )),
        None => usage_error("no rule for the rows to keep is given; set one, such as --keep-rows"),
    }
}

fn evaluate(path: PathBuf, data: &[PathBuf], workers: &Arc<Workers>) -> Result<EvalReport> {
    let mut loaded = Loaded::open(&path, workers.clone())?;
    let config = data_settings::of_checkpoint(&loaded.job, &[])?;
    let dataset = Dataset::open(&config, data, &loaded.job.schema)?
        .with_statistics(loaded.statistics().clone());
    Ok(loaded.evaluate(&dataset)?)
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &Report) {
    let Report { before, after, .. } = report;
    let heads = ["", "rows", "waiting", "in memory", "on disk"];
    let lines = [("before", before), ("after", after)].map(|(what, size)| {
        vec![
            what.to_owned(),
            grouped(size.rows),
            grouped(size.candidates),
            bytes(size.memory_bytes),
            bytes(size.file_bytes),
        ]
    });
    println!("table {} of {}", report.table, report.checkpoint.display());
    print!("{}", text::table(&heads, lines, 1));
    let gone = before.rows - after.rows;
    let share = 100.0 * gone as f64 / before.rows.max(1) as f64;
    let Some(out) = &report.out else {
        println!("{} rows would be removed ({share:.1} %); nothing was written", grouped(gone));
        return;
    };
    println!("{} rows are removed ({share:.1} %): {}", grouped(gone), out.display());
    let Some(Evaluated { before, after }) = &report.evaluated else {
        println!(
            "compare with: zillion eval {} --data FILE; zillion eval {} --data FILE",
            report.checkpoint.display(),
            out.display()
        );
        return;
    };
    for (what, eval) in [("before", before), ("after", after)] {
        println!(
            "{what:6}  auc {}  logloss {}  rows {}  missing keys {}",
            figure(eval.auc, 6),
            figure(eval.logloss, 6),
            eval.rows,
            eval.missing_keys
        );
        report::print_ranking(eval);
    }
    if let (Some(before), Some(after)) = (before.auc, after.auc) {
        println!("auc    {:+.6}", after - before);
    }
}
