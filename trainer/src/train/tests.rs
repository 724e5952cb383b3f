//! Tests of whole runs in this process, with accumulation, schedules, averages and freezing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use zillion_device::Workers;
use zillion_feature::random::{combine, mix64};
use zillion_nn::optim::DenseOptimizer;
use zillion_nn::{Mode, Params};

use zillion_reader::Dataset;

use super::*;
use crate::checkpoint::RunDir;
use crate::observer::{InspectOptions, InspectedStep, Silent};
use crate::predict::Loaded;

const ROWS: u64 = 600;

fn csv(part: u64, rows: u64) -> String {
    let mut text = "user,item,price,label\n".to_owned();
    for index in 0..rows {
        let draw = |salt: u64| mix64(combine(combine(part, salt), index));
        let bias = |id: u64, salt: u64| (mix64(combine(id, salt)) % 1000) as f64 / 250.0 - 2.0;
        let (user, item) = (draw(1) % 40, draw(2) % 60);
        let chance = 1.0 / (1.0 + (-bias(user, 7) - bias(item, 8)).exp());
        let label = u8::from(((draw(4) % 10_000) as f64) < chance * 10_000.0);
        let price = (draw(3) % 1000) as f64 / 1000.0;
        writeln!(text, "{user},{item},{price},{label}").unwrap();
    }
    text
}

/// A temporary folder with data and runs.
pub(super) struct Place(TempDir);

impl Place {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.csv"), csv(0, ROWS)).unwrap();
        std::fs::write(folder.path().join("valid.csv"), csv(1, 300)).unwrap();
        Self(folder)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn job(&self, output: &str, more: &str) -> Job {
        self.job_with("", output, more)
    }

    /// Makes a job whose label has more keys.
    pub(super) fn job_with(&self, label: &str, output: &str, more: &str) -> Job {
        let text = format!(
            "seed = 3\n[data]\nroot = {:?}\ntrain = ['train.csv']\nvalid = ['valid.csv']\ntest = ['valid.csv']\n\
             [features.user]\nkind = 'id'\n[features.item]\nkind = 'id'\n[features.price]\nkind = 'numeric'\n\
             [labels.click]\ncolumn = 'label'\n{label}\n\
             [tables.'*']\ndim = 4\noptimizer = {{ kind = 'adagrad', lr = 0.05 }}\n\
             [run]\noutput = {:?}\nshards = 3\n{more}",
            self.path(""),
            self.path(output)
        );
        let value: toml::Table = toml::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        Job::from_value(value.into()).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    pub(super) fn run(&self, output: &str, more: &str) -> TrainReport {
        train(self.job(output, more), TrainOptions::new(2).unwrap(), &mut Silent).unwrap()
    }

    /// Reads every file of a run's newest checkpoint.
    pub(super) fn files(&self, output: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        read_files(self.newest(output).path())
    }

    pub(super) fn newest(&self, output: &str) -> crate::Checkpoint {
        RunDir::new(self.path(output)).newest().unwrap().unwrap()
    }

    /// Returns the newest parameters, and the parameters that are used for scoring.
    pub(super) fn params(&self, output: &str) -> (Params, Params) {
        let checkpoint = self.newest(output);
        let job = checkpoint.job().unwrap();
        let mut graph = job.graph(Mode::Train).unwrap();
        job.freeze(&mut graph).unwrap();
        let mut params = Params::init(&graph.params, 0);
        let spec = job.train.optimizer;
        let mut optimizer = DenseOptimizer::new(spec, 0.0, &graph.params).unwrap();
        checkpoint.restore_dense(&mut params, &mut optimizer).unwrap();
        let scored = checkpoint.params(&graph.params).unwrap();
        (params, scored)
    }

    /// Returns the log odds of the validation rows.
    pub(super) fn logits(&self, output: &str) -> Vec<f32> {
        self.logits_of(self.newest(output).path())
    }

    /// Returns the log odds of the validation rows, as a checkpoint scores them.
    pub(super) fn logits_of(&self, checkpoint: &Path) -> Vec<f32> {
        let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
        let mut loaded = Loaded::open(checkpoint, workers).unwrap();
        let files = loaded.job.data.files(&loaded.job.data.valid).unwrap();
        let data = Dataset::open(&loaded.job.data, &files, &loaded.job.schema);
        let mut logits = Vec::new();
        loaded
            .predict(&data.unwrap(), |prediction| {
                logits.extend_from_slice(prediction.logits[0]);
                Ok(true)
            })
            .unwrap();
        logits
    }
}

/// Reads every file below a folder.
pub(super) fn read_files(top: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(top).unwrap().to_owned();
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn floats(params: &Params) -> Vec<f32> {
    params.iter().flat_map(|(_, values)| values.to_vec()).collect()
}

const DNN: &str = "[model]\nkind = 'deepfm'\nhidden = [8, 4]\n";

#[test]
fn a_step_of_several_batches_is_that_of_one_with_all_their_rows() {
    let place = Place::new();
    let train = |n: usize, batch: usize| {
        format!(
            "{DNN}[train]\nepochs = 2\nbatch_size = {batch}\naccumulate = {n}\nclip_norm = 1.0\n\
             optimizer = {{ kind = 'sgd', lr = 0.5 }}\n\
             [tables.user]\noptimizer = {{ kind = 'sgd', lr = 0.5 }}\n\
             [tables.item]\noptimizer = {{ kind = 'sgd', lr = 0.5 }}\n"
        )
    };
    // The optimizers do not divide by values that may be rounding errors alone. With 600 rows the
    // last step of an epoch has fewer batches, and the last of these has fewer rows.
    let whole = place.run("whole", &train(1, 128));
    let parts = place.run("parts", &train(4, 32));
    assert_eq!((whole.steps, parts.steps), (10, 10));
    assert_eq!(whole.tables[0].rows, parts.tables[0].rows);
    assert_eq!(whole.epoch_rows, parts.epoch_rows);
    let apart = furthest(&floats(&place.params("whole").0), &floats(&place.params("parts").0));
    assert!(apart < 2e-5, "{apart}");
    let apart = furthest(&place.logits("whole"), &place.logits("parts"));
    assert!(apart < 2e-4, "{apart}");
    // The result differs from training on the small batches.
    place.run("small", &train(1, 32));
    assert!(furthest(&place.logits("whole"), &place.logits("small")) > 1e-2);
}

/// An observer that stops a run after a number of batches.
pub(super) struct StopBehind {
    pub(super) batches: u64,
    pub(super) seen: u64,
    pub(super) stop: Arc<AtomicBool>,
}

impl Observer for StopBehind {
    fn inspect_options(&self) -> InspectOptions {
        InspectOptions { steps: true, ..InspectOptions::default() }
    }

    fn inspect(&mut self, _: &InspectedStep<'_>) {
        self.seen += 1;
        self.stop.store(self.seen >= self.batches, Ordering::Relaxed);
    }
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_in_the_same_bytes() {
    let place = Place::new();
    // The settings include everything that has a state or depends on where a step begins.
    let more = "[model]\nkind = 'deepfm'\nhidden = [8, 4]\nbatch_norm = true\ndropout = 0.2\n\
        [train]\nepochs = 2\nbatch_size = 40\naccumulate = 3\nclip_norm = 5.0\n\
        optimizer = { kind = 'lamb', lr = 0.01, weight_decay = 0.01 }\n\
        average = { kind = 'ema', decay = 0.9, start = 2 }\n\
        [train.schedule]\nwarmup_steps = 3\ndecay = { kind = 'cosine', steps = 6 }\n\
        [[train.rates]]\nmatch = 'mlp.*'\nscale = 0.5\n\
        [train.loss.click]\nkind = 'focal'\n";
    place.run("whole", more);
    let expected = place.files("whole");
    for (threads, shards) in [(1, 1), (3, 8)] {
        let output = format!("t{threads}s{shards}");
        let mut job = place.job(&output, more);
        job.run.shards = NonZeroUsize::new(shards).unwrap();
        train(job, TrainOptions::new(threads).unwrap(), &mut Silent).unwrap();
        assert_eq!(place.files(&output), expected, "{output}");
    }
    for batches in [1, 4, 7, 11, 15, 16, 23, 29] {
        let output = format!("stopped-{batches}");
        let options = TrainOptions::new(1).unwrap();
        let mut observer = StopBehind { batches, seen: 0, stop: options.stop.clone() };
        let first = train(place.job(&output, more), options, &mut observer).unwrap();
        assert!(first.interrupted || batches > 28, "{batches}");
        let options = TrainOptions { resume: true, ..TrainOptions::new(2).unwrap() };
        train(place.job(&output, more), options, &mut Silent).unwrap();
        assert_eq!(place.files(&output), expected, "stopped behind batch {batches}");
    }
}

#[test]
fn averages_are_what_is_scored_with_and_nothing_else() {
    let place = Place::new();
    let train = |average: &str| format!("{DNN}[train]\nepochs = 2\nbatch_size = 50\n{average}");
    let plain = place.run("plain", &train(""));
    let swa = place.run("swa", &train("average = { kind = 'swa', every = 2, start = 10 }"));
    let (weights, scored) = place.params("swa");
    assert_eq!(weights, place.params("plain").0, "training does not see the average");
    assert_ne!(scored, weights);
    assert_eq!(place.params("plain").1, weights);
    // Validation, the test after the run and an evaluation of the checkpoint agree.
    assert_ne!(plain.valid_auc, swa.valid_auc);
    assert_eq!(swa.test.unwrap().auc, swa.valid_auc);
    // Before the average has its first step, rows are scored with the newest weights.
    let later = place.run("later", &train("average = { kind = 'ema', start = 1000 }"));
    assert_eq!(later.valid_auc, plain.valid_auc);
}

#[test]
fn a_version_has_the_averages() {
    let place = Place::new();
    let registry = place.path("registry");
    let swa = "average = { kind = 'swa', every = 2, start = 4 }";
    let publish = format!(
        "[publish]\nregistry = {registry:?}\nmodel = 'm'\nparity_rows = 8\n{DNN}[train]\nepochs = 1\nbatch_size = 50\n{swa}\n"
    );
    place.run("averaged", &publish);
    let (weights, scored) = place.params("averaged");
    assert_ne!(weights, scored);
    // A run that changes no weight scores with its initial weights.
    let still = format!(
        "{DNN}[train]\nepochs = 1\nbatch_size = 50\noptimizer = {{ kind = 'sgd', lr = 1e-12 }}\n\
         freeze_tables = ['*']\nwarm_start = {{ registry = {registry:?}, model = 'm', version = 1 }}\n"
    );
    place.run("still", &still);
    assert_eq!(place.params("still").0, scored);
}

/// An observer that compares the losses of training with losses computed from labels and logits.
struct Losses<F> {
    of_row: F,
    steps: u64,
}

impl<F: Fn(f64, bool) -> f64> Observer for Losses<F> {
    fn inspect_options(&self) -> InspectOptions {
        InspectOptions { steps: true, ..InspectOptions::default() }
    }

    fn inspect(&mut self, stepped: &InspectedStep<'_>) {
        let labels = &stepped.batch.labels[0].values;
        let rows = stepped.logits.iter().zip(labels);
        let sum: f64 = rows.map(|(&z, &y)| (self.of_row)(f64::from(z), y == 1.0)).sum();
        let expected = sum / labels.len() as f64;
        assert!((stepped.loss - expected).abs() < 1e-5, "{} {expected}", stepped.loss);
        self.steps += 1;
    }
}

#[test]
fn the_loss_of_the_job_is_what_is_trained_on() {
    let place = Place::new();
    let check = |output: &str, loss: &str, of_row: &dyn Fn(f64, bool) -> f64| {
        let more = format!("{DNN}[train]\nepochs = 1\nbatch_size = 50\n[train.loss.click]\n{loss}");
        let mut losses = Losses { of_row, steps: 0 };
        train(place.job(output, &more), TrainOptions::new(1).unwrap(), &mut losses).unwrap();
        assert_eq!(losses.steps, 12);
    };
    // The probability of the observed label.
    let p = |z: f64, y: bool| 1.0 / (1.0 + if y { (-z).exp() } else { z.exp() });
    check("plain", "kind = 'bce'", &|z, y| -p(z, y).ln());
    let weighted = "kind = 'bce'\npositive_weight = 3.0\nnegative_weight = 0.5";
    check("weighted", weighted, &|z, y| if y { 3.0 } else { 0.5 } * -p(z, y).ln());
    let focal = "kind = 'focal'\ngamma = 1.5\nalpha = 0.25";
    check("focal", focal, &|z, y| {
        let class = if y { 0.25 } else { 0.75 };
        class * (1.0 - p(z, y)).powf(1.5) * -p(z, y).ln()
    });
}

#[test]
fn a_schedule_reaches_the_dense_part_and_on_request_the_tables() {
    let place = Place::new();
    let train = |epochs: u64, more: &str| {
        format!("{DNN}[train]\nepochs = {epochs}\nbatch_size = 50\n{more}")
    };
    let frozen_soon = |tables: bool| {
        format!(
            "[train.schedule]\ntables = {tables}\ndecay = {{ kind = 'step', every = 12, factor = 1e-9 }}\n"
        )
    };
    // One epoch has 12 steps, after which the rate is close to zero.
    place.run("one", &train(1, ""));
    place.run("all", &train(2, &frozen_soon(true)));
    place.run("dense", &train(2, &frozen_soon(false)));
    let one = floats(&place.params("one").0);
    assert!(furthest(&one, &floats(&place.params("all").0)) < 1e-7);
    assert!(furthest(&one, &floats(&place.params("dense").0)) < 1e-7);
    assert!(furthest(&place.logits("one"), &place.logits("all")) < 1e-5);
    assert!(furthest(&place.logits("one"), &place.logits("dense")) > 1e-2);
}

fn begun_from(place: &Place, from: &Path, output: &str, more: &str) -> TrainReport {
    let options = TrainOptions { from: Some(from.to_owned()), ..TrainOptions::new(2).unwrap() };
    train(place.job(output, more), options, &mut Silent).unwrap()
}

#[test]
fn what_is_frozen_stays_to_the_byte() {
    let place = Place::new();
    let train = |more: &str| format!("{DNN}[train]\nepochs = 1\nbatch_size = 50\n{more}");
    place.run("first", &train(""));
    let frozen = "freeze = ['mlp.0.*', '*.bias']\nfreeze_tables = ['us*']\n";
    let report = begun_from(&place, &place.path("first"), "then", &train(frozen));
    let (first, then) = (place.params("first").0, place.params("then").0);
    for ((spec, before), (_, after)) in first.iter().zip(then.iter()) {
        let is_frozen = spec.name.starts_with("mlp.0.") || spec.name.ends_with(".bias");
        assert_eq!(before == after, is_frozen, "{}", spec.name);
    }
    assert_eq!(report.tables[0].created, 0);
    let of_table = |output: &str, table: &str| -> Vec<Vec<u8>> {
        let files = place.files(output);
        let folder = Path::new("tables").join(table);
        files.into_iter().filter(|(name, _)| name.starts_with(&folder)).map(|(_, b)| b).collect()
    };
    assert!(!of_table("first", "user").is_empty());
    assert_eq!(of_table("first", "user"), of_table("then", "user"));
    assert_ne!(of_table("first", "item"), of_table("then", "item"));
    // The schedule of a run that begins from another's checkpoint counts its own steps.
    let warm = "[train.schedule]\nwarmup_steps = 1000\n";
    begun_from(&place, &place.path("first"), "warm", &train(warm));
    let moved = |output: &str| furthest(&floats(&first), &floats(&place.params(output).0));
    begun_from(&place, &place.path("first"), "on", &train(""));
    assert!(moved("warm") < 0.1 * moved("on"), "{} {}", moved("warm"), moved("on"));
}

fn notes_of(place: &Place, output: &str, more: &str) -> Result<Vec<String>> {
    #[derive(Default)]
    struct Notes(Vec<String>);
    impl Observer for Notes {
        fn note(&mut self, text: &str) {
            self.0.push(text.to_owned());
        }
    }
    let mut notes = Notes::default();
    train(place.job(output, more), TrainOptions::new(2).unwrap(), &mut notes)?;
    Ok(notes.0)
}

#[test]
fn a_run_begins_from_the_matching_parts_of_a_version() {
    let place = Place::new();
    let registry = place.path("registry");
    let publish = format!(
        "[publish]\nregistry = {registry:?}\nmodel = 'm'\nparity_rows = 8\n{DNN}[train]\nepochs = 1\nbatch_size = 50\n"
    );
    place.run("first", &publish);
    // With everything frozen but one bias and a rate close to zero, the scores are those of the
    // version.
    let warm = |extra: &str| {
        format!(
            "[train]\nepochs = 1\nbatch_size = 50\noptimizer = {{ kind = 'sgd', lr = 1e-12 }}\n\
             freeze_tables = ['*']\nwarm_start = {{ registry = {registry:?}, model = 'm'{extra} }}\n"
        )
    };
    let notes = notes_of(&place, "same", &format!("{DNN}{}", warm(", version = 1"))).unwrap();
    assert_eq!(place.logits("same"), place.logits("first"));
    let said = notes.join("\n");
    assert!(
        said.contains("version 1 of m") && said.contains("table user begins with 40 rows"),
        "{said}"
    );
    assert!(!said.contains("begin with initial values"), "{said}");

    // Another model takes the parts with the same name and shape, and lists the other parts.
    let deeper = "[model]\nkind = 'deepfm'\nhidden = [8, 4, 4]\n";
    let said = notes_of(&place, "deeper", &format!("{deeper}{}", warm(""))).unwrap().join("\n");
    assert!(said.contains("the version does not have them: mlp.2.weight, mlp.2.bias"), "{said}");
    let shallow = "[model]\nkind = 'fm'\n";
    let said = notes_of(&place, "shallow", &format!("{shallow}{}", warm(""))).unwrap().join("\n");
    assert!(said.contains("are left out, because the job does not have them: "), "{said}");
    let wider = "[model]\nkind = 'deepfm'\nhidden = [9, 4]\n";
    let error = notes_of(&place, "wider", &format!("{wider}{}", warm(""))).unwrap_err().to_string();
    assert!(error.contains("mlp.0") && error.contains("train.warm_start"), "{error}");
    let longer = format!("{DNN}{}[tables.user]\ndim = 4\n[tables.item]\ndim = 8\n", warm(""));
    let longer = longer.replace("deepfm", "wide_deep");
    let error = notes_of(&place, "longer", &longer).unwrap_err().to_string();
    assert!(error.contains("table `item`") || error.contains("mlp.0"), "{error}");

    // The run continues to learn, and a stopped run resumes from its own checkpoint, even if the
    // registry has moved.
    let learn = format!(
        "{DNN}[train]\nepochs = 2\nbatch_size = 50\nwarm_start = {{ registry = {registry:?}, model = 'm' }}\n"
    );
    place.run("whole", &learn);
    let options = TrainOptions::new(1).unwrap();
    let mut observer = StopBehind { batches: 5, seen: 0, stop: options.stop.clone() };
    train(place.job("parts", &learn), options, &mut observer).unwrap();
    let moved = learn.replace(&format!("{registry:?}"), "'elsewhere'");
    let options = TrainOptions { resume: true, ..TrainOptions::new(2).unwrap() };
    train(place.job("parts", &moved), options, &mut Silent).unwrap();
    let (mut whole, mut parts) = (place.files("whole"), place.files("parts"));
    // The manifest contains the job, and with it the place of the registry.
    assert!(whole.remove(Path::new("MANIFEST")) != parts.remove(Path::new("MANIFEST")));
    assert_eq!(whole, parts);
    assert!(!place.path("whole/warm-start").exists());
}

#[test]
fn how_often_items_come_may_be_read_from_their_rows() {
    let place = Place::new();
    let train = |correction: &str, counts: &str| {
        format!(
            "[model]\nkind = 'two_tower'\nuser = ['user', 'price']\nitem = ['item']\ndim = 4\n{correction}\n\
             [train]\nepochs = 2\nbatch_size = 50\n{counts}\n"
        )
    };
    let table = train("", "item_counts = 'table'");
    place.run("table", &table);
    place.run("data", &train("", ""));
    place.run("none", &train("sampling_correction = false", ""));
    let params = |output: &str| floats(&place.params(output).0);
    assert_ne!(params("table"), params("none"));
    assert_ne!(params("table"), params("data"));
    assert!(!place.files("table").contains_key(Path::new("frequencies")));
    // The checkpoint holds the counts with the rows.
    let options = TrainOptions::new(1).unwrap();
    let mut observer = StopBehind { batches: 7, seen: 0, stop: options.stop.clone() };
    super::train(place.job("parts", &table), options, &mut observer).unwrap();
    let options = TrainOptions { resume: true, ..TrainOptions::new(2).unwrap() };
    super::train(place.job("parts", &table), options, &mut Silent).unwrap();
    assert_eq!(place.files("parts"), place.files("table"));
}

#[test]
fn batches_that_are_held_in_memory_change_no_byte() {
    let place = Place::new();
    let more = "[model]\nkind = 'lr'\n[train]\nbatch_size = 64\nepochs = 2\ncheckpoint_every = 4\n";
    place.run("plain", more);
    let options = TrainOptions { in_memory: true, ..TrainOptions::new(2).unwrap() };
    train(place.job("held", more), options, &mut Silent).unwrap();
    assert_eq!(place.files("plain"), place.files("held"));
}

#[test]
fn a_profile_covers_its_steps_and_changes_no_byte() {
    use crate::profile::{Limits, ProfileOptions, Span, SpanKind, Stage};
    use std::num::NonZeroU64;

    let place = Place::new();
    let more = "[model]\nkind = 'deepfm'\nhidden = [8]\n\
                [train]\nbatch_size = 64\nepochs = 2\ncheckpoint_every = 4\n";
    place.run("plain", more);
    let every = NonZeroU64::new(5).unwrap();
    let profiled_with = |output: &str, more: &str, most_spans| {
        let profile = Some(ProfileOptions { every, most_spans });
        let options = TrainOptions { profile, ..TrainOptions::new(2).unwrap() };
        train(place.job(output, more), options, &mut Silent).unwrap()
    };
    let profiled = |output: &str, most_spans| profiled_with(output, more, most_spans);
    let report = profiled("profiled", usize::MAX);
    let timeline = report.profile.as_ref().unwrap();
    assert_eq!(place.files("plain"), place.files("profiled"));

    // An epoch has ten batches. The first batch and then every fifth batch are recorded.
    assert_eq!(timeline.batches, 20);
    let steps: Vec<u64> = timeline.sampled.iter().map(|sampled| sampled.step).collect();
    assert_eq!(steps, [1, 6, 11, 16]);
    assert_eq!(timeline.threads[0], "training");
    for sampled in &timeline.sampled {
        assert_eq!(sampled.rows, 64);
        let of = |kind: SpanKind| sampled.spans.iter().find(|s| s.kind == kind).copied().unwrap();
        let inside =
            |inner: &Span, outer: &Span| outer.begin <= inner.begin && inner.end() <= outer.end();
        let step = of(SpanKind::Step(sampled.step));
        for stage in [Stage::Wait, Stage::Pull, Stage::Model, Stage::Optimizer, Stage::Other] {
            assert!(inside(&of(SpanKind::Stage(stage)), &step), "{stage:?}");
        }
        // If the dense optimizer took longer than the push at the same time, the time is counted
        // for the optimizer.
        let push = sampled.spans.iter().find(|s| s.kind == SpanKind::Stage(Stage::Push));
        assert!(push.is_none_or(|push| inside(push, &step)));
        of(SpanKind::Decode);
        of(SpanKind::Plan);
        let model = of(SpanKind::Stage(Stage::Model));
        let kernels: Vec<&Span> =
            sampled.spans.iter().filter(|s| matches!(s.kind, SpanKind::Kernel(_))).collect();
        assert!(kernels.len() > 10, "{}", kernels.len());
        assert!(kernels.iter().all(|kernel| inside(kernel, &model)));
        // A lane's kernels lie in its passes, and a thread does one thing at a time.
        let kind = |s: &&&Span| timeline.kind(s).is_some();
        for kernel in kernels.iter().filter(kind).filter(|s| s.lane.is_some()) {
            let passes = kernels.iter().filter(|s| timeline.kind(s).is_none());
            let own = passes.filter(|s| s.lane == kernel.lane && s.thread == kernel.thread);
            assert_eq!(own.filter(|pass| inside(kernel, pass)).count(), 1, "{kernel:?}");
        }
    }
    // On every thread, spans nest.
    let mut open: Vec<&Span> = Vec::new();
    for span in timeline.spans() {
        open.retain(|outer| outer.thread == span.thread && outer.end() > span.begin);
        if let Some(outer) = open.last() {
            assert!(span.end() <= outer.end(), "{span:?} in {outer:?}");
        }
        open.push(span);
    }
    for stage in [Stage::Prepare, Stage::Checkpoint, Stage::Validate, Stage::Test] {
        let spans = timeline.beside.iter().filter(|s| s.kind == SpanKind::Stage(stage));
        assert!(spans.count() > 0, "{stage:?}");
    }

    let limits = Limits {
        threads: 2,
        product_flops: 1e11,
        cached_bytes: 1e11,
        row_reads: 1e8,
        row_updates: 1e8,
    };
    let summary = timeline.summary(&limits, &report.seconds);
    assert_eq!(summary.counted, 3);
    let shares: f64 = summary.shares.sorted().iter().map(|(_, share)| share).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{:?}", summary.shares);
    let shares: f64 = summary.kernels.iter().map(|kernel| kernel.share).sum();
    assert!((shares - 1.0).abs() < 1e-9);
    let product = summary.kernels.iter().find(|kernel| kernel.is_product).unwrap();
    assert!(product.gflops > 0.0 && product.of_limit.is_some());
    // The limits of products are never below the rates that the run has reached.
    let busy = timeline.summary(&Limits { product_flops: 1.0, ..limits }, &report.seconds);
    assert!(busy.limits.product_flops >= 2e9 * product.gflops * (1.0 - 1e-9));
    assert!(busy.kernels.iter().all(|k| !k.is_product || k.of_limit.unwrap() <= 1.0 + 1e-9));
    assert!(summary.bound_samples_per_second.unwrap() > 0.0);
    assert!(summary.advice[0].contains("this job"), "{:?}", summary.advice);

    // If gradients are clipped, rows are staged first, and staging is not counted as a push.
    let clipped = profiled_with("clipped", &format!("{more}clip_norm = 1.0\n"), usize::MAX);
    for sampled in &clipped.profile.unwrap().sampled {
        let stage =
            |stage| sampled.spans.iter().filter(|s| s.kind == SpanKind::Stage(stage)).count();
        assert_eq!(stage(Stage::Staging), 1);
        assert!(stage(Stage::Push) <= 1);
    }

    // Without a limit on spans, one batch in five is recorded. With the limit, one batch in twenty
    // is recorded, over the whole run.
    let small = profiled("small", 1).profile.unwrap();
    assert_eq!((small.sampled.len(), small.sampled[0].step), (1, 1));
    assert!(small.every > 5 && small.every % 5 == 0);
}
