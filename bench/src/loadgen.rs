//! The command `zillion loadgen`: it sends the rows of a file to a server in an open loop, and
//! reports the latencies. It can also check the answers.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use serde::Serialize;
use zillion_device::machine::CpuTimes;
use zillion_feature::Schema;
use zillion_registry::{Model, STABLE};

use crate::args::{LoadgenArgs, Protocol};
use crate::load::answers::{Answers, Checked};
use crate::load::bodies::{self, Body, Recipe};
use crate::load::figures::Figures;
use crate::load::open_loop::{self, Plan};
use crate::load::target::Target;
use zillion_console::exit::{self, Stop};
use zillion_console::{data_settings, open_registry, print_json};

/// The maximum number of requests of a run. The outcomes of more requests would not fit in memory.
const MOST_REQUESTS: f64 = 1e8;

#[derive(Serialize)]
struct Outcome {
    protocol: Protocol,
    candidates: usize,
    bodies: usize,
    rate: f64,
    seconds: f64,
    connections: usize,
    connections_made: u64,
    #[serde(flatten)]
    figures: Figures,
    /// The number of answers from each version.
    versions: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Checked>,
    own_cpus: f64,
    other_cpus: Option<f64>,
}

/// Runs `zillion loadgen`. The command fails if a request gets no answer or, with `--check`, a
/// wrong answer.
pub fn run(args: &LoadgenArgs) -> Result<ExitCode> {
    let target = Target::new(&args.url, &args.model, args.version, args.protocol)
        .map_err(|e| Stop::Usage(format!("{e:#}")))?;
    let (model, plan, recipe) = (open_model(args)?, plan(args)?, recipe(args)?);
    let version = match args.version {
        Some(version) => version,
        None => model.pointer(STABLE)?.to.version,
    };
    let manifest = model.version(version)?;
    let schema = Schema::from_job(&manifest.frame.schema)?;
    if args.check && args.protocol == Protocol::Predict {
        refuse_unless_comparable(args, &schema)?;
    }
    let data = data_settings::of_file(&args.set)?;
    let bodies = bodies::read(&data, args.data.clone(), &schema, &recipe, args.bodies.get())?;
    if bodies.len() < args.bodies.get() {
        eprintln!("the file has rows for {} requests; they are sent in turn", bodies.len());
    }

    let message = |body: &Body| body.message(args.protocol, &args.model, args.version);
    let messages: Vec<Bytes> = bodies.iter().map(message).collect::<Result<_>>()?;
    let before = CpuTimes::now();
    let run = open_loop::run(&target, &messages, plan, Answers::new(args.check))?;
    let cpus = CpuTimes::now().since(&before);
    let check = match args.check {
        true => {
            // The check uses a cache of its own, because the server may remove files from its own
            // cache.
            let cache = tempfile::tempdir()?;
            let answers = &run.answers;
            Some(answers.compare(args.protocol, args.version, &model, &bodies, cache.path())?)
        }
        false => None,
    };
    let outcome = Outcome {
        protocol: args.protocol,
        candidates: recipe.rows,
        bodies: bodies.len(),
        rate: args.rate,
        seconds: args.seconds,
        connections: args.connections.get(),
        connections_made: run.connections_made,
        figures: Figures::of(&run.done, &plan, run.elapsed),
        versions: run.answers.versions,
        check,
        own_cpus: cpus.own_cpus,
        other_cpus: cpus.other_cpus,
    };
    match args.json {
        true => print_json(&outcome)?,
        false => show(&outcome),
    }
    let is_right = |check: &Checked| check.mismatches == 0 && check.unchecked == 0;
    let is_good = outcome.figures.failed == 0 && outcome.check.as_ref().is_none_or(is_right);
    Ok(if is_good { ExitCode::SUCCESS } else { exit::failed() })
}

fn open_model(args: &LoadgenArgs) -> Result<Model> {
    let Some(registry) = &args.registry else {
        let reason = "the inputs of the model are read from its registry; name the registry of the \
                      server with --registry";
        return Err(Stop::Usage(reason.to_owned()).into());
    };
    Ok(open_registry(registry)?.model(&args.model)?)
}

fn plan(args: &LoadgenArgs) -> Result<Plan> {
    let requests = (args.rate * args.seconds).ceil();
    if requests > MOST_REQUESTS {
        let reason = format!("a run of {requests} requests is too long; lower --rate or --seconds");
        return Err(Stop::Usage(reason).into());
    }
    Ok(Plan {
        rate: args.rate,
        requests: requests as u64,
        connections: args.connections.get(),
        timeout: Duration::from_millis(args.timeout_ms),
        send_within: Duration::MAX,
    })
}

fn recipe(args: &LoadgenArgs) -> Result<Recipe> {
    if !args.context.is_empty() && args.protocol != Protocol::Rank {
        let reason = "--context: only rank requests have a context; set --protocol rank or leave out --context";
        return Err(Stop::Usage(reason.to_owned()).into());
    }
    let (protocol, rows) = (args.protocol, args.candidates.get());
    Ok(Recipe { protocol, rows, context: args.context.clone(), outputs: Vec::new() })
}

/// Returns an error if the answers cannot be compared. In the predict protocol, an answer does not
/// name its version. If the model has only one output, the answer does not name the output either.
fn refuse_unless_comparable(args: &LoadgenArgs, schema: &Schema) -> Result<()> {
    let reason = if args.version.is_none() {
        "the answer to a predict request does not name its version; choose a version with --version, \
         or use --protocol v2"
    } else if schema.labels.len() > 1 {
        "predict answers of a model with several labels cannot be compared; use --protocol v2"
    } else {
        return Ok(());
    };
    Err(Stop::Usage(format!("--check: {reason}")).into())
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(outcome: &Outcome) {
    let Outcome { figures, .. } = outcome;
    println!(
        "requests    {} due, {} sent, {} ok, {} failed",
        figures.requests, figures.sent, figures.ok, figures.failed
    );
    for (what, count) in &figures.failures {
        println!("            {count} × {what}");
    }
    println!(
        "rate        {:.1} a second of {}, {} rows each",
        figures.achieved_rate, outcome.rate, outcome.candidates
    );
    let latency = &figures.latency;
    println!(
        "latency ms  p50 {}  p90 {}  p99 {}  p99.9 {}  max {}  (from the time a request was due)",
        latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.p999_ms, latency.max_ms
    );
    let versions = outcome.versions.iter().map(|(version, count)| format!("{version} ({count})"));
    let versions: Vec<String> = versions.collect();
    let named = if versions.is_empty() { "none named".to_owned() } else { versions.join("  ") };
    println!("versions    {named}");
    if let Some(check) = &outcome.check {
        println!(
            "check       {} compared, {} mismatches, {} unchecked",
            check.compared, check.mismatches, check.unchecked
        );
        if let Some(first) = &check.first {
            println!("            {first}");
        }
    }
    if outcome.connections_made > outcome.connections as u64 {
        println!(
            "connections {} made, {} asked for",
            outcome.connections_made, outcome.connections
        );
    }
}
