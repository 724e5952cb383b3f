//! `zillion data convert`: writes data files as Parquet or Arrow.

pub(super) mod types;

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::json;
use toml::{Table, Value};
use zillion_console::exit::{Stop, usage_error};
use zillion_console::{compute_pool, durable_files, job_file, print_json, print_line};
use zillion_datatools::{ConvertOutput, ConvertSpec, ConvertTo, Converted, convert};
use zillion_device::{Files, Workers};
use zillion_feature::Schema;
use zillion_reader::{ColumnType, DataConfig, Paths, ReaderError, Reject};
use zillion_registry::VersionFile;

use crate::args::{ConvertArgs, ConvertKind, ReadArgs};
use crate::bar::Bar;
use crate::raw_files::{estimate_rows, guess_config};
use crate::text::{bytes, grouped};

/// The default number of input rows that are written to one part. Bad rows count too.
const PART_ROWS: u64 = 1 << 20;
/// The number of rows from which the types of columns are guessed if there is no job.
const GUESS_ROWS: u64 = 50_000;

/// The keys of `[data]` that describe the format of the files.
const FORMAT_KEYS: [&str; 8] =
    ["format", "encoding", "header", "delimiter", "quote", "decimal", "null", "list_separator"];

pub(super) fn run(args: &ConvertArgs) -> Result<()> {
    let workers = compute_pool(args.threads)?;
    let files = durable_files()?;
    let sources = DataConfig::default().files(&Paths(args.input.clone()))?;
    let Some(first) = sources.first() else { bail!("no input files are given; name at least one") };
    let (to, output) = choose_output(args)?;
    refuse_inside(&sources, &output)?;
    let (config, schema) = read_settings(&args.read, first, &workers)?;
    let columns = types::resolve(&args.read, &config, schema.as_ref(), first, &workers)?;
    let weighted = types::weight_columns(&columns);
    let bytes_of = |path: &PathBuf| std::fs::metadata(path).map_or(0, |m| m.len());
    let total: u64 = sources.iter().map(bytes_of).sum();
    let spec = ConvertSpec {
        config,
        sources,
        columns,
        to,
        output,
        group_rows: args.group_rows.get(),
        max_bad_rows: args.max_bad_rows,
        force: args.force,
        digest: |bytes| VersionFile::of("", bytes).blake3,
    };
    eprintln!("{} file(s), {}", spec.sources.len(), bytes(total));
    let mut bar = Bar::new("rows", estimate_rows(&spec.config, &spec.sources).unwrap_or(0), "rows");
    let done = convert(&spec, &files, &workers, &mut |rows| bar.update(rows));
    drop(bar);
    let done = done.map_err(|error| add_remedy(error, &spec.columns))?;
    if let Some(path) = &args.rejects {
        write_rejects(path, &done.rejects, &files)?;
    }
    if !weighted.is_empty() {
        eprintln!(
            "note: the new files store weights in separate columns ({}); a job that reads these files uses the \
             ids without their weights",
            weighted.join(", ")
        );
    }
    print_outcome(args, &done)
}

fn print_outcome(args: &ConvertArgs, done: &Converted) -> Result<()> {
    if done.kept > 0 {
        eprintln!("{} part(s) of an earlier run are complete and were kept", done.kept);
    }
    if args.json {
        let files = done
            .files
            .iter()
            .map(|(path, rows, bytes)| json!({ "path": path, "rows": rows, "bytes": bytes }));
        return print_json(&json!({
            "rows": done.rows,
            "bad_rows": done.rejects.len(),
            "kept_parts": done.kept,
            "files": files.collect::<Vec<_>>(),
        }));
    }
    for (path, rows, size) in &done.files {
        print_line(&format!("{}  {} rows  {}", path.display(), grouped(*rows), bytes(*size)));
    }
    let bad = match done.rejects.len() {
        0 => String::new(),
        n => format!(", {n} bad rows left out"),
    };
    print_line(&format!("{} rows{bad}", grouped(done.rows)));
    Ok(())
}

/// Returns the format and the path of the output.
fn choose_output(args: &ConvertArgs) -> Result<(ConvertTo, ConvertOutput)> {
    let ending = args.output.extension().and_then(|e| e.to_str()).map(str::to_lowercase);
    let by_ending = match ending.as_deref() {
        Some("parquet" | "pq") => Some(ConvertTo::Parquet),
        Some("arrow" | "feather" | "ipc") => Some(ConvertTo::Arrow),
        _ => None,
    };
    // The name of a folder may have any ending, so its ending does not choose a format.
    let by_ending = by_ending.filter(|_| !args.output.is_dir());
    let asked = args.to.map(|to| match to {
        ConvertKind::Parquet => ConvertTo::Parquet,
        ConvertKind::Arrow => ConvertTo::Arrow,
    });
    let to = asked.or(by_ending).unwrap_or_default();
    let shown = args.output.display();
    match by_ending {
        Some(ending) if ending != to => usage_error(format!(
            "output `{shown}`: its name does not fit `--to {}`; change the name or --to",
            to.ending()
        )),
        Some(_) if args.part_rows.is_some() => usage_error(format!(
            "output `{shown}` is one file, but --part-rows needs several files; remove \
             --part-rows, or name a folder"
        )),
        Some(_) => Ok((to, ConvertOutput::File(args.output.clone()))),
        None => {
            let part_rows = args.part_rows.map_or(PART_ROWS, NonZeroU64::get);
            Ok((to, ConvertOutput::Folder { folder: args.output.clone(), part_rows }))
        }
    }
}

/// Refuses an output file that is also an input file, and an output folder that contains an input
/// file.
fn refuse_inside(sources: &[PathBuf], output: &ConvertOutput) -> Result<()> {
    let real = |path: &Path| path.canonicalize().ok();
    let inside = |source: &&PathBuf| match output {
        ConvertOutput::File(file) => real(source).is_some() && real(source) == real(file),
        ConvertOutput::Folder { folder, .. } => {
            real(folder).is_some_and(|folder| real(source).is_some_and(|s| s.starts_with(folder)))
        }
    };
    match sources.iter().find(inside) {
        None => Ok(()),
        Some(source) => usage_error(format!(
            "input `{}`: the output would replace this file or lie in its folder; name another output",
            source.display()
        )),
    }
}

/// Returns the settings that read the files. Also returns the schema of the job, or `None` if the
/// arguments name no job.
pub(super) fn read_settings(
    args: &ReadArgs,
    first: &Path,
    workers: &Workers,
) -> Result<(DataConfig, Option<Schema>)> {
    let (data, schema) = match &args.job {
        Some(path) => {
            let (job, data) = job_file::load_data(path)?;
            (data, Some(Schema::from_job(&job)?))
        }
        None => (guess_config(first, workers)?, None),
    };
    let mut job = Table::from_iter([("data".to_owned(), Value::try_from(&data)?)]);
    job_file::overlay(&mut job, std::iter::empty(), &args.set)?;
    if let Some(key) = job.keys().find(|key| *key != "data") {
        return usage_error(format!("setting `{key}` cannot be changed here; set only `data.*`"));
    }
    let is_other = |key: &&str| !FORMAT_KEYS.contains(key);
    let keys =
        args.set.iter().filter_map(|set| set.split('=').next()?.trim().strip_prefix("data."));
    if let Some(key) = keys.map(|key| key.split('.').next().unwrap_or(key)).find(is_other) {
        return usage_error(format!(
            "setting `data.{key}` does not describe the format of files; set only data.{}",
            FORMAT_KEYS.join(", data.")
        ));
    }
    let mut data: DataConfig = zillion_config::section(&Value::Table(job), "data")?;
    // The options of this command decide how many bad rows are left out and where they are written.
    data.max_bad_rows = 0;
    data.rejects = None;
    Ok((data, schema))
}

fn write_rejects(path: &Path, rejects: &[Reject], files: &Files) -> Result<()> {
    let mut text = Vec::new();
    for reject in rejects {
        serde_json::to_writer(&mut text, reject)?;
        text.push(b'\n');
    }
    files.write_bytes(path, &text)?;
    Ok(())
}

/// Adds the remedy to an error, in the form of this command's options.
pub(super) fn add_remedy(error: ReaderError, columns: &[(String, ColumnType)]) -> anyhow::Error {
    match &error {
        ReaderError::OtherConversion { .. } => Stop::Refused(error.to_string()).into(),
        ReaderError::Value { column, .. } => {
            let of = columns.iter().find(|(name, _)| name == column);
            let of = of.map_or_else(String::new, |(_, of)| format!(" as {of}"));
            let remedy = format!(
                "column `{column}` is converted{of}; `--type {column}=string` keeps its text unchanged, \
                 `--max-bad-rows N` leaves such rows out"
            );
            // The error is passed on as text only, because the advice about rows that a job leaves
            // out does not apply to this command.
            anyhow::anyhow!("{error}; {remedy}")
        }
        _ => error.into(),
    }
}
