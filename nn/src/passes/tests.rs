//! Tests of each pass on the printed graph before and after it. If the output of a pass changes,
//! the texts here must change too. `cargo insta review`, if it is installed, shows such a change
//! and can accept it.

use insta::assert_snapshot;
use zillion_feature::Pooling;

use super::{
    Ir, algebra, common_subexpressions, constant_folding, dead_code, epilogues, running_sums,
};
use crate::error::Result;
use crate::{
    Binary, ColumnInput, Graph, GraphBuilder, GraphInputs, Mode, NodeId, Op, Shape, TableInput,
    Unary, differentiate,
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

/// Returns the text of the graph before and after one pass.
fn through(b: GraphBuilder, outputs: &[NodeId], pass: fn(&Ir) -> Result<Ir>) -> String {
    let graph = b.finish();
    let after = pass(&Ir::infer(&graph, outputs)).unwrap();
    before_and_after(&graph, &after)
}

fn before_and_after(graph: &Graph, after: &Ir) -> String {
    format!("before\n{graph}\nafter\n{}", after.graph)
}

#[test]
fn dead_code_goes_and_other_names_stay() {
    let mut b = builder();
    let x = b.numeric("x", &[0, 1]).unwrap();
    let unused = b.relu("unused", x).unwrap();
    b.scale("unused.too", unused, 2.0).unwrap();
    let y = b.sigmoid("y", x).unwrap();
    b.output("dead", unused).unwrap();
    b.output("y", y).unwrap();
    assert_snapshot!(through(b, &[y], dead_code::run), @"
    before
    %0 = numeric[0, 1]() : [B, 2]  # x
    %1 = relu(%0) : [B, 2]  # unused
    %2 = scale[2](%1) : [B, 2]  # unused.too
    %3 = sigmoid(%0) : [B, 2]  # y
    output dead = %1
    output y = %3

    after
    %0 = numeric[0, 1]() : [B, 2]  # x
    %1 = sigmoid(%0) : [B, 2]  # y
    output y = %1
    ");
}

#[test]
fn equal_nodes_are_computed_once_except_dropout() {
    let mut b = builder();
    let x = b.numeric("x", &[0, 1]).unwrap();
    let again = b.numeric("x.again", &[0, 1]).unwrap();
    let one = b.scale("one", x, 2.0).unwrap();
    let two = b.scale("two", again, 2.0).unwrap();
    let other = b.scale("other", again, 3.0).unwrap();
    let d1 = b.dropout("d1", one, 0.5).unwrap();
    let d2 = b.dropout("d2", two, 0.5).unwrap();
    let y = b.push("y", Op::AddN, &[d1, d2, other]).unwrap();
    assert_snapshot!(through(b, &[y], common_subexpressions::run), @"
    before
    %0 = numeric[0, 1]() : [B, 2]  # x
    %1 = numeric[0, 1]() : [B, 2]  # x.again
    %2 = scale[2](%0) : [B, 2]  # one
    %3 = scale[2](%1) : [B, 2]  # two
    %4 = scale[3](%1) : [B, 2]  # other
    %5 = dropout[0.5](%2) : [B, 2]  # d1
    %6 = dropout[0.5](%3) : [B, 2]  # d2
    %7 = add_n(%5, %6, %4) : [B, 2]  # y

    after
    %0 = numeric[0, 1]() : [B, 2]  # x
    %1 = scale[2](%0) : [B, 2]  # one
    %2 = scale[3](%0) : [B, 2]  # other
    %3 = dropout[0.5](%1) : [B, 2]  # d1
    %4 = dropout[0.5](%1) : [B, 2]  # d2
    %5 = add_n(%3, %4, %2) : [B, 2]  # y
    ");
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
    assert_snapshot!(through(b, &[y], constant_folding::run), @"
    before
    %0 = fill[1]() : [1, 1]  # one
    %1 = scale[0.5](%0) : [1, 1]  # half
    %2 = add(%1, %0) : [1, 1]  # sum
    %3 = safe_div(%2, %1) : [1, 1]  # quotient
    %4 = numeric[0]() : [B, 1]  # x
    %5 = mul(%4, %3) : [B, 1]  # y

    after
    %0 = fill[3]() : [1, 1]  # quotient
    %1 = numeric[0]() : [B, 1]  # x
    %2 = mul(%1, %0) : [B, 1]  # y
    ");
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
    assert_snapshot!(through(b, &[y], algebra::run), @"
    before
    %0 = numeric[0, 1]() : [B, 2]  # x
    %1 = numeric[1]() : [B, 1]  # z
    %2 = concat(%0, %1) : [B, 3]  # both
    %3 = slice[0..2](%2) : [B, 2]  # part
    %4 = scale[1](%3) : [B, 2]  # scaled
    %5 = slice[1..2](%4) : [B, 1]  # column
    %6 = broadcast_columns(%1) : [B, 7]  # wide
    %7 = slice[3..4](%6) : [B, 1]  # one_of_it
    %8 = mul(%5, %7) : [B, 1]  # product
    %9 = add(%1, %8) : [B, 1]  # y

    after
    %0 = numeric[0, 1]() : [B, 2]  # x
    %1 = numeric[1]() : [B, 1]  # z
    %2 = slice[1..2](%0) : [B, 1]  # column
    %3 = mul_add(%2, %1, %1) : [B, 1]  # y
    ");
}

#[test]
fn sums_grow_as_their_terms_are_made() {
    let mut b = builder();
    let x = b.numeric("x", &[0, 1]).unwrap();
    let one = b.relu("one", x).unwrap();
    let two = b.sigmoid("two", x).unwrap();
    let three = b.scale("three", x, 3.0).unwrap();
    let y = b.push("y", Op::AddN, &[one, two, three, one]).unwrap();
    assert_snapshot!(through(b, &[y], running_sums::run), @"
    before
    %0 = numeric[0, 1]() : [B, 2]  # x
    %1 = relu(%0) : [B, 2]  # one
    %2 = sigmoid(%0) : [B, 2]  # two
    %3 = scale[3](%0) : [B, 2]  # three
    %4 = add_n(%1, %2, %3, %1) : [B, 2]  # y

    after
    %0 = numeric[0, 1]() : [B, 2]  # x
    %1 = relu(%0) : [B, 2]  # one
    %2 = sigmoid(%0) : [B, 2]  # two
    %3 = add(%1, %2) : [B, 2]  # y.2
    %4 = scale[3](%0) : [B, 2]  # three
    %5 = add(%3, %4) : [B, 2]  # y.3
    %6 = add(%5, %1) : [B, 2]  # y
    ");
}

#[test]
fn chains_become_one_operation_and_stop_at_requested_nodes() {
    let mut b = builder();
    let x = b.numeric("x", &[0, 1]).unwrap();
    let h = b.linear("l", x, 3).unwrap();
    let h = b.unary("l.activation", Unary::Tanh, h).unwrap();
    let seen = b.scale("seen", h, 2.0).unwrap();
    let other = b.relu("other", seen).unwrap();
    let y = b.mul_add("y", seen, other, seen).unwrap();
    assert_eq!(b.shape(y), Shape::batch(3));
    assert_snapshot!(through(b, &[y], epilogues::run), @"
    before
    %0 = numeric[0, 1]() : [B, 2]  # x
    %1 = param[0]() : [2, 3]  # l.weight
    %2 = param[1]() : [1, 3]  # l.bias
    %3 = linear(%0, %1, %2) : [B, 3]  # l
    %4 = tanh(%3) : [B, 3]  # l.activation
    %5 = scale[2](%4) : [B, 3]  # seen
    %6 = relu(%5) : [B, 3]  # other
    %7 = mul_add(%5, %6, %5) : [B, 3]  # y

    after
    %0 = numeric[0, 1]() : [B, 2]  # x
    %1 = param[0]() : [2, 3]  # l.weight
    %2 = param[1]() : [1, 3]  # l.bias
    %3 = linear+tanh+scale[2](%0, %1, %2) : [B, 3]  # seen
    %4 = relu+mul_add(%3, %3, %3) : [B, 3]  # y
    ");
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
    assert_snapshot!(before_and_after(&train.graph, &after), @"
    before
    %0 = rows[table 0]() : [U0, 4]  # rows.items
    %1 = gather[column 0, 0..4, sum](%0) : [B, 4]  # a
    %2 = param[0]() : [4, 3]  # l0.weight
    %3 = param[1]() : [1, 3]  # l0.bias
    %4 = linear(%1, %2, %3) : [B, 3]  # l0
    %5 = relu(%4) : [B, 3]  # l0.relu
    %6 = param[2]() : [3, 1]  # l1.weight
    %7 = param[3]() : [1, 1]  # l1.bias
    %8 = linear(%5, %6, %7) : [B, 1]  # l1
    %9 = label[label 0]() : [B, 1]  # loss.label
    %10 = weight[label 0]() : [B, 1]  # loss.weight
    %11 = sum_rows(%10) : [1, 1]  # loss.weight.sum
    %12 = bce_sum(%8, %9, %10) : [1, 1]  # loss.sum
    %13 = safe_div(%12, %11) : [1, 1]  # loss
    %14 = fill[1]() : [1, 1]  # loss.grad
    %15 = safe_div(%14, %11) : [1, 1]  # loss.grad.2
    %16 = bce_grad(%15, %8, %9, %10) : [B, 1]  # loss.sum.grad
    %17 = matmul_nt(%16, %6) : [B, 3]  # l1.grad
    %18 = matmul_tn(%5, %16) : [3, 1]  # l1.grad.2
    %19 = sum_rows(%16) : [1, 1]  # l1.grad.3
    %20 = relu_grad(%17, %5) : [B, 3]  # l0.relu.grad
    %21 = matmul_nt(%20, %2) : [B, 4]  # l0.grad
    %22 = matmul_tn(%1, %20) : [4, 3]  # l0.grad.2
    %23 = sum_rows(%20) : [1, 3]  # l0.grad.3
    %24 = gather_grad[table 0](%21) : [U0, 4]  # rows.items.grad

    after
    %0 = rows[table 0]() : [U0, 4]  # rows.items
    %1 = gather[column 0, 0..4, sum](%0) : [B, 4]  # a
    %2 = param[0]() : [4, 3]  # l0.weight
    %3 = param[1]() : [1, 3]  # l0.bias
    %4 = linear+relu(%1, %2, %3) : [B, 3]  # l0.relu
    %5 = param[2]() : [3, 1]  # l1.weight
    %6 = param[3]() : [1, 1]  # l1.bias
    %7 = linear(%4, %5, %6) : [B, 1]  # l1
    %8 = label[label 0]() : [B, 1]  # loss.label
    %9 = weight[label 0]() : [B, 1]  # loss.weight
    %10 = sum_rows(%9) : [1, 1]  # loss.weight.sum
    %11 = bce_sum(%7, %8, %9) : [1, 1]  # loss.sum
    %12 = safe_div(%11, %10) : [1, 1]  # loss
    %13 = fill[1]() : [1, 1]  # loss.grad
    %14 = safe_div(%13, %10) : [1, 1]  # loss.grad.2
    %15 = bce_grad(%14, %7, %8, %9) : [B, 1]  # loss.sum.grad
    %16 = matmul_tn(%4, %15) : [3, 1]  # l1.grad.2
    %17 = sum_rows(%15) : [1, 1]  # l1.grad.3
    %18 = matmul_nt+relu_grad(%15, %5, %4) : [B, 3]  # l0.relu.grad
    %19 = matmul_nt(%18, %2) : [B, 4]  # l0.grad
    %20 = matmul_tn(%1, %18) : [4, 3]  # l0.grad.2
    %21 = sum_rows(%18) : [1, 3]  # l0.grad.3
    %22 = gather_grad[table 0](%19) : [U0, 4]  # rows.items.grad
    ");
    assert_eq!(after.graph.nodes.len() + 2, train.graph.nodes.len());
    assert_eq!(after.param_grads.len(), train.param_grads.len());
}
