//! The part of a version that later versions of the same training run share.

use std::sync::Arc;
use std::time::Instant;

use zillion_device::Workers;
use zillion_feature::{Encoder, Schema};
use zillion_nn::zoo::USER;
use zillion_nn::{DenseType, Graph, NodeId, PackedParams, Params, Settings};
use zillion_registry::{
    Cache, Error as RegistryError, Model, ScoreSettings, VersionManifest, read_side,
};
use zillion_rows::layer::Throttle;

use super::{read, task_names};
use crate::device::ScoringDevice;
use crate::device::engine::DeviceEngine;
use crate::error::{Error, Result};
use crate::onnx::{OnnxInterface, onnx_tasks};
use crate::programs::Programs;
use crate::scorer::{Scorer, logits};
use crate::scratch::{Scratch, ScratchPool};

/// The part of a version that later versions of the same training run can share: everything except
/// the rows and the dense parameters, which are different in every version.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) encoder: Encoder,
    pub(super) tasks: Vec<String>,
    pub(super) programs: Arc<Programs>,
    /// The nodes of the log odds, in the order of the tasks, or those of the inputs of the ONNX
    /// model.
    pub(super) logits: Vec<NodeId>,
    /// The inputs and the outputs of the ONNX model that computes the scores, if there is one.
    pub(super) onnx: Option<OnnxInterface>,
    pub(super) workers: Arc<Workers>,
    pub(super) scratches: ScratchPool,
    /// Whether the scores of a row do not depend on the other rows of its batch.
    pub(super) has_independent_rows: bool,
    /// The executors on the device; `None` on processors.
    pub(super) on_device: Option<Arc<DeviceEngine>>,
}

impl Engine {
    pub(super) fn load(
        model: &Model,
        device: Option<&Arc<ScoringDevice>>,
        manifest: &VersionManifest,
        cache: &Cache,
        workers: &Arc<Workers>,
        pace: &mut dyn Throttle,
    ) -> Result<Self> {
        let version = manifest.version;
        let schema =
            Schema::from_job(&manifest.frame.schema).map_err(|e| RegistryError::Manifest {
                path: format!("{} version {version}", model.name()),
                reason: format!("its schema cannot be read: {e}"),
            })?;
        let mut sides = Vec::with_capacity(manifest.frame.sides.len());
        for file in &manifest.frame.sides {
            sides.push(Arc::new(read_side(&schema, read(model, file, cache, pace)?)?));
        }
        let encoder = Encoder::new(&schema, &manifest.frame.statistics, &sides)
            .map_err(|e| Error::Refused(format!("version {version} cannot be used: {e}")))?;
        let graph = Graph::from_json(&read(model, &manifest.frame.graph, cache, pace)?)?;
        let onnx =
            manifest.frame.settings.onnx.then(|| OnnxInterface::new(&graph, encoder.schema()));
        let tasks = match &onnx {
            Some(_) => onnx_tasks(encoder.schema()),
            None => task_names(&graph, encoder.schema()),
        };
        let ScoreSettings { lanes, tile_rows, .. } = manifest.frame.settings;
        let settings = Settings { lanes, tile_rows, ..Settings::default() };
        let (workers, scratches) = (workers.clone(), ScratchPool::default());
        let logits = match &onnx {
            Some(_) => graph.outputs.iter().map(|&(_, id)| id).collect(),
            None => logits(&graph)?,
        };
        let programs = Arc::new(Programs::new(graph, logits.clone(), settings));
        // The products of ONNX Runtime may be rounded differently in larger batches.
        let has_independent_rows = onnx.is_none() && programs.plan()?.has_independent_rows();
        let on_device = match device {
            Some(device) => {
                Some(DeviceEngine::new(device.clone(), programs.clone(), logits.clone())?)
            }
            None => None,
        };
        Ok(Self {
            encoder,
            tasks,
            programs,
            logits,
            onnx,
            workers,
            scratches,
            has_independent_rows,
            on_device,
        })
    }

    /// Packs the weights of `params` in a number type.
    pub(super) fn pack(
        &self,
        dense: DenseType,
        params: &Params,
        pace: &mut dyn Throttle,
    ) -> Result<Arc<PackedParams>> {
        let scratch = self.take_scratch()?;
        let packed = scratch.scorer.pack(dense, params, &mut || pace.piece());
        self.scratches.put(scratch, 0, Instant::now());
        Ok(packed)
    }

    /// Returns a scorer of the user's tower.
    pub(super) fn user_scorer(&self) -> Result<Scorer> {
        let (graph, settings) = (self.programs.graph(), self.programs.settings());
        Scorer::with_outputs(graph, &[USER], settings, self.workers.clone())
    }

    pub(super) fn take_scratch(&self) -> Result<Scratch> {
        if let Some(scratch) = self.scratches.take() {
            return Ok(scratch);
        }
        let (programs, logits) = (self.programs.clone(), self.logits.clone());
        Ok(Scratch::new(Scorer::with_programs(programs, logits, self.workers.clone())?))
    }
}

/// Returns whether two versions can share an engine. They can if they differ only in rows and dense
/// parameters.
pub(super) fn is_same_engine(a: &VersionManifest, b: &VersionManifest) -> bool {
    Arc::ptr_eq(&a.frame, &b.frame) || a.frame == b.frame
}
