//! Tests of random graphs over all operations.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use zillion_feature::Pooling;
use zillion_nn::{Binary, Dim, GraphBuilder, NodeId, Op, ParamInit, Result, Unary};

use crate::check::check;

/// A choice of an operation and its operands. Each number is taken modulo the number of candidates.
pub(crate) type Choice = (u8, u16, u16, u8);

fn apply(b: &mut GraphBuilder, i: usize, choice: Choice, pool: &[NodeId]) -> Result<NodeId> {
    let (op, first, second, detail) = choice;
    let x = pool[first as usize % pool.len()];
    let y = pool[second as usize % pool.len()];
    let name = &format!("node.{i}");
    let detail = usize::from(detail);
    let cols = b.cols(x);
    match op % 37 {
        0 => b.linear(name, x, 1 + detail % 20),
        1 => b.linear_no_bias(name, x, 1 + detail % 4),
        2 => b.relu(name, x),
        3 => b.unary(name, Unary::LeakyRelu { slope: 0.2 }, x),
        4 => b.sigmoid(name, x),
        5 => b.unary(name, Unary::Tanh, x),
        6 => b.unary(name, Unary::Gelu, x),
        7 => b.unary(name, Unary::Silu, x),
        8 => b.unary(name, Unary::Softplus, x),
        9 => b.scale(name, x, 0.5 - detail as f32 / 100.0),
        10 => b.unary(name, Unary::Square, x),
        11 => b.binary(name, Binary::Add, x, y),
        12 => b.binary(name, Binary::Sub, x, y),
        13 => b.binary(name, Binary::Mul, x, y),
        14 => b.mul_add(name, x, y, x),
        15 | 16 => b.concat(name, &[x, y, pool[detail % pool.len()]]),
        17 | 18 => b.slice(name, x, detail % cols, 1 + second as usize % (cols - detail % cols)),
        19 => b.push(name, Op::Pad { start: detail % 3, total: cols + 3 }, &[x]),
        20 => b.sum_columns(name, x),
        21 => b.mean_rows(name, x),
        22 => b.push(name, Op::BroadcastRows { rows: Dim::Batch, mean: true }, &[x]),
        23 => b.layer_norm(name, x),
        24 => b.batch_norm(name, x),
        25 => b.dropout(name, x, 0.3),
        26 => b.fm(name, x, 1 + detail % 4),
        27 => b.dot_interaction(name, x, 1 + detail % 4),
        28 => b.cross_v2(name, x, x),
        29 | 30 => b.repeat(name, x, 1 + detail % 2),
        31 => b.segment_sum(name, x),
        32 => b.segment_mean(name, x),
        33 | 34 => b.segment_softmax(name, x),
        35 => b.push(name, Op::BroadcastRows { rows: Dim::Values(1), mean: true }, &[x]),
        _ => b.row_dot(name, x, y),
    }
}

pub(crate) fn build(b: &mut GraphBuilder, choices: &[Choice]) -> Result<NodeId> {
    let mut pool = vec![
        b.gather("item", 0, 0, 4, Pooling::Sum)?,
        b.gather("history", 1, 2, 4, Pooling::Mean)?,
        b.gather("text", 2, 0, 3, Pooling::Sqrtn)?,
        b.gather("tag", 3, 1, 1, Pooling::Max)?,
        b.gather_values("history.values", 1, 1, 4)?,
        b.gather_values("text.values", 2, 0, 4)?,
        b.numeric("numeric", &[7, 8, 9, 10])?,
        b.param("line", (1, 4), ParamInit::XavierNormal, true)?.1,
    ];
    for (i, &choice) in choices.iter().enumerate() {
        // A choice whose shapes do not fit is left out, but its names stay in use.
        if let Ok(node) = apply(b, i, choice, &pool)
            && b.cols(node) <= 64
        {
            pool.push(node);
        }
    }
    // Late nodes depend on the most other nodes. Some early nodes are added, so that the lifetimes
    // of values differ.
    let last = pool[pool.len() - 1];
    if b.shape(last).rows == Dim::Batch { b.concat("result", &[last, pool[0]]) } else { Ok(last) }
}

proptest! {
    // The graphs are the same in every run. PROPTEST_CASES sets a larger number of graphs.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(300),
        rng_seed: RngSeed::Fixed(20_260_601),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn values_and_gradients_of_random_graphs(
        rows in 2usize..24,
        seed in 0u64..1000,
        choices in prop::collection::vec(any::<Choice>(), 1..16),
    ) {
        let outcome = check(rows, seed, 1e-3, |b| build(b, &choices));
        prop_assume!(outcome.largest <= 1e3);
    }
}
