//! The second half of the quickstart: versions, a server, new data, a hot load and a rollback.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde::Serialize;
use zillion_bench::Protocol;
use zillion_bench::load::bodies::Recipe;
use zillion_bench::server::{Asker, ServerChild, Setup};
use zillion_console::progress::Progress;
use zillion_console::{durable_files, open_registry};
use zillion_datatools::ClickLog;
use zillion_device::{SystemClock, Workers};
use zillion_reader::{Dataset, Labels, RawRows};
use zillion_registry::{Model, STABLE};
use zillion_trainer::{Checkpoint, CheckpointWish, Loaded, PublishConfig, publish_checkpoint};

use super::place::{self, Place};
use super::{job, sitting};
use crate::args::QuickstartArgs;
use crate::registry::current_user;

/// The maximum time to wait until a server answers with a new version. The server checks the
/// registry five times a second.
const PATIENCE: Duration = Duration::from_secs(30);

/// The result of the second half of the quickstart.
#[derive(Serialize)]
pub(super) struct Served {
    /// The URL of the server, which may have stopped.
    url: String,
    /// The number of rows whose scores were compared with the trainer's scores.
    rows: usize,
    /// Whether the server's scores of both versions have the same bits as the trainer's scores.
    same_as_trainer: bool,
    /// The probability of the first row, computed by version 1, then by version 2, and then after
    /// the rollback.
    probabilities: [f32; 3],
    /// The numbers of the two versions.
    versions: [u64; 2],
    /// The number of rows in the second version, which is a delta.
    delta_rows: u64,
    /// The time from the move of the pointer to the first answer with the new version, in seconds.
    /// The next field is the time for the old version after the rollback.
    seconds_to_serve: f64,
    seconds_to_roll_back: f64,
    /// The command that starts the server.
    serve: String,
    /// An id of the example request, which a printed command looks up. `None` if the example has no
    /// such id.
    #[serde(skip)]
    id: Option<String>,
    /// The process id of the server, or `None` if the server was stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u32>,
}

impl Served {
    /// Prints the command that stops the server, or the command that starts it again if it was
    /// stopped.
    pub(super) fn print_next(&self) {
        if let Some(server) = self.server {
            eprintln!("serving at {} until `kill {server}`", self.url);
        } else {
            eprintln!("  # serve it again; Ctrl-C ends it\n  {}", self.serve);
        }
    }
}

/// Publishes the best checkpoint and serves it. Then trains on later rows, publishes again, and
/// rolls back.
pub(super) fn run(
    args: &QuickstartArgs,
    place: &Place,
    log: &ClickLog,
    workers: &Arc<Workers>,
    stop: &Arc<std::sync::atomic::AtomicBool>,
) -> Result<Served> {
    eprintln!("4. publish it and serve it");
    let checkpoint = Checkpoint::find(&place.first)?;
    let config = PublishConfig::new(&place.registry.to_string_lossy());
    let clock = Arc::new(SystemClock::new());
    let mut loaded = Loaded::from_checkpoint(checkpoint.clone(), workers.clone())?;
    let published = publish_checkpoint(
        &checkpoint,
        &loaded.job,
        &config,
        CheckpointWish::default(),
        workers,
        &durable_files()?,
        clock,
    )?;
    eprintln!("   {published}");
    let setup = Setup::new(job::NAME, &place.registry, &place.server_log);
    let server = ServerChild::start(setup)?;
    eprintln!("   serving at {}", server.url());
    let question = Question::new(&loaded, place)?;
    let first = wait_for(place, &server, &question, published.version.version.0)?;
    let trained = scores(&mut loaded, &question)?;
    check_same(place, &first, &trained)?;
    eprintln!(
        "   {} rows over HTTP: every score is the trainer's, bit for bit; row 0: {}",
        question.rows, first.probabilities[0]
    );

    eprintln!("5. train on rows that came in since; the server follows");
    let next = log.rows()..log.rows() + log.rows() / 5;
    log.write(&place.data.join("next.parquet"), next, workers, &durable_files()?)?;
    let settings = place.settings_of_next();
    let report =
        sitting(place, &settings, workers, stop, false, Some(&place.first), &mut Progress::new())?;
    let moved = Instant::now();
    let Some(second_version) = report.published else {
        bail!(
            "the second run has not published a version, which is a defect of zillion; report it \
             with its output"
        )
    };
    let second = wait_for(place, &server, &question, second_version)?;
    let seconds_to_serve = moved.elapsed().as_secs_f64();
    let mut next_loaded = Loaded::open(&place.next, workers.clone())?;
    check_same(place, &second, &scores(&mut next_loaded, &question)?)?;
    let registry = open_registry(&place.registry.to_string_lossy())?;
    let clicks: Model = registry.model(job::NAME)?;
    let delta_rows = clicks.version(zillion_registry::VersionId(second_version))?.layer.rows();
    eprintln!(
        "   version {second_version}, {delta_rows} rows changed, answered {:.2} s later; row 0: {} -> {}",
        seconds_to_serve, first.probabilities[0], second.probabilities[0]
    );

    eprintln!("6. roll back");
    let moved = Instant::now();
    clicks.rollback(STABLE, None, &current_user(), Some("quickstart".to_owned()))?;
    let third = wait_for(place, &server, &question, published.version.version.0)?;
    let seconds_to_roll_back = moved.elapsed().as_secs_f64();
    check_same(place, &third, &trained)?;
    eprintln!(
        "   version {} answers again, {:.2} s later; row 0: {} -> {}",
        published.version.version,
        seconds_to_roll_back,
        second.probabilities[0],
        third.probabilities[0]
    );
    let probabilities = [&first, &second, &third].map(|answer| answer.probabilities[0]);
    question.save(place)?;
    let id = question.id();
    let url = server.url().to_owned();
    let server = args.keep_serving.then(|| server.leave());
    Ok(Served {
        url,
        rows: question.rows,
        same_as_trainer: true,
        probabilities,
        versions: [published.version.version.0, second_version],
        delta_rows,
        seconds_to_serve,
        seconds_to_roll_back,
        id,
        serve: format!(
            "{} serve --registry {} --model {}",
            place::program(),
            place::word(&place.registry),
            job::NAME
        ),
        server,
    })
}

/// The table whose row the printed `explain` command shows. The table has few ids and no missing
/// values, so the id of the example certainly has a row.
const LOOKED_INTO: &str = "C1";

/// A request for the scores of some rows. The rows are the first batch of the test file, because
/// scores have the same bits only in the same batch.
struct Question {
    file: PathBuf,
    rows: usize,
    body: Bytes,
    /// The example request with two rows. Its protocol is the one that a person can write most
    /// easily.
    example: Bytes,
}

impl Question {
    fn new(loaded: &Loaded, place: &Place) -> Result<Self> {
        let file = place.data.join("test.parquet");
        let job = &loaded.job;
        let files = [file.clone()];
        let block = |limit: usize| {
            let block = RawRows::open(&job.data, &files, &job.schema)?.next_block(limit)?;
            block.context("the test file has no rows")
        };
        let body = |protocol: Protocol, rows: usize, outputs: &[&str]| {
            let block = block(rows)?;
            let outputs = outputs.iter().map(|&name| name.to_owned()).collect();
            let recipe = Recipe { protocol, rows: block.rows, context: Vec::new(), outputs };
            recipe.body(block.columns)
        };
        let many = body(Protocol::V2, job.train.batch_size.get(), &["logits", "probabilities"])?;
        let example = body(Protocol::Predict, 2, &[])?.json;
        Ok(Self { file, rows: many.rows, body: many.json, example })
    }

    fn save(&self, place: &Place) -> Result<()> {
        std::fs::write(&place.request, &self.example)
            .with_context(|| format!("cannot write {}", place.request.display()))
    }

    /// Returns the id of the first example row in the table [`LOOKED_INTO`], or `None` if the row
    /// has no id there.
    fn id(&self) -> Option<String> {
        let example: serde_json::Value = serde_json::from_slice(&self.example).ok()?;
        match &example["instances"][0][LOOKED_INTO] {
            serde_json::Value::String(id) => Some(id.clone()),
            serde_json::Value::Number(id) => Some(id.to_string()),
            _ => None,
        }
    }
}

/// The content of a response: the version and the scores of the rows.
struct Answer {
    version: u64,
    logits: Vec<f32>,
    probabilities: Vec<f32>,
}

impl Answer {
    fn parse(body: &[u8]) -> Result<Self> {
        let answer: serde_json::Value = serde_json::from_slice(body)?;
        let outputs = answer["outputs"].as_array().context(
            "the answer of the server has no outputs, which is a defect of zillion; report it",
        )?;
        let column = |name: &str| -> Result<Vec<f32>> {
            let output = outputs.iter().find(|output| output["name"] == name);
            let data = output.and_then(|output| output["data"].as_array());
            let data = data.with_context(|| format!(
                "the answer of the server has no output `{name}`, which is a defect of zillion; \
                 report it"))?;
            let value = |x: &serde_json::Value| x.as_f64().map(|x| x as f32);
            data.iter().map(value).collect::<Option<_>>().context(
                "the answer of the server has no numbers, which is a defect of zillion; report it",
            )
        };
        let version = answer["model_version"].as_str().and_then(|v| v.parse().ok());
        Ok(Self {
            version: version.context(
                "the answer of the server names no version, which is a defect of zillion; report \
                 it",
            )?,
            logits: column("logits")?,
            probabilities: column("probabilities")?,
        })
    }
}

/// Returns the log odds that the trainer computes for the rows of the request.
fn scores(loaded: &mut Loaded, question: &Question) -> Result<Vec<f32>> {
    let job = &loaded.job;
    let files = [question.file.clone()];
    let dataset = Dataset::open_with(&job.data, &files, &job.schema, Labels::Optional)?;
    let dataset = dataset.with_statistics(loaded.statistics().clone());
    let mut logits = Vec::new();
    loaded.predict(&dataset, |prediction| {
        logits = prediction.logits[0].to_vec();
        Ok(false)
    })?;
    Ok(logits)
}

fn check_same(place: &Place, answer: &Answer, trained: &[f32]) -> Result<()> {
    let row = answer.logits.iter().zip(trained).position(|(a, b)| a.to_bits() != b.to_bits());
    if row.is_none() && answer.logits.len() == trained.len() {
        return Ok(());
    }
    bail!(
        "version {} and the trainer score row {} of the test file differently, which is a defect of zillion; \
         report it with {} and {}",
        answer.version,
        row.unwrap_or(trained.len()),
        place.job.display(),
        place.server_log.display()
    )
}

/// Sends the request until the given version answers.
fn wait_for(
    place: &Place,
    server: &ServerChild,
    question: &Question,
    version: u64,
) -> Result<Answer> {
    let (asker, target) = (Asker::new(server.url())?, server.target()?);
    let began = Instant::now();
    loop {
        let (status, body) = asker.post(&target, &question.body)?;
        let shown = || String::from_utf8_lossy(&body).chars().take(300).collect::<String>();
        if status == 200 {
            let answer = Answer::parse(&body)?;
            if answer.version == version {
                return Ok(answer);
            }
        } else if status != 503 {
            bail!("the server answered {status}: {}", shown());
        }
        if began.elapsed() > PATIENCE {
            bail!(
                "version {version} is not served after {PATIENCE:?}; the server's last answer is {status}: {}; \
                 read its log {}",
                shown(),
                place.server_log.display()
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the commands that repeat the second half of the quickstart, each with a description.
pub(super) fn commands(place: &Place, served: &Served) -> Vec<(&'static str, String)> {
    let zillion = place::program();
    let at = format!("--registry {} --model {}", place::word(&place.registry), job::NAME);
    let word = |path: &Path| place::word(path);
    let mut commands = vec![
        ("publish what a run came to", format!("{zillion} publish {} {at}", word(&place.first))),
        ("the versions, and where the pointer stands", format!("{zillion} model list {at}")),
        ("is every byte of them as it was published", format!("{zillion} model verify {at}")),
        (
            "what the second version changes",
            format!("{zillion} model diff {} {} {at}", served.versions[0], served.versions[1]),
        ),
        (
            "train on other rows from what was learned",
            format!(
                "{zillion} train {} --from {} --set {} --set train.epochs=1 --set data.train=next.parquet",
                word(&place.job),
                word(&place.first),
                place::word(place::run_setting(&place.next.with_file_name("later"))),
            ),
        ),
        ("forward again", format!("{zillion} model promote {} {at}", served.versions[1])),
        ("and back", format!("{zillion} model rollback {at}")),
    ];
    if let Some(id) = &served.id {
        commands.push((
            "which version wrote a row of the example last",
            format!("{zillion} explain {at} --table {LOOKED_INTO} --key {}", place::word(id)),
        ));
    }
    if served.server.is_some() {
        let url = format!("{}/v1/models/{}:predict", served.url, job::NAME);
        commands.push(("ask the server", format!("curl -s {url} -d @{}", word(&place.request))));
    }
    commands
}
