//! The preparation of a run: opens the data, and initializes statistics, vocabularies, tables and
//! the model, or restores them from a checkpoint.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use zillion_config::ConfigError;
use zillion_feature::FeatureSpec;
use zillion_ps::Continued;
use zillion_reader::SideTables;

use super::counts::Counts;
use super::data::Data;
use super::engine::HostEngine;
use super::model::Model;
use super::note::StartNote;
use super::opening::{After, Open, check_place};
use super::output::{self, Output};
use super::overwrite;
use super::position::Position;
use super::publish::PublishState;
use super::rewind::Rewinds;
use super::timing::Timing;
use super::{Run, TrainOptions};
use crate::checkpoint::{Checkpoint, RunBucket, RunDir, RunLock};
use crate::error::{Error, Result};
use crate::frequencies::Frequencies;
use crate::job::Job;
use crate::observer::Observer;
use crate::online::{newest_link, pinned_steps};
use crate::publish::RunId;
use crate::run_record::Recorder;

/// The state from which a run trains.
pub(super) enum Start {
    /// A checkpoint or an initial state.
    From(Box<Basis>),
    /// The present state of the trainer, after a server was lost.
    Onward(Continued),
}

/// The data beside the run, and the checkpoint from which it starts.
pub(super) struct Basis {
    /// The run's own checkpoint, from which it resumes.
    checkpoint: Option<Checkpoint>,
    /// The checkpoint of another run, from which a new run begins.
    origin: Option<Checkpoint>,
    sides: SideTables,
}

impl Run {
    /// Opens the data, the model and the empty tables of a run.
    pub(super) fn open(
        job: Job,
        options: TrainOptions,
        began: Instant,
        open: &mut Open<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(Self, Basis)> {
        check_place(&job, options.trainer)?;
        let (dir, bucket) = open_place(&job, &options)?;
        overwrite::check(&job, &options, &dir)?;
        let (mut checkpoint, mut origin) = find_basis(&job, &options, &dir, bucket.as_ref())?;
        let (model, buffers) = Model::build(&job, &observer.inspect_options(), &options)?;
        if !model.executor.is_on_gpu() {
            observer.note(&model.device);
        }
        // Trainers of a parameter service are kept apart by its generations.
        let is_alone = job.ps.is_none();
        let mut lock = None;
        if is_alone && !job.run.spill.is_empty() {
            // The tables write into the folder as soon as they are opened.
            dir.prepare(&options.files)?;
            lock = Some(RunLock::take(&dir)?);
            // The owner of the lock may have written its last checkpoint meanwhile.
            (checkpoint, origin) = find_basis(&job, &options, &dir, bucket.as_ref())?;
        }
        let after = After { borrows: model.executor.is_on_gpu(), ..After::default() };
        let mut client = open(&job, &options, after, observer)?;
        let opened = (|| {
            let (checkpoint, origin) = match client.restore_step() {
                // An operator has set the run back since a checkpoint was looked for.
                Some(step) => {
                    output::remove_after(step, &dir, bucket.as_ref(), &options.files)?;
                    find_basis(&job, &options, &dir, bucket.as_ref())?
                }
                None => (checkpoint, origin),
            };
            let sides = SideTables::load(&job.data, &job.schema)?;
            let is_first = options.trainer.is_first();
            let data = Data::open(&job, &sides, checkpoint.as_ref(), is_first)?;
            if is_first {
                let notes = data.notes(&job, checkpoint.as_ref());
                notes.iter().for_each(|note| observer.note(note));
                dir.prepare(&options.files)?;
                if is_alone && lock.is_none() {
                    lock = Some(RunLock::take(&dir)?);
                    let newest = find_basis(&job, &options, &dir, bucket.as_ref())?.0;
                    output::check_newest(&dir, checkpoint.as_ref(), newest.as_ref())?;
                }
                overwrite::remove_old_run(&dir, &options)?;
            }
            let id = find_id(origin.as_ref(), &dir, &options)?;
            if let Some(bucket) = bucket.as_ref().filter(|_| is_first) {
                bucket.keep_id(&id.0)?;
            }
            let recorder = open_recorder(&job, &dir, is_first, checkpoint.is_some(), observer)?;
            Ok((data, id, recorder, Basis { checkpoint, origin, sides }))
        })();
        // The other trainers end too, instead of waiting for this one.
        let (data, id, recorder, basis) =
            opened.inspect_err(|error: &Error| client.abort(&error.to_string()))?;
        let run = Self {
            position: Position::new(&job),
            counts: Counts::new(began, observer.needs_figures(), job.schema.sides.len()),
            rewinds: Rewinds::default(),
            job: Arc::new(job),
            options,
            data,
            client,
            engine: Box::new(HostEngine),
            behind: VecDeque::new(),
            model,
            buffers,
            output: Output {
                _lock: lock,
                dir,
                bucket,
                id,
                checkpointed: None,
                link: None,
                saving: None,
                failed: 0,
                stream: None,
                recorder,
                publishing: PublishState::default(),
            },
            timing: Timing::default(),
            rate_factor: 1.0,
            stops_validation: false,
        };
        Ok((run, basis))
    }

    /// Opens the tables again after a generation has ended. The model and the position begin anew,
    /// except if the run continues with the tables of that generation.
    pub(super) fn reopen(
        &mut self,
        after: After,
        open: &mut Open<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Start> {
        let (job, options) = (&*self.job, &self.options);
        self.client = open(job, options, after, observer)?;
        if let Some(continued) = self.client.continued() {
            return Ok(Start::Onward(continued));
        }
        if let Some(step) = self.client.restore_step() {
            let Output { dir, bucket, .. } = &self.output;
            output::remove_after(step, dir, bucket.as_ref(), &options.files)?;
        }
        // The client waits for the end of the old generation, so the newest checkpoint is looked
        // for only now.
        let Output { dir, bucket, .. } = &self.output;
        let (checkpoint, origin) = find_basis(job, options, dir, bucket.as_ref())?;
        // The GPU may not have returned the results of the last steps.
        self.behind.clear();
        (self.model, self.buffers) = Model::build(job, &observer.inspect_options(), options)?;
        self.position = Position::new(job);
        self.output.checkpointed = None;
        self.output.link = None;
        self.output.stream = None;
        let sides = SideTables::load(&job.data, &job.schema)?;
        if let Some(checkpoint) = &checkpoint {
            checkpoint.check_files(&self.data.files)?;
        }
        Ok(Start::From(Box::new(Basis { checkpoint, origin, sides })))
    }

    /// Prepares an opened run for its next step.
    pub(super) fn prepare(&mut self, start: Start, observer: &mut dyn Observer) -> Result<()> {
        self.client.leave_gpu()?;
        self.model.leave_gpu()?;
        match start {
            Start::Onward(continued) => self.continue_run(continued, observer),
            Start::From(basis) => {
                self.prepare_from(*basis, observer)?;
                let Position { step, .. } = self.position;
                self.buffers.apart.meetings.record(step, 0);
                self.rewinds.is_continuing = false;
                self.place_rows(observer)
            }
        }
    }

    fn prepare_from(&mut self, basis: Basis, observer: &mut dyn Observer) -> Result<()> {
        if !self.options.trainer.is_first() {
            let note = self.client.start(Vec::new())?;
            self.start_beside(&StartNote::from_bytes(&note)?, observer)?;
            self.report_rewind(observer);
            return self.wait_to_begin();
        }
        let Basis { checkpoint, origin, sides } = basis;
        let mut note = StartNote {
            checkpoint: checkpoint.as_ref().map(|checkpoint| checkpoint.manifest.step),
            origin: origin.as_ref().map(|origin| origin.path().to_owned()),
            version: None,
        };
        let version = self.start(checkpoint, origin, observer)?;
        note.version = version;
        self.open_publisher(&sides, observer)?;
        self.begin_pace()?;
        self.client.start(note.to_bytes())?;
        self.report_rewind(observer);
        self.catch_up_publishing(observer)?;
        self.wait_to_begin()
    }

    /// Sets the state from which the run starts: its own checkpoint, the checkpoint of another run,
    /// or an initial state. Returns the version from which the run begins, if it begins from one.
    fn start(
        &mut self,
        checkpoint: Option<Checkpoint>,
        origin: Option<Checkpoint>,
        observer: &mut dyn Observer,
    ) -> Result<Option<u64>> {
        match (checkpoint, origin) {
            (Some(checkpoint), _) => {
                observer.note(&format!("resuming from {}", checkpoint.path().display()));
                self.restore(&checkpoint)?;
                let products = checkpoint.manifest.products.as_ref();
                if let Some(line) = self.model.keep_products(products)? {
                    observer.note(&line);
                }
                Ok(None)
            }
            (None, Some(origin)) => {
                observer.note(&format!("beginning from {}", origin.path().display()));
                self.client.restore(origin.path(), &origin.manifest.tables)?;
                self.begin_from_checkpoint(&origin, observer)?;
                Ok(None)
            }
            (None, None) => {
                let begun = self.begin(None, observer);
                self.save_rejects_after(begun)
            }
        }
    }

    /// Takes the state that trainer 0 names, without the tables, which trainer 0 has filled.
    fn start_beside(&mut self, note: &StartNote, observer: &mut dyn Observer) -> Result<()> {
        if let Some(step) = note.checkpoint {
            self.output.refresh()?;
            let checkpoint = Checkpoint::open(self.output.dir.checkpoint_path(step)?)?;
            checkpoint.check_job(&self.job)?;
            checkpoint.check_files(&self.data.files)?;
            observer.note(&format!("resuming from {}", checkpoint.path().display()));
            return self.restore_dense(&checkpoint);
        }
        if let Some(path) = &note.origin {
            let origin = Checkpoint::open(path)?;
            origin.check_model(&self.job)?;
            observer.note(&format!("beginning from {}", path.display()));
            return self.begin_from_checkpoint(&origin, observer);
        }
        self.begin(note.version, observer).map(|_| ())
    }

    /// Takes the parameters and the statistics of another run's checkpoint.
    fn begin_from_checkpoint(
        &mut self,
        origin: &Checkpoint,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.restore_statistics(origin)?;
        self.position.progress.begun_at = self.position.step;
        let Model { params, optimizer, .. } = &mut self.model;
        if let Some(reason) = origin.lend_dense(params, optimizer)? {
            observer.note(&format!(
                "the state of the dense optimizer is not taken from the checkpoint: {reason}"
            ));
        }
        Ok(())
    }

    /// Initializes a new run: makes the first passes over the training data that the job needs, and
    /// copies the weights of the version from which the run begins. If `version` is given, the run
    /// begins from this version. Returns the number of the version. Only trainer 0 fills tables.
    fn begin(&mut self, version: Option<u64>, observer: &mut dyn Observer) -> Result<Option<u64>> {
        let origin = self.load_origin(version, observer)?;
        self.collect_statistics(origin.as_ref(), observer)?;
        self.begin_at_means(origin.as_ref(), observer)?;
        let workers = &self.options.workers;
        let counted = self.job.item_feature().filter(|_| self.job.train.item_counts.is_data());
        if let Some(feature) = counted {
            observer.note("counting items");
            let counts = zillion_reader::frequencies(self.data.train()?, feature, workers)?;
            self.data.frequencies = Some(Frequencies::new(counts));
        }
        let dense = self.job.dense_tables();
        if !dense.is_empty() && self.options.trainer.is_first() {
            observer.note("collecting the vocabulary of dense tables");
            let vocabularies = zillion_reader::vocabulary(self.data.train()?, &dense, workers)?;
            for (&(id, _), keys) in dense.iter().zip(&vocabularies) {
                self.client.prefill(id, keys)?;
            }
        }
        if let Some(origin) = &origin {
            self.begin_from(origin, observer)?;
        }
        Ok(origin.map(|origin| origin.number()))
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
            let mut statistics = zillion_reader::statistics(self.data.train()?, workers)?;
            statistics.columns.extend(inherited.columns);
            self.data.use_statistics(statistics);
        } else if !inherited.columns.is_empty() {
            self.data.use_statistics(inherited);
        }
        Ok(())
    }

    /// Restores the whole state of the run from a checkpoint of its own.
    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        self.restore_tables(checkpoint)?;
        self.restore_dense(checkpoint)?;
        let Output { dir, bucket, checkpointed, link, stream, .. } = &mut self.output;
        *checkpointed = Some((checkpoint.manifest.step, checkpoint.manifest.cursor));
        *stream = newest_link(dir.path(), checkpoint)?;
        *link = self.client.checkpoint_mark().map(|mark| checkpoint.link(mark));
        let kept = output::kept_steps(dir, bucket.as_ref())?;
        self.client.record_checkpoint(&kept)?;
        // A run that was killed after writing a checkpoint may not have removed the old ones.
        let keep = self.job.train.keep.get();
        let pinned = pinned_steps(dir, self.position.progress.best, stream.as_ref())?;
        if let Some(bucket) = bucket {
            bucket.retain(keep, &pinned, checkpoint.path())?;
        }
        dir.retain(keep, &pinned, &self.options.files)
    }

    /// Restores the tables from a checkpoint, which lies in the folder or in the bucket of the run.
    pub(super) fn restore_tables(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let Some(bucket) = &self.output.bucket else {
            return Ok(self.client.restore(checkpoint.path(), &checkpoint.manifest.tables)?);
        };
        let mut tables = checkpoint.manifest.tables.clone();
        let changes = tables.iter_mut().filter_map(|table| table.changes.as_mut());
        for below in changes.flat_map(|changes| &mut changes.below) {
            below.folder = bucket.name_of(&below.folder);
        }
        Ok(self.client.restore(&bucket.name_of(checkpoint.path()), &tables)?)
    }

    /// Restores the state of the run from a checkpoint of its own, except the tables.
    fn restore_dense(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let manifest = &checkpoint.manifest;
        self.restore_statistics(checkpoint)?;
        checkpoint.restore_dense(&mut self.model.params, &mut self.model.optimizer)?;
        if let Some(average) = &mut self.model.average {
            checkpoint.restore_average(average)?;
        }
        self.position.cursor = manifest.cursor;
        self.position.progress = manifest.progress.clone();
        Ok(())
    }

    /// Restores the statistics and the step from a checkpoint, but not the tables, the dense
    /// parameters and the position in the data.
    fn restore_statistics(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let manifest = &checkpoint.manifest;
        self.data.use_statistics(manifest.statistics.clone());
        self.data.frequencies = checkpoint.frequencies()?;
        // Rows hold the step of their last push, so the numbers of steps continue.
        self.position.step = manifest.step;
        self.position.progress.newest_event_ms = manifest.progress.newest_event_ms;
        self.position.progress.event_clock = manifest.progress.event_clock;
        Ok(())
    }
}

/// Opens the folder of the run, and its bucket if the servers keep checkpoints in one. Trainers on
/// the same machine then have folders of their own.
fn open_place(job: &Job, options: &TrainOptions) -> Result<(RunDir, Option<RunBucket>)> {
    let output = job.output();
    let Some((ps, url)) = job.ps.as_ref().and_then(|ps| Some((ps, ps.bucket()?))) else {
        return Ok((RunDir::new(output), None));
    };
    let run = ps.run_in_store(&output)?;
    let is_first = options.trainer.is_first();
    let dir = RunDir::new(match is_first {
        true => output,
        false => output.join(format!("trainer-{}", options.trainer.index)),
    });
    let bucket = RunBucket::open(&url, run, dir.clone(), &options.files)?;
    if is_first {
        bucket.fetch_id()?;
    }
    Ok((dir, Some(bucket)))
}

/// Opens the record of a run that reads files. Only the first trainer writes one.
fn open_recorder(
    job: &Job,
    dir: &RunDir,
    is_first: bool,
    resumes: bool,
    observer: &mut dyn Observer,
) -> Result<Option<Recorder>> {
    if !is_first || !job.streams.is_empty() {
        return Ok(None);
    }
    let (recorder, problem) = Recorder::open(dir.path(), job, resumes)?;
    if let Some(problem) = problem {
        observer.note(&problem);
    }
    Ok(Some(recorder))
}

/// Returns the id of the run: that of the run from which it starts, or that of its folder.
fn find_id(origin: Option<&Checkpoint>, dir: &RunDir, options: &TrainOptions) -> Result<RunId> {
    match origin {
        _ if !options.trainer.is_first() => Ok(RunId::default()),
        Some(origin) => RunId::inherit(dir.path(), RunId::of_checkpoint(origin)?, &options.files),
        None => RunId::of(dir.path(), &options.files),
    }
}

/// Returns the checkpoint of the run and the checkpoint of another run from which the run can
/// start. Only trainer 0 looks for them and tells the others.
pub(super) fn find_basis(
    job: &Job,
    options: &TrainOptions,
    dir: &RunDir,
    bucket: Option<&RunBucket>,
) -> Result<(Option<Checkpoint>, Option<Checkpoint>)> {
    if !options.trainer.is_first() {
        return Ok((None, None));
    }
    if let Some(bucket) = bucket {
        bucket.fetch()?;
    }
    let checkpoint = find_checkpoint(job, options, dir)?;
    let origin = find_origin(job, options, checkpoint.is_some())?;
    Ok((checkpoint, origin))
}

/// Returns the newest checkpoint in the run's folder, from which the run resumes, or `None` if the
/// run does not resume.
fn find_checkpoint(job: &Job, options: &TrainOptions, dir: &RunDir) -> Result<Option<Checkpoint>> {
    let Some(checkpoint) = overwrite::find_newest(dir, options)? else { return Ok(None) };
    if !options.resume {
        return Err(Error::WouldOverwrite { path: dir.path().to_owned() });
    }
    checkpoint.check_job(job)?;
    Ok(Some(checkpoint))
}

/// Returns the checkpoint of another run from which a new run begins, if the caller names one.
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
