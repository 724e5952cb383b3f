//! The choice of the device that computes the training graph of a run (`run.device`), and the
//! reasons for which the rows of its tables stay on the host.
//!
//! A GPU computes the graph of a run that trains alone. A job that a GPU cannot train is refused by
//! the name of the setting, or trains on the processor if its device is `auto`.

use std::collections::BTreeMap;
use std::sync::Arc;

use zillion_device::gpu::{self, Gpu};
use zillion_device::matmul::bf16::Instructions;
use zillion_nn::{LibraryProducts, Program};

use super::TrainOptions;
use super::graph_executor::GraphExecutor;
use crate::error::{Error, Result};
use crate::job::{DeviceChoice, Job, Precision};
use crate::observer::InspectOptions;

/// Creates the executor of a training graph on the device that the job asks for. Also returns one
/// line that names the device and the reason of the choice.
///
/// # Errors
/// Returns an error if the job names a GPU that cannot be used or cannot train the job. The device
/// `auto` has no such errors, because the run then trains on the processor. A precision that the
/// processor does not compute is refused.
pub(super) fn make_executor(
    job: &Job,
    options: &TrainOptions,
    program: Program,
) -> Result<(GraphExecutor, String)> {
    let (device, precision) = (job.run.device, job.train.precision);
    match device {
        DeviceChoice::Cpu => {
            let reason = "`run.device` is \"cpu\"";
            let instructions = precision.on_processors(Instructions::detect(), reason)?;
            let line = describe_processor("device cpu (`run.device`)".to_owned(), instructions);
            Ok((GraphExecutor::on_cpu(program, instructions), line))
        }
        DeviceChoice::Auto => {
            let first = DeviceChoice::Cuda(0);
            match open_executor(job, options, first, program.clone()) {
                Ok((executor, name)) => Ok((executor, describe(first, precision, &name))),
                Err(error) => {
                    let reason = match error {
                        Error::DeviceRefused { problem, .. } => problem,
                        other => other.to_string(),
                    };
                    let none = format!("none trains this job: {reason}");
                    let instructions = precision.on_processors(Instructions::detect(), &none)?;
                    let line = format!("device cpu, because {reason}");
                    let line = describe_processor(line, instructions);
                    Ok((GraphExecutor::on_cpu(program, instructions), line))
                }
            }
        }
        DeviceChoice::Cuda(_) | DeviceChoice::Emulated(_) => {
            let (executor, name) = open_executor(job, options, device, program)?;
            Ok((executor, describe(device, precision, &name)))
        }
    }
}

/// Creates the executor on a GPU, and returns the name of the GPU too.
fn open_executor(
    job: &Job,
    options: &TrainOptions,
    device: DeviceChoice,
    program: Program,
) -> Result<(GraphExecutor, String)> {
    let refused = |problem: String| Error::DeviceRefused { device: device.to_string(), problem };
    if let Some(problem) = unsupported(job, options) {
        return Err(refused(problem));
    }
    let gpu: Arc<dyn Gpu> = Arc::from(gpu::open(&device.to_string(), None)?);
    let name = gpu.info().name.clone();
    let library = job.train.precision.of_library().map(|precision| LibraryProducts {
        precision,
        rows: job.train.batch_size,
        kept: BTreeMap::new(),
    });
    let executor = GraphExecutor::on_gpu(program, gpu, library)?;
    Ok((executor, name))
}

/// Returns the line about a GPU that was chosen.
fn describe(device: DeviceChoice, precision: Precision, name: &str) -> String {
    match precision {
        Precision::F32 => format!("device {device} ({name})"),
        _ => format!("device {device} ({name}), products in {}", precision.name()),
    }
}

/// Returns the line about the processor, with the instructions of its products.
fn describe_processor(line: String, instructions: Option<Instructions>) -> String {
    match instructions {
        Some(instructions) => format!("{line}, products in bf16 by {instructions}"),
        None => line,
    }
}

/// Returns the setting of the run that a GPU cannot train with and the reason. Returns `None` if
/// only the operations of the graph are left to check.
fn unsupported(job: &Job, options: &TrainOptions) -> Option<String> {
    if let Some(problem) = job.problem_on_gpu() {
        return Some(problem);
    }
    if options.trainer.count > 1 {
        return Some(
            "several trainers compute on processors; start one, or leave out the device".to_owned(),
        );
    }
    if options.profile.is_some() {
        return Some("a profile records the work of the threads of a processor".to_owned());
    }
    None
}

/// Returns the reason for which the rows of a job stay on the host, even if a GPU computes its
/// graph. Returns `None` if only the tables are left to check.
pub(super) fn find_reader_of_rows(job: &Job, inspect: &InspectOptions) -> Option<&'static str> {
    let train = &job.train;
    let reasons = [
        (train.accumulate.get() > 1, "`train.accumulate` adds the gradients of several batches"),
        (train.average.is_some(), "`train.average` reads the parameters after each step"),
        (train.prune.is_some(), "`train.prune` sets weights of rows to zero"),
        (train.rounds_batches(), "`train.wire` rounds the gradients of rows"),
        (!job.streams.is_empty(), "the rows of streams are scored before they are learned from"),
        (!inspect.nodes.is_empty(), "values of nodes are requested"),
        (inspect.steps, "the norms of the gradients of each step are requested"),
    ];
    reasons.into_iter().find_map(|(is_so, reason)| is_so.then_some(reason))
}

#[cfg(test)]
mod tests;
