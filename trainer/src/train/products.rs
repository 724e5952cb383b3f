//! The algorithms of a GPU's matrix products between runs (see [`ProductChoice`]).
//!
//! # Invariants
//! The algorithms are set before the first step of a resumed run. The checkpoints of a run name
//! those of its GPU and library, also if it began with those of another one.

use std::collections::BTreeMap;

use zillion_nn::GpuExecutor;

use super::graph_executor::GraphExecutor;
use super::model::Model;
use crate::checkpoint::{KeptAlgorithm, ProductChoice};
use crate::error::Result;

impl Model {
    /// Returns the algorithms of the products so far; `None` if all products are exact.
    pub(super) fn product_choice(&self) -> Option<ProductChoice> {
        let executor = self.library_executor()?;
        let algorithms = executor.algorithms().into_iter();
        let info = executor.gpu().info();
        Some(ProductChoice {
            gpu: info.name.clone(),
            library: info.product_library().0.map(str::to_owned),
            algorithms: algorithms.map(|(shape, bytes)| (shape, KeptAlgorithm(bytes))).collect(),
        })
    }

    /// Sets the algorithms of a checkpoint. Returns one line about the bits of the run if they will
    /// not be those of an uninterrupted one.
    ///
    /// # Errors
    /// Returns an error of the GPU.
    pub(super) fn keep_products(&mut self, kept: Option<&ProductChoice>) -> Result<Option<String>> {
        if self.library_executor().is_none() {
            return Ok(None);
        }
        let (Some(kept), GraphExecutor::Gpu(executor)) = (kept, &mut self.executor) else {
            return Ok(None);
        };
        let info = executor.gpu().info();
        let here = describe(&info.name, info.product_library().0);
        let there = describe(&kept.gpu, kept.library.as_deref());
        if here != there {
            return Ok(Some(format!(
                "the products of this run have other bits from here on, because the checkpoint is \
                 of {there}, and this is {here}"
            )));
        }
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

    /// Returns the executor if a library computes its products.
    fn library_executor(&self) -> Option<&GpuExecutor> {
        match &self.executor {
            GraphExecutor::Gpu(executor) if executor.has_library() => Some(executor),
            _ => None,
        }
    }
}

/// Returns the words for a model of GPU with a version of the library.
fn describe(gpu: &str, library: Option<&str>) -> String {
    match library {
        Some(version) => format!("the GPU {gpu} with cuBLASLt {version}"),
        None => format!("the GPU {gpu}"),
    }
}
