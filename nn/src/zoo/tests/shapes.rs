//! Tests of the parameters that models declare and of the inputs that they refuse.

use super::super::{LOGITS, LOSS, PROBABILITIES, build};
use super::{inputs, spec};
use crate::graph::ParamInit;
use crate::graph::builder::Mode;
use crate::graph::shape::Shape;

/// Small sections of models with one label. Together, they contain every layer that these models
/// can have.
pub(super) const SMALL: [&str; 17] = [
    "kind = 'lr'",
    "kind = 'fm'",
    "kind = 'dnn'\nhidden = [7, 5]\nactivation = 'tanh'",
    "kind = 'dnn'\nhidden = [6]\nbatch_norm = true\nactivation = 'prelu'",
    "kind = 'wide_deep'\nhidden = [7, 5]\nactivation = 'silu'",
    "kind = 'deepfm'\nhidden = [7, 5]\nbias = true\nactivation = 'gelu'",
    "kind = 'deepfm'\nhidden = [9, 6]\nbatch_norm = true",
    "kind = 'dcn'\nhidden = [7]\ncross_layers = 2\nactivation = 'sigmoid'",
    "kind = 'dcn'\nhidden = [7]\nstructure = 'stacked'\nactivation = 'tanh'",
    "kind = 'dcnv2'\nhidden = [7]\ncross_layers = 2\nactivation = 'tanh'",
    "kind = 'dcnv2'\nhidden = [7]\nlow_rank = 3\nstructure = 'stacked'\nactivation = 'tanh'",
    "kind = 'dlrm'\nhidden = [7, 5]\nactivation = 'tanh'",
    "kind = 'dlrm'\nhidden = [7]\ninteraction = 'cat'\nbatch_norm = true\nactivation = 'tanh'",
    "kind = 'din'\nhidden = [7]\nactivation = 'tanh'\nattention_hidden = [5, 3]\n\
     attention = [{ query = 'c0', history = 'c1' }]",
    "kind = 'din'\nhidden = [7]\nactivation = 'tanh'\nattention_hidden = [5]\nsoftmax = true\n\
     attention = [{ query = 'c0', history = 'c1' }, { query = 'c2', history = 'c1' }]\nwide = true\nfm = true",
    "kind = 'din'\nhidden = [7]\nactivation = 'silu'\nattention_hidden = []\nwide = true\n\
     attention = [{ query = 'c2', history = 'c1' }]",
    "kind = 'din'\nhidden = [7]\nactivation = 'dice'\nattention_hidden = [5]\n\
     attention_activation = 'dice'\nattention = [{ query = 'c0', history = 'c1' }]",
];

#[test]
fn both_modes_declare_the_same_parameters() {
    for text in SMALL {
        for numeric in [0, 3] {
            let text = format!("{text}\n");
            let shallow = text.contains("'lr'") || text.contains("'fm'");
            let text = if shallow { text } else { format!("{text}dropout = 0.5\n") };
            let inputs = inputs(3, 4, numeric);
            let train = build(&spec(&text), &inputs, Mode::Train).unwrap();
            let infer = build(&spec(&text), &inputs, Mode::Infer).unwrap();
            assert_eq!(train.params, infer.params, "{text}");
            let output = |graph: &crate::Graph, name| graph.output(name).map(|id| graph.shape(id));
            assert_eq!(output(&train, LOGITS), Some(Shape::batch(1)));
            assert_eq!(output(&train, LOSS), Some(Shape::constant(1, 1)));
            assert_eq!(output(&infer, LOGITS), Some(Shape::batch(1)));
            assert_eq!(output(&infer, PROBABILITIES), Some(Shape::batch(1)));
            assert!(infer.updates.is_empty());
        }
    }
}

#[test]
fn linear_layers_begin_as_in_the_benchmarks() {
    for text in SMALL {
        let graph = build(&spec(text), &inputs(3, 4, 3), Mode::Train).unwrap();
        for param in &graph.params {
            let constant = matches!(param.init, ParamInit::Constant { .. });
            let expected = param.name.ends_with(".bias")
                || param.name == "wide.numeric.weight"
                || param.name.contains(".norm.")
                || param.name.contains(".prelu.")
                || param.name.contains(".dice.");
            assert_eq!(constant, expected, "{} {:?}", param.name, param.init);
            assert!(constant || param.init == ParamInit::XavierNormal);
        }
    }
}

#[test]
fn layers_are_named_for_checkpoints() {
    let text = "kind = 'deepfm'\nhidden = [7]\nbatch_norm = true\nbias = true";
    let graph = build(&spec(text), &inputs(3, 4, 2), Mode::Train).unwrap();
    let names: Vec<&str> = graph.params.iter().map(|param| param.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "wide.numeric.weight",
            "wide.bias",
            "mlp.0.weight",
            "mlp.0.bias",
            "mlp.0.norm.weight",
            "mlp.0.norm.bias",
            "mlp.0.norm.running_mean",
            "mlp.0.norm.running_var",
            "output.weight",
            "output.bias",
        ]
    );
}

#[test]
fn weights_of_numbers_in_the_linear_part_begin_at_zero() {
    for kind in ["lr", "fm", "wide_deep", "deepfm"] {
        let graph = build(&spec(&format!("kind = '{kind}'")), &inputs(3, 4, 2), Mode::Train);
        let graph = graph.unwrap();
        let weight = graph.params.iter().find(|param| param.name == "wide.numeric.weight");
        let init = weight.map(|param| param.init);
        assert_eq!(init, Some(ParamInit::Constant { value: 0.0 }), "{kind}");
    }
}

#[test]
fn models_work_with_numbers_alone_or_ids_alone() {
    for kind in ["lr", "dnn", "wide_deep", "dcn", "dcnv2"] {
        build(&spec(&format!("kind = '{kind}'")), &inputs(0, 4, 3), Mode::Train).unwrap();
        build(&spec(&format!("kind = '{kind}'")), &inputs(1, 4, 0), Mode::Infer).unwrap();
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused_by_name() {
    let refused = |text: &str, inputs: &super::ModelInputs| {
        build(&spec(text), inputs, Mode::Train).unwrap_err().to_string()
    };
    let message = refused("kind = 'lr'", &inputs(0, 4, 0));
    assert!(message.contains("at least one feature"), "{message}");

    let mut uneven = inputs(3, 4, 0);
    uneven.columns[2].vector.as_mut().unwrap().dim = 3;
    for kind in ["fm", "deepfm", "dlrm"] {
        let message = refused(&format!("kind = '{kind}'"), &uneven);
        assert!(message.contains("\"c2\"") && message.contains("one length"), "{message}");
    }
    build(&spec("kind = 'dcn'"), &uneven, Mode::Train).unwrap();

    let mut bare = inputs(3, 4, 0);
    bare.columns[1].vector = None;
    bare.columns[2].linear = None;
    let message = refused("kind = 'dnn'", &bare);
    assert!(message.contains("vector") && message.contains("\"c1\""), "{message}");
    let message = refused("kind = 'lr'", &bare);
    assert!(message.contains("linear weight") && message.contains("\"c2\""), "{message}");

    let message = refused("kind = 'dlrm'\nbottom = [4]", &inputs(3, 4, 0));
    assert!(message.contains("no") && message.contains("model.bottom"), "{message}");
    let message = refused("kind = 'dlrm'\nbottom = [8]", &inputs(3, 4, 2));
    assert!(message.contains("end with 4, the length of the vectors"), "{message}");
    let message = refused("kind = 'dlrm'", &inputs(1, 4, 0));
    assert!(message.contains("cat"), "{message}");

    let din = |query: &str, history: &str| {
        format!("kind = 'din'\nattention = [{{ query = '{query}', history = '{history}' }}]")
    };
    let mut tables = inputs(4, 4, 0);
    tables.tables.push(tables.tables[0].clone());
    tables.columns[2].table = 1;
    for (text, reason) in [
        ("kind = 'din'".to_owned(), "has no pair; name at least one"),
        (din("c9", "c1"), "unknown feature \"c9\""),
        (din("c0", "c3"), "\"c3\" is not a history; set kind = \"sequence\" for it"),
        (din("c1", "c1"), "\"c1\" is a list"),
        (din("c2", "c1"), "share a table"),
    ] {
        let message = refused(&text, &tables);
        assert!(message.contains(reason) && message.contains("model.attention"), "{message}");
    }
    let pair = "{ query = 'c0', history = 'c1' }";
    let message = refused(&format!("kind = 'din'\nattention = [{pair}, {pair}]"), &tables);
    assert!(message.contains("paired twice"), "{message}");

    let mut unlabelled = inputs(3, 4, 0);
    unlabelled.labels.clear();
    assert!(build(&spec("kind = 'lr'"), &unlabelled, Mode::Train).is_err());
    build(&spec("kind = 'lr'"), &unlabelled, Mode::Infer).unwrap();
}
