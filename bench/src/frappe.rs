//! The benchmark `zillion bench frappe`, which computes the table in docs/BENCHMARKS.md from the
//! job files of the examples.

use anyhow::{Context, Result, bail};
use serde::Serialize;
use toml::Value;
use zillion_trainer::{Job, Silent, TrainOptions, TrainerPlace};

use crate::args::BenchFrappeArgs;
use zillion_console::{compute_pool, durable_files, print_json};
use zillion_console::{job_file, signals};

/// A model: its name, its job file, and its test AUC on the BARS leaderboard (Zhu et al., SIGIR
/// 2022).
struct Entry {
    model: &'static str,
    job: &'static str,
    published: f64,
    /// The minimum AUC for our runs: the published AUC minus a margin for the differences between
    /// seeds.
    promised: f64,
    /// Whether the model is trained with several seeds.
    seeded: bool,
}

const fn entry(
    model: &'static str,
    job: &'static str,
    published: f64,
    promised: f64,
    seeded: bool,
) -> Entry {
    Entry { model, job, published, promised, seeded }
}

const ENTRIES: [Entry; 8] = [
    entry("LR", "lr", 0.935584, 0.935, false),
    entry("FM", "fm", 0.967108, 0.966, true),
    entry("DNN", "dnn", 0.983323, 0.982323, false),
    entry("Wide&Deep", "wide_deep", 0.984124, 0.983124, true),
    entry("DeepFM", "job", 0.984243, 0.9838, true),
    entry("DCN", "dcn", 0.983907, 0.982907, false),
    entry("DCNv2", "dcnv2", 0.984478, 0.983478, false),
    entry("DLRM", "dlrm", 0.983995, 0.982995, false),
];

/// The seed of the first run of a model. Each further run uses the next number.
const FIRST_SEED: u64 = 2019;

#[derive(Serialize)]
struct Run {
    model: &'static str,
    seed: u64,
    published_auc: f64,
    test_auc: f64,
    test_logloss: Option<f64>,
    valid_auc: Option<f64>,
    best_epoch: Option<u64>,
    epochs: u64,
    samples_per_second: Option<f64>,
    seconds: f64,
}

pub(crate) fn run(args: &BenchFrappeArgs, is_json: bool) -> Result<()> {
    for name in &args.only {
        if !ENTRIES.iter().any(|e| e.job == name) {
            let names: Vec<&str> = ENTRIES.iter().map(|e| e.job).collect();
            bail!(
                "unknown job `{name}` in --only (the jobs are: {}); name one of these jobs",
                names.join(", ")
            );
        }
    }
    let stop = signals::stop_flag()?;
    let workers = compute_pool(args.threads)?;
    let folder = tempfile::tempdir().context("the folder of the runs cannot be created")?;
    let mut runs: Vec<Run> = Vec::new();
    for entry in &ENTRIES {
        if !args.only.is_empty() && !args.only.iter().any(|n| n == entry.job) {
            continue;
        }
        let path = args.jobs.join(format!("{}.toml", entry.job));
        for seed in 0..if entry.seeded { args.seeds } else { 1 } {
            let seed = FIRST_SEED + seed;
            let root = Value::from(args.root.display().to_string());
            let output = folder.path().join(format!("{}-{seed}", entry.job));
            let output = Value::from(output.display().to_string());
            let sets = [
                format!("seed={seed}"),
                format!("data.root={root}"),
                format!("run.output={output}"),
            ];
            let job = Job::from_value(job_file::load(&path, std::env::vars(), &sets)?)?;
            let options = TrainOptions {
                resume: false,
                overwrite: false,
                from: None,
                workers: workers.clone(),
                files: durable_files()?,
                stop: stop.clone(),
                profile: None,
                in_memory: false,
                trainer: TrainerPlace::ALONE,
            };
            let report = zillion_trainer::train(job, options, &mut Silent)?;
            if report.interrupted {
                bail!("the benchmark was stopped by a signal; start it again");
            }
            let test = report
                .test
                .with_context(|| format!("job `{}` has no test files", path.display()))?;
            let run = Run {
                model: entry.model,
                seed,
                published_auc: entry.published,
                test_auc: test.auc.context("the labels of the test set are all equal")?,
                test_logloss: test.logloss,
                valid_auc: report.valid_auc,
                best_epoch: report.best_epoch,
                epochs: report.epochs,
                samples_per_second: report.samples_per_second,
                seconds: report.seconds.training() + report.seconds.validate,
            };
            eprintln!("{} seed {seed}: test auc {:.6}", run.model, run.test_auc);
            if is_json {
                print_json(&run)?;
            }
            runs.push(run);
        }
    }
    if !is_json {
        print_table(&runs);
    }
    let below: Vec<String> = ENTRIES.iter().filter_map(|e| e.describe_shortfall(&runs)).collect();
    if !below.is_empty() {
        bail!("the test AUC is below the promise of the job file: {}", below.join("; "));
    }
    Ok(())
}

impl Entry {
    /// Checks the test AUC of the runs. If it is below the promised AUC, returns both as text, and
    /// otherwise `None`. For FM, the median over the seeds counts, because about one seed in four
    /// stops at a saddle point. For the other models, the mean counts.
    fn describe_shortfall(&self, runs: &[Run]) -> Option<String> {
        let mut aucs: Vec<f64> =
            runs.iter().filter(|r| r.model == self.model).map(|r| r.test_auc).collect();
        aucs.sort_by(f64::total_cmp);
        let reached = match self.model {
            _ if aucs.is_empty() => return None,
            "FM" => aucs[aucs.len() / 2],
            _ => aucs.iter().sum::<f64>() / aucs.len() as f64,
        };
        let (model, promised) = (self.model, self.promised);
        (reached < promised).then(|| format!("{model} {reached:.6} < {promised:.6}"))
    }
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn print_table(runs: &[Run]) {
    println!(
        "| model | published test AUC | test AUC: median, mean, all seeds | logloss | best epoch | seconds a run |"
    );
    println!("|---|---|---|---|---|---|");
    for entry in &ENTRIES {
        let of: Vec<&Run> = runs.iter().filter(|r| r.model == entry.model).collect();
        if of.is_empty() {
            continue;
        }
        let mut aucs: Vec<f64> = of.iter().map(|r| r.test_auc).collect();
        let all: Vec<String> = aucs.iter().map(|a| format!("{a:.4}")).collect();
        let mean = aucs.iter().sum::<f64>() / aucs.len() as f64;
        aucs.sort_by(f64::total_cmp);
        let loglosses: Vec<f64> = of.iter().filter_map(|r| r.test_logloss).collect();
        let logloss = loglosses.iter().sum::<f64>() / loglosses.len() as f64;
        let epochs: Vec<String> =
            of.iter().filter_map(|r| r.best_epoch).map(|e| e.to_string()).collect();
        let seconds = of.iter().map(|r| r.seconds).sum::<f64>() / of.len() as f64;
        println!(
            "| {} | {:.6} | {:.6}, {mean:.6} ({}) | {logloss:.4} | {} | {seconds:.0} |",
            entry.model,
            entry.published,
            aucs[aucs.len() / 2],
            all.join(" "),
            epochs.join(" "),
        );
    }
}
