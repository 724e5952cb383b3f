//! Tests that a program for shared columns computes the bits of the program for copied columns, on
//! random graphs over all operations.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use zillion_feature::SharedColumns;
use zillion_nn::{
    ColumnCopies, Error, Executor, GraphBuilder, Inputs, Mode, Passes, Program, Settings,
};

use crate::check::{params_of, workers};
use crate::data::{Data, graph_inputs};
use crate::random::{Choice, build};

/// Returns the inputs with the first row of each shared column as its only row.
fn one_row<'a>(data: &'a Data, shared: &SharedColumns) -> Inputs<'a> {
    let mut inputs = data.inputs();
    for &at in shared.sparse() {
        let column = &mut inputs.columns[at];
        let values = column.offsets.map_or(1, |offsets| offsets[1] as usize);
        column.inverse = &column.inverse[..values];
        column.offsets = column.offsets.map(|offsets| &offsets[..2]);
        column.weights = column.weights.map(|weights| &weights[..values]);
    }
    for &at in shared.numeric() {
        inputs.numeric[at] = &inputs.numeric[at][..1];
    }
    inputs.occurrences.clear();
    inputs
}

fn bits(values: &[f32]) -> Vec<u32> {
    // Passes may change the sign of a zero, and a NaN has many forms.
    let canonical = |&x: &f32| {
        if x == 0.0 {
            0
        } else if x.is_nan() {
            1
        } else {
            x.to_bits()
        }
    };
    values.iter().map(canonical).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(400),
        rng_seed: RngSeed::Fixed(20_261_127),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn shared_columns_change_no_bit_of_random_graphs(
        rows in 1usize..24,
        seed in 0u64..1000,
        choices in prop::collection::vec(any::<Choice>(), 1..16),
        (sparse, numeric) in (any::<[bool; 4]>(), any::<[bool; 16]>()),
        trains in any::<bool>(),
        passes in any::<bool>(),
    ) {
        let data = Data::new(rows, seed);
        let mode = if trains { Mode::Train } else { Mode::Infer };
        let mut b = GraphBuilder::new(graph_inputs(), mode);
        let y = build(&mut b, &choices).unwrap();
        let graph = b.finish();
        let params = params_of(&graph, seed);
        let chosen = |flags: &[bool]| -> Vec<usize> {
            (0..flags.len()).filter(|&at| flags[at]).collect()
        };
        let shared = SharedColumns::new(chosen(&sparse), chosen(&numeric));
        let passes = if passes { Passes::ALL } else { Passes::NONE };
        let settings = Settings { lanes: 3, tile_rows: 4, passes };
        let run = |program: Program| {
            let mut inputs = one_row(&data, &shared);
            let copies = ColumnCopies::new(&inputs, &shared, program.one_row_columns()).unwrap();
            copies.apply(&mut inputs);
            let mut executor = Executor::new(program);
            executor.infer(&workers(2), &inputs, &params).unwrap();
            bits(executor.output(y).unwrap())
        };
        let copied = run(Program::infer(&graph, &[y], settings).unwrap());
        let program = Program::infer_shared(&graph, &[y], settings, &shared).unwrap();
        let text = program.graph().to_string();
        prop_assert_eq!(run(program), copied, "{}\n{}", graph, text);
    }
}

#[test]
fn inputs_with_the_wrong_rows_are_refused() {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Infer);
    let item = b.gather("item", 0, 0, 4, zillion_feature::Pooling::Sum).unwrap();
    let history = b.gather_values("history", 1, 0, 4).unwrap();
    let history = b.segment_sum("sum", history).unwrap();
    let y = b.add("y", item, history).unwrap();
    let graph = b.finish();
    let data = Data::new(7, 1);
    let shared = SharedColumns::new([0, 1], [3]);
    let program = Program::infer_shared(&graph, &[y], Settings::default(), &shared).unwrap();
    // The values of the history have rows of their own.
    assert_eq!(*program.one_row_columns(), SharedColumns::new([0], [3]));
    let params = params_of(&graph, 1);
    let refused = |program: &Program, inputs: &Inputs<'_>| {
        let run = Executor::new(program.clone()).infer(&workers(1), inputs, &params);
        let Err(Error::Input { input, .. }) = run else { panic!("the inputs do not fit: {run:?}") };
        input
    };
    assert_eq!(refused(&program, &data.inputs()), "item");
    assert_eq!(refused(&program, &one_row(&data, &shared)), "history");
    let plain = Program::infer(&graph, &[y], Settings::default()).unwrap();
    assert_eq!(refused(&plain, &one_row(&data, &SharedColumns::new([0], []))), "item");
    assert_eq!(refused(&plain, &one_row(&data, &SharedColumns::new([], [3]))), "n3");
    let none = SharedColumns::default();
    for wrong in
        [SharedColumns::new([2], []), SharedColumns::new([], [0]), SharedColumns::new([9], [])]
    {
        let copies = ColumnCopies::new(&data.inputs(), &wrong, &none);
        let said = copies.unwrap_err().to_string();
        assert!(said.contains("shared column"), "{said}");
    }
}
