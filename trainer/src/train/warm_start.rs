//! Runs that begin from a version of a model (`train.warm_start`), whose weights are copied.
//!
//! A checkpoint continues a training: it has the same model and all optimizer state. A version has
//! only weights, and may come from another job. Dense parameters are matched by name, and rows by
//! table and segment. Parts with the same name and different shapes are an error. Parts that exist
//! only in the version or only in the job are reported. The version is loaded as in a server, with
//! its chain, checksums and parity rows, so a damaged version is refused.
//!
//! # Crash consistency
//! A run needs the version only until its first checkpoint. If the run is killed before this
//! checkpoint, it begins from the version again. If it is killed later, it resumes from its
//! checkpoint, which holds the whole state. The fetched files are in a separate folder, which is
//! removed.

use std::sync::Arc;

use zillion_device::SystemClock;
use zillion_feature::{Buckets, FeatureKind, FeatureSpec, Statistics, TableId};
use zillion_nn::optim::Average;
use zillion_registry::{Cache, Registry, STABLE, VersionId};
use zillion_rows::layer::Unthrottled;
use zillion_scorer::Servable;

use super::Run;
use crate::error::{Error, Result};
use crate::observer::Observer;

/// The name of the folder, inside the run's folder, into which a version is fetched.
pub(super) const FOLDER: &str = "warm-start";

/// The version from which a run begins, and its name in errors.
pub(super) struct Origin {
    version: Servable,
    number: u64,
    name: String,
}

impl Origin {
    /// Returns the number of the version.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether the version has a dense parameter of this name.
    pub(super) fn has_parameter(&self, name: &str) -> bool {
        self.version.params().find(name).is_some()
    }
}

impl Run {
    /// Loads the version from which the job begins, if the job names one. If `version` is given, it
    /// is the number of this version, to which a pointer has led trainer 0.
    pub(super) fn load_origin(
        &self,
        version: Option<u64>,
        observer: &mut dyn Observer,
    ) -> Result<Option<Origin>> {
        let Some(config) = &self.job.train.warm_start else { return Ok(None) };
        let files = self.options.files.scratch();
        let registry =
            Registry::open(&config.registry, files.clone(), Arc::new(SystemClock::new()))?;
        let model = registry.model(config.model.as_deref().unwrap_or(&self.job.name))?;
        let number = match version.or(config.version) {
            Some(number) => VersionId(number),
            None => model.pointer(config.pointer.as_deref().unwrap_or(STABLE))?.to.version,
        };
        model.check_usable(number)?;
        observer.note(&format!("beginning from version {number} of {}", model.name()));
        let folder = match self.options.trainer {
            place if place.is_first() => self.output.dir.path().join(FOLDER),
            // Only trainer 0 writes into the run's folder.
            place => std::env::temp_dir().join(format!(
                "zillion-{FOLDER}-{}-{}",
                std::process::id(),
                place.index
            )),
        };
        let mut cache = Cache::open(&folder, model.name(), files.clone())?;
        let workers = &self.options.workers;
        let version = Servable::load(&model, number, None, &mut cache, workers, &mut Unthrottled)?;
        // Mapped files stay readable after their names are removed.
        files.remove_dir(&folder)?;
        let name = format!("version {number} of {}", model.name());
        Ok(Some(Origin { version, number: number.0, name }))
    }

    /// Copies the parameters and rows of a version into the model and the tables.
    pub(super) fn begin_from(
        &mut self,
        origin: &Origin,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.adopt_dense(origin, observer)?;
        if self.options.trainer.is_first() {
            self.adopt_rows(origin, observer)?;
        }
        // Averages begin from the parameters that training begins from.
        let average = self.job.train.average;
        self.model.average = average.map(|spec| Average::new(spec, &self.model.params));
        Ok(())
    }

    fn adopt_dense(&mut self, origin: &Origin, observer: &mut dyn Observer) -> Result<()> {
        let theirs = origin.version.params();
        let mut fresh = Vec::new();
        for (spec, values) in self.model.params.iter_mut() {
            let Some(id) = theirs.find(&spec.name) else {
                fresh.push(spec.name.clone());
                continue;
            };
            let there = &theirs.specs()[id.0 as usize];
            if (there.rows, there.cols) != (spec.rows, spec.cols) {
                return Err(Error::WarmStart {
                    version: origin.name.clone(),
                    what: format!("parameter `{}`", spec.name),
                    problem: format!(
                        "its shape is [{}, {}] in the version and [{}, {}] in the job; give the layer the \
                         same shape or another name",
                        there.rows, there.cols, spec.rows, spec.cols
                    ),
                });
            }
            values.copy_from_slice(theirs.value(id));
        }
        let unused =
            theirs.specs().iter().filter(|spec| self.model.params.find(&spec.name).is_none());
        let unused: Vec<String> = unused.map(|spec| spec.name.clone()).collect();
        for (names, what) in [
            (fresh, "begin with initial values, because the version does not have them"),
            (unused, "are left out, because the job does not have them"),
        ] {
            if !names.is_empty() {
                observer.note(&format!("parameters that {what}: {}", names.join(", ")));
            }
        }
        Ok(())
    }

    fn adopt_rows(&mut self, origin: &Origin, observer: &mut dyn Observer) -> Result<()> {
        let theirs = &origin.version.manifest().frame.tables;
        for (id, own) in (0..).map(TableId).zip(&self.job.tables) {
            let Some(table) = theirs.iter().position(|spec| spec.name == own.name) else {
                let name = &own.name;
                observer.note(&format!(
                    "table {name} begins empty, because the version does not have it"
                ));
                continue;
            };
            let mut rows = origin.version.rows().whole_rows_of(table);
            let adopted =
                self.client.adopt(id, &theirs[table].layout(), &mut rows).map_err(|problem| {
                    if problem.is_rewound() {
                        return problem.into();
                    }
                    Error::WarmStart {
                        version: origin.name.clone(),
                        what: format!("table `{}`", own.name),
                        problem: problem.to_string(),
                    }
                })?;
            let mut text = format!("table {} begins with {} rows", own.name, adopted.rows);
            if adopted.unknown > 0 {
                text.push_str(&format!(
                    "; {} are left out, because its fixed vocabulary does not have them",
                    adopted.unknown
                ));
            }
            observer.note(&text);
        }
        let left_out = theirs.iter().filter(|t| self.job.tables.iter().all(|o| o.name != t.name));
        let left_out: Vec<&str> = left_out.map(|spec| spec.name.as_str()).collect();
        if !left_out.is_empty() {
            let names = left_out.join(", ");
            observer.note(&format!(
                "tables that are left out, because the job does not have them: {names}"
            ));
        }
        Ok(())
    }

    /// Returns the version's statistics of the features that have the same transform in the job.
    /// The weights of the version were trained with these statistics.
    pub(super) fn inherited_statistics(&self, origin: Option<&Origin>) -> Statistics {
        let Some(origin) = origin else { return Statistics::default() };
        let theirs = &origin.version.encoder().schema().features;
        let statistics = &origin.version.manifest().frame.statistics.columns;
        let known = self.job.schema.features.iter().filter(|own| own.needs_statistics());
        let columns = known.filter_map(|own| {
            let there = theirs.iter().find(|feature| feature.name == own.name)?;
            let found = statistics.get(&own.name).filter(|_| mean_the_same(own, there))?;
            Some((own.name.clone(), found.clone()))
        });
        Statistics { columns: columns.collect() }
    }
}

/// Returns whether the statistics of feature `a` are valid for feature `b`: both have the same
/// transform.
fn mean_the_same(a: &FeatureSpec, b: &FeatureSpec) -> bool {
    if a.time != b.time {
        return false;
    }
    match (&a.kind, &b.kind) {
        (FeatureKind::Numeric { transform: a, .. }, FeatureKind::Numeric { transform: b, .. }) => {
            a == b
        }
        (
            FeatureKind::Bucketized { buckets: Buckets::Quantiles(a), .. },
            FeatureKind::Bucketized { buckets: Buckets::Quantiles(b), .. },
        ) => a == b,
        _ => false,
    }
}
