//! The preparation of a run: opens the data, and initializes statistics, vocabularies, tables and
//! the model, or restores them from a checkpoint.

use std::sync::Arc;
use std::time::Instant;

use zillion_config::ConfigError;
use zillion_feature::{FeatureSpec, TableId};
use zillion_ps::{LocalClient, SpillOptions, TableAccess, TableOptions, TrainClient};
use zillion_reader::SideTables;

use super::counts::Counts;
use super::data::Data;
use super::model::Model;
use super::output::Output;
use super::position::Position;
use super::publish::PublishState;
use super::timing::Timing;
use super::{Run, TrainOptions};
use crate::checkpoint::{Checkpoint, RunDir};
use crate::error::{Error, Result};
use crate::frequencies::Frequencies;
use crate::job::Job;
use crate::observer::Observer;
use crate::publish::RunId;

impl Run {
    /// Prepares a run for its next step.
    pub(super) fn prepare(
        job: Job,
        options: TrainOptions,
        began: Instant,
        observer: &mut dyn Observer,
    ) -> Result<Self> {
        let dir = RunDir::new(job.output());
        let checkpoint = find_checkpoint(&job, &options, &dir)?;
        let origin = find_origin(&job, &options, checkpoint.is_some())?;
        let (model, buffers) = Model::build(&job, &observer.inspect_options(), &options.workers)?;
        let client = open_tables(&job, &options, &dir, observer)?;
        let sides = SideTables::load(&job.data, &job.schema)?;
        let data = Data::open(&job, &sides, checkpoint.as_ref())?;
        dir.prepare(&options.files)?;
        let id = match &origin {
            Some(origin) => {
                RunId::inherit(dir.path(), RunId::of_checkpoint(origin)?, &options.files)?
            }
            None => RunId::of(dir.path(), &options.files)?,
        };
        let mut run = Self {
            position: Position::new(&job),
            counts: Counts::new(began, observer.needs_figures(), job.schema.sides.len()),
            job: Arc::new(job),
            options,
            data,
            client,
            model,
            buffers,
            output: Output {
                dir,
                id,
                checkpointed: None,
                link: None,
                saving: None,
                publishing: PublishState::default(),
            },
            timing: Timing::default(),
        };
        run.start(checkpoint, origin, observer)?;
        run.open_publisher(&sides, observer)?;
        run.catch_up_publishing(observer)?;
        Ok(run)
    }

    /// Sets the state from which the run starts: its own checkpoint, the checkpoint of another run,
    /// or an initial state.
    fn start(
        &mut self,
        checkpoint: Option<Checkpoint>,
        origin: Option<Checkpoint>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        match (checkpoint, origin) {
            (Some(checkpoint), _) => {
                observer.note(&format!("resuming from {}", checkpoint.path().display()));
                self.restore(&checkpoint)
            }
            (None, Some(origin)) => {
                observer.note(&format!("beginning from {}", origin.path().display()));
                self.restore_tables(&origin)?;
                self.position.progress.begun_at = self.position.step;
                let Model { params, optimizer, .. } = &mut self.model;
                if let Some(reason) = origin.lend_dense(params, optimizer)? {
                    observer.note(&format!(
                        "the state of the dense optimizer is not taken from the checkpoint: {reason}"
                    ));
                }
                Ok(())
            }
            (None, None) => {
                let begun = self.begin(observer);
                self.save_rejects_after(begun)
            }
        }
    }

    /// Initializes a new run: makes the first passes over the training data that the job needs, and
    /// copies the weights of the version from which the run begins.
    fn begin(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let origin = self.load_origin(observer)?;
        self.collect_statistics(origin.as_ref(), observer)?;
        let workers = &self.options.workers;
        let counted = self.job.item_feature().filter(|_| self.job.train.item_counts.is_data());
        if let Some(feature) = counted {
            observer.note("counting items");
            let counts = zillion_reader::frequencies(&self.data.train, feature, workers)?;
            self.data.frequencies = Some(Frequencies::new(counts));
        }
        let dense = self.job.dense_tables();
        if !dense.is_empty() {
            observer.note("collecting the vocabulary of dense tables");
            let vocabularies = zillion_reader::vocabulary(&self.data.train, &dense, workers)?;
            for (&(id, _), keys) in dense.iter().zip(&vocabularies) {
                self.client.prefill(id, keys)?;
            }
        }
        if let Some(origin) = origin {
            self.begin_from(&origin, observer)?;
        }
        Ok(())
    }

    /// Collects the statistics of the numeric features. Statistics that `origin` has are not
    /// collected.
    fn collect_statistics(
        &mut self,
        origin: Option<&super::warm_start::Origin>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let inherited = self.inherited_statistics(origin);
        let is_missing =
            |f: &FeatureSpec| f.needs_statistics() && !inherited.columns.contains_key(&f.name);
        if self.job.schema.features.iter().any(is_missing) {
            observer.note("collecting statistics of numeric features");
            let workers = &self.options.workers;
            let mut statistics = zillion_reader::statistics(&self.data.train, workers)?;
            statistics.columns.extend(inherited.columns);
            self.data.use_statistics(statistics);
        } else if !inherited.columns.is_empty() {
            self.data.use_statistics(inherited);
        }
        Ok(())
    }

    /// Restores the whole state of the run from a checkpoint of its own.
    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let manifest = &checkpoint.manifest;
        self.restore_tables(checkpoint)?;
        checkpoint.restore_dense(&mut self.model.params, &mut self.model.optimizer)?;
        if let Some(average) = &mut self.model.average {
            checkpoint.restore_average(average)?;
        }
        self.position.cursor = manifest.cursor;
        self.position.progress = manifest.progress.clone();
        let Output { dir, checkpointed, link, .. } = &mut self.output;
        *checkpointed = Some(manifest.step);
        *link = self.client.checkpoint_mark().map(|mark| checkpoint.link(dir, mark));
        // A run that was killed after writing a checkpoint may not have removed the old ones.
        let keep = self.job.train.keep.get();
        dir.retain(keep, self.position.progress.best, &self.options.files)
    }

    /// Restores the tables, the statistics and the step from a checkpoint, but not the dense
    /// parameters and not the position in the data.
    fn restore_tables(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let manifest = &checkpoint.manifest;
        self.data.use_statistics(manifest.statistics.clone());
        self.data.frequencies = checkpoint.frequencies()?;
        self.client.restore(checkpoint.path(), &manifest.tables)?;
        // Rows hold the step of their last push, so the numbers of steps continue.
        self.position.step = manifest.step;
        self.position.progress.newest_event_ms = manifest.progress.newest_event_ms;
        Ok(())
    }
}

/// Returns the newest checkpoint in the run's folder, from which the run resumes, or `None` if the
/// run does not resume.
fn find_checkpoint(job: &Job, options: &TrainOptions, dir: &RunDir) -> Result<Option<Checkpoint>> {
    let Some(checkpoint) = dir.newest()? else { return Ok(None) };
    if !options.resume {
        return Err(Error::WouldOverwrite { path: dir.path().to_owned() });
    }
    checkpoint.check_job(job)?;
    Ok(Some(checkpoint))
}

/// Returns the checkpoint of another run from which a new run begins, or `None` if the caller names
/// none.
fn find_origin(job: &Job, options: &TrainOptions, resumes: bool) -> Result<Option<Checkpoint>> {
    let Some(path) = &options.from else { return Ok(None) };
    if job.train.warm_start.is_some() {
        let message = "names a version to begin from, but the run begins from a checkpoint; remove one of the two";
        return Err(ConfigError::at("train.warm_start", message).into());
    }
    if resumes {
        // A run that has begun continues from its own checkpoint.
        return Ok(None);
    }
    let origin = Checkpoint::find(path)?;
    origin.check_model(job)?;
    Ok(Some(origin))
}

/// Opens empty tables for the job.
fn open_tables(
    job: &Job,
    options: &TrainOptions,
    dir: &RunDir,
    observer: &mut dyn Observer,
) -> Result<Box<dyn TrainClient>> {
    let spills = !job.run.spill.is_empty();
    if spills {
        // The run's folders are created first, which makes their names durable.
        dir.prepare(&options.files)?;
    }
    let memory_of = |(id, table): (TableId, &zillion_rows::TableSpec)| {
        Some((id, job.run.spill.get(&table.name)?.bytes()))
    };
    let folder = job.spill_folder();
    let tables = TableOptions {
        max_bytes: job.train.max_table_bytes,
        frozen: job.frozen_tables()?,
        follows_checkpoints: job.train.full_every.get() > 1,
        spill: spills.then(|| SpillOptions {
            folder: folder.clone(),
            files: options.files.clone(),
            memory: (0..).map(TableId).zip(&job.tables).filter_map(memory_of).collect(),
        }),
        ..TableOptions::new(job.tables.clone(), job.run.shards)
    };
    let mut client = LocalClient::open(tables, options.workers.clone())?;
    let statistics = client.stats()?;
    if statistics.iter().any(|table| table.spill.is_some_and(|spill| spill.cached_files > 0)) {
        observer.note(&format!(
            "spilled rows may still take memory, because the file system of {} keeps files in memory or cannot bypass \
             its page cache; set `run.spill_folder` to a folder on another disk",
            folder.display()
        ));
    }
    Ok(Box::new(client))
}
