//! `zillion predict`.

use std::io::{self, BufWriter, Write};

use anyhow::{Context, Result};
use toml::{Table, Value};
use zillion_feature::config;
use zillion_reader::{DataConfig, Dataset, Labels};
use zillion_trainer::{Loaded, Predicted};

use super::workers;
use crate::args::{FetchArgs, PredictArgs, StdinFormat};
use crate::exit::Stop;
use crate::job_file;
use crate::watch::{Choice, Lines};

pub(crate) fn run(args: &PredictArgs) -> Result<()> {
    let mut loaded = Loaded::open(&args.checkpoint, workers(args.threads)?)?;
    let mut data = data_config(&loaded, &args.set)?;
    let schema = &loaded.job.schema;
    let dataset = if args.input == "-" {
        data.format = match args.format {
            StdinFormat::Csv => zillion_reader::Format::Csv,
            StdinFormat::Tsv => zillion_reader::Format::Tsv,
            StdinFormat::Jsonl => zillion_reader::Format::Jsonl,
            StdinFormat::Libsvm => zillion_reader::Format::Libsvm,
        };
        Dataset::from_reader(&data, io::stdin(), "stdin", schema, Labels::Optional)?
    } else {
        let files = [args.input.clone().into()];
        Dataset::open_with(&data, &files, schema, Labels::Optional)?
    };
    let dataset = dataset.with_statistics(loaded.statistics().clone());

    if !args.fetch.fetch.is_empty() {
        return look(&mut loaded, &dataset, &args.fetch);
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let tasks: Vec<String> = loaded.job.tasks().into_iter().map(|task| task.name).collect();
    if !args.json {
        let header = if tasks.is_empty() { "score".to_owned() } else { tasks.join("\t") };
        writeln!(out, "{header}")?;
    }
    let mut scores = Scores { out, json: args.json, tasks, row: 0 };
    let sides: Vec<String> = loaded.job.schema.sides.iter().map(|s| s.name.clone()).collect();
    let mut side_missing = vec![0; sides.len()];
    let mut failed = None;
    let predicted = loaded.predict(&dataset, |prediction| {
        for (sum, count) in side_missing.iter_mut().zip(&prediction.batch.side_missing) {
            *sum += count;
        }
        // A reader that has seen enough (`head`) is no reason to complain, only to stop.
        if let Err(e) = scores.write(prediction.logits, prediction.rejected) {
            failed.get_or_insert(e);
        }
        Ok(failed.is_none())
    });
    super::write_rejects(&data, &dataset)?;
    let predicted = predicted?;
    if failed.is_none() {
        failed = scores.write(&[], &predicted.rejected_last).err();
    }
    let mut out = scores.out;
    let flushed = out.flush();
    match failed.map_or(flushed, Err) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        other => other.context("cannot write the scores")?,
    }
    let Predicted { missing, rejected, .. } = predicted;
    if rejected > 0 {
        eprintln!("{rejected} rows are bad and have no score; the first: {}", first(&dataset));
    }
    if missing > 0 {
        eprintln!("{missing} lookups of keys that training never saw read the declared default");
    }
    let counts = sides.into_iter().zip(side_missing).filter(|&(_, rows)| rows > 0).collect();
    super::missing_side_rows("scored", &counts);
    Ok(())
}

/// Values of nodes instead of scores, which are the values of the node `probabilities`.
fn look(loaded: &mut Loaded, dataset: &Dataset, args: &FetchArgs) -> Result<()> {
    let choice = Choice::new(&args.fetch_rows, args.rows, Choice::All);
    let mut failed = None;
    loaded.look(dataset, &args.fetch, |looked| {
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

/// The scores on their way out, one line a row of the data, also of those that have none: tab-separated
/// columns or a JSON object, in which the first task's figures stand under plain names, and all of
/// them by task where there are several.
struct Scores<W> {
    out: W,
    json: bool,
    /// None of a retrieval model without labels: its score is no probability of anything.
    tasks: Vec<String>,
    /// Rows of the data that are written.
    row: u64,
}

impl<W: Write> Scores<W> {
    /// Writes the scores of the rows that follow, with an empty line for each row that was rejected.
    fn write(&mut self, logits: &[&[f32]], rejected: &[u64]) -> io::Result<()> {
        let mut rejected = rejected.iter().peekable();
        let rows = logits.first().map_or(0, |first| first.len());
        for at in 0..rows {
            while rejected.next_if(|&&row| row == self.row).is_some() {
                self.without()?;
            }
            let row: Vec<f32> = logits.iter().map(|logits| logits[at]).collect();
            self.row(&row)?;
        }
        rejected.try_for_each(|_| self.without())
    }

    fn row(&mut self, logits: &[f32]) -> io::Result<()> {
        let Self { out, json, tasks, row } = self;
        let probability = |logit: f32| 1.0 / (1.0 + (-f64::from(logit)).exp());
        if tasks.is_empty() {
            *row += 1;
            let score = logits[0];
            return match *json {
                true => writeln!(out, r#"{{"row":{},"score":{score}}}"#, *row - 1),
                false => writeln!(out, "{score}"),
            };
        }
        if !*json {
            *row += 1;
            let texts: Vec<String> = logits.iter().map(|&z| probability(z).to_string()).collect();
            return writeln!(out, "{}", texts.join("\t"));
        }
        let figures = |z: f32| format!(r#""logit":{z},"probability":{}"#, probability(z));
        write!(out, r#"{{"row":{row},{}"#, figures(logits[0]))?;
        *row += 1;
        if tasks.len() > 1 {
            for (index, (task, &z)) in tasks.iter().zip(logits).enumerate() {
                let start = if index == 0 { r#","tasks":{"# } else { "," };
                write!(out, "{start}{}:{{{}}}", serde_json::to_string(task)?, figures(z))?;
            }
            write!(out, "}}")?;
        }
        writeln!(out, "}}")
    }

    fn without(&mut self) -> io::Result<()> {
        let row = self.row;
        self.row += 1;
        match self.json {
            true if self.tasks.is_empty() => writeln!(self.out, r#"{{"row":{row},"score":null}}"#),
            true => writeln!(self.out, r#"{{"row":{row},"logit":null,"probability":null}}"#),
            false => writeln!(self.out),
        }
    }
}

fn first(dataset: &Dataset) -> String {
    dataset.first_rejects().join("; ")
}

/// The `[data]` section of the checkpoint's job under the caller's overrides.
pub(super) fn data_config(loaded: &Loaded, sets: &[String]) -> Result<DataConfig> {
    let data = Value::try_from(&loaded.job.data).context("the checkpoint's [data] section")?;
    let mut job = Table::from_iter([("data".to_owned(), data)]);
    // That file is training's; whoever scores names another.
    if let Some(data) = job.get_mut("data").and_then(Value::as_table_mut) {
        data.remove("rejects");
    }
    // The environment may hold settings for training, too: of those, only where the data is matters here.
    let environment = std::env::vars().filter(|(name, _)| name.starts_with("ZILLION_DATA__"));
    job_file::overlay(&mut job, environment, sets)?;
    if let Some(key) = job.keys().find(|k| *k != "data") {
        return Err(Stop::Usage(format!(
            "`{key}` cannot be set here: the checkpoint carries the job; only data.* can"
        ))
        .into());
    }
    Ok(config::section(&Value::Table(job), "data")?)
}
