//! The benchmark `zillion bench online movielens`: the AUC that fresher versions buy.
//!
//! A model is trained on the training files. Then the validation and the test ratings are replayed
//! by their times: each one is scored by the newest version that a cadence would have published
//! before it, and is learned from afterwards.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use toml::Value;
use zillion_console::svg::{self, Axis, Panel, Scale, Shapes, Unit};
use zillion_console::{compute_pool, durable_files, job_file, print_json, signals};
use zillion_device::Workers;
use zillion_nn::metrics::auc;
use zillion_trainer::{Job, Silent, TrainOptions, TrainerPlace, test_then_train, train};

use crate::args::OnlineMovielensArgs;

/// The seed of the first run. Each further run has the next number.
const FIRST_SEED: u64 = 1;
/// The batches of the replay: as small as a span of the shortest cadence often is, so that all
/// cadences learn in about the same steps and differ by their freshness.
const BATCH: &str = "train.batch_size=4";
/// The number of parts of the replay in the plot.
const PARTS: usize = 20;

/// The cadences with their names; `None`: the model is never updated.
const CADENCES: [(&str, Option<Duration>); 4] = [
    ("never", None),
    ("1 h", Some(Duration::from_secs(3600))),
    ("10 min", Some(Duration::from_secs(600))),
    ("1 min", Some(Duration::from_secs(60))),
];

/// The figures of one replay.
#[derive(Clone, Debug, Serialize)]
struct Replay {
    seed: u64,
    cadence: &'static str,
    rows: u64,
    /// The number of versions that the cadence has published.
    versions: u64,
    valid_auc: f64,
    test_auc: f64,
    test_logloss: f64,
    /// The AUC on each twentieth of the ratings.
    parts: Vec<Option<f64>>,
}

/// The scored ratings of a replay.
#[derive(Default)]
struct Scored {
    labels: Vec<f32>,
    logits: Vec<f32>,
    /// The number of ratings in the validation files, which come first.
    valid: usize,
}

pub(super) fn run(args: &OnlineMovielensArgs, is_json: bool) -> Result<()> {
    let stop = signals::stop_flag()?;
    let workers = compute_pool(args.threads)?;
    let folder = crate::scratch_folder(None)?;
    let mut replays = Vec::new();
    for seed in FIRST_SEED..FIRST_SEED + args.seeds {
        let options = |from: Option<&Path>| -> Result<TrainOptions> {
            Ok(TrainOptions {
                resume: false,
                overwrite: false,
                from: from.map(Path::to_owned),
                workers: Arc::clone(&workers) as Arc<Workers>,
                files: durable_files()?,
                stop: stop.clone(),
                profile: None,
                in_memory: false,
                trainer: TrainerPlace::ALONE,
            })
        };
        let first = folder.path().join(format!("{seed}"));
        let report = train(load(args, seed, &first, &[])?, options(None)?, &mut Silent)?;
        if report.interrupted {
            bail!("the benchmark was stopped by a signal; start it again");
        }
        for (name, cadence) in CADENCES {
            let output = folder.path().join(format!("{seed}-{}", name.replace(' ', "-")));
            let more = [&[BATCH.to_owned()][..], &args.set[..]].concat();
            let job = load(args, seed, &output, &more)?;
            let mut scored = Scored::default();
            let passed =
                test_then_train(job, options(Some(&first))?, cadence, &mut Silent, &mut |rows| {
                    scored.labels.extend_from_slice(rows.labels);
                    scored.logits.extend_from_slice(rows.logits);
                    scored.valid += if rows.is_test { 0 } else { rows.labels.len() };
                })?;
            let replay = judge(seed, name, passed.versions, &scored)?;
            eprintln!(
                "seed {seed}, update {name}: valid auc {:.4}, test auc {:.4}, {} versions",
                replay.valid_auc, replay.test_auc, replay.versions
            );
            if is_json {
                print_json(&replay)?;
            }
            replays.push(replay);
        }
    }
    if !is_json {
        print_table(&replays);
    }
    if let Some(path) = &args.svg {
        durable_files()?.write_bytes(path, draw(&replays).as_bytes())?;
    }
    Ok(())
}

fn load(args: &OnlineMovielensArgs, seed: u64, output: &Path, more: &[String]) -> Result<Job> {
    let text = |path: &Path| Value::from(path.display().to_string());
    let mut sets = vec![
        format!("seed={seed}"),
        format!("data.root={}", text(&args.data)),
        format!("run.output={}", text(output)),
    ];
    sets.extend_from_slice(more);
    Ok(Job::from_value(job_file::load(&args.job, std::env::vars(), &sets)?)?)
}

fn judge(seed: u64, cadence: &'static str, versions: u64, scored: &Scored) -> Result<Replay> {
    let Scored { labels, logits, valid } = scored;
    let auc_of = |range: std::ops::Range<usize>| auc(&logits[range.clone()], &labels[range], None);
    let rows = labels.len();
    let one_class = "all labels are equal";
    let part = |part: usize| auc_of(part * rows / PARTS..(part + 1) * rows / PARTS);
    let loss = |(&logit, &label): (&f32, &f32)| {
        let (logit, label) = (f64::from(logit), f64::from(label));
        // The logarithm of 1 + exp(logit), without an overflow.
        logit.max(0.0) + (-logit.abs()).exp().ln_1p() - label * logit
    };
    let losses: f64 = logits[*valid..].iter().zip(&labels[*valid..]).map(loss).sum();
    Ok(Replay {
        seed,
        cadence,
        rows: rows as u64,
        versions,
        valid_auc: auc_of(0..*valid)?.context(one_class)?,
        test_auc: auc_of(*valid..rows)?.context(one_class)?,
        test_logloss: losses / (rows - valid).max(1) as f64,
        parts: (0..PARTS).map(part).collect::<Result<_, _>>()?,
    })
}

/// Returns the mean, the smallest and the largest of some numbers.
fn summarize(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let (mut sum, mut count) = (0.0, 0.0);
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        (sum, count, low, high) = (sum + value, count + 1.0, low.min(value), high.max(value));
    }
    (sum / count, low, high)
}

fn print_table(replays: &[Replay]) {
    eprintln!("| update | versions | valid AUC | test AUC (lowest to highest) | test logloss |");
    eprintln!("|---|---|---|---|---|");
    for (name, _) in CADENCES {
        let of = || replays.iter().filter(|replay| replay.cadence == name);
        let (versions, ..) = summarize(of().map(|replay| replay.versions as f64));
        let (valid, ..) = summarize(of().map(|replay| replay.valid_auc));
        let (test, low, high) = summarize(of().map(|replay| replay.test_auc));
        let (loss, ..) = summarize(of().map(|replay| replay.test_logloss));
        eprintln!(
            "| {name} | {versions:.0} | {valid:.4} | {test:.4} ({low:.4} to {high:.4}) | \
             {loss:.4} |"
        );
    }
}

/// Draws the AUC along the replay for each cadence, as the mean over the seeds.
fn draw(replays: &[Replay]) -> String {
    let line = |(name, _): &(&str, Option<Duration>)| {
        let of: Vec<&Replay> = replays.iter().filter(|replay| replay.cadence == *name).collect();
        let point = |part: usize| {
            let (mean, ..) = summarize(of.iter().filter_map(|replay| replay.parts[part]));
            ((part as f64 + 0.5) / PARTS as f64, mean)
        };
        ((*name).to_owned(), (0..PARTS).map(point).collect())
    };
    let panel = Panel {
        title: "AUC, each rating before it is learned".to_owned(),
        x: Axis::new("share of the replayed ratings", Scale::Linear, Unit::Percent),
        y: Axis::new("AUC", Scale::Near, Unit::Number),
        shapes: Shapes::Lines(CADENCES.iter().map(line).collect()),
    };
    svg::page(
        "MovieLens-1M: fresher versions",
        &[("Time between two updates".to_owned(), vec![panel])],
    )
}
