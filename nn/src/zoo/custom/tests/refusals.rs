//! Tests of refused graphs. The error must name the node and give a remedy.

use super::build;

/// A valid graph. Tests replace a part of it or add a node.
const GOOD: &str = "
logits = 'score'
[nodes.fields]
op = 'embedding'
[nodes.deep]
op = 'mlp'
inputs = ['fields']
hidden = [8]
[nodes.score]
op = 'linear'
inputs = ['deep']
width = 1
";

#[track_caller]
fn refused(text: &str, message: &str) {
    match build(text) {
        Ok(_) => panic!("built\n{text}"),
        Err(error) => assert_eq!(error.to_string(), message, "{text}"),
    }
}

/// Replaces `from` by `to` in [`GOOD`], and checks that the graph is refused with the message
/// `message`.
#[track_caller]
fn changed(from: &str, to: &str, message: &str) {
    assert!(GOOD.contains(from), "{from}");
    refused(&GOOD.replace(from, to), message);
}

#[test]
fn the_good_one_builds() {
    build(GOOD).unwrap();
}

#[test]
fn a_circle_is_shown() {
    changed(
        "inputs = ['fields']",
        "inputs = ['score']",
        "`model.nodes.score`: nodes form a cycle, in which each node reads the next one: score -> deep -> score",
    );
    refused(
        &format!(
            "{GOOD}\n[nodes.a]\nop = 'relu'\ninputs = ['b']\n[nodes.b]\nop = 'relu'\ninputs = ['c']\n\
             [nodes.c]\nop = 'relu'\ninputs = ['a']"
        ),
        "`model.nodes.a`: nodes form a cycle, in which each node reads the next one: a -> b -> c -> a",
    );
    changed(
        "inputs = ['deep']",
        "inputs = ['score']",
        "`model.nodes.score`: nodes form a cycle, in which each node reads the next one: score -> score",
    );
}

#[test]
fn names_that_are_none_get_the_nearest() {
    changed(
        "inputs = ['fields']",
        "inputs = ['feilds']",
        "unknown value \"feilds\" for `model.nodes.deep.inputs`; did you mean `fields`?",
    );
    changed(
        "logits = 'score'",
        "logits = 'scores'",
        "unknown value \"scores\" for `model.logits`; did you mean `score`?",
    );
    changed(
        "op = 'mlp'",
        "op = 'mpl'",
        "unknown value \"mpl\" for `model.nodes.deep.op`; did you mean `mlp`?",
    );
    changed(
        "op = 'embedding'",
        "op = 'embedding'\nfeatures = ['usr', 'item']",
        "unknown value \"usr\" for `model.nodes.fields.features`; did you mean `user`?",
    );
    changed(
        "width = 1",
        "widht = 1",
        "unknown key `model.nodes.score.widht`; did you mean `width`?",
    );
    changed(
        "inputs = ['deep']",
        "input = ['deep']",
        "unknown key `model.nodes.score.input`; did you mean `inputs`?",
    );
    changed(
        "logits = 'score'",
        "outputs = { clik = 'score' }",
        "unknown key `model.outputs.clik`; did you mean `click`?",
    );
    changed("logits =", "logit =", "unknown key `model.logit`; did you mean `logits`?");
}

#[test]
fn shapes_that_do_not_fit_are_both_shown() {
    refused(
        "logits = 'out'\n[nodes.a]\nop = 'embedding'\n[nodes.b]\nop = 'numeric'\n\
         [nodes.c]\nop = 'mul'\ninputs = ['a', 'b']\n\
         [nodes.out]\nop = 'sum_columns'\ninputs = ['c']",
        "`model.nodes.c`: the columns of [B, 12] and [B, 2] differ; give inputs with the same \
         number of columns",
    );
    refused(
        "logits = 'out'\n[nodes.a]\nop = 'embedding'\n[nodes.w]\nop = 'param'\nshape = [5, 1]\n\
         [nodes.out]\nop = 'matmul'\ninputs = ['a', 'w']",
        "`model.nodes.out`: the input [B, 12] cannot be multiplied by a weight [5, 1]; give an input with as many columns as the weight has rows",
    );
    refused(
        "logits = 'out'\n[nodes.a]\nop = 'embedding'\n\
         [nodes.out]\nop = 'fm'\ninputs = ['a']\ndim = 5",
        "`model.nodes.out`: [B, 12] is not two or more fields of 5 floats; give at least two fields, or change `dim`",
    );
    refused(
        "logits = 'out'\n[nodes.a]\nop = 'embedding'\nfeatures = ['user']\n\
         [nodes.b]\nop = 'slice'\ninputs = ['a']\nstart = 3\nlen = 2\n\
         [nodes.out]\nop = 'sum_columns'\ninputs = ['b']",
        "`model.nodes.b`: the input [B, 4] has no columns 3..5; name columns that it has",
    );
    refused(
        "logits = 'out'\n[nodes.a]\nop = 'embedding'\n[nodes.b]\nop = 'mlp'\ninputs = ['a']\nhidden = [5]\n\
         [nodes.out]\nop = 'fm'\ninputs = ['b']",
        "`model.nodes.out.dim`: the input does not consist of vectors of one length; set `dim` to \
         the number of floats of a field",
    );
}

#[test]
fn unused_nodes_are_refused() {
    refused(
        &format!(
            "{GOOD}\n[nodes.more]\nop = 'relu'\ninputs = ['first']\n[nodes.first]\nop = 'wide'"
        ),
        "`model.nodes.more`: no output depends on this node; remove it, or name it in another node's `inputs`",
    );
}

#[test]
fn a_result_must_be_named_and_be_one_number_a_row() {
    changed(
        "logits = 'score'",
        "",
        "`model`: no node is named as the result; set logits = \"NODE\" to the node of the log odds",
    );
    changed(
        "logits = 'score'",
        "logits = 'score'\noutputs = { click = 'score' }",
        "`model`: give `logits` for one label or [model.outputs] for several, not both",
    );
    changed(
        "width = 1",
        "width = 2",
        "`model.logits`: log odds have the shape [B, 1], but node `score` has [B, 2]; add a linear \
         node of width 1, which computes one number for each row",
    );
    refused(
        "logits = 'w'\n[nodes.w]\nop = 'param'\nshape = [1, 1]",
        "`model.logits`: log odds have the shape [B, 1], but node `w` has [1, 1]; name a node that \
         depends on the rows of the batch",
    );
}

#[test]
fn the_number_of_inputs_is_checked() {
    changed(
        "inputs = ['deep']",
        "inputs = ['deep', 'fields']",
        "`model.nodes.score.inputs`: linear takes 1 input, found 2: deep, fields",
    );
    changed(
        "inputs = ['deep']",
        "",
        "`model.nodes.score.inputs`: linear takes 1 input, found none",
    );
    changed(
        "op = 'embedding'",
        "op = 'embedding'\ninputs = ['deep']",
        "`model.nodes.fields.inputs`: embedding takes no inputs, found 1: deep",
    );
    changed(
        "op = 'linear'\ninputs = ['deep']\nwidth = 1",
        "op = 'concat'\ninputs = ['deep']",
        "`model.nodes.score.inputs`: concat takes 2 or more inputs, found 1: deep",
    );
    changed(
        "inputs = ['deep']",
        "inputs = 3",
        "`model.nodes.score.inputs`: expected a list of names of nodes",
    );
}

#[test]
fn attributes_are_checked_by_their_key() {
    changed("width = 1", "", "missing key `model.nodes.score.width`; set it");
    changed("op = 'mlp'", "", "missing key `model.nodes.deep.op`; set it");
    changed("width = 1", "width = 0", "`model.nodes.score.width`: must be 1 to 1048576, found 0");
    changed(
        "width = 1",
        "width = 1\nhidden = [3]",
        "unknown key `model.nodes.score.hidden`; expected one of `bias`, `init`, `width`",
    );
    changed(
        "hidden = [8]",
        "hidden = []",
        "`model.nodes.deep.hidden`: must have 1 to 100 layers, found 0",
    );
    changed(
        "hidden = [8]",
        "hidden = [8]\ndropout = 1",
        "`model.nodes.deep.dropout`: must be at least 0 and below 1, found 1",
    );
    changed(
        "op = 'linear'",
        "op = 'relu'",
        "unknown key `model.nodes.score.width`; remove it, because no key is allowed here",
    );
    refused(
        "logits = 'w'\n[nodes.w]\nop = 'param'\nshape = [1, 1]\ninit = { kind = 'normall' }",
        "unknown value \"normall\" for `model.nodes.w.init.kind`; did you mean `normal`?",
    );
    refused("logits = 'w'\nnodes = 3", "`model.nodes`: expected a table of nodes, found integer");
    refused(
        "logits = 'w'\n[nodes]\nw = 3",
        "`model.nodes.w`: expected a table with an `op`, found integer",
    );
}

#[test]
fn names_must_be_free_and_plain() {
    changed(
        "[nodes.deep]",
        "[nodes.loss]",
        "`model.nodes`: the node name `loss` is reserved for the trainer; rename the node",
    );
    changed(
        "[nodes.deep]",
        "[nodes.\"deep.1\"]",
        "`model.nodes`: the name of a node must consist of letters, digits, `_` and `-`, found `deep.1`",
    );
}

#[test]
fn features_are_checked() {
    changed(
        "op = 'embedding'",
        "op = 'embedding'\nfeatures = ['price']",
        "`model.nodes.fields.features`: `price` is a number and has no vector; read it with op = \"numeric\"",
    );
    changed(
        "op = 'embedding'",
        "op = 'numeric'\nfeatures = ['user']",
        "`model.nodes.fields.features`: `user` is a feature of ids; name numeric features only",
    );
    changed(
        "op = 'embedding'",
        "op = 'embedding'\nfeatures = []",
        "`model.nodes.fields.features`: names no feature; name features, or remove the key to \
         read all features",
    );
    for op in ["embedding", "wide", "numeric"] {
        let feature = if op == "numeric" { "price" } else { "user" };
        changed(
            "op = 'embedding'",
            &format!("op = '{op}'\nfeatures = ['{feature}', '{feature}']"),
            &format!("`model.nodes.fields.features`: `{feature}` is listed twice; remove one"),
        );
    }
}

#[test]
fn a_row_may_not_depend_on_its_neighbours() {
    refused(
        "logits = 'out'\n[nodes.a]\nop = 'embedding'\n[nodes.m]\nop = 'mean_rows'\ninputs = ['a']\n\
         [nodes.out]\nop = 'row_dot'\ninputs = ['a', 'm']",
        "`model.nodes.m`: its input has the shape [B, 12], and a sum over the rows of a batch would make \
         the score of a row depend on other rows; use sum_columns, which sums inside a row",
    );
    refused(
        "logits = 'out'\n[nodes.w]\nop = 'param'\nshape = [1, 12]\n\
         [nodes.d]\nop = 'dropout'\nrate = 0.5\ninputs = ['w']\n\
         [nodes.a]\nop = 'embedding'\n[nodes.m]\nop = 'mul'\ninputs = ['a', 'd']\n\
         [nodes.out]\nop = 'sum_columns'\ninputs = ['m']",
        "`model.nodes.d`: the input has the shape [1, 12], but must have one row for each row of the \
         batch or for each value; name a node that is computed from features, not a constant",
    );
}

#[test]
fn too_large_values_are_refused() {
    refused(
        "logits = 'out'\n[nodes.w]\nop = 'param'\nshape = [1000000, 1000000]\n\
         [nodes.out]\nop = 'sum_columns'\ninputs = ['w']",
        "`model.nodes.w`: parameter `w` would have 1000000 × 1000000 floats, but at most \
         2147483648 are allowed; make the node narrower",
    );
    refused(
        "logits = 'out'\n[nodes.a]\nop = 'embedding'\n\
         [nodes.b]\nop = 'linear'\ninputs = ['a']\nwidth = 100000\n\
         [nodes.c]\nop = 'dot_interaction'\ninputs = ['b']\ndim = 1\n\
         [nodes.out]\nop = 'sum_columns'\ninputs = ['c']",
        "`model.nodes.c`: the result has 4999950000 columns, but at most 16777216 are allowed; \
         make the node narrower",
    );
}

#[test]
fn rows_of_the_batch_have_no_lists() {
    for (op, inputs) in [("segment_sum", "'a'"), ("segment_softmax", "'a'"), ("repeat", "'a', 'a'")]
    {
        refused(
            &format!(
                "logits = 'out'\n[nodes.a]\nop = 'embedding'\n[nodes.out]\nop = '{op}'\ninputs = [{inputs}]"
            ),
            "`model.nodes.out`: the input [B, 12] has no lists; use op = \"values\", which has a row for \
             each value",
        );
    }
    refused(
        "logits = 'out'\n[nodes.out]\nop = 'values'\nfeature = 'usre'",
        "unknown value \"usre\" for `model.nodes.out.feature`; did you mean `user`?",
    );
    refused(
        "logits = 'a'\n[nodes.a]\nop = 'values'\nfeature = 'user'",
        "`model.logits`: log odds have the shape [B, 1], but node `a` has [V0, 4]; add a \
         segment_sum, which computes one row for each list",
    );
}
