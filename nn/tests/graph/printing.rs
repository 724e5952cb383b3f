//! Tests of the printed form of a graph, which people read.

use zillion_feature::Pooling;
use zillion_nn::{ColumnInput, GraphBuilder, GraphInputs, Mode, TableInput, differentiate};

#[test]
fn a_model_and_its_gradient_line_by_line() {
    let known = GraphInputs {
        tables: vec![TableInput { name: "items".into(), stride: 4 }],
        columns: vec![ColumnInput { name: "item".into(), table: 0 }],
        labels: vec!["clicked".into()],
        ..GraphInputs::default()
    };
    let mut b = GraphBuilder::new(known, Mode::Train);
    let item = b.gather("item", 0, 0, 4, Pooling::Mean).unwrap();
    let logit = b.linear("mlp", item, 1).unwrap();
    b.output("logit", logit).unwrap();
    let loss = b.bce_with_logits("loss", logit, 0).unwrap();
    let train = differentiate(&b.finish(), loss).unwrap();
    let expected = "\
%0 = rows[table 0]() : [U0, 4]  # rows.items
%1 = gather[column 0, 0..4, mean](%0) : [B, 4]  # item
%2 = param[0]() : [4, 1]  # mlp.weight
%3 = param[1]() : [1, 1]  # mlp.bias
%4 = linear(%1, %2, %3) : [B, 1]  # mlp
%5 = label[label 0]() : [B, 1]  # loss.label
%6 = weight[label 0]() : [B, 1]  # loss.weight
%7 = sum_rows(%6) : [1, 1]  # loss.weight.sum
%8 = bce_sum(%4, %5, %6) : [1, 1]  # loss.sum
%9 = safe_div(%8, %7) : [1, 1]  # loss
%10 = fill[1]() : [1, 1]  # loss.grad
%11 = safe_div(%10, %7) : [1, 1]  # loss.grad.2
%12 = bce_grad(%11, %4, %5, %6) : [B, 1]  # loss.sum.grad
%13 = matmul_nt(%12, %2) : [B, 4]  # mlp.grad
%14 = matmul_tn(%1, %12) : [4, 1]  # mlp.grad.2
%15 = sum_rows(%12) : [1, 1]  # mlp.grad.3
%16 = gather_grad[table 0](%13) : [U0, 4]  # rows.items.grad
output logit = %4
";
    assert_eq!(train.graph.to_string(), expected);
}
