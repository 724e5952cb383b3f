//! Tests of the protobuf encoding and of exported graphs. Encoded messages are read again and
//! compared with known bytes. Exported graphs are checked against the rules of ONNX.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use prost::Message;
use zillion_feature::Pooling;

use super::proto::*;
use super::*;
use crate::graph::TableInput;
use crate::zoo::{self, ModelInputs, ModelSpec, SparseInput, VectorSegment};
use crate::{GraphBuilder, Mode};

fn spec(text: &str) -> ModelSpec {
    let value = toml::Value::Table(toml::from_str(text).unwrap());
    zillion_config::from_value(&value, "model").unwrap()
}

/// Returns inputs with three features of one table and two numbers. The second feature is a list.
fn inputs(pooling: Pooling) -> ModelInputs {
    let column = |field: usize| SparseInput {
        name: format!("c{field}"),
        table: 0,
        vector: Some(VectorSegment { offset: 0, dim: 4 }),
        linear: Some(4),
        pooling,
        list: field == 1,
        sequence: field == 1,
    };
    ModelInputs {
        tables: vec![TableInput { name: "ids".into(), stride: 8 }],
        columns: (0..3).map(column).collect(),
        numeric: vec!["x".into(), "y".into()],
        labels: vec!["click".into()],
    }
}

fn columns() -> Vec<OnnxColumn> {
    let column = |field: usize| OnnxColumn {
        list: field == 1,
        segments: vec![("vector".into(), 0, 4), ("linear".into(), 4, 1)],
    };
    (0..3).map(column).collect()
}

fn export(text: &str, pooling: Pooling, mode: Mode) -> Result<OnnxModel> {
    let graph = zoo::build(&spec(text), &inputs(pooling), mode).unwrap();
    let params = Params::init(&graph.params, 3);
    graph.to_onnx(&params, &columns(), &BTreeMap::from([("model".into(), "m".into())]))
}

const MODELS: [&str; 14] = [
    "kind = 'lr'",
    "kind = 'fm'",
    "kind = 'dnn'\nhidden = [6]\nbatch_norm = true\nactivation = 'prelu'",
    "kind = 'wide_deep'\nhidden = [7, 5]\nactivation = 'silu'",
    "kind = 'deepfm'\nhidden = [7, 5]\nbias = true\nactivation = 'gelu'",
    "kind = 'dcn'\nhidden = [7]\ncross_layers = 2\nactivation = 'sigmoid'",
    "kind = 'dcnv2'\nhidden = [7]\nlow_rank = 3\nstructure = 'stacked'\nactivation = 'tanh'",
    "kind = 'dlrm'\nhidden = [7, 5]\nactivation = 'tanh'",
    "kind = 'dlrm'\nhidden = [7]\ninteraction = 'cat'\nbatch_norm = true",
    "kind = 'din'\nhidden = [7]\nattention_hidden = [5]\nsoftmax = true\nwide = true\nfm = true\n\
     attention = [{ query = 'c0', history = 'c1' }, { query = 'c2', history = 'c1' }]",
    "kind = 'din'\nhidden = [7]\nactivation = 'dice'\nattention_hidden = [5]\n\
     attention_activation = 'dice'\nattention = [{ query = 'c0', history = 'c1' }]",
    "kind = 'shared_bottom'\nbottom = [6]\ntower = [4]",
    "kind = 'mmoe'\nexperts = 2\nexpert = [6]\ntower = [4]",
    "kind = 'two_tower'\nuser = ['c0', 'c1', 'x']\nitem = ['c2', 'y']\nhidden = [6]\ndim = 4\n\
     item_id = 'c2'\nnormalise = true",
];

#[test]
fn every_model_exports_into_a_graph_that_hangs_together() {
    for text in MODELS {
        for pooling in [Pooling::Sum, Pooling::Mean, Pooling::Sqrtn, Pooling::Max] {
            let model =
                export(text, pooling, Mode::Infer).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(export(text, pooling, Mode::Infer).unwrap(), model, "the same bytes");
            let read = ModelProto::decode(model.bytes.as_slice()).unwrap();
            assert_eq!(read.opset_import[0].version, Some(OPSET));
            let graph = read.graph.unwrap();
            // Each value must be written once, before it is read.
            let inputs = graph.input.iter().map(|v| v.name.clone().unwrap());
            let inputs: BTreeSet<String> = inputs.collect();
            assert_eq!(inputs.len(), model.inputs.len());
            let mut known = inputs.clone();
            for tensor in &graph.initializer {
                let name = tensor.name.clone().unwrap();
                let floats: i64 = tensor.dims.iter().product();
                let width = if tensor.data_type == Some(data::FLOAT) { 4 } else { 8 };
                assert_eq!(tensor.raw_data.as_ref().unwrap().len() as i64, floats * width);
                assert!(known.insert(name.clone()) || name.ends_with(".weights"), "{name}");
            }
            for node in &graph.node {
                for input in &node.input {
                    assert!(known.contains(input), "{text}: {input} is read before it is made");
                }
                for output in &node.output {
                    assert!(known.insert(output.clone()), "{text}: {output} is made twice");
                }
            }
            for (name, _) in &model.outputs {
                assert!(known.contains(name), "{name}");
            }
        }
    }
}

#[test]
fn inputs_say_what_to_feed() {
    let model = export(MODELS[4], Pooling::Mean, Mode::Infer).unwrap();
    let mut names: Vec<&str> = model.inputs.iter().map(|input| input.name.as_str()).collect();
    names.sort_unstable();
    let expected = [
        "c0.linear",
        "c0.vector",
        "c1.lengths",
        "c1.linear",
        "c1.vector",
        "c1.weights",
        "c2.linear",
        "c2.vector",
        "x.value",
        "y.value",
    ];
    assert_eq!(names, expected);
    let of = |name: &str| model.inputs.iter().find(|input| input.name == name).unwrap();
    assert_eq!(of("c0.vector").shape, ["batch", "4"]);
    assert_eq!(of("c1.vector").shape, ["values_c1", "4"]);
    assert_eq!((of("c1.lengths").dtype, of("c1.weights").optional), ("int64", true));
    assert_eq!(model.outputs, [("logits".to_owned(), 1), ("probabilities".to_owned(), 1)]);
}

#[test]
fn operations_without_onnx_form_are_refused_by_name() {
    let error = export(MODELS[4], Pooling::Sum, Mode::Train).unwrap_err().to_string();
    assert!(error.contains("ONNX has no operation for") && error.contains("loss"), "{error}");

    let mut b = GraphBuilder::new(crate::GraphInputs::default(), Mode::Infer);
    let half = b.fill("half", 1, 1, 0.5).unwrap();
    b.output("half", half).unwrap();
    let graph = b.finish();
    let params = Params::init(&graph.params, 1);
    let error = graph.to_onnx(&params, &[], &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("half") && error.contains("[1, 1]"), "{error}");

    let graph = zoo::build(&spec("kind = 'fm'"), &inputs(Pooling::Sum), Mode::Infer).unwrap();
    let params = Params::init(&graph.params, 1);
    let mut wrong = columns();
    wrong[2].segments.clear();
    let error = graph.to_onnx(&params, &wrong, &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("c2"), "{error}");
    assert!(graph.to_onnx(&params, &columns()[..2], &BTreeMap::new()).is_err());

    // Two names are equal: the name of a number is also the name of a segment of another feature.
    let mut meeting = inputs(Pooling::Sum);
    meeting.columns[0].name = "a".into();
    meeting.numeric[0] = "a".into();
    let graph = zoo::build(&spec("kind = 'fm'"), &meeting, Mode::Infer).unwrap();
    let mut columns = columns();
    columns[0].segments[0].0 = "value".into();
    let error = graph.to_onnx(&params, &columns, &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("a.value"), "{error}");

    let mut params = params;
    params.value_mut(crate::ParamId(0))[0] = f32::NAN;
    assert!(graph.to_onnx(&params, &columns, &BTreeMap::new()).is_err());
}

/// Checks the tag and wire type of each field against the numbers of the published protocol.
#[test]
fn bytes_are_those_of_the_published_tags() {
    let attribute = AttributeProto::int("axis", 1);
    assert_eq!(attribute.encode_to_vec(), b"\x0a\x04axis\x18\x01\xa0\x01\x02");
    let attribute = AttributeProto::float("alpha", 1.0);
    assert_eq!(attribute.encode_to_vec(), b"\x0a\x05alpha\x15\x00\x00\x80\x3f\xa0\x01\x01");
    let attribute = AttributeProto::ints("perm", &[0, 2]);
    assert_eq!(attribute.encode_to_vec(), b"\x0a\x04perm\x40\x00\x40\x02\xa0\x01\x07");
    let attribute = AttributeProto::text("reduction", "add");
    assert_eq!(attribute.encode_to_vec(), b"\x0a\x09reduction\x22\x03add\xa0\x01\x03");
    let tensor = TensorProto::ints("t", &[1], &[-1]);
    let bytes = b"\x08\x01\x10\x07\x42\x01t\x4a\x08\xff\xff\xff\xff\xff\xff\xff\xff";
    assert_eq!(tensor.encode_to_vec(), bytes);
    let symbol = DimensionValue::Symbol("b".into());
    let info = ValueInfoProto::new("x", data::FLOAT, &[symbol, DimensionValue::Number(4)], "");
    let bytes = b"\x0a\x01x\x12\x0f\x0a\x0d\x08\x01\x12\x09\x0a\x03\x12\x01b\x0a\x02\x08\x04";
    assert_eq!(info.encode_to_vec(), bytes);
    let node = NodeProto {
        input: vec!["a".into()],
        output: vec!["b".into()],
        name: Some("n".into()),
        op_type: Some("Relu".into()),
        attribute: vec![],
    };
    assert_eq!(node.encode_to_vec(), b"\x0a\x01a\x12\x01b\x1a\x01n\x22\x04Relu");
    let graph = GraphProto { name: Some("g".into()), node: vec![node], ..GraphProto::default() };
    assert_eq!(&graph.encode_to_vec()[..2], b"\x0a\x0f");
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(18) };
    let property = StringStringEntryProto { key: Some("k".into()), value: Some("v".into()) };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset],
        metadata_props: vec![property],
        ..ModelProto::default()
    };
    assert_eq!(
        model.encode_to_vec(),
        b"\x08\x08\x42\x04\x0a\x00\x10\x12\x72\x06\x0a\x01k\x12\x01v"
    );
}

fn text() -> impl Strategy<Value = Option<String>> {
    proptest::option::of(".{0,6}")
}

fn tensor() -> impl Strategy<Value = TensorProto> {
    let dims = proptest::collection::vec(any::<i64>(), 0..4);
    let bytes = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20));
    (dims, proptest::option::of(any::<i32>()), text(), bytes).prop_map(
        |(dims, data_type, name, raw_data)| TensorProto { dims, data_type, name, raw_data },
    )
}

fn attribute() -> impl Strategy<Value = AttributeProto> {
    let ints = proptest::collection::vec(any::<i64>(), 0..4);
    let number = proptest::option::of(proptest::num::f32::NORMAL);
    let (i, kind) = (proptest::option::of(any::<i64>()), proptest::option::of(any::<i32>()));
    let s = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..9));
    (text(), number, i, s, proptest::option::of(tensor()), ints, kind).prop_map(
        |(name, f, i, s, t, ints, kind)| AttributeProto { name, f, i, s, t, ints, r#type: kind },
    )
}

fn node() -> impl Strategy<Value = NodeProto> {
    let names = || proptest::collection::vec(".{0,5}", 0..3);
    let attributes = proptest::collection::vec(attribute(), 0..3);
    (names(), names(), text(), text(), attributes).prop_map(
        |(input, output, name, op_type, attribute)| NodeProto {
            input,
            output,
            name,
            op_type,
            attribute,
        },
    )
}

fn info() -> impl Strategy<Value = ValueInfoProto> {
    let dim = prop_oneof![
        any::<i64>().prop_map(DimensionValue::Number),
        ".{0,4}".prop_map(DimensionValue::Symbol)
    ];
    (".{1,5}", any::<i32>(), proptest::collection::vec(dim, 0..4), ".{0,5}")
        .prop_map(|(name, kind, shape, doc)| ValueInfoProto::new(&name, kind, &shape, &doc))
}

proptest! {
    #[test]
    fn a_model_reads_back_as_it_was(
        nodes in proptest::collection::vec(node(), 0..5),
        tensors in proptest::collection::vec(tensor(), 0..4),
        inputs in proptest::collection::vec(info(), 0..4),
        outputs in proptest::collection::vec(info(), 0..3),
        name in text(),
        version in proptest::option::of(any::<i64>()),
    ) {
        let graph = GraphProto {
            node: nodes,
            name: name.clone(),
            initializer: tensors,
            input: inputs,
            output: outputs,
        };
        let model = ModelProto {
            ir_version: version,
            producer_name: name.clone(),
            graph: Some(graph),
            metadata_props: vec![StringStringEntryProto { key: name.clone(), value: name }],
            ..ModelProto::default()
        };
        let bytes = model.encode_to_vec();
        prop_assert_eq!(bytes.len(), model.encoded_len());
        prop_assert_eq!(ModelProto::decode(bytes.as_slice()).unwrap(), model);
    }

    #[test]
    fn damaged_bytes_are_an_error_and_never_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = ModelProto::decode(bytes.as_slice());
    }
}
