//! The choice of matrix products between runs (see [`ProductChoice`]).
//!
//! # Invariants
//! The algorithms of a GPU are set before the first step of a resumed run. The checkpoints of a run
//! name those of its own machine, also if it began with those of another one.

use std::collections::BTreeMap;

use zillion_nn::GpuExecutor;

use super::graph_executor::GraphExecutor;
use super::model::Model;
use crate::checkpoint::{KeptAlgorithm, ProductChoice};
use crate::error::Result;

impl Model {
    /// Returns the choice of the products so far; `None` if all products are exact.
    pub(super) fn product_choice(&self) -> Option<ProductChoice> {
        match &self.executor {
            GraphExecutor::Gpu(executor) if executor.has_library() => Some(choice_of_gpu(executor)),
            GraphExecutor::Gpu(_) => None,
            GraphExecutor::Cpu(executor) => executor.instructions().map(|set| ProductChoice {
                instructions: Some(set.name().to_owned()),
                gpu: String::new(),
                library: None,
                algorithms: BTreeMap::new(),
            }),
        }
    }

    /// Sets the algorithms of a checkpoint. Returns one line about the bits of the run if they will
    /// not be those of an uninterrupted one.
    ///
    /// # Errors
    /// Returns an error of the GPU.
    pub(super) fn keep_products(&mut self, kept: Option<&ProductChoice>) -> Result<Option<String>> {
        let (Some(kept), Some(own)) = (kept, self.product_choice()) else { return Ok(None) };
        let (here, there) = (describe(&own), describe(kept));
        if here != there {
            return Ok(Some(format!(
                "the products of this run have other bits from here on, because the checkpoint is \
                 of {there}, and this is {here}"
            )));
        }
        let GraphExecutor::Gpu(executor) = &mut self.executor else { return Ok(None) };
        let bytes = |(shape, algorithm): (&String, &KeptAlgorithm)| (shape.clone(), algorithm.0);
        let algorithms: BTreeMap<_, _> = kept.algorithms.iter().map(bytes).collect();
        let refused = executor.keep_algorithms(&algorithms)?;
        Ok(refused.first().map(|first| {
            format!(
                "the products of this run may have other bits from here on: {} of {} algorithms of \
                 the checkpoint are chosen anew, because {first}",
                refused.len(),
                algorithms.len()
            )
        }))
    }
}

/// Returns the choice of a GPU whose library computes products.
fn choice_of_gpu(executor: &GpuExecutor) -> ProductChoice {
    let algorithms = executor.algorithms().into_iter();
    let info = executor.gpu().info();
    ProductChoice {
        instructions: None,
        gpu: info.name.clone(),
        library: info.product_library().0.map(str::to_owned),
        algorithms: algorithms.map(|(shape, bytes)| (shape, KeptAlgorithm(bytes))).collect(),
    }
}

/// Returns the words for processors with their instructions, or for a model of GPU with a version
/// of the library.
fn describe(choice: &ProductChoice) -> String {
    let ProductChoice { instructions, gpu, library, .. } = choice;
    match (instructions, library) {
        (Some(instructions), _) => format!("processors with {instructions}"),
        (None, Some(version)) => format!("the GPU {gpu} with cuBLASLt {version}"),
        (None, None) => format!("the GPU {gpu}"),
    }
}
