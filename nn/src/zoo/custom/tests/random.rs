//! Tests of random graphs. Valid graphs can be built, differentiated and printed. Damaged graphs
//! never cause a panic.

use proptest::prelude::*;
use toml::{Table, Value};

use super::{GraphSpec, build_spec, read};
use crate::differentiate;
use crate::zoo::LOSS;

const UNARY: [&str; 12] = [
    "relu",
    "leaky_relu",
    "prelu",
    "sigmoid",
    "tanh",
    "gelu",
    "silu",
    "softplus",
    "square",
    "bias",
    "batch_norm",
    "layer_norm",
];

/// Returns the text of a valid graph. Each node has 12 columns, and the score depends on all nodes.
fn valid(choices: &[(u8, u8, u8)]) -> String {
    let mut text = "logits = 'score'\n[nodes.n0]\nop = 'embedding'\n".to_owned();
    let mut unread = vec![true];
    for (index, &(op, a, b)) in choices.iter().enumerate() {
        let name = index + 1;
        let (a, b) = (usize::from(a) % name, usize::from(b) % name);
        let (body, reads) = match op % 20 {
            op @ 0..12 => (format!("'{}'\ninputs = ['n{a}']", UNARY[usize::from(op)]), vec![a]),
            12 => (format!("'add'\ninputs = ['n{a}', 'n{b}']"), vec![a, b]),
            13 => (format!("'sub'\ninputs = ['n{a}', 'n{b}']"), vec![a, b]),
            14 => (format!("'mul'\ninputs = ['n{a}', 'n{b}', 'n0']"), vec![a, b, 0]),
            15 => (format!("'linear'\nwidth = 12\nbias = false\ninputs = ['n{a}']"), vec![a]),
            16 => (format!("'mlp'\nhidden = [3, 12]\ndropout = 0.1\ninputs = ['n{a}']"), vec![a]),
            17 => (format!("'cross'\nlayers = 2\ninputs = ['n{a}', 'n{b}']"), vec![a, b]),
            18 => (format!("'cross_v2'\nlow_rank = 2\ninputs = 'n{a}'"), vec![a]),
            _ => (format!("'mul_add'\ninputs = ['n{a}', 'n{b}', 'n{a}']"), vec![a, b]),
        };
        reads.iter().for_each(|&at| unread[at] = false);
        unread.push(true);
        text.push_str(&format!("[nodes.n{name}]\nop = {body}\n"));
    }
    let ends: Vec<String> =
        (0..unread.len()).filter(|&i| unread[i]).map(|i| format!("'n{i}'")).collect();
    let all = match &ends[..] {
        [one] => one.clone(),
        _ => {
            let inputs = ends.join(", ");
            text.push_str(&format!("[nodes.all]\nop = 'concat'\ninputs = [{inputs}]\n"));
            "'all'".to_owned()
        }
    };
    text + &format!("[nodes.score]\nop = 'linear'\nwidth = 1\ninputs = [{all}]\n")
}

fn choices() -> impl Strategy<Value = Vec<(u8, u8, u8)>> {
    proptest::collection::vec(any::<(u8, u8, u8)>(), 0..12)
}

/// Replaces the value with the index `left` in a tree by `with`. The values of the tree are counted
/// from 0. Returns `None` after the replacement. If the tree has too few values, returns `left`
/// minus the number of its values.
fn damage(value: &mut Value, left: usize, with: &Value) -> Option<usize> {
    let Some(mut left) = left.checked_sub(1) else {
        *value = with.clone();
        return None;
    };
    let children: Vec<&mut Value> = match value {
        Value::Table(table) => table.iter_mut().map(|(_, v)| v).collect(),
        Value::Array(items) => items.iter_mut().collect(),
        _ => Vec::new(),
    };
    for child in children {
        left = damage(child, left, with)?;
    }
    Some(left)
}

fn junk() -> impl Strategy<Value = Value> {
    let texts = [
        "fm",
        "concat",
        "wide",
        "slice",
        "param",
        "matmul",
        "sum_rows",
        "row_dot",
        "numeric",
        "dot_interaction",
        "mean_columns",
        "constant",
        "dropout",
        "div",
        "score",
        "",
    ];
    prop_oneof![
        any::<i64>().prop_map(Value::Integer),
        (-3i64..40).prop_map(Value::Integer),
        any::<f64>().prop_map(Value::Float),
        any::<bool>().prop_map(Value::Boolean),
        "n[0-9]".prop_map(Value::String),
        proptest::sample::select(texts.to_vec()).prop_map(Value::from),
        proptest::collection::vec("n[0-9]", 0..4).prop_map(Value::from),
        proptest::collection::vec(any::<i64>(), 1..4).prop_map(Value::from),
        Just(Value::Table(Table::new())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_valid_graph_builds_differentiates_and_prints(choices in choices()) {
        let text = valid(&choices);
        let spec = read(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let printed = toml::to_string(&spec).unwrap();
        prop_assert_eq!(&read(&printed).unwrap(), &spec);
        let graph = build_spec(spec).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let loss = graph.output(LOSS).unwrap();
        let train = differentiate(&graph, loss).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert_eq!(train.row_grads.len(), 1);
        for index in 0..=choices.len() {
            let name = format!("n{index}");
            prop_assert!(graph.find(&name).is_some());
        }
    }

    #[test]
    fn damage_is_refused_or_harmless(
        choices in choices(),
        wounds in proptest::collection::vec((0usize..120, junk()), 1..4),
        key in proptest::option::of(("n[0-9]", "[a-z]{1,6}", junk())),
    ) {
        let mut value: Value = toml::from_str::<Table>(&valid(&choices)).unwrap().into();
        for (at, with) in wounds {
            let _ = damage(&mut value, at, &with);
        }
        if let Some((node, key, with)) = key
            && let Some(nodes) = value.get_mut("nodes")
            && let Some(Value::Table(node)) = nodes.get_mut(&node)
        {
            node.insert(key, with);
        }
        if let Ok(spec) = GraphSpec::read(&value, "model")
            && let Ok(graph) = build_spec(spec)
            && let Some(loss) = graph.output(LOSS)
        {
            // If a graph can be built, it must also be possible to train it.
            prop_assert!(differentiate(&graph, loss).is_ok());
        }
    }
}
