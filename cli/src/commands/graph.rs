//! `zillion model graph`.

use std::path::Path;

use anyhow::{Context, Result};
use zillion_nn::zoo::LOSS;
use zillion_nn::{Graph, Mode, differentiate};
use zillion_trainer::{Checkpoint, Job, RunDir};

use super::look;
use crate::args::GraphArgs;
use crate::exit::Stop;
use crate::job_file;

#[expect(clippy::print_stdout, reason = "the result of a command")]
pub(super) fn run(args: &GraphArgs) -> Result<()> {
    let job = job(&args.job, &args.set)?;
    let mode = if args.train { Mode::Train } else { Mode::Infer };
    let mut graph = zillion_trainer::graph(&job, mode)?;
    if let Some(loss) = graph.output(LOSS) {
        graph = differentiate(&graph, loss)?.graph;
    }
    print!("{}", listing(&graph));
    Ok(())
}

/// The job of a file, or of the checkpoint in a folder.
fn job(path: &Path, sets: &[String]) -> Result<Job> {
    if !path.is_dir() {
        let value = job_file::load(path, std::env::vars(), sets)?;
        return Job::from_value(value).with_context(|| path.display().to_string());
    }
    if !sets.is_empty() {
        let message = "a checkpoint carries its job: --set changes job files only".to_owned();
        return Err(Stop::Usage(message).into());
    }
    let checkpoint = match path.join("MANIFEST").exists() {
        true => Checkpoint::open(path)?,
        false => RunDir::new(path).best()?,
    };
    Ok(checkpoint.job()?)
}

/// One line a node; a composed layer's own name behind that of its last node.
fn listing(graph: &Graph) -> String {
    let mut rows = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let inputs: Vec<&str> = node.inputs.iter().map(|&i| graph.node(i).name.as_str()).collect();
        let call = format!("{}({})", node.op, inputs.join(", "));
        rows.push(vec![node.name.clone(), node.shape.to_string(), call]);
    }
    for (name, id) in &graph.aliases {
        let node = graph.node(*id);
        rows.push(vec![name.clone(), node.shape.to_string(), format!("= {}", node.name)]);
    }
    for (name, id) in graph.outputs.iter().filter(|(name, id)| graph.node(*id).name != *name) {
        let node = graph.node(*id);
        rows.push(vec![name.clone(), node.shape.to_string(), format!("= {}", node.name)]);
    }
    look::table(&rows, 3)
}
