//! Tests that models of the zoo can also be written as the graph of a job.

use std::num::NonZeroUsize;

use zillion_device::Workers;

use super::batch::TestBatch;
use super::spec;
use crate::graph::builder::Mode;
use crate::zoo::{self, LOSS, ModelSpec};
use crate::{Executor, Params, Program, Settings, StepSeed, differentiate};

pub(super) const DEEPFM: &str = "
kind = 'graph'
logits = 'logit'
[nodes.fields]
op = 'embedding'
[nodes.numeric]
op = 'numeric'
[nodes.wide]
op = 'wide'
[nodes.pairs]
op = 'fm'
inputs = ['fields']
[nodes.deep]
op = 'concat'
inputs = ['fields', 'numeric']
[nodes.mlp]
op = 'mlp'
inputs = ['deep']
hidden = [8, 4]
batch_norm = true
dropout = 0.2
[nodes.output]
op = 'linear'
inputs = ['mlp']
width = 1
[nodes.shallow]
op = 'add'
inputs = ['wide', 'pairs']
[nodes.logit]
op = 'add'
inputs = ['shallow', 'output']
";

pub(super) const DCNV2: &str = "
kind = 'graph'
logits = 'output'
[nodes.fields]
op = 'embedding'
[nodes.numeric]
op = 'numeric'
[nodes.deep]
op = 'concat'
inputs = ['fields', 'numeric']
[nodes.cross]
op = 'cross_v2'
inputs = ['deep']
layers = 2
low_rank = 3
[nodes.mlp]
op = 'mlp'
inputs = ['deep']
hidden = [8]
activation = 'prelu'
[nodes.joined]
op = 'concat'
inputs = ['cross', 'mlp']
[nodes.output]
op = 'linear'
inputs = ['joined']
width = 1
";

/// The bits of the loss, of the gradients of rows, and of the gradients of parameters by name.
type Bits = (Option<u32>, Vec<u32>, Vec<(String, Vec<u32>)>);

fn train(spec: &ModelSpec, batch: &TestBatch) -> Bits {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    let graph = zoo::build(spec, &batch.model, Mode::Train).unwrap();
    let train = differentiate(&graph, graph.output(LOSS).unwrap()).unwrap();
    let settings = Settings { lanes: 3, tile_rows: 8, ..Settings::default() };
    let mut executor = Executor::new(Program::train(&train, settings).unwrap());
    let mut params = Params::init(&graph.params, 7);
    let workers = Workers::new(NonZeroUsize::MIN).unwrap();
    let mut grads = vec![0.0; batch.table.len()];
    let seed = StepSeed { seed: 3, step: 1 };
    executor.train(&workers, &batch.view(), &mut params, seed, &mut [&mut grads]).unwrap();
    let named = executor.param_grads().map(|(id, g)| (graph.param(id).name.clone(), bits(g)));
    let mut by_name: Vec<_> = named.collect();
    by_name.sort();
    (executor.loss().map(f32::to_bits), bits(&grads), by_name)
}

#[test]
fn deepfm_and_dcnv2_written_as_graphs_have_the_bits_of_the_zoo() {
    let batch = TestBatch::new(5, 40, 4, 2);
    for (written, kind) in [
        (DEEPFM, "kind = 'deepfm'\nhidden = [8, 4]\nbatch_norm = true\ndropout = 0.2"),
        (
            DCNV2,
            "kind = 'dcnv2'\nhidden = [8]\nactivation = 'prelu'\ncross_layers = 2\nlow_rank = 3",
        ),
    ] {
        assert_eq!(train(&spec(written), &batch), train(&spec(kind), &batch), "{kind}");
    }
}
