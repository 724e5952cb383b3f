//! The tables of a checkpoint that the arguments select.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use serde::Serialize;
use zillion_console::compute_pool;
use zillion_console::exit::usage_error;
use zillion_device::Workers;
use zillion_embedding::TableView;
use zillion_feature::FeatureKey;
use zillion_rows::{TableClock, TableSpec};
use zillion_trainer::{Checkpoint, Job, TableTime};

use super::key_names::KeyNames;
use crate::args::{OneTableArgs, TablesArgs};

/// The figures of some tables of a checkpoint.
#[derive(Serialize)]
pub(super) struct Report<T> {
    pub(super) checkpoint: PathBuf,
    pub(super) step: u64,
    pub(super) tables: Vec<T>,
}

/// Opens the tables that the arguments select, and collects the figures of each. `read` computes
/// them from the open table, the pool of threads and the time of the checkpoint. The time is the
/// step, or the seconds of event time if the table goes by event time.
pub(super) fn read_tables<T>(
    args: &TablesArgs,
    read: impl Fn(&TableView, &Workers, u64) -> T,
) -> Result<Report<T>> {
    let checkpoint = Checkpoint::find(&args.checkpoint)?;
    let job = checkpoint.job()?;
    let specs: Vec<&TableSpec> = match args.table.is_empty() {
        true => job.tables.iter().collect(),
        false => args.table.iter().map(|name| find_table(&job, name)).collect::<Result<_>>()?,
    };
    let workers = compute_pool(args.threads)?;
    let step = checkpoint.manifest.step;
    let mut tables = Vec::with_capacity(specs.len());
    for spec in specs {
        // One table is open at a time: its memory mapping is released before the next table is
        // opened.
        let time = event_seconds(&checkpoint, spec).map_or(step, u64::from);
        tables.push(read(&checkpoint.table(spec.clone(), &workers)?, &workers, time));
    }
    Ok(Report { checkpoint: checkpoint.path().to_owned(), step, tables })
}

/// Returns the event time of a checkpoint in seconds since the first step, or `None` if the table
/// goes by steps or the time is not known.
fn event_seconds(checkpoint: &Checkpoint, spec: &TableSpec) -> Option<u32> {
    let is_timed = spec.clock() == TableClock::EventTime;
    checkpoint.manifest.progress.event_clock.filter(|_| is_timed).map(TableTime::elapsed)
}

/// An open table of a checkpoint, with the known ids of its keys.
pub(super) struct OpenTable {
    pub(super) checkpoint: Checkpoint,
    pub(super) job: Job,
    pub(super) view: TableView,
    pub(super) names: KeyNames,
    pub(super) workers: Arc<Workers>,
    /// The unit in which the table measures the age of its rows.
    pub(super) clock: TableClock,
    /// The event time of the checkpoint in seconds since the first step; `None` if the table goes
    /// by steps or the time is not known.
    pub(super) event_seconds: Option<u32>,
}

impl OpenTable {
    /// Opens the table that the arguments select.
    pub(super) fn open(args: &OneTableArgs) -> Result<Self> {
        let checkpoint = Checkpoint::find(&args.checkpoint)?;
        let job = checkpoint.job()?;
        let spec = find_table(&job, &args.table)?;
        let workers = compute_pool(args.threads)?;
        let view = checkpoint.table(spec.clone(), &workers)?;
        let names = KeyNames::of(&job, &args.table);
        let (clock, event_seconds) = (spec.clock(), event_seconds(&checkpoint, spec));
        Ok(Self { checkpoint, job, view, names, workers, clock, event_seconds })
    }

    /// Returns the name of the unit of the last pushes, and the present time in it.
    pub(super) fn present(&self) -> (&'static str, u64) {
        let step = self.checkpoint.manifest.step;
        match self.clock {
            TableClock::Steps => ("step", step),
            TableClock::EventTime => ("second", self.event_seconds.map_or(0, u64::from)),
        }
    }

    /// Returns the key of an id. If several keys are possible, it is the first one that the table
    /// has. If the table has none of them, it is the most likely one.
    pub(super) fn find_key(&self, id: &str) -> Result<FeatureKey> {
        let keys = self.names.possible_keys(id);
        let Some(&first) = keys.first() else {
            return usage_error(format!(
                "--key {id} is not an id that the features of this table can have; give an id of \
                 their type"
            ));
        };
        let is_known =
            |key: &FeatureKey| self.view.get(*key).is_some() || self.view.waiting(*key).is_some();
        Ok(keys.into_iter().find(is_known).unwrap_or(first))
    }
}

/// Returns the table with this name from a job.
pub(super) fn find_table<'a>(job: &'a Job, name: &str) -> Result<&'a TableSpec> {
    if let Some(spec) = job.tables.iter().find(|spec| spec.name == name) {
        return Ok(spec);
    }
    let names: Vec<&str> = job.tables.iter().map(|spec| spec.name.as_str()).collect();
    usage_error(format!(
        "unknown table `{name}` (the checkpoint has: {}); name one of its tables",
        names.join(", ")
    ))
}
