//! The targets of the crate `serving`: the bodies and the messages of requests for scores, and
//! connections.

use std::sync::{Arc, LazyLock};

use zillion_device::{Files, SystemClock};
use zillion_registry::Registry;
use zillion_serving::proto::Message;
use zillion_serving::proto::inference::infer_parameter::ParameterChoice;
use zillion_serving::proto::inference::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use zillion_serving::proto::inference::{InferParameter, InferTensorContents, ModelInferRequest};
use zillion_serving::proto::tensorflow::serving::{ModelSpec, PredictRequest};
use zillion_serving::proto::tensorflow::tensor_shape_proto::Dim;
use zillion_serving::proto::tensorflow::{DataType, TensorProto, TensorShapeProto};
use zillion_serving::proto::zillion::v1::{ItemIds, RetrieveRequest};
use zillion_serving::{Domain, InMemoryServer, ServeConfig, read_body, read_message};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 5] =
    [&REQUEST_BODIES, &INFER_MESSAGES, &PREDICT_MESSAGES, &RETRIEVE_MESSAGES, &CONNECTIONS];

/// The readers of the bodies of HTTP requests for scores. In a body with binary tensors, the first
/// two bytes of the input are the length of the JSON part.
pub const REQUEST_BODIES: Target = Target {
    name: "request_bodies",
    read: |bytes| read_body(bytes).contains(&true),
    seeds: || {
        let seeds: [&[u8]; 8] = [
            include_bytes!("../seeds/request_bodies/infer.json"),
            include_bytes!("../seeds/request_bodies/binary.bin"),
            include_bytes!("../seeds/request_bodies/predict.json"),
            include_bytes!("../seeds/request_bodies/columns.json"),
            include_bytes!("../seeds/request_bodies/examples.json"),
            include_bytes!("../seeds/request_bodies/rank.json"),
            include_bytes!("../seeds/request_bodies/retrieve.json"),
            include_bytes!("../seeds/request_bodies/vectors.json"),
        ];
        seeds.map(<[u8]>::to_vec).into()
    },
};

/// The reader of messages of the call `ModelInfer`.
pub const INFER_MESSAGES: Target = Target {
    name: "infer_messages",
    read: |bytes| read_message(bytes)[0],
    seeds: || {
        let request = |inputs: Vec<InferInputTensor>, raw: &[&'static [u8]]| {
            let timeout = Some(ParameterChoice::Int64Param(1500));
            let timeout = InferParameter { parameter_choice: timeout };
            let request = ModelInferRequest {
                model_name: "ctr".to_owned(),
                model_version: "3".to_owned(),
                id: "x".to_owned(),
                parameters: [("timeout".to_owned(), timeout)].into(),
                outputs: vec![InferRequestedOutputTensor {
                    name: "click".to_owned(),
                    ..InferRequestedOutputTensor::default()
                }],
                raw_input_contents: raw.iter().map(|&raw| raw.into()).collect(),
                inputs,
            };
            request.encode_to_vec()
        };
        let input = |name: &str, datatype: &str, shape: &[i64], contents: InferTensorContents| {
            let contents = (contents != InferTensorContents::default()).then_some(contents);
            let (name, datatype) = (name.to_owned(), datatype.to_owned());
            let parameters = Default::default();
            InferInputTensor { name, datatype, shape: shape.to_vec(), parameters, contents }
        };
        let none = InferTensorContents::default;
        let ints =
            |values: &[i64]| InferTensorContents { int64_contents: values.to_vec(), ..none() };
        let texts = InferTensorContents { bytes_contents: vec!["ab".into()], ..none() };
        let floats = InferTensorContents { fp32_contents: vec![0.5, f32::NAN], ..none() };
        let typed = vec![
            input("user", "INT64", &[2], ints(&[7, -8])),
            input("price", "FP32", &[2, 1], floats),
            input("tags", "BYTES", &[1], texts),
            input("tags__lengths", "INT64", &[2], ints(&[1, 0])),
        ];
        let raw = vec![
            input("user", "INT64", &[2], none()),
            input("small", "INT8", &[2], none()),
            input("tags", "BYTES", &[2], none()),
        ];
        let contents: [&[u8]; 3] = [
            b"\x07\0\0\0\0\0\0\0\xf8\xff\xff\xff\xff\xff\xff\xff",
            b"\xff\x02",
            b"\x02\0\0\0ab\0\0\0\0",
        ];
        vec![request(typed, &[]), request(raw, &contents)]
    },
};

/// The reader of messages of the call `Retrieve`.
pub const RETRIEVE_MESSAGES: Target = Target {
    name: "retrieve_messages",
    read: |bytes| read_message(bytes)[2],
    seeds: || {
        let contents = InferTensorContents { int64_contents: vec![7], ..Default::default() };
        let user = ModelInferRequest {
            model_name: "towers".to_owned(),
            model_version: "3".to_owned(),
            inputs: vec![InferInputTensor {
                name: "user".to_owned(),
                datatype: "INT64".to_owned(),
                shape: vec![1],
                contents: Some(contents),
                ..InferInputTensor::default()
            }],
            ..ModelInferRequest::default()
        };
        let ids = [
            ItemIds { ints: vec![5, -6], ..ItemIds::default() },
            ItemIds { uints: vec![u64::MAX], ..ItemIds::default() },
            ItemIds { texts: vec!["a".to_owned(), String::new()], ..ItemIds::default() },
        ];
        let requests = ids.map(|ids| RetrieveRequest {
            user: Some(user.clone()),
            k: Some(3),
            only: Some(ids.clone()),
            exclude: Some(ids),
            exact: Some(false),
        });
        requests.iter().map(Message::encode_to_vec).collect()
    },
};

/// The reader of messages of the call `Predict`.
pub const PREDICT_MESSAGES: Target = Target {
    name: "predict_messages",
    read: |bytes| read_message(bytes)[1],
    seeds: || {
        let shape = |dims: &[i64]| {
            let dim = dims.iter().map(|&size| Dim { size, name: String::new() }).collect();
            Some(TensorShapeProto { dim, unknown_rank: false })
        };
        let tensor = |dtype: DataType, dims: &[i64]| TensorProto {
            dtype: dtype.into(),
            tensor_shape: shape(dims),
            ..TensorProto::default()
        };
        let users = TensorProto { int64_val: vec![7, -8], ..tensor(DataType::DtInt64, &[2]) };
        let packed = TensorProto {
            tensor_content: (&b"\x01\0\0\0\x02\0\0\0"[..]).into(),
            ..tensor(DataType::DtInt32, &[2])
        };
        let tags = TensorProto {
            string_val: vec!["a".into(), "".into()],
            ..tensor(DataType::DtString, &[2])
        };
        let half = TensorProto { half_val: vec![0x3c00, 0xc100], ..tensor(DataType::DtHalf, &[2]) };
        let same = TensorProto { float_val: vec![0.5], ..tensor(DataType::DtFloat, &[2]) };
        let inputs =
            [("user", users), ("packed", packed), ("tags", tags), ("half", half), ("same", same)];
        let request = PredictRequest {
            model_spec: Some(ModelSpec { name: "ctr".to_owned(), ..ModelSpec::default() }),
            inputs: inputs.map(|(name, tensor)| (name.to_owned(), tensor)).into(),
            output_filter: vec!["click".to_owned()],
            ..PredictRequest::default()
        };
        vec![request.encode_to_vec()]
    },
};

/// The reader of all bytes of a connection: heads of HTTP/1.1, frames of HTTP/2, and the router.
/// The server has no models.
pub const CONNECTIONS: Target = Target {
    name: "connections",
    read: |bytes| !SERVER.answer(bytes).is_empty(),
    seeds: || {
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes();
        let post = b"POST /v2/models/m/versions/3/infer HTTP/1.1\r\nHost: a\r\n\
                     Content-Type: application/json\r\nContent-Encoding: gzip\r\n\
                     Inference-Header-Content-Length: 2\r\nAuthorization: Bearer zln_x\r\n\
                     traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\
                     Content-Length: 2\r\n\r\n{}";
        let chunked = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: a\r\n\
                        Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        // The preface, settings, and a GET of `/` with END_STREAM and END_HEADERS.
        let frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
                       \0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a";
        vec![
            get("/healthz"),
            [get("/v2/models/%6D/ready"), get("/v1/models/m/labels/canary/metadata")].concat(),
            // The path `/openapi.json` is not among the seeds, because another thread makes its
            // document after the client has left.
            get("/v2"),
            post.to_vec(),
            chunked.to_vec(),
            frames.to_vec(),
        ]
    },
};

/// A server without models.
static SERVER: LazyLock<InMemoryServer> = LazyLock::new(|| {
    // The registry is not read again, because the server has no model.
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let url = folder.path().display().to_string();
    let registry = Registry::create(&url, Files::new(), Arc::new(SystemClock::new()));
    let registry = registry.expect("a registry can be made");
    let (config, metrics) = (ServeConfig::default(), prometheus::Registry::new());
    let domain = Domain::start(&config, &registry, &Files::new(), &metrics);
    let domain = Arc::new(domain.expect("a domain without models can be started"));
    InMemoryServer::new(&domain).expect("its services can be made")
});
