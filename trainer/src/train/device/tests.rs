//! Tests of runs whose graph is computed on the emulated GPU. Their checkpoints must have the bytes
//! of runs on processors, for every key of a job that a GPU does not refuse by name.

mod borrowed;
mod cache;
mod cases;
mod memory;
mod precision;
mod processors;
mod rows;
mod stepped;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::num::NonZeroU64;
use std::path::PathBuf;

use toml::Table;
use zillion_device::matmul::bf16::Instructions;
use zillion_feature::random::{combine, mix64};

use super::super::tests::{StopBehind, read_files};
use super::super::*;
use crate::checkpoint::RunDir;
use crate::error::Error;
use crate::job::DeviceChoice;
use crate::observer::{InspectOptions, InspectedStep, Silent};
use cases::{Case, MODELS, Outcome, TABLES, TRAIN};

/// The settings that a case does not set.
const USUAL: &str = "seed = 3\n\
    [data]\ntrain = ['train.csv']\nvalid = ['valid.csv']\n\
    [columns]\nevent_time = 'at'\nevent_time_unit = 's'\n\
    [features.user]\nkind = 'id'\n[features.item]\nkind = 'id'\n\
    [features.recent]\nkind = 'sequence'\nmax_len = 3\ntable = 'item'\n\
    [features.price]\nkind = 'numeric'\n\
    [labels.click]\n\
    [tables.'*']\ndim = 4\noptimizer = { kind = 'adagrad', lr = 0.05 }\n\
    [model]\nkind = 'deepfm'\nhidden = [8, 4]\n\
    [train]\nepochs = 1\nbatch_size = 28\n\
    [run]\nshards = 2\n";

/// The section of a parameter service.
const SERVICE: &str = "ps = { servers = ['127.0.0.1:1'], store = '/' }";

/// The settings of a profile.
const PROFILE: ProfileOptions = ProfileOptions { every: NonZeroU64::MIN, most_spans: 1000 };

/// Returns rows with two labels, a short list and a time.
fn csv(part: u64, rows: u64) -> String {
    let mut text = "user,item,recent,price,click,buy,at\n".to_owned();
    for index in 0..rows {
        let draw = |salt: u64, below: u64| mix64(combine(combine(part, salt), index)) % below;
        let (user, item) = (draw(1, 15) * draw(2, 3), draw(3, 12));
        let recent: Vec<String> = (0..draw(4, 4)).map(|at| draw(10 + at, 12).to_string()).collect();
        let (recent, price) = (recent.join("|"), draw(5, 1000) as f64 / 500.0);
        let click = u64::from((user * 7 + item * 5) % 11 < 4 + draw(6, 3));
        let buy = click * draw(7, 2);
        let at = 1_700_000_000 + (part * rows + index) * 3_600;
        writeln!(text, "{user},{item},{recent},{price},{click},{buy},{at}").unwrap();
    }
    text
}

/// A temporary folder with data and runs.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        write("train.csv", &csv(0, 100)).unwrap();
        write("valid.csv", &csv(1, 40)).unwrap();
        write("pinned.txt", "3\n4\n").unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Returns the job of a case.
    fn job(&self, output: &str, settings: &str, device: DeviceChoice) -> Result<Job> {
        let settings =
            settings.replace("{ps}", SERVICE).replace("{registry}", &self.path("registry"));
        let parse = |text: &str| text.parse::<Table>().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let mut job = parse(USUAL);
        zillion_config::merge(&mut job, parse(&settings));
        let places = format!(
            "data.root = {:?}\nrun = {{ output = {:?}, device = '{device}' }}",
            self.path(""),
            self.path(output)
        );
        zillion_config::merge(&mut job, parse(&places));
        Job::from_value(job.into())
    }

    fn train(&self, output: &str, settings: &str, device: DeviceChoice) -> Result<TrainReport> {
        self.train_noted(output, settings, device).map(|(report, _)| report)
    }

    /// Trains, and also returns the line about the device.
    fn train_noted(
        &self,
        output: &str,
        settings: &str,
        device: DeviceChoice,
    ) -> Result<(TrainReport, String)> {
        let mut notes = Notes::default();
        let job = self.job(output, settings, device)?;
        let report = train(job, TrainOptions::new(2).unwrap(), &mut notes)?;
        Ok((report, notes.device_line()))
    }

    /// Reads every file of a run's newest checkpoint.
    fn files(&self, output: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let newest = RunDir::new(self.path(output)).newest().unwrap().unwrap();
        read_files(newest.path())
    }

    /// Checks the outcome of a case.
    fn check(&self, section: &str, number: u64, case: &Case) {
        let Case { keys, settings, outcome } = case;
        let names = ["cpu", "gpu"].map(|device| format!("{section}-{number}-{device}"));
        let run = |name: &str, device| self.train_noted(name, settings, device);
        let emulated = DeviceChoice::Emulated(number);
        match outcome {
            Outcome::Equal | Outcome::OnHost(_) => {
                let place = match outcome {
                    Outcome::OnHost(words) => format!("rows on the host, because {words}"),
                    _ => "rows on the device".to_owned(),
                };
                let train = |name: &str, device| {
                    let (report, line) =
                        run(name, device).unwrap_or_else(|e| panic!("{keys}: {e}"));
                    let is_gpu = device != DeviceChoice::Cpu;
                    assert_eq!(line.contains(&place), is_gpu, "{keys}: {line}");
                    let has_rows = report.gpu.is_some_and(|gpu| gpu.has_rows);
                    assert_eq!(has_rows, is_gpu && matches!(outcome, Outcome::Equal), "{keys}");
                    // The validation reads the parameters of the moment.
                    let is_number = settings.contains("[labels.click]\nkind");
                    assert!(report.valid_auc.is_some() != is_number, "{keys}");
                    (self.files(name), report.valid_auc)
                };
                let (cpu, cpu_auc) = train(&names[0], DeviceChoice::Cpu);
                let (gpu, gpu_auc) = train(&names[1], emulated);
                assert_eq!(cpu_auc, gpu_auc, "{keys}");
                for (name, bytes) in &cpu {
                    assert!(gpu.get(name) == Some(bytes), "{keys}: {}", name.display());
                }
                assert_eq!(cpu.len(), gpu.len(), "{keys}");
            }
            Outcome::Refused(words) => {
                let error = run(&names[1], emulated).expect_err(keys).to_string();
                assert!(error.contains(words), "{keys}: {error}");
                assert!(!PathBuf::from(self.path(&names[1])).exists(), "{keys}");
            }
            Outcome::GpuAlone(words) => {
                // Processors with the instructions compute bf16 too, with bits of their own.
                let is_here = settings.contains("bf16") && Instructions::detect().is_some();
                match run(&names[0], DeviceChoice::Cpu) {
                    Ok(_) => assert!(is_here, "{keys}"),
                    Err(error) => {
                        let error = error.to_string();
                        assert!(!is_here && error.contains(words), "{keys}: {error}");
                        assert!(!PathBuf::from(self.path(&names[0])).exists(), "{keys}");
                    }
                }
                let train = |name: &str, device| {
                    run(name, device).unwrap_or_else(|e| panic!("{keys}: {e}"));
                    self.files(name)
                };
                let first = train(&names[1], emulated);
                let again = train(&format!("{}-again", names[1]), DeviceChoice::Emulated(99));
                assert!(first == again, "{keys}");
            }
        }
    }
}

/// Returns the keys of the section that `settings` gives an unknown key.
fn keys_of(place: &Place, settings: &str) -> BTreeSet<String> {
    let error = place.job("none", settings, DeviceChoice::Cpu).unwrap_err().to_string();
    let list = error.split_once("expected one of ").unwrap_or_else(|| panic!("{error}")).1;
    list.split(", ").map(|key| key.trim_matches('`').to_owned()).collect()
}

/// Checks that the cases cover exactly the keys of a section, and then each case.
fn check_section(place: &Place, section: &str, keys: BTreeSet<String>, cases: &[Case]) {
    let covered = cases.iter().flat_map(|case| case.keys.split(' ')).map(str::to_owned);
    let covered: BTreeSet<String> = covered.collect();
    assert_eq!(covered, keys, "{section}: decide what a GPU does with each key, and add a case");
    for (number, case) in (0..).zip(cases) {
        place.check(section, number, case);
    }
}

#[test]
fn every_key_of_train_has_the_same_bytes_or_is_refused() {
    let place = Place::new();
    let publish = format!("publish = {{ registry = {:?}, model = 'm' }}", place.path("registry"));
    place.train("published", &publish, DeviceChoice::Cpu).unwrap();
    let keys = keys_of(&place, "train.'~~~~' = 1");
    assert!(keys.len() > 20);
    check_section(&place, "train", keys, TRAIN);
}

#[test]
fn every_key_of_tables_has_the_same_bytes_or_is_refused() {
    let place = Place::new();
    let keys = keys_of(&place, "tables.user.'~~~~' = 1");
    assert!(keys.len() > 15);
    check_section(&place, "tables", keys, TABLES);
}

#[test]
fn every_key_of_models_has_the_same_bytes_or_is_refused() {
    let place = Place::new();
    let kinds = place.job("none", "model.kind = '~~~~'", DeviceChoice::Cpu).unwrap_err();
    for (kind, cases) in MODELS {
        let mut keys = keys_of(&place, &format!("model = {{ kind = '{kind}', '~~~~' = 1 }}"));
        keys.remove("kind");
        check_section(&place, kind, keys, cases);
    }
    let kinds = kinds.to_string();
    let all = kinds.split_once("expected one of ").unwrap_or_else(|| panic!("{kinds}")).1;
    assert_eq!(all.split(", ").count(), MODELS.len(), "{all}");
}

#[test]
fn parameters_stay_on_the_gpu_unless_the_host_needs_those_of_each_step() {
    let place = Place::new();
    let stays = |settings: &str, device, nodes: &[&str]| {
        let job = place.job("none", settings, device).unwrap();
        let nodes = nodes.iter().map(|&node| node.to_owned()).collect();
        let inspect = InspectOptions { steps: true, nodes };
        let options = TrainOptions::new(1).unwrap();
        Model::build(&job, &inspect, &options).unwrap().0.resident.is_some()
    };
    let emulated = DeviceChoice::Emulated(1);
    assert!(stays("", emulated, &[]));
    assert!(!stays("", DeviceChoice::Cpu, &[]));
    assert!(!stays("", emulated, &["logits"]));
    assert!(!stays("train.accumulate = 2", emulated, &[]));
    assert!(!stays("train.average = { kind = 'ema' }", emulated, &[]));
}

/// The settings of a run with everything that has a state, or depends on where a step begins.
const WITH_STATE: &str = "tables.user = { admission = { kind = 'count', at_least = 2 }, \
        eviction = { kind = 'lfu', half_life = 4 }, max_rows = 12 }\n\
    model = { kind = 'deepfm', hidden = [8, 4], batch_norm = true, dropout = 0.2 }\n\
    [train]\nepochs = 2\nbatch_size = 12\naccumulate = 2\nclip_norm = 5.0\n\
    checkpoint_every = 2\nfull_every = 2\noptimizer = { kind = 'adam', lr = 0.01 }\n\
    average = { kind = 'ema', decay = 0.9 }\n";

#[test]
fn a_run_moves_between_devices_at_any_step() {
    let place = Place::new();
    let report = place.train("whole", WITH_STATE, DeviceChoice::Cpu).unwrap();
    let expected = place.files("whole");
    assert_eq!(report.steps, 10);
    for history in 0..4_u64 {
        let output = format!("history-{history}");
        let draw = |part: u64, below: u64| mix64(combine(77 + history, part)) % below;
        for part in 0.. {
            let device = match (history + part) % 2 {
                0 => DeviceChoice::Emulated(draw(part, 1000)),
                _ => DeviceChoice::Cpu,
            };
            let mut options = TrainOptions::new(1 + draw(part + 100, 3) as usize).unwrap();
            options.resume = part > 0;
            let batches = 1 + draw(part + 200, 6);
            let mut observer = StopBehind { batches, seen: 0, stop: options.stop.clone() };
            let job = place.job(&output, WITH_STATE, device).unwrap();
            let report = train(job, options, &mut observer).unwrap();
            if !report.interrupted {
                assert!(part > 1, "{output} was not interrupted");
                break;
            }
        }
        assert!(place.files(&output) == expected, "{output}");
    }
}

/// An observer that keeps the notes of a run.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    /// Returns the only line about the device.
    fn device_line(&self) -> String {
        let lines = self.0.iter().filter(|line| line.starts_with("device "));
        let lines: Vec<&String> = lines.collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines[0].clone()
    }
}

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
}

#[test]
fn one_line_says_which_device_was_chosen_and_why() {
    let place = Place::new();
    let note = |name: &str, settings: &str, device, profile: bool| {
        let mut options = TrainOptions::new(1).unwrap();
        options.profile = profile.then_some(PROFILE);
        let mut notes = Notes::default();
        train(place.job(name, settings, device).unwrap(), options, &mut notes).unwrap();
        notes.device_line()
    };
    assert_eq!(note("cpu", "", DeviceChoice::Cpu, false), "device cpu (`run.device`)");
    let line = note("emulated", "", DeviceChoice::Emulated(1), false);
    assert!(line.starts_with("device emulated:1 (emulated device"), "{line}");
    assert!(line.ends_with("), rows on the device"), "{line}");
    let line = note("profile", "", DeviceChoice::Auto, true);
    assert!(line.starts_with("device cpu, because a profile"), "{line}");
    // On a machine with a GPU, the device is the GPU.
    let line = note("auto", "", DeviceChoice::Auto, false);
    match zillion_device::gpu::open("cuda:0", None) {
        Ok(_) => assert!(line.starts_with("device cuda:0 ("), "{line}"),
        Err(error) => assert_eq!(line, format!("device cpu, because {error}")),
    }
}

#[test]
fn what_a_gpu_does_not_do_is_refused_by_name() {
    let place = Place::new();
    let emulated = DeviceChoice::Emulated(1);
    let error = place
        .train("servers", &format!("train.accumulate = 2\n{SERVICE}"), emulated)
        .unwrap_err()
        .to_string();
    assert!(error.contains("`[ps]`") && error.contains("set `run.device`"), "{error}");
    assert!(error.contains("`train.accumulate` adds gradients on the host"), "{error}");
    let mut options = TrainOptions::new(1).unwrap();
    options.profile = Some(PROFILE);
    let job = place.job("profile", "", emulated).unwrap();
    let error = train(job, options, &mut Silent).unwrap_err();
    assert!(matches!(error, Error::DeviceRefused { .. }), "{error}");
    assert!(error.to_string().contains("profile"), "{error}");
}

/// An observer that keeps the bits of the values of every step.
#[derive(Default)]
struct Values {
    nodes: Vec<String>,
    bits: Vec<u64>,
}

impl Observer for Values {
    fn inspect_options(&self) -> InspectOptions {
        InspectOptions { steps: true, nodes: self.nodes.clone() }
    }

    fn inspect(&mut self, step: &InspectedStep<'_>) {
        let norms = step.table_norms.iter().chain([&step.loss, &step.dense_norm]);
        self.bits.extend(norms.map(|norm| norm.to_bits()));
        let fetched = step.fetched.iter().flat_map(|fetched| fetched.values);
        self.bits.extend(step.logits.iter().chain(fetched).map(|x| u64::from(x.to_bits())));
    }
}

#[test]
fn the_values_of_a_step_are_those_of_processors() {
    let place = Place::new();
    for (case, nodes) in [(0, &[][..]), (1, &["logits", "fm"][..])] {
        let values = |name: &str, device| {
            let nodes = nodes.iter().map(|&node: &&str| node.to_owned()).collect();
            let mut observer = Values { nodes, ..Values::default() };
            let job = place.job(&format!("{name}-{case}"), "train.clip_norm = 0.1", device);
            train(job.unwrap(), TrainOptions::new(2).unwrap(), &mut observer).unwrap();
            observer.bits
        };
        let expected = values("cpu", DeviceChoice::Cpu);
        assert!(expected.len() > 100);
        assert_eq!(values("gpu", DeviceChoice::Emulated(9)), expected, "{nodes:?}");
    }
}
