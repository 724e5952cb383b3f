//! `zillion model graph`: lists or draws the nodes of a model.

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context, Result};
use zillion_console::exit::usage_error;
use zillion_console::{durable_files, job_file, open_registry};
use zillion_nn::drawing::{self, Sizes};
use zillion_nn::zoo::LOSS;
use zillion_nn::{
    Graph, Memory, Mode, NodeId, Passes, Program, Settings, Stage, TrainGraph, differentiate,
};
use zillion_registry::{Cache, VersionId};
use zillion_rows::layer::{LayerFile, Unthrottled};
use zillion_trainer::{Checkpoint, Job, RunDir, TrainConfig};

use crate::args::{GraphArgs, GraphFormat};
use crate::text;

#[expect(clippy::print_stdout, reason = "the result of a command")]
pub(super) fn run(args: &GraphArgs) -> Result<()> {
    let (built, settings, of_job) = build(args)?;
    let passes = settings.passes;
    let rows = args.rows.map_or(of_job.rows, NonZeroUsize::get);
    let sizes = Sizes { rows, ..of_job };
    if args.pass.as_deref() == Some(PLAN) && args.format.is_none() {
        print!("{}", format_plan(&built, settings, &sizes)?);
        return Ok(());
    }
    if args.format.is_none() && args.pass.is_none() {
        print!("{}", list_nodes(built.graph()));
        return Ok(());
    }
    let stages = match &args.pass {
        None => vec![built.stages(passes)?.swap_remove(0)],
        Some(name) => choose_stages(built.stages(passes)?, name, passes)?,
    };
    let shown = match args.format.unwrap_or(GraphFormat::Text) {
        GraphFormat::Text => drawing::text(&stages, &sizes),
        GraphFormat::Dot => drawing::dot(&stages, &sizes),
        GraphFormat::Svg => drawing::svg(&stages, &sizes),
    };
    print!("{shown}");
    Ok(())
}

/// The graph that the command shows, before any pass.
enum Built {
    Train(TrainGraph),
    Infer(Graph),
}

impl Built {
    fn graph(&self) -> &Graph {
        match self {
            Self::Train(train) => &train.graph,
            Self::Infer(graph) => graph,
        }
    }

    fn stages(&self, passes: Passes) -> Result<Vec<Stage>> {
        Ok(match self {
            Self::Train(train) => Program::train_stages(train, passes)?,
            Self::Infer(graph) => Program::infer_stages(graph, &outputs(graph), passes)?,
        })
    }

    fn program(&self, settings: Settings) -> Result<Program> {
        Ok(match self {
            Self::Train(train) => Program::train(train, settings)?,
            Self::Infer(graph) => Program::infer(graph, &outputs(graph), settings)?,
        })
    }
}

fn outputs(graph: &Graph) -> Vec<NodeId> {
    graph.outputs.iter().map(|&(_, id)| id).collect()
}

/// The name of the pass that changes only the plan of the buffers.
const PLAN: &str = "in_place";

/// Compares the bytes of a batch's buffers in three cases: with a separate buffer for every value,
/// planned without the pass [`PLAN`], and planned with it.
fn format_plan(built: &Built, settings: Settings, sizes: &Sizes) -> Result<String> {
    let bytes = |passes: Passes| -> Result<Memory> {
        let program = built.program(Settings { passes, ..settings })?;
        Ok(program.memory(sizes.rows, 1, |column| sizes.list_len.get(column).copied().unwrap_or(1)))
    };
    let without = bytes(settings.passes.off(PLAN)?)?;
    let mut lines = vec![
        ("every value in a separate buffer", without.naive),
        ("planned: the values of a tile in reused buffers", without.planned),
    ];
    if settings.passes.has(PLAN) {
        lines.push(("after in_place", bytes(settings.passes)?.planned));
    }
    let rows = lines
        .into_iter()
        .map(|(what, bytes)| vec![what.to_owned(), format!("{:.1} KiB", bytes as f64 / 1024.0)]);
    Ok(format!(
        "# memory of a batch of {} rows, one thread, {} lanes, tiles of {} rows\n{}",
        sizes.rows,
        settings.lanes,
        settings.tile_rows,
        text::table(&[], rows, 1)
    ))
}

/// Returns the graph that the arguments select, the execution settings of its job, and the sizes of
/// a batch.
fn build(args: &GraphArgs) -> Result<(Built, Settings, Sizes)> {
    if let Some(name) = &args.model {
        if args.train || !args.set.is_empty() {
            return usage_error(
                "--model names a version, which has only the graph for scoring; remove --train \
                 and --set",
            );
        }
        let graph = read_published(args, name)?;
        let sizes = Sizes::of(TrainConfig::default().batch_size.get());
        return Ok((Built::Infer(graph), TrainConfig::default().settings()?, sizes));
    }
    let job = load_job(&args.job, &args.set)?;
    let mode = if args.train { Mode::Train } else { Mode::Infer };
    let graph = job.graph(mode)?;
    let built = match graph.output(LOSS) {
        Some(loss) => Built::Train(differentiate(&graph, loss)?),
        None => Built::Infer(graph),
    };
    let values = |is_list: bool| if is_list { args.list_len.get() } else { 1 };
    let list_len = job.schema.sparse().map(|feature| values(feature.pooling().is_some()));
    let sizes = Sizes { rows: job.train.batch_size.get(), list_len: list_len.collect() };
    Ok((built, job.train.settings()?, sizes))
}

/// Returns the graph of a version.
fn read_published(args: &GraphArgs, model: &str) -> Result<Graph> {
    let Some(registry) = &args.registry else {
        return usage_error(
            "--model needs a registry; name it with --registry or ZILLION_REGISTRY",
        );
    };
    let number = args.job.to_string_lossy();
    let Ok(version) = number.parse::<VersionId>() else {
        return usage_error(format!(
            "{number:?} is not the number of a version; with --model, give the number of a \
             version as the argument"
        ));
    };
    let model = open_registry(registry)?.model(model)?;
    let file = model.version(version)?.frame.graph.clone();
    // The files are fetched to a temporary folder and then deleted, so the cache of a server is not
    // used.
    let folder = tempfile::tempdir().context("cannot make a folder for the graph")?;
    let cache = Cache::open(folder.path(), model.name(), durable_files()?)?;
    let described = LayerFile { blake3: file.blake3.clone(), bytes: file.bytes };
    let bytes = cache.read(&model, &file.name(), &described, &mut Unthrottled)?;
    Ok(Graph::from_json(&bytes)?)
}

/// Returns the stages before and after one pass, or all stages.
fn choose_stages(stages: Vec<Stage>, pass: &str, passes: Passes) -> Result<Vec<Stage>> {
    if pass == "all" {
        return Ok(stages);
    }
    // An unknown name of a pass is an error.
    passes.off(pass)?;
    match stages.iter().position(|stage| stage.pass == Some(pass)) {
        Some(after) => Ok(stages[after - 1..=after].to_vec()),
        None if passes.has(pass) => usage_error(format!(
            "the pass {pass} changes only the sizes of buffers, which --format does not draw; \
             remove --format to print the sizes"
        )),
        None => usage_error(format!(
            "the pass {pass} is off in this job; remove it from `train.passes_off`"
        )),
    }
}

/// Returns the job of a job file, or the job of the checkpoint if the path is a folder.
fn load_job(path: &Path, sets: &[String]) -> Result<Job> {
    if !path.is_dir() {
        return job_file::load_job(path, sets);
    }
    if !sets.is_empty() {
        return usage_error(
            "--set changes only job files, but a checkpoint has its own job; remove --set",
        );
    }
    let checkpoint = match path.join("MANIFEST").exists() {
        true => Checkpoint::open(path)?,
        false => RunDir::new(path).best()?,
    };
    Ok(checkpoint.job()?)
}

/// Lists the nodes, one per line. After them come the names of composed layers and of outputs, each
/// on its own line with the name of its node.
fn list_nodes(graph: &Graph) -> String {
    let nodes = graph.nodes.iter().map(|node| {
        let inputs: Vec<&str> = node.inputs.iter().map(|&i| graph.node(i).name.as_str()).collect();
        let call = format!("{}({})", node.op, inputs.join(", "));
        vec![node.name.clone(), node.shape.to_string(), call]
    });
    let outputs = graph.outputs.iter().filter(|(name, id)| graph.node(*id).name != *name);
    let names = graph.aliases.iter().chain(outputs).map(|(name, id)| {
        let node = graph.node(*id);
        vec![name.clone(), node.shape.to_string(), format!("= {}", node.name)]
    });
    let rows = nodes.chain(names);
    text::table(&[], rows, 3)
}
