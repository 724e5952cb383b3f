//! The data of a run: its three data sets, and the statistics that are computed before the first
//! step.

use zillion_device::Files;
use zillion_feature::Statistics;
use zillion_reader::{Dataset, Labels, Paths, SideTables};

use super::resumed::{resume_notes, sample_digest};
use crate::checkpoint::{Checkpoint, TrainingFile};
use crate::error::{Error, Result};
use crate::frequencies::Frequencies;
use crate::job::Job;
use crate::overlap::shared_files;
use crate::rejects::RejectFile;

/// The data sets of a run, with their statistics.
pub(super) struct Data {
    /// The training files. A job with streams may have none; its files serve only the statistics
    /// and the vocabulary.
    train: Option<Dataset>,
    pub(super) valid: Option<Dataset>,
    pub(super) test: Option<Dataset>,
    /// The statistics of numeric features.
    pub(super) statistics: Statistics,
    /// The frequency of each item in the training data, if the model reads it.
    pub(super) frequencies: Option<Frequencies>,
    /// The training files, on which the order of rows depends.
    pub(super) files: Vec<TrainingFile>,
    /// The file of rejected rows, if the job asks for one.
    pub(super) rejects: Option<RejectFile>,
    /// The number of rows in an epoch; absent until the first epoch has ended.
    pub(super) epoch_rows: Option<u64>,
}

impl Data {
    /// Opens the data sets of a job. If the run resumes from `checkpoint`, verifies that the
    /// training files are the same. With `lists_rejects`, the file of rejected rows is kept if the
    /// job asks for one.
    pub(super) fn open(
        job: &Job,
        sides: &SideTables,
        checkpoint: Option<&Checkpoint>,
        lists_rejects: bool,
    ) -> Result<Self> {
        let train = open_dataset(job, &job.data.train, sides)?;
        let (train, files) = match train {
            // The files of a job with streams have no place in the order of rows.
            Some(train) if !job.streams.is_empty() => (Some(train), Vec::new()),
            Some(train) => {
                let train = train.thinned(&job.data, job.seed)?;
                let train = if job.compares_groups() { train.with_whole_groups() } else { train };
                let files = training_files(job, &train)?;
                (Some(train), files)
            }
            None if !job.streams.is_empty() => (None, Vec::new()),
            None => return Err(no_training_files()),
        };
        if let Some(checkpoint) = checkpoint {
            checkpoint.check_files(&files)?;
        }
        let valid = open_dataset(job, &job.data.valid, sides)?;
        let test = open_dataset(job, &job.data.test, sides)?;
        let path = job.data.rejects.as_ref().filter(|_| lists_rejects);
        let rejects = match (path, checkpoint) {
            (Some(path), Some(_)) => Some(RejectFile::resume(path)?),
            (Some(path), None) => Some(RejectFile::new(path)),
            (None, _) => None,
        };
        Ok(Self {
            train,
            valid,
            test,
            statistics: Statistics::default(),
            frequencies: None,
            files,
            rejects,
            epoch_rows: None,
        })
    }

    /// Returns what the user should know about the files of the run, and about what a resumed run
    /// does not do, before it begins.
    pub(super) fn notes(&self, job: &Job, checkpoint: Option<&Checkpoint>) -> Vec<String> {
        let shared = shared_files(job).into_iter();
        let shared: Vec<String> =
            shared.map(|(part, text)| format!("`data.{part}`: {text}")).collect();
        let shared = (!shared.is_empty()).then(|| shared.join("; "));
        let resumed = checkpoint.map(|checkpoint| resume_notes(job, checkpoint, &self.files));
        shared.into_iter().chain(resumed.into_iter().flatten()).collect()
    }

    /// Returns the training files.
    ///
    /// # Errors
    /// Returns an error if the job names none.
    pub(super) fn train(&self) -> Result<&Dataset> {
        self.train.as_ref().ok_or_else(no_training_files)
    }

    /// Returns the training files, or `None` if the job names none.
    pub(super) fn train_files(&self) -> Option<&Dataset> {
        self.train.as_ref()
    }

    /// Sets the statistics of every data set.
    pub(super) fn use_statistics(&mut self, statistics: Statistics) {
        let datasets = [self.train.as_mut(), self.valid.as_mut(), self.test.as_mut()];
        for dataset in datasets.into_iter().flatten() {
            *dataset = dataset.clone().with_statistics(statistics.clone());
        }
        self.statistics = statistics;
    }

    /// Writes the file of rejected rows, if the job asks for one.
    pub(super) fn save_rejects(&mut self, files: &Files) -> Result<()> {
        let Some(rejects) = &mut self.rejects else { return Ok(()) };
        let datasets = [self.train.as_ref(), self.valid.as_ref(), self.test.as_ref()];
        datasets.into_iter().flatten().for_each(|dataset| rejects.add(dataset));
        rejects.save(files)
    }

    /// Returns the data sets of the job with their names.
    pub(super) fn datasets(&self) -> impl Iterator<Item = (&'static str, &Dataset)> {
        let all = [
            ("train", self.train.as_ref()),
            ("valid", self.valid.as_ref()),
            ("test", self.test.as_ref()),
        ];
        all.into_iter().filter_map(|(name, dataset)| Some((name, dataset?)))
    }
}

fn no_training_files() -> Error {
    Error::Unsupported(
        "`data.train` names no files, but a job needs training data; name at least one file (for a \
         job with streams: `zillion online` follows them; it needs files with rows like those of \
         the streams only for statistics and vocabularies, which are computed once)"
            .to_owned(),
    )
}

fn open_dataset(job: &Job, paths: &Paths, sides: &SideTables) -> Result<Option<Dataset>> {
    if paths.is_empty() {
        return Ok(None);
    }
    let files = job.data.files(paths)?;
    let dataset = Dataset::open_beside(&job.data, &files, &job.schema, Labels::Required, sides)?;
    Ok(Some(dataset))
}

/// Returns the names, sizes and digests of the training files, and the names and sizes of the side
/// tables. The name of a training
/// file is relative to `data.root`. The name of a side table is its name in the job, because its
/// file may move.
fn training_files(job: &Job, dataset: &Dataset) -> Result<Vec<TrainingFile>> {
    let mut files = Vec::new();
    for path in dataset.paths() {
        let name = path.strip_prefix(&job.data.root).unwrap_or(path);
        let bytes = job.data.file_facts(path)?.bytes;
        let sample = sample_digest(path)?;
        files.push(TrainingFile { name: name.display().to_string(), bytes, sample });
    }
    for side in &job.schema.sides {
        let mut bytes = 0;
        for path in job.data.files(&Paths::from(side.path.as_str()))? {
            bytes += job.data.file_facts(&path)?.bytes;
        }
        let name = format!("side table {}", side.name);
        files.push(TrainingFile { name, bytes, sample: None });
    }
    Ok(files)
}
