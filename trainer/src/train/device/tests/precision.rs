//! Tests of the precisions of a GPU: every model trains in them, with the same bytes in each run
//! and across interruptions, and a run says what it does with the algorithms of a checkpoint.

use super::*;
use crate::checkpoint::{KeptAlgorithm, Manifest, ProductChoice};

/// Models whose products are large enough for the library.
pub(super) const WIDE: [&str; 13] = [
    "kind = 'lr'",
    "kind = 'fm'",
    "kind = 'dnn'\nhidden = [12, 9]\nbatch_norm = true\nactivation = 'prelu'",
    "kind = 'wide_deep'\nhidden = [12]\ndropout = 0.2",
    "kind = 'deepfm'\nhidden = [13, 8]",
    "kind = 'dcn'\nhidden = [12]\nstructure = 'stacked'",
    "kind = 'dcnv2'\nhidden = [12]\ncross_layers = 2",
    "kind = 'dcnv2'\nhidden = [12]\nlow_rank = 8",
    "kind = 'dlrm'\nhidden = [12, 9]\nbottom = [8, 4]",
    "kind = 'din'\nhidden = [12]\nattention_hidden = [9, 8]\n\
     attention = [{ query = 'item', history = 'recent' }]",
    "kind = 'two_tower'\nuser = ['user', 'recent', 'price']\nitem = ['item']\nhidden = [12]\ndim = 8",
    "kind = 'mmoe'\nexperts = 2\nexpert = [12, 8]\ntower = [8]",
    "kind = 'graph'\nlogits = 'score'\n\
     [model.nodes.fields]\nop = 'embedding'\n\
     [model.nodes.crossed]\nop = 'cross_v2'\ninputs = ['fields']\nlayers = 2\n\
     [model.nodes.hidden]\nop = 'mlp'\ninputs = ['crossed']\nhidden = [12]\n\
     [model.nodes.score]\nop = 'linear'\ninputs = ['hidden']\nwidth = 1",
];

const TRAIN: &str = "epochs = 2\nbatch_size = 28\ncheckpoint_every = 2\nfull_every = 2\n\
    optimizer = { kind = 'adam', lr = 0.01 }";

pub(super) fn settings(model: &str, precision: &str) -> String {
    let second = if model.contains("mmoe") { "[labels.buy]\n" } else { "" };
    let table =
        if model.contains("two_tower") { "[features.recent]\ntable = 'recent'\n" } else { "" };
    format!("{second}{table}[train]\nprecision = '{precision}'\n{TRAIN}\n[model]\n{model}\n")
}

/// An observer that keeps the loss of the last epoch and the notes of a run.
#[derive(Default)]
pub(super) struct Losses {
    pub(super) loss: f64,
    pub(super) notes: Vec<String>,
}

impl Observer for Losses {
    fn epoch(&mut self, report: &crate::observer::EpochReport) {
        self.loss = report.mean_loss;
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
}

impl Place {
    pub(super) fn losses(&self, output: &str, settings: &str, device: DeviceChoice) -> Losses {
        let mut losses = Losses::default();
        let job = self.job(output, settings, device).unwrap();
        train(job, TrainOptions::new(2).unwrap(), &mut losses).unwrap();
        losses
    }

    /// Trains a run that is interrupted after each of some batches. The first part chooses the
    /// algorithms of products. The devices of later parts would choose others, so the run has the
    /// bytes of one that was not interrupted only if it uses those of its checkpoints.
    fn train_in_parts(&self, output: &str, settings: &str, seed: u64) {
        for part in 0.. {
            let mut options = TrainOptions::new(1).unwrap();
            options.resume = part > 0;
            let batches = 1 + mix64(combine(seed, part)) % 3;
            // A device whose seed is above 100 finds another algorithm the fastest.
            let device = seed + part + 100 * part.min(1);
            let mut observer = StopBehind { batches, seen: 0, stop: options.stop.clone() };
            let job = self.job(output, settings, DeviceChoice::Emulated(device)).unwrap();
            if !train(job, options, &mut observer).unwrap().interrupted {
                assert!(part > 1, "{output} was not interrupted");
                break;
            }
        }
    }

    /// Returns the manifest of the newest checkpoint.
    pub(super) fn manifest(&self, output: &str) -> Manifest {
        RunDir::new(self.path(output)).newest().unwrap().unwrap().manifest
    }

    /// Changes the products in the manifest of the newest checkpoint.
    pub(super) fn change_products(&self, output: &str, change: impl Fn(&mut ProductChoice)) {
        let newest = RunDir::new(self.path(output)).newest().unwrap().unwrap();
        let mut manifest = newest.manifest.clone();
        change(manifest.products.as_mut().unwrap());
        std::fs::write(newest.path().join("MANIFEST"), manifest.to_bytes().0).unwrap();
    }
}

#[test]
fn every_model_trains_in_each_precision_with_the_same_bytes() {
    let place = Place::new();
    for (number, model) in WIDE.iter().enumerate() {
        let run = |name: &str, precision: &str, device| {
            let name = format!("{number}-{precision}-{name}");
            let losses = place.losses(&name, &settings(model, precision), device);
            (losses.loss, place.files(&name), place.manifest(&name).products)
        };
        let (exact, of_f32, none) = run("first", "f32", DeviceChoice::Emulated(1));
        assert_eq!(none, None, "{model}");
        for (precision, near) in [("tf32", 5e-3), ("bf16", 2e-2)] {
            let (loss, first, products) = run("first", precision, DeviceChoice::Emulated(2));
            let (_, again, _) = run("again", precision, DeviceChoice::Emulated(3));
            assert!(first == again, "{model}: {precision}");
            assert!(
                (loss - exact).abs() <= near * exact,
                "{model}: {precision} {loss}, f32 {exact}"
            );
            let products = products.unwrap();
            assert_eq!(products.gpu, "emulated device");
            let has_products = !model.contains("'lr'") && !model.contains("'fm'");
            assert_eq!(!products.algorithms.is_empty(), has_products, "{model}");
            // The bytes are those of the precision: the parameters are other ones than in f32.
            let dense = |files: &BTreeMap<PathBuf, Vec<u8>>| {
                files
                    .iter()
                    .find(|(name, _)| name.ends_with("dense.safetensors"))
                    .unwrap()
                    .1
                    .clone()
            };
            if has_products {
                assert!(dense(&first) != dense(&of_f32), "{model}: {precision}");
            }
            let output = format!("{number}-{precision}-parts");
            place.train_in_parts(&output, &settings(model, precision), 10 + number as u64);
            assert!(place.files(&output) == first, "{model}: {precision}, interrupted");
        }
    }
}

#[test]
fn a_run_says_when_its_products_have_other_bits() {
    let place = Place::new();
    let settings = settings(WIDE[4], "bf16");
    let begin = |output: &str| {
        let mut options = TrainOptions::new(1).unwrap();
        let mut observer = StopBehind { batches: 2, seen: 0, stop: options.stop.clone() };
        options.resume = false;
        let job = place.job(output, &settings, DeviceChoice::Emulated(1)).unwrap();
        assert!(train(job, options, &mut observer).unwrap().interrupted);
    };
    let resume = |output: &str| {
        let options = TrainOptions { resume: true, ..TrainOptions::new(1).unwrap() };
        let mut losses = Losses::default();
        let job = place.job(output, &settings, DeviceChoice::Emulated(1)).unwrap();
        train(job, options, &mut losses).unwrap();
        losses.notes.retain(|line| line.contains("bits"));
        losses.notes
    };
    begin("same");
    assert_eq!(resume("same"), [""; 0]);
    begin("other");
    place.change_products("other", |products| {
        products.gpu = "NVIDIA H100".to_owned();
        products.library = Some("13.0.2".to_owned());
    });
    let lines = resume("other");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let words = ["NVIDIA H100 with cuBLASLt 13.0.2", "this is the GPU emulated device"];
    assert!(words.iter().all(|words| lines[0].contains(words)), "{lines:?}");
    // The checkpoints after it are of the GPU that wrote them.
    assert_eq!(place.manifest("other").products, place.manifest("same").products);
    begin("changed");
    place.change_products("changed", |products| {
        products.algorithms.values_mut().next().unwrap().0[0] ^= 1;
    });
    let lines = resume("changed");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(" 1 of ") && lines[0].contains("chosen anew"), "{lines:?}");
    let KeptAlgorithm(bytes) =
        place.manifest("changed").products.unwrap().algorithms.into_values().next().unwrap();
    assert_eq!(bytes, [1; 64]);
}

#[test]
fn processors_refuse_a_precision_by_name() {
    let place = Place::new();
    // The tests of processors are about bf16, which depends on the machine.
    let settings = settings(WIDE[4], "tf32");
    let error = place.train("cpu", &settings, DeviceChoice::Cpu).unwrap_err().to_string();
    let words = ["`train.precision`", "tf32", "`run.device` is \"cpu\"", "set \"f32\""];
    assert!(words.iter().all(|words| error.contains(words)), "{error}");
    let job = place.job("check", &settings, DeviceChoice::Cpu).unwrap();
    let workers = TrainOptions::new(1).unwrap().workers;
    let report = crate::check(&job, 10, &workers).unwrap();
    let found = |finding: &&crate::Finding| finding.about == "train.precision";
    assert!(report.findings.iter().find(found).unwrap().text.contains("tf32"));
    // No GPU trains tables on servers by the sums of several batches, and the check says so on
    // every machine.
    for device in [DeviceChoice::Auto, DeviceChoice::Cuda(0), DeviceChoice::Emulated(1)] {
        let settings = settings.replace("[train]", "[train]\naccumulate = 2");
        let settings = format!("{SERVICE}\n{settings}");
        let job = place.job("servers", &settings, device).unwrap();
        let report = crate::check(&job, 10, &workers).unwrap();
        let finding = report.findings.iter().find(found).unwrap();
        assert_eq!(finding.severity, crate::Severity::Error);
        let words = ["`[ps]`", "tf32", "none trains this job"];
        assert!(words.iter().all(|words| finding.text.contains(words)), "{}", finding.text);
    }
    // On a machine with a GPU, the GPU trains.
    if zillion_device::gpu::open("cuda:0", None).is_err() {
        let error = place.train("auto", &settings, DeviceChoice::Auto).unwrap_err().to_string();
        let words = ["`train.precision`", "part of the result", "libcuda"];
        assert!(words.iter().all(|words| error.contains(words)), "{error}");
    }
    assert!(!PathBuf::from(place.path("cpu")).exists());
}

#[test]
fn processors_evaluate_what_a_gpu_trained() {
    let place = Place::new();
    for precision in ["tf32", "bf16"] {
        let output = format!("gpu-{precision}");
        place.losses(&output, &settings(WIDE[4], precision), DeviceChoice::Emulated(4));
        let checkpoint = RunDir::new(place.path(&output)).newest().unwrap().unwrap();
        assert_eq!(checkpoint.job().unwrap().train.precision.name(), precision);
    }
}
