//! Tests that the training and the scores of every model are the same with each pass on and off.

use std::num::NonZeroUsize;

use zillion_device::Workers;

use super::super::{LOGITS, LOSS, PROBABILITIES, build};
use super::batch::TestBatch;
use super::shapes::SMALL;
use super::spec;
use crate::{
    Executor, Mode, Params, Passes, Program, Settings, StepSeed, TrainGraph, differentiate,
};

/// The numbers that two training steps or one scoring run produce.
#[derive(Debug, PartialEq)]
struct Outcome {
    numbers: Vec<Vec<f32>>,
}

fn step(train: &TrainGraph, batch: &TestBatch, passes: Passes) -> Outcome {
    let workers = Workers::new(NonZeroUsize::new(2).unwrap()).unwrap();
    let settings = Settings { lanes: 3, tile_rows: 8, passes };
    let mut executor = Executor::new(Program::train(train, settings).unwrap());
    let mut params = Params::init(&train.graph.params, 5);
    let mut grads = vec![f32::NAN; batch.table.len()];
    let mut numbers = Vec::new();
    for number in 0..2 {
        let seed = StepSeed { seed: 1, step: number };
        executor.train(&workers, &batch.view(), &mut params, seed, &mut [&mut grads]).unwrap();
        numbers.push(vec![executor.loss().unwrap()]);
        numbers.push(grads.clone());
        numbers.extend(executor.param_grads().map(|(_, grad)| grad.to_vec()));
        let outputs = train.graph.outputs.iter();
        numbers.extend(outputs.map(|&(_, id)| executor.output(id).unwrap().to_vec()));
    }
    numbers.extend(params.iter().map(|(_, values)| values.to_vec()));
    Outcome { numbers }
}

fn scores(text: &str, batch: &TestBatch, passes: Passes) -> Outcome {
    let workers = Workers::new(NonZeroUsize::MIN).unwrap();
    let graph = build(&spec(text), &batch.model, Mode::Infer).unwrap();
    let ids = [LOGITS, PROBABILITIES].map(|name| graph.output(name).unwrap());
    let settings = Settings { lanes: 2, tile_rows: 16, passes };
    let mut executor = Executor::new(Program::infer(&graph, &ids, settings).unwrap());
    executor.infer(&workers, &batch.view(), &Params::init(&graph.params, 5)).unwrap();
    Outcome { numbers: ids.map(|id| executor.output(id).unwrap().to_vec()).to_vec() }
}

#[test]
fn every_model_computes_the_same_with_each_pass_on_and_off() {
    let names: Vec<&str> = Passes::known().map(|(name, _)| name).collect();
    for text in SMALL {
        let shallow = text.contains("'lr'") || text.contains("'fm'");
        let text = if shallow { text.to_owned() } else { format!("{text}\ndropout = 0.3") };
        let batch = TestBatch::new(7, 61, 4, 3);
        let graph = build(&spec(&text), &batch.model, Mode::Train).unwrap();
        let loss = graph.output(LOSS).unwrap();
        let train = differentiate(&graph, loss).unwrap();
        let plain = step(&train, &batch, Passes::NONE);
        let scored = scores(&text, &batch, Passes::NONE);
        let alone = |name: &str| {
            let others: Vec<&str> = names.iter().copied().filter(|&other| other != name).collect();
            Passes::without(&others).unwrap()
        };
        let each = names.iter().flat_map(|&name| [alone(name), Passes::without(&[name]).unwrap()]);
        for passes in each.chain([Passes::ALL]) {
            assert_eq!(step(&train, &batch, passes), plain, "{text}: {passes}");
            assert_eq!(scores(&text, &batch, passes), scored, "{text}: {passes}");
        }
    }
}
