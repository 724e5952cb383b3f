//! The parts that the commands share that rewrite files row by row.

use std::sync::Arc;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use zillion_console::exit::Stop;
use zillion_console::{compute_pool, durable_files, print_line};
use zillion_datatools::{RewrittenFile, RowFiles};
use zillion_device::{Files, Workers};
use zillion_reader::{DataConfig, Paths, ReaderError, Result as ReaderResult};

use super::convert::{add_remedy, read_settings, types};
use crate::args::RowFilesArgs;
use crate::bar::Bar;
use crate::raw_files::estimate_rows;
use crate::text::grouped;

/// The opened place of a command that rewrites files.
pub(super) struct Rewriting {
    pub(super) rows: RowFiles,
    workers: Arc<Workers>,
    files: Files,
}

impl Rewriting {
    /// Finds the sources and the types of their columns, and refuses to replace files.
    pub(super) fn open(args: &RowFilesArgs) -> Result<Self> {
        let workers = compute_pool(args.threads)?;
        let sources = DataConfig::default().files(&Paths(args.input.clone()))?;
        let Some(first) = sources.first() else {
            bail!("no input files are given; name at least one")
        };
        let (config, schema) = read_settings(&args.read, first, &workers)?;
        let columns = types::resolve(&args.read, &config, schema.as_ref(), first, &workers)?;
        let rows = RowFiles {
            config,
            sources,
            columns,
            max_bad_rows: args.max_bad_rows,
            out: args.out.clone(),
            overwrite: args.overwrite,
        };
        rows.targets().map_err(|error| {
            let flag = if args.overwrite { "" } else { "; --overwrite replaces existing files" };
            Stop::Refused(format!("{error}{flag}"))
        })?;
        Ok(Self { rows, workers, files: durable_files()? })
    }

    /// Runs a tool on the files and shows its progress.
    pub(super) fn run<T>(
        &self,
        what: &str,
        tool: impl FnOnce(&RowFiles, &Arc<Workers>, &Files, &mut dyn FnMut(u64)) -> ReaderResult<T>,
    ) -> Result<T> {
        let rows = estimate_rows(&self.rows.config, &self.rows.sources).unwrap_or(0);
        let mut bar = Bar::new(what, rows, "rows");
        let mut show = |rows| bar.update(rows);
        let done = tool(&self.rows, &self.workers, &self.files, &mut show);
        drop(bar);
        done.map_err(|error| add_remedy(error, &self.rows.columns))
    }
}

/// Turns the error of a file that exists into a refusal that names the option which replaces it.
pub(super) fn name_overwrite(error: ReaderError) -> anyhow::Error {
    match &error {
        ReaderError::Setting { problem, .. } if problem.starts_with("the file exists") => {
            Stop::Refused(format!("{error}; --overwrite replaces existing files")).into()
        }
        _ => error.into(),
    }
}

/// Returns the report about the new files for `--json`.
pub(super) fn files_json(files: &[RewrittenFile]) -> Value {
    let file = |file: &RewrittenFile| {
        json!({
            "path": file.path,
            "rows_read": file.read,
            "rows": file.rows,
            "bad_rows": file.bad_rows,
        })
    };
    files.iter().map(file).collect()
}

/// Prints the path, the number of rows, and the number of rows of the source for each new file.
pub(super) fn print_files(files: &[RewrittenFile]) {
    for file in files {
        let bad = match file.bad_rows {
            0 => String::new(),
            bad => format!(", {} bad rows left out", grouped(bad)),
        };
        print_line(&format!(
            "{}  {} rows from {} rows{bad}",
            file.path.display(),
            grouped(file.rows),
            grouped(file.read)
        ));
    }
}
