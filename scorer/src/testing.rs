//! A small model with a table without rows, for the tests of this crate.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{Batch, FeatureKey, KeyColumn, Pooling, Schema};
use zillion_nn::zoo::LOGITS;
use zillion_nn::{
    ColumnInput, Graph, GraphBuilder, GraphInputs, Mode, Params, Settings, TableInput,
};
use zillion_rows::layer::LayerSource;
use zillion_rows::{InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

use crate::scorer::Scorer;

/// The number of rows in a tile of the example's scorers.
pub(crate) const TILE_ROWS: usize = 64;

/// An example model with one column of ids.
pub(crate) struct Example {
    pub(crate) schema: Schema,
    pub(crate) params: Params,
    pub(crate) source: LayerSource,
    pub(crate) graph: Graph,
    pub(crate) workers: Arc<Workers>,
}

impl Example {
    pub(crate) fn new() -> Self {
        let job = r#"{"features": {"item": {"kind": "id"}}, "labels": {"y": {}}}"#;
        let schema = Schema::from_job(&serde_json::from_str(job).unwrap()).unwrap();
        let normal = InitializerSpec::Normal { mean: 0.0, std: 0.1 };
        let segment =
            SegmentSpec::new("item".to_owned(), 4, normal, OptimizerSpec::Sgd { lr: 0.1 });
        let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
        let specs = [TableSpec::new("item", vec![segment])];
        let source = LayerSource::new(&specs, Vec::new(), workers.clone()).unwrap();
        let inputs = GraphInputs {
            tables: vec![TableInput { name: "item".into(), stride: 4 }],
            columns: vec![ColumnInput { name: "item".into(), table: 0 }],
            ..GraphInputs::default()
        };
        let mut b = GraphBuilder::new(inputs, Mode::Infer);
        let item = b.gather("item", 0, 0, 4, Pooling::Sum).unwrap();
        let hidden = b.linear("hidden", item, 8).unwrap();
        let hidden = b.relu("active", hidden).unwrap();
        let logits = b.linear("last", hidden, 1).unwrap();
        b.output(LOGITS, logits).unwrap();
        let graph = b.finish();
        let params = Params::init(&graph.params, 1);
        Self { schema, params, source, graph, workers }
    }

    pub(crate) fn scorer(&self) -> Scorer {
        let settings = Settings { tile_rows: TILE_ROWS, ..Settings::default() };
        Scorer::new(&self.graph, settings, self.workers.clone()).unwrap()
    }

    /// Returns a graph that only looks the ids up, for an ONNX model of the other layers.
    pub(crate) fn lookups(&self) -> Graph {
        let mut b = GraphBuilder::new(self.graph.inputs.clone(), Mode::Infer);
        let item = b.gather("item", 0, 0, 4, Pooling::Sum).unwrap();
        b.output("item.vector", item).unwrap();
        b.finish()
    }

    /// Returns the parameters of [`Example::lookups`], which has none.
    #[cfg(feature = "onnx")]
    pub(crate) fn no_params(&self) -> Params {
        Params::init(&self.lookups().params, 0)
    }

    /// Returns a batch of `rows` rows with different ids.
    pub(crate) fn batch(&self, rows: usize) -> Batch {
        let keys = (0..rows as u64).map(FeatureKey::from_u64).collect();
        let empty = Batch::empty(&self.schema);
        Batch { rows, sparse: vec![KeyColumn::single(keys)], ..empty }
    }
}
