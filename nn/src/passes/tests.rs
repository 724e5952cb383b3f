//! Each pass, on the printed graph before and after it.

use zillion_feature::Pooling;

use super::{
    Ir, algebra, common_subexpressions, constant_folding, dead_code, epilogues, running_sums,
};
use crate::error::Result;
use crate::{
    Binary, ColumnInput, GraphBuilder, GraphInputs, Mode, NodeId, Op, Shape, TableInput, Unary,
    differentiate,
};

fn builder() -> GraphBuilder {
    let inputs = GraphInputs {
        tables: vec![TableInput { name: "items".into(), stride: 4 }],
        columns: vec![ColumnInput { name: "a".into(), table: 0 }],
        numeric: vec!["x".into(), "y".into()],
        labels: vec!["clicked".into()],
    };
    GraphBuilder::new(inputs, Mode::Train)
}

/// Runs one pass and compares what it makes with what is written down, line by line.
fn becomes(b: GraphBuilder, outputs: &[NodeId], pass: fn(&Ir) -> Result<Ir>, expected: &str) {
    let graph = b.finish();
    let after = pass(&Ir::infer(&graph, outputs)).unwrap();
    let printed = after.graph.to_string();
    assert_eq!(printed.trim_end(), expected.trim_end(), "\nfound:\n{printed}\nbefore:\n{graph}");
}

#[test]
fn dead_code_goes_and_the_names_of_what_stays_stay() {
    let mut b = builder();
    let x = b.numeric("x", &[0, 1]).unwrap();
    let unused = b.relu("unused", x).unwrap();
    b.scale("unused.too", unused, 2.0).unwrap();
    let y = b.sigmoid("y", x).unwrap();
    b.output("dead", unused).unwrap();
    b.output("y", y).unwrap();
    let expected = "\
%0 = numeric[0, 1]() : [B, 2]  # x
%1 = sigmoid(%0) : [B, 2]  # y
output y = %1";
    becomes(b, &[y], dead_code::run, expected);
}

#[test]
fn what_is_computed_twice_is_computed_once_but_dropout() {
    let mut b = builder();
    let x = b.numeric("x", &[0, 1]).unwrap();
    let again = b.numeric("x.again", &[0, 1]).unwrap();
    let one = b.scale("one", x, 2.0).unwrap();
    let two = b.scale("two", again, 2.0).unwrap();
    let other = b.scale("other", again, 3.0).unwrap();
    let d1 = b.dropout("d1", one, 0.5).unwrap();
    let d2 = b.dropout("d2", two, 0.5).unwrap();
    let y = b.push("y", Op::AddN, &[d1, d2, other]).unwrap();
    let expected = "\
%0 = numeric[0, 1]() : [B, 2]  # x
%1 = scale[2](%0) : [B, 2]  # one
%2 = scale[3](%0) : [B, 2]  # other
%3 = dropout[0.5](%1) : [B, 2]  # d1
%4 = dropout[0.5](%1) : [B, 2]  # d2
%5 = add_n(%3, %4, %2) : [B, 2]  # y";
    becomes(b, &[y], common_subexpressions::run, expected);
}

#[test]
fn constants_of_one_value_are_computed_now() {
    let mut b = builder();
    let one = b.fill("one", 1, 1, 1.0).unwrap();
    let half = b.scale("half", one, 0.5).unwrap();
    let sum = b.add("sum", half, one).unwrap();
    let quotient = b.binary("quotient", Binary::SafeDiv, sum, half).unwrap();
    let x = b.numeric("x", &[0]).unwrap();
    let y = b.mul("y", x, quotient).unwrap();
    let expected = "\
%0 = fill[3]() : [1, 1]  # quotient
%1 = numeric[0]() : [B, 1]  # x
%2 = mul(%1, %0) : [B, 1]  # y";
    becomes(b, &[y], constant_folding::run, expected);
}

#[test]
fn algebra_removes_what_changes_nothing() {
    let mut b = builder();
    let x = b.numeric("x", &[0, 1]).unwrap();
    let z = b.numeric("z", &[1]).unwrap();
    let both = b.concat("both", &[x, z]).unwrap();
    let part = b.slice("part", both, 0, 2).unwrap();
    let scaled = b.scale("scaled", part, 1.0).unwrap();
    let column = b.slice("column", scaled, 1, 1).unwrap();
    let wide = b.push("wide", Op::BroadcastColumns { cols: 7 }, &[z]).unwrap();
    let one_of_it = b.slice("one_of_it", wide, 3, 1).unwrap();
    let product = b.mul("product", column, one_of_it).unwrap();
    let y = b.add("y", z, product).unwrap();
    let expected = "\
%0 = numeric[0, 1]() : [B, 2]  # x
%1 = numeric[1]() : [B, 1]  # z
%2 = slice[1..2](%0) : [B, 1]  # column
%3 = mul_add(%2, %1, %1) : [B, 1]  # y";
    becomes(b, &[y], algebra::run, expected);
}

#[test]
fn sums_grow_as_their_terms_are_made() {
    let mut b = builder();
    let x = b.numeric("x", &[0, 1]).unwrap();
    let one = b.relu("one", x).unwrap();
    let two = b.sigmoid("two", x).unwrap();
    let three = b.scale("three", x, 3.0).unwrap();
    let y = b.push("y", Op::AddN, &[one, two, three, one]).unwrap();
    let expected = "\
%0 = numeric[0, 1]() : [B, 2]  # x
%1 = relu(%0) : [B, 2]  # one
%2 = sigmoid(%0) : [B, 2]  # two
%3 = add(%1, %2) : [B, 2]  # y.2
%4 = scale[3](%0) : [B, 2]  # three
%5 = add(%3, %4) : [B, 2]  # y.3
%6 = add(%5, %1) : [B, 2]  # y";
    becomes(b, &[y], running_sums::run, expected);
}

#[test]
fn chains_become_one_operation_and_stop_where_somebody_looks() {
    let mut b = builder();
    let x = b.numeric("x", &[0, 1]).unwrap();
    let h = b.linear("l", x, 3).unwrap();
    let h = b.unary("l.activation", Unary::Tanh, h).unwrap();
    let seen = b.scale("seen", h, 2.0).unwrap();
    let other = b.relu("other", seen).unwrap();
    let y = b.mul_add("y", seen, other, seen).unwrap();
    assert_eq!(b.shape(y), Shape::batch(3));
    let expected = "\
%0 = numeric[0, 1]() : [B, 2]  # x
%1 = param[0]() : [2, 3]  # l.weight
%2 = param[1]() : [1, 3]  # l.bias
%3 = linear+tanh+scale[2](%0, %1, %2) : [B, 3]  # seen
%4 = relu+mul_add(%3, %3, %3) : [B, 3]  # y";
    becomes(b, &[y], epilogues::run, expected);
}

#[test]
fn a_training_step_has_its_derivatives_in_the_products() {
    let mut b = builder();
    let a = b.gather("a", 0, 0, 4, Pooling::Sum).unwrap();
    let h = b.linear("l0", a, 3).unwrap();
    let h = b.relu("l0.relu", h).unwrap();
    let logit = b.linear("l1", h, 1).unwrap();
    let loss = b.bce_with_logits("loss", logit, 0).unwrap();
    let train = differentiate(&b.finish(), loss).unwrap();
    let after = epilogues::run(&Ir::train(&train)).unwrap();
    let printed = after.graph.to_string();
    for line in [
        "= linear+relu(%1, %2, %3) : [B, 3]  # l0.relu",
        "= matmul_nt+relu_grad(",
        ": [B, 3]  # l0.relu.grad",
    ] {
        assert!(printed.contains(line), "{line}\n{printed}");
    }
    assert_eq!(after.graph.nodes.len() + 2, train.graph.nodes.len(), "{printed}");
    assert_eq!(after.param_grads.len(), train.param_grads.len());
}
