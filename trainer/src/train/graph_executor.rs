//! The executor of the training graph of a run, on the pool of threads or on a GPU.
//!
//! # Invariants
//! With the precision `f32`, both executors give the same bytes, so the rest of a step does not
//! know which of them ran.

use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::gpu::{Counters, Gpu};
use zillion_device::matmul::bf16::Instructions;
use zillion_nn::{
    Executor, GpuExecutor, Inputs, LibraryProducts, NodeId, ParamId, Params, Program, StepSeed,
};

use crate::error::{Error, Result};

/// The state of parameters that stay on a GPU between steps.
#[derive(Debug, Default)]
pub(super) struct Resident {
    /// The squared norm of the dense gradients of the last batch.
    pub(super) sq_norm: f64,
    /// Whether the parameters of the host are older than those of the GPU.
    pub(super) is_behind: bool,
}

/// The executor of a training graph.
pub(super) enum GraphExecutor {
    /// The executor on the pool of threads.
    Cpu(Box<Executor>),
    /// The executor on a GPU.
    Gpu(Box<GpuExecutor>),
}

impl GraphExecutor {
    /// Creates an executor on the pool of threads. With `instructions`, the products of layers have
    /// factors of bf16.
    pub(super) fn on_cpu(program: Program, instructions: Option<Instructions>) -> Self {
        Self::Cpu(Box::new(Executor::with_products(program, instructions)))
    }

    /// Creates an executor on a GPU. With `library`, the library of the GPU computes the products
    /// of layers.
    ///
    /// # Errors
    /// Returns an error if the GPU has no kernel for an operation of the graph, or if it fails.
    pub(super) fn on_gpu(
        program: Program,
        gpu: Arc<dyn Gpu>,
        library: Option<LibraryProducts>,
    ) -> Result<Self> {
        Ok(Self::Gpu(Box::new(GpuExecutor::with_products(program, gpu, library)?)))
    }

    /// Returns whether the graph is computed on a GPU.
    pub(super) fn is_on_gpu(&self) -> bool {
        matches!(self, Self::Gpu(_))
    }

    /// Computes the loss and all gradients, as [`Executor::train`] does.
    pub(super) fn train(
        &mut self,
        workers: &Workers,
        inputs: &Inputs<'_>,
        params: &mut Params,
        seed: StepSeed,
        row_grads: &mut [&mut [f32]],
    ) -> Result<()> {
        match self {
            Self::Cpu(executor) => executor.train(workers, inputs, params, seed, row_grads)?,
            Self::Gpu(executor) => executor.train(inputs, params, seed, row_grads)?,
        }
        Ok(())
    }

    /// Returns the loss of the last batch, or `None` before the first one.
    pub(super) fn loss(&self) -> Option<f32> {
        match self {
            Self::Cpu(executor) => executor.loss(),
            Self::Gpu(executor) => executor.loss(),
        }
    }

    /// Returns the gradient of a parameter in the last batch. Returns `None` if the loss does not
    /// depend on the parameter.
    pub(super) fn param_grad(&self, param: ParamId) -> Option<&[f32]> {
        match self {
            Self::Cpu(executor) => executor.param_grad(param),
            Self::Gpu(executor) => executor.param_grad(param),
        }
    }

    /// Returns the gradient of each parameter that has one, in the order of parameters.
    pub(super) fn param_grads(&self) -> impl Iterator<Item = (ParamId, &[f32])> {
        let (cpu, gpu) = match self {
            Self::Cpu(executor) => (Some(executor.param_grads()), None),
            Self::Gpu(executor) => (None, Some(executor.param_grads())),
        };
        cpu.into_iter().flatten().chain(gpu.into_iter().flatten())
    }

    /// Returns the values of a requested node in the last batch, row after row. Returns `None` if
    /// the node was not requested.
    pub(super) fn output(&self, node: NodeId) -> Option<&[f32]> {
        match self {
            Self::Cpu(executor) => executor.output(node),
            Self::Gpu(executor) => executor.output(node),
        }
    }

    /// Returns the executor on a GPU.
    ///
    /// # Errors
    /// Returns an error if the graph is computed on the pool of threads.
    pub(super) fn gpu_mut(&mut self) -> Result<&mut GpuExecutor> {
        match self {
            Self::Gpu(executor) => Ok(executor),
            Self::Cpu(_) => Err(Error::DeviceRefused {
                device: "cpu".to_owned(),
                problem: "steps with rows on a GPU need the executor of a GPU".to_owned(),
            }),
        }
    }

    /// Returns the counts of the GPU, or `None` without a GPU.
    pub(super) fn gpu_counters(&self) -> Option<Counters> {
        match self {
            Self::Cpu(_) => None,
            Self::Gpu(executor) => Some(executor.gpu().counters()),
        }
    }

    /// Returns the number of steps on a GPU whose batch another thread has written.
    pub(super) fn staged_steps(&self) -> u64 {
        match self {
            Self::Cpu(_) => 0,
            Self::Gpu(executor) => executor.staged_steps(),
        }
    }

    /// Returns the executor on the pool of threads, which alone computes steps of several trainers
    /// and records profiles.
    ///
    /// # Errors
    /// Returns an error if the graph is computed on a GPU.
    pub(super) fn cpu(&self) -> Result<&Executor> {
        match self {
            Self::Cpu(executor) => Ok(executor),
            Self::Gpu(_) => Err(on_processors_only()),
        }
    }

    /// Returns the executor of [`GraphExecutor::cpu`] to run it.
    ///
    /// # Errors
    /// Returns an error if the graph is computed on a GPU.
    pub(super) fn cpu_mut(&mut self) -> Result<&mut Executor> {
        match self {
            Self::Cpu(executor) => Ok(executor),
            Self::Gpu(_) => Err(on_processors_only()),
        }
    }
}

/// Makes the error for work that a GPU does not do. A run with such work is refused before its
/// first step, so the error shows that a check of the settings is missing.
fn on_processors_only() -> Error {
    Error::DeviceRefused {
        device: "gpu".to_owned(),
        problem: "steps of several trainers and profiles need the executor of processors"
            .to_owned(),
    }
}
