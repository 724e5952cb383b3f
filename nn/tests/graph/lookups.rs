//! Tests of lookups against numbers computed by hand: pooling of lists, empty lists, ties, and the
//! order of a row's gradient.

use zillion_feature::Pooling;
use zillion_nn::{
    ColumnInput, ColumnView, Executor, GraphBuilder, GraphInputs, Inputs, Mode, OccurrenceView,
    Params, Program, Settings, TableInput, TableView, differentiate,
};

use crate::check::{SEED, check, workers};

/// The values of a table of three rows with two floats each, padded to a stride of four. The lists
/// of the tests are [0, 1, 1], [] and [2].
const ROWS: [f32; 12] = [1.0, -4.0, 9.0, 9.0, 3.0, -6.0, 9.0, 9.0, -5.0, 2.0, 9.0, 9.0];
const INVERSE: [u32; 4] = [0, 1, 1, 2];
const OFFSETS: [i32; 4] = [0, 3, 3, 4];

fn inputs<'a>(weights: Option<&'a [f32]>, g: &'a [f32]) -> Inputs<'a> {
    Inputs {
        rows: 3,
        tables: vec![TableView { values: &ROWS, stride: 4, unique: 3 }],
        columns: vec![ColumnView {
            table: 0,
            inverse: &INVERSE,
            offsets: Some(&OFFSETS),
            weights,
            base: 0,
        }],
        occurrences: vec![OccurrenceView { offsets: &[0, 1, 3, 4], positions: &[0, 1, 2, 3] }],
        numeric: vec![g],
        ..Inputs::default()
    }
}

/// Returns the pooled rows and the gradient of `Σ_row g[row] · (first + second float)`.
fn run(pooling: Pooling, weights: Option<&[f32]>) -> (Vec<f32>, Vec<f32>) {
    let known = GraphInputs {
        // The rows of the table have a larger stride than the graph declares.
        tables: vec![TableInput { name: "t".into(), stride: 2 }],
        columns: vec![ColumnInput { name: "c".into(), table: 0 }],
        numeric: vec!["g".into()],
        ..GraphInputs::default()
    };
    let mut b = GraphBuilder::new(known, Mode::Train);
    let pooled = b.gather("pooled", 0, 0, 2, pooling).unwrap();
    b.output("pooled", pooled).unwrap();
    let g = b.numeric("g", &[0]).unwrap();
    let weighted = b.mul("weighted", pooled, g).unwrap();
    let sum = b.sum_columns("sum", weighted).unwrap();
    let loss = b.sum_rows("loss", sum).unwrap();
    let train = differentiate(&b.finish(), loss).unwrap();
    let settings = Settings { lanes: 2, tile_rows: 2, ..Settings::default() };
    let mut executor = Executor::new(Program::train(&train, settings).unwrap());
    let mut grads = vec![f32::NAN; 12];
    let inputs = inputs(weights, &[1.0, 10.0, 100.0]);
    let mut params = Params::init(&[], 0);
    executor.train(&workers(1), &inputs, &mut params, SEED, &mut [&mut grads]).unwrap();
    (executor.output(pooled).unwrap().to_vec(), grads)
}

#[test]
fn sum_mean_sqrtn_and_max_of_lists() {
    let (pooled, grads) = run(Pooling::Sum, None);
    assert_eq!(pooled, [7.0, -16.0, 0.0, 0.0, -5.0, 2.0]);
    assert_eq!(grads, [1.0, 1.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 100.0, 100.0, 0.0, 0.0]);

    let (pooled, _) = run(Pooling::Mean, None);
    let third = 1.0f32 / 3.0;
    for (found, expected) in pooled.iter().zip([7.0 * third, -16.0 * third, 0.0, 0.0, -5.0, 2.0]) {
        assert!((found - expected).abs() < 1e-6, "{pooled:?}");
    }

    let (pooled, grads) = run(Pooling::Sqrtn, None);
    assert!((pooled[0] - 7.0 / 3f32.sqrt()).abs() < 1e-6);
    assert!((grads[4] - 2.0 / 3f32.sqrt()).abs() < 1e-6);

    let (pooled, grads) = run(Pooling::Max, None);
    assert_eq!(pooled, [3.0, -4.0, 0.0, 0.0, -5.0, 2.0]);
    // Row 1 is twice in the list and has the largest first float. It gets the gradient only once.
    assert_eq!(grads, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 100.0, 100.0, 0.0, 0.0]);
}

#[test]
fn weights_of_values() {
    let weights = [2.0, 1.0, 3.0, 0.5];
    let (pooled, grads) = run(Pooling::Sum, Some(&weights));
    assert_eq!(pooled, [14.0, -32.0, 0.0, 0.0, -2.5, 1.0]);
    assert_eq!(grads[..6], [2.0, 2.0, 0.0, 0.0, 4.0, 4.0]);

    // The mean is divided by the sum of the weights, which is 6.
    let (pooled, _) = run(Pooling::Mean, Some(&weights));
    assert!((pooled[0] - 14.0 / 6.0).abs() < 1e-6 && pooled[4] == -5.0, "{pooled:?}");

    // If the weights sum to zero, the pooled row consists of zeros.
    let (pooled, grads) = run(Pooling::Mean, Some(&[1.0, -1.0, 0.0, 0.0]));
    assert_eq!(pooled, [0.0; 6]);
    assert_eq!(grads, [0.0; 12]);

    // The maxima are those of 2·1, 1·3, 3·3 and of 2·−4, 1·−6, 3·−6.
    let (pooled, _) = run(Pooling::Max, Some(&weights));
    assert_eq!(pooled[..2], [9.0, -6.0]);
}

#[test]
fn a_rows_gradient_is_added_in_the_order_of_its_occurrences() {
    // Every row has the same key. The sum of 1,000 numbers in f32 depends on their order.
    let rows = 1000;
    let g: Vec<f32> = (0..rows).map(|i| (i as f32 * 0.37).sin() * 10f32.powi(i % 5)).collect();
    let expected = g.iter().fold(0.0f32, |sum, g| sum + g);
    let known = GraphInputs {
        tables: vec![TableInput { name: "t".into(), stride: 1 }],
        columns: vec![ColumnInput { name: "c".into(), table: 0 }],
        numeric: vec!["g".into()],
        ..GraphInputs::default()
    };
    let mut b = GraphBuilder::new(known, Mode::Train);
    let looked_up = b.gather("looked_up", 0, 0, 1, Pooling::Sum).unwrap();
    let g_node = b.numeric("g", &[0]).unwrap();
    let weighted = b.mul("weighted", looked_up, g_node).unwrap();
    let loss = b.sum_rows("loss", weighted).unwrap();
    let train = differentiate(&b.finish(), loss).unwrap();
    let inverse = vec![0; rows as usize];
    let positions: Vec<u32> = (0..rows as u32).collect();
    let ends = [0, rows as u32];
    let inputs = Inputs {
        rows: rows as usize,
        tables: vec![TableView { values: &[1.0], stride: 1, unique: 1 }],
        columns: vec![ColumnView {
            table: 0,
            inverse: &inverse,
            offsets: None,
            weights: None,
            base: 0,
        }],
        occurrences: vec![OccurrenceView { offsets: &ends, positions: &positions }],
        numeric: vec![&g],
        ..Inputs::default()
    };
    for (lanes, tile_rows) in [(1, 4096), (8, 16), (7, 3)] {
        let mut executor = Executor::new(
            Program::train(&train, Settings { lanes, tile_rows, ..Settings::default() }).unwrap(),
        );
        let mut grads = [0.0];
        let mut params = Params::init(&[], 0);
        executor.train(&workers(2), &inputs, &mut params, SEED, &mut [&mut grads]).unwrap();
        assert_eq!(grads[0].to_bits(), expected.to_bits());
    }
}

/// A pass replaces the slice of a concatenation by the part, so no node reads the lists. Their
/// gradient is still computed, and is zero.
#[test]
fn lists_whose_rows_no_node_reads_have_a_gradient() {
    let outcome = check(9, 3, 1e-4, |b| {
        let history = b.gather("history", 1, 0, 4, Pooling::Mean)?;
        let text = b.gather("text", 2, 0, 4, Pooling::Max)?;
        let item = b.gather("item", 0, 0, 4, Pooling::Sum)?;
        let all = b.concat("all", &[history, text, item])?;
        b.slice("last", all, 8, 4)
    });
    assert!(outcome.compared > 0);
}
