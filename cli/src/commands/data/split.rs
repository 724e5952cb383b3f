//! `zillion data split`: cuts data into parts, such as training, validation and test.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::json;
use zillion_console::exit::Stop;
use zillion_console::{compute_pool, durable_files, print_json, print_line};
use zillion_datatools::{
    ConvertOutput, ConvertSpec, ConvertTo, SplitBy, SplitFile, SplitSpec, convert, split,
};
use zillion_device::Workers;
use zillion_reader::{ColumnType, DataConfig, Paths};
use zillion_registry::VersionFile;

use super::convert::{add_remedy, read_settings, types};
use crate::args::{ReadArgs, SplitArgs};
use crate::bar::Bar;
use crate::raw_files::estimate_rows;
use crate::text::grouped;

/// The number of rows in a row group of the Parquet file to which text is converted.
const GROUP_ROWS: usize = 65_536;

pub(super) fn run(args: &SplitArgs) -> Result<()> {
    let sources = DataConfig::default().files(&Paths(args.input.clone()))?;
    let by = match (&args.by_time, &args.by_group) {
        (Some(column), _) => SplitBy::Time(column.clone()),
        (None, Some(column)) => SplitBy::Group(column.clone()),
        (None, None) => SplitBy::Row,
    };
    let spec = SplitSpec {
        by,
        date_order: args.date_order.map(|kind| kind.order()),
        seed: args.seed,
        parts: args.parts.clone(),
    };
    let target = Target {
        out: &args.out,
        replace: args.force,
        remedy: "--force replaces the files of the parts",
        max_bad_rows: args.max_bad_rows,
    };
    let workers = compute_pool(args.threads)?;
    let written = split_files(&sources, &args.read, |_| spec.clone(), target, &workers)?;
    if args.json {
        let files = written
            .iter()
            .map(|file| json!({ "part": file.part, "path": file.path, "rows": file.rows }));
        return print_json(&json!({ "files": files.collect::<Vec<_>>() }));
    }
    print_files(&written, print_line);
    Ok(())
}

/// Prints the path, the number of rows and the share of each file.
pub(in crate::commands) fn print_files(written: &[SplitFile], print: impl Fn(&str)) {
    let all: u64 = written.iter().map(|file| file.rows).sum();
    for file in written {
        let percent = 100.0 * file.rows as f64 / all.max(1) as f64;
        print(&format!("{}  {} rows  {percent:.1} %", file.path.display(), grouped(file.rows)));
    }
}

/// The destination of a split: the folder of the parts, the rule for existing files, and the limit
/// on bad rows.
#[derive(Clone, Copy)]
pub(in crate::commands) struct Target<'a> {
    /// The folder of the parts.
    pub(in crate::commands) out: &'a Path,
    /// Whether files of existing parts are replaced.
    pub(in crate::commands) replace: bool,
    /// The option of the command that resolves an existing part.
    pub(in crate::commands) remedy: &'static str,
    /// The maximum number of bad rows that may be left out.
    pub(in crate::commands) max_bad_rows: u64,
}

/// Splits files into parts. `spec` makes the split from the types of the columns of text files.
/// Text files are first converted to a Parquet file, because parts keep the types of their columns.
pub(in crate::commands) fn split_files(
    sources: &[PathBuf],
    read: &ReadArgs,
    spec: impl FnOnce(&[(String, ColumnType)]) -> SplitSpec,
    target: Target<'_>,
    workers: &std::sync::Arc<Workers>,
) -> Result<Vec<SplitFile>> {
    let Some(first) = sources.first() else { bail!("no input files are given; name at least one") };
    let files = durable_files()?;
    let (config, schema) = read_settings(read, first, workers)?;
    let columns = types::resolve(read, &config, schema.as_ref(), first, workers)?;
    let spec = spec(&columns);
    spec.check().map_err(|error| Stop::Usage(error.to_string()))?;
    if !target.replace {
        spec.refuse_existing(target.out)
            .map_err(|error| Stop::Refused(format!("{error}; {}", target.remedy)))?;
    }
    let is_parquet = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "parquet");
    let split_parquet = |sources: &[PathBuf], rows: u64| -> Result<Vec<SplitFile>> {
        let mut bar = Bar::new("splitting", rows, "rows");
        let mut show = |rows| bar.update(rows);
        Ok(split(&spec, sources, target.out, target.replace, &files, &mut show)?)
    };
    let rows = estimate_rows(&config, sources).unwrap_or(0);
    if sources.iter().all(is_parquet) {
        return split_parquet(sources, rows);
    }
    std::fs::create_dir_all(target.out)
        .with_context(|| format!("cannot create the folder {}", target.out.display()))?;
    let folder = tempfile::Builder::new().prefix(".split-").tempdir_in(target.out)?;
    let whole = folder.path().join("rows.parquet");
    let conversion = ConvertSpec {
        config,
        sources: sources.to_vec(),
        columns,
        to: ConvertTo::Parquet,
        output: ConvertOutput::File(whole.clone()),
        group_rows: GROUP_ROWS,
        max_bad_rows: target.max_bad_rows,
        force: false,
        digest: |bytes| VersionFile::of("", bytes).blake3,
    };
    let mut bar = Bar::new("converting", rows, "rows");
    let done = convert(&conversion, &files, workers, &mut |rows| bar.update(rows));
    drop(bar);
    let done = done.map_err(|error| add_remedy(error, &conversion.columns))?;
    if !done.rejects.is_empty() {
        eprintln!("{} bad rows were left out", done.rejects.len());
    }
    split_parquet(&[whole], done.rows)
}
