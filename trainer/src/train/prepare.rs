//! Everything before the first step: data, statistics, vocabularies, tables, the model; or all of it
//! as a checkpoint left it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use zillion_config::ConfigError;
use zillion_embedding::{SpillHome, TableSet};
use zillion_feature::{Cursor, FeatureSpec, Statistics, TableId};
use zillion_nn::optim::{Average, DenseOptimizer};
use zillion_nn::zoo::{self, LOGITS, LOSS};
use zillion_nn::{Executor, Graph, Mode, NodeId, Params, Program, differentiate};
use zillion_ps::{LocalClient, TrainClient};
use zillion_reader::{Dataset, Labels, Paths, SideTables};
use zillion_scorer::Scorer;

use super::accumulate::Accumulated;
use super::counting::Counting;
use super::publish::Publishing;
use super::step::{Looking, StepBuffers};
use super::{Run, TrainOptions, plateau};
use crate::checkpoint::{Checkpoint, Progress, RunDir, TrainingFile};
use crate::error::{Error, Result};
use crate::fetch;
use crate::frequencies::Frequencies;
use crate::job::Job;
use crate::model;
use crate::observer::Observer;
use crate::publish::RunId;
use crate::rejects::RejectFile;
use crate::retrieval::Towers;
use crate::stages::StageSeconds;

impl Run {
    pub(super) fn prepare(
        job: Job,
        options: TrainOptions,
        began: Instant,
        observer: &mut dyn Observer,
    ) -> Result<Self> {
        let dir = RunDir::new(job.output());
        let newest = dir.newest()?;
        let checkpoint = match newest {
            Some(_) if !options.resume => {
                return Err(Error::WouldOverwrite { path: dir.path().to_owned() });
            }
            Some(checkpoint) => {
                checkpoint.check_job(&job)?;
                Some(checkpoint)
            }
            None => None,
        };
        if options.from.is_some() && job.train.warm_start.is_some() {
            let message = "begins from a version, and --from from a checkpoint; leave one of them";
            return Err(ConfigError::at("train.warm_start", message).into());
        }
        // What has begun goes on from its own checkpoint.
        let origin = match &options.from {
            Some(path) if checkpoint.is_none() => {
                let origin = Checkpoint::find(path)?;
                origin.check_model(&job)?;
                Some(origin)
            }
            _ => None,
        };

        let mut graph = model::graph(&job, Mode::Train)?;
        job.freeze(&mut graph)?;
        // A two_tower without labels has a score, and nothing that it is held against.
        let tasks = job.tasks().into_iter().enumerate();
        let logits = tasks.map(|(index, task)| output(&graph, &task.output(LOGITS, index)));
        let logits = logits.collect::<Result<_>>()?;
        let loss = output(&graph, LOSS)?;
        let params = Params::init(&graph.params, job.seed);
        let mut optimizer =
            DenseOptimizer::new(job.train.optimizer, job.model.l2(), &graph.params)?;
        optimizer.set_rates(&job.rate_factors(&graph.params)?)?;
        let average = job.train.average.map(|spec| Average::new(spec, &params));
        let settings = job.train.settings()?;
        let mut differentiated = differentiate(&graph, loss)?;
        let look = observer.look();
        let nodes = fetch::wanted(&differentiated.graph, &look.nodes)?;
        let results = nodes.iter().map(|node| (String::new(), node.id));
        differentiated.graph.outputs.extend(results);
        let executor = Executor::new(Program::train(&differentiated, settings)?);
        let infer = model::graph(&job, Mode::Infer)?;
        let scorer = Scorer::new(&infer, settings, options.workers.clone())?;
        let towers = Towers::new(&job, &infer, settings, &options.workers)?;
        let item_column = job.item_column().filter(|_| zoo::reads_log_frequency(&job.model));
        let mut tables = TableSet::new(job.tables.clone(), job.run.shards)?;
        tables.limit_bytes(job.train.max_table_bytes)?;
        tables.freeze(&job.frozen_tables()?)?;
        let mut client = LocalClient::over(tables, options.workers.clone());
        if job.train.full_every.get() > 1 {
            client.follow_checkpoints()?;
        }
        if !job.run.spill.is_empty() {
            // First the run's own folders, whose names it makes durable.
            dir.prepare(&options.files)?;
            spill(&job, &mut client, &options, observer)?;
        }

        let sides = SideTables::load(&job.data, &job.schema)?;
        let train_data = open(&job, &job.data.train, &sides)?.ok_or_else(|| {
            Error::Unsupported("`data.train` names no files: a job needs training data".to_owned())
        })?;
        let train_data = train_data.thinned(&job.data, job.seed)?;
        let files = training_files(&job, &train_data)?;
        if let Some(checkpoint) = &checkpoint {
            checkpoint.check_files(&files)?;
        }
        let valid_data = open(&job, &job.data.valid, &sides)?;
        let test_data = open(&job, &job.data.test, &sides)?;
        let missing_sides = vec![0; job.schema.sides.len()];
        let plateau = plateau(&job);
        let rejects = match (&job.data.rejects, &checkpoint) {
            (Some(path), Some(_)) => Some(RejectFile::resume(path)?),
            (Some(path), None) => Some(RejectFile::new(path)),
            (None, _) => None,
        };
        let mut run = Self {
            job: Arc::new(job),
            dir,
            id: RunId::default(),
            train_data,
            valid_data,
            test_data,
            statistics: Statistics::default(),
            client: Box::new(client),
            executor,
            scorer,
            towers,
            frequencies: None,
            params,
            optimizer,
            average,
            accumulated: Accumulated::default(),
            buffers: StepBuffers {
                rows: Default::default(),
                grads: Default::default(),
                logits,
                log_frequency: Vec::new(),
                item_column,
            },
            looking: Looking::new(look.steps, nodes),
            step: 0,
            cursor: Cursor::default(),
            progress: Progress {
                plateau,
                best: None,
                loss_sum: 0.0,
                left_out: 0,
                rejected: 0,
                newest_event_ms: None,
                begun_at: 0,
            },
            rejects,
            files,
            epoch_rows: None,
            epoch_trained: None,
            last_plan: None,
            checkpointed: None,
            link: None,
            saving: None,
            rows_trained: 0,
            missing_sides,
            publishing: Publishing::default(),
            skipped_steps: 0,
            seconds: StageSeconds::default(),
            counting: Counting::new(began, observer.wants_figures()),
            profiler: None,
            options,
        };
        run.dir.prepare(&run.options.files)?;
        let files = &run.options.files;
        run.id = match &origin {
            Some(origin) => RunId::inherit(run.dir.path(), RunId::of_checkpoint(origin)?, files)?,
            None => RunId::of(run.dir.path(), files)?,
        };
        match (checkpoint, origin) {
            (Some(checkpoint), _) => {
                observer.note(&format!("resuming from {}", checkpoint.path().display()));
                run.restore(&checkpoint)?;
            }
            (None, Some(origin)) => {
                observer.note(&format!("beginning from {}", origin.path().display()));
                run.take_over(&origin)?;
                run.progress.begun_at = run.step;
                let Run { params, optimizer, .. } = &mut run;
                if let Some(why) = origin.lend_dense(params, optimizer)? {
                    observer.note(&format!("the dense optimizer begins anew: {why}"));
                }
            }
            (None, None) => {
                let begun = run.begin(observer);
                run.saving_rejects(begun)?;
            }
        }
        run.open_publisher(&sides, observer)?;
        run.catch_up_publishing(observer)?;
        Ok(run)
    }

    /// A first pass over the training data, where the job needs one.
    fn begin(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let workers = &self.options.workers;
        let origin = self.origin_version(observer)?;
        let known = self.known_statistics(origin.as_ref());
        let is_unknown =
            |f: &FeatureSpec| f.needs_statistics() && !known.columns.contains_key(&f.name);
        if self.job.schema.features.iter().any(is_unknown) {
            observer.note("collecting statistics of numeric features");
            let mut statistics = zillion_reader::statistics(&self.train_data, workers)?;
            statistics.columns.extend(known.columns);
            self.use_statistics(statistics);
        } else if !known.columns.is_empty() {
            self.use_statistics(known);
        }
        let workers = &self.options.workers;
        let counted = self.job.item_feature().filter(|_| self.job.train.item_counts.is_data());
        if let Some(feature) = counted {
            observer.note("counting items");
            let counts = zillion_reader::frequencies(&self.train_data, feature, workers)?;
            self.frequencies = Some(Frequencies::new(counts));
        }
        let dense = self.job.dense_tables();
        if !dense.is_empty() {
            observer.note("collecting the vocabulary of dense tables");
            let vocabularies = zillion_reader::vocabulary(&self.train_data, &dense, workers)?;
            for (&(id, _), keys) in dense.iter().zip(&vocabularies) {
                self.client.prefill(id, keys)?;
            }
        }
        if let Some(origin) = origin {
            self.begin_from(&origin, observer)?;
        }
        Ok(())
    }

    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let manifest = &checkpoint.manifest;
        self.take_over(checkpoint)?;
        checkpoint.restore_dense(&mut self.params, &mut self.optimizer)?;
        if let Some(average) = &mut self.average {
            checkpoint.restore_average(average)?;
        }
        self.cursor = manifest.cursor;
        self.progress = manifest.progress.clone();
        self.checkpointed = Some(manifest.step);
        self.link = self.client.checkpoint_mark().map(|mark| checkpoint.link(&self.dir, mark));
        // A run that was killed between writing a checkpoint and removing an old one ends up the same.
        let keep = self.job.train.keep.get();
        self.dir.retain(keep, self.progress.best, &self.options.files)
    }

    /// What was learned, without where in the data that was, and without the dense part.
    fn take_over(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let manifest = &checkpoint.manifest;
        self.use_statistics(manifest.statistics.clone());
        self.frequencies = checkpoint.frequencies()?;
        self.client.restore(checkpoint.path(), &manifest.tables)?;
        // Rows remember the step that saw them last, and what was learned is as new as it was.
        self.step = manifest.step;
        self.progress.newest_event_ms = manifest.progress.newest_event_ms;
        Ok(())
    }

    fn use_statistics(&mut self, statistics: Statistics) {
        let datasets =
            [Some(&mut self.train_data), self.valid_data.as_mut(), self.test_data.as_mut()];
        for dataset in datasets.into_iter().flatten() {
            *dataset = dataset.clone().with_statistics(statistics.clone());
        }
        self.statistics = statistics;
    }
}

fn output(graph: &Graph, name: &str) -> Result<NodeId> {
    let missing = || Error::Unsupported(format!("the model has no output `{name}`"));
    graph.output(name).ok_or_else(missing)
}

/// The training files by their names below `data.root`, with their sizes, and the side tables that are
/// joined to them; these by their names in the job, because they may move.
fn training_files(job: &Job, dataset: &Dataset) -> Result<Vec<TrainingFile>> {
    let mut files = Vec::new();
    for path in dataset.paths() {
        let name = path.strip_prefix(&job.data.root).unwrap_or(path);
        files.push(TrainingFile { name: name.display().to_string(), bytes: size(path)? });
    }
    for side in &job.schema.sides {
        let mut bytes = 0;
        for path in job.data.files(&Paths::from(side.path.as_str()))? {
            bytes += size(&path)?;
        }
        files.push(TrainingFile { name: format!("side table {}", side.name), bytes });
    }
    Ok(files)
}

fn size(path: &Path) -> Result<u64> {
    let failed = |source| Error::Io {
        action: "cannot read the size of the file",
        path: path.to_owned(),
        source,
    };
    Ok(std::fs::metadata(path).map_err(failed)?.len())
}

fn open(job: &Job, paths: &Paths, sides: &SideTables) -> Result<Option<Dataset>> {
    if paths.is_empty() {
        return Ok(None);
    }
    let files = job.data.files(paths)?;
    let dataset = Dataset::open_beside(&job.data, &files, &job.schema, Labels::Required, sides)?;
    Ok(Some(dataset))
}

/// Lets tables leave memory, where the job says so.
fn spill(
    job: &Job,
    client: &mut LocalClient,
    options: &TrainOptions,
    observer: &mut dyn Observer,
) -> Result<()> {
    let folder = job.spill_folder();
    let home = SpillHome::open(&options.files, &folder)?;
    for (id, table) in (0..).map(TableId).zip(&job.tables) {
        if let Some(memory) = job.run.spill.get(&table.name) {
            client.spill(id, memory.bytes(), &home)?;
        }
    }
    let statistics = client.tables().statistics();
    if statistics.iter().any(|table| table.spill.is_some_and(|spill| spill.cached_files > 0)) {
        observer.note(&format!(
            "the file system of {} has no way past its page cache, or keeps files in memory: rows that leave their \
             tables may take the machine's memory all the same; give run.spill_folder a place on a disk of its own",
            folder.display()
        ));
    }
    Ok(())
}
