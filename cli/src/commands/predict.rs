//! `zillion predict`: scores rows with a checkpoint.

mod kept_columns;
mod score_lines;
mod version;

use std::io::{self, BufWriter};
use std::path::Path;

use anyhow::{Context, Result};
use zillion_console::exit::usage_error;
use zillion_console::{compute_pool, data_settings};
use zillion_nn::zoo::Task;
use zillion_reader::{Dataset, Labels};
use zillion_trainer::{Loaded, Predicted};

use crate::args::PredictArgs;
use crate::device::chosen_gpu;
use crate::registry::print_store_retries;
use crate::report;
use crate::watch::{Choice, Lines};
use kept_columns::KeptColumns;
use score_lines::ScoreLines;

pub(crate) fn run(args: &PredictArgs) -> Result<()> {
    match (&args.model, &args.second) {
        (None, Some(input)) => score_by_checkpoint(args, input),
        (Some(model), None) => version::run(args, model, &args.first),
        (None, None) => usage_error(
            "the file of rows is missing; give a checkpoint and a file, or --model and a file \
             (see zillion predict --help)",
        ),
        (Some(_), Some(_)) => usage_error(
            "a checkpoint and --model are both given; remove one of them (see zillion predict \
             --help)",
        ),
    }
}

fn score_by_checkpoint(args: &PredictArgs, input: &Path) -> Result<()> {
    refuse_swapped(&args.first, input)?;
    let mut loaded = Loaded::open(&args.first, compute_pool(args.threads)?)?;
    let mut data = data_settings::of_checkpoint(&loaded.job, &args.set)?;
    let schema = &loaded.job.schema;
    let dataset = if input.as_os_str() == "-" {
        data.format = toml::Value::from(args.format.as_str()).try_into()?;
        Dataset::from_reader(&data, io::stdin(), "stdin", schema, Labels::Optional)?
    } else {
        let files = [input.to_owned()];
        Dataset::open_with(&data, &files, schema, Labels::Optional)?
    };
    let dataset = dataset.with_statistics(loaded.statistics().clone());

    let device = chosen_gpu(&args.device, args.dense.unwrap_or_default())?;
    if !args.fetch.fetch.is_empty() {
        if !args.keep.is_empty() {
            return usage_error("--fetch prints no scores; remove --keep or --fetch");
        }
        if device.is_some() {
            return usage_error("--fetch computes on processors; remove --device or --fetch");
        }
        if args.dense.is_some_and(|dense| !dense.is_exact()) {
            return usage_error("--fetch shows the values in f32; remove --dense or --fetch");
        }
        return inspect_nodes(&mut loaded, &dataset, args);
    }
    loaded.set_dense(args.dense.unwrap_or_default());
    if let Some(device) = device {
        loaded.set_device(device)?;
    }
    let out = BufWriter::new(io::stdout().lock());
    let labels = &loaded.job.schema.labels;
    let kind =
        |task: &Task| labels.get(task.label.of()).map(|label| label.kind).unwrap_or_default();
    let tasks = loaded.job.tasks().into_iter();
    let tasks: Vec<_> = tasks.map(|task| (task.name.clone(), kind(&task))).collect();
    let columns = if args.json { Vec::new() } else { score_lines::header(&tasks) };
    let kept = KeptColumns::open(&data, input, &args.keep, &columns)?;
    let mut scores = ScoreLines::new(out, args.json, tasks, kept)?.only(args.rows);
    let sides: Vec<String> = loaded.job.schema.sides.iter().map(|s| s.name.clone()).collect();
    let mut side_missing = vec![0; sides.len()];
    let mut failed = None;
    let predicted = loaded.predict(&dataset, |prediction| {
        for (sum, count) in side_missing.iter_mut().zip(&prediction.batch.side_missing) {
            *sum += count;
        }
        // A reader that has closed the pipe (`head`) is not an error; the command only stops.
        if let Err(e) = scores.write(prediction.logits, prediction.rejected) {
            failed.get_or_insert(e);
        }
        Ok(failed.is_none() && scores.left() > 0)
    });
    report::write_rejects(&data, &dataset)?;
    print_store_retries(&data.stores.sums());
    let predicted = predicted?;
    if failed.is_none() {
        failed = scores.write(&[], &predicted.rejected_last).err();
    }
    // The counts are those of whole batches, which may have more rows than were wanted.
    if !scores.finish(failed)? || args.rows.is_some() {
        return Ok(());
    }
    let Predicted { missing, unseen, rejected, .. } = predicted;
    if rejected > 0 {
        let first = dataset.first_rejects().join("; ");
        eprintln!("{rejected} rows are bad and have no score; the first: {first}");
    }
    report::print_unseen("scored", &unseen, missing);
    let counts = sides.into_iter().zip(side_missing).filter(|&(_, rows)| rows > 0).collect();
    report::print_missing_side_rows("scored", &counts);
    Ok(())
}

/// Returns an error if the file of rows stands before the folder of the run.
fn refuse_swapped(checkpoint: &Path, input: &Path) -> Result<()> {
    if !checkpoint.is_file() {
        return Ok(());
    }
    let (file, other) = (checkpoint.display(), input.display());
    if input.is_dir() {
        return usage_error(format!(
            "the arguments are swapped: `{file}` is a file and `{other}` a folder; write the \
             folder of the run first: zillion predict {other} {file}"
        ));
    }
    usage_error(format!(
        "`{file}` is a file, but the first argument is the folder of a run or of a checkpoint; \
         write that folder first: zillion predict FOLDER {file}"
    ))
}

/// Prints the values of the requested nodes. The usual scores are the values of the node
/// `probabilities`.
fn inspect_nodes(loaded: &mut Loaded, dataset: &Dataset, args: &PredictArgs) -> Result<()> {
    let choice = Choice::new(&args.fetch.fetch_rows, args.rows, Choice::All);
    let mut failed = None;
    loaded.inspect(dataset, &args.fetch.fetch, |looked| {
        let mut lines = Lines::new(None);
        for fetched in looked.fetched {
            lines.add(fetched, looked.batch, looked.first_row, &choice, looked.first_row == 0);
        }
        failed = lines.print().err();
        let next = looked.first_row + looked.batch.rows as u64;
        Ok(failed.is_none() && choice.goes_on(next))
    })?;
    match failed {
        Some(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(e).context("cannot write the values of nodes")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapped_arguments_are_recognised() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rows.csv");
        std::fs::write(&file, "user\n1\n").expect("a file");
        assert!(refuse_swapped(folder.path(), &file).is_ok());
        let swapped = refuse_swapped(&file, folder.path()).expect_err("swapped").to_string();
        assert!(swapped.contains("the arguments are swapped"), "{swapped}");
        let none = refuse_swapped(&file, &file).expect_err("no run").to_string();
        assert!(none.contains("is the folder of a run"), "{none}");
    }
}
