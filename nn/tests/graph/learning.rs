//! A test in which a model learns by a forward pass, a backward pass and plain gradient descent.

use zillion_feature::Pooling;
use zillion_nn::{
    Executor, GraphBuilder, Mode, Params, Program, Settings, StepSeed, differentiate,
};

use crate::check::workers;
use crate::data::{Data, graph_inputs};

#[test]
fn the_loss_of_a_small_deepfm_falls() {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let item = b.gather("item", 0, 0, 7, Pooling::Sum).unwrap();
    let history = b.gather("history", 1, 0, 7, Pooling::Mean).unwrap();
    let wide = b.gather("wide", 0, 7, 1, Pooling::Sum).unwrap();
    let fields = b.concat("fields", &[item, history]).unwrap();
    let numeric = b.numeric("numeric", &[0, 1, 2, 3]).unwrap();
    let x = b.concat("x", &[fields, numeric]).unwrap();
    let fm = b.fm("fm", fields, 7).unwrap();
    let h = b.linear("mlp.0", x, 32).unwrap();
    let h = b.batch_norm("mlp.0.norm", h).unwrap();
    let h = b.relu("mlp.0.relu", h).unwrap();
    let deep = b.linear("mlp.1", h, 1).unwrap();
    let logit = b.add("fm+wide", fm, wide).unwrap();
    let logit = b.add("logit", logit, deep).unwrap();
    let loss = b.bce_with_logits("loss", logit, 0).unwrap();
    let train = differentiate(&b.finish(), loss).unwrap();

    let mut params = Params::init(&train.graph.params, 1);
    let mut data = Data::new(200, 9);
    // The label depends on the item and on a number, so the model can learn it.
    let item_of = |row: usize| data.columns[0].lists[row][0];
    data.labels = (0..200)
        .map(|row| f32::from(item_of(row) % 2 == 0) + data.numeric[0][row] > 0.5)
        .map(|label| if label { 1.0 } else { 0.0 })
        .collect();
    let mut executor = Executor::new(Program::train(&train, Settings::default()).unwrap());
    let workers = workers(2);
    let mut losses = Vec::new();
    for step in 0..150 {
        let mut row_grads: Vec<Vec<f32>> =
            data.tables.iter().map(|t| vec![0.0; t.values.len()]).collect();
        let mut slices: Vec<&mut [f32]> = row_grads.iter_mut().map(Vec::as_mut_slice).collect();
        let seed = StepSeed { seed: 1, step };
        executor.train(&workers, &data.inputs(), &mut params, seed, &mut slices).unwrap();
        losses.push(executor.loss().unwrap());
        for (param, grad) in executor.param_grads() {
            for (value, g) in params.value_mut(param).iter_mut().zip(grad) {
                *value -= 0.2 * g;
            }
        }
        for (table, grads) in data.tables.iter_mut().zip(&row_grads) {
            for (value, g) in table.values.iter_mut().zip(grads) {
                *value -= 0.2 * g;
            }
        }
    }
    let (first, last) = (losses[0], losses[149]);
    assert!(last < 0.2 * first && last < 0.15, "from {first} to {last}");
}
