//! Tests of the gRPC interface of the real binary: the same scores as over HTTP, the status codes
//! of failures, and which models a client may choose. The module `services` has the tests of health
//! checks and reflection, `parity` those of many rows. The module `clients` tests clients in other
//! languages.

mod parity;
mod services;

use bytes::{BufMut, Bytes, BytesMut};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::Value;
use tonic::transport::Channel;
use tonic::{Code, Status};
use zillion_serving::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use zillion_serving::proto::inference::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use zillion_serving::proto::inference::repository_index_response::ModelIndex;
use zillion_serving::proto::inference::{
    InferTensorContents, ModelInferRequest, ModelInferResponse, RepositoryIndexRequest,
    RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
};
use zillion_serving::proto::tensorflow::serving::model_spec::VersionChoice;
use zillion_serving::proto::tensorflow::serving::prediction_service_client::PredictionServiceClient;
use zillion_serving::proto::tensorflow::serving::{ModelSpec, PredictRequest, PredictResponse};
use zillion_serving::proto::tensorflow::tensor_shape_proto::Dim;
use zillion_serving::proto::tensorflow::{DataType, TensorProto, TensorShapeProto};

use crate::harness::{Workplace, csv};
use crate::server::{MODEL, PATIENCE, REGISTRY, Server, infer_body, instances, output};

/// Trains a model for a few steps, publishes it with rounded rows, and starts a server that has its
/// rows as records in memory.
fn served(more: &[&str]) -> (Workplace, Server) {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let rows = ["--set", "publish.rows='int8'"];
    place.train_ok("run", &[&["--set", &registry, "--set", "train.epochs=1"], &rows[..]].concat());
    let mut server = Server::start(&place, &[&["--row-records"], more].concat());
    assert!(server.becomes_ready());
    (place, server)
}

/// Runs a client until it has finished. Panics if the client exceeds the time limit of the tests.
pub(crate) fn run<T>(client: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime for the client");
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, client).await.expect("the server answers in time")
    })
}

pub(crate) async fn connect(address: &str) -> GrpcInferenceServiceClient<Channel> {
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    GrpcInferenceServiceClient::new(channel.connect().await.expect("the server takes connections"))
}

/// Returns a request to score these rows. The values of each input are in typed lists.
pub(crate) fn request(rows: &[Value], outputs: &[&str]) -> ModelInferRequest {
    let column = |name: &str| -> Vec<Value> { rows.iter().map(|row| row[name].clone()).collect() };
    let text = |value: &Value| Bytes::from(value.as_str().expect("text").to_owned());
    let texts = |values: &[Value]| InferTensorContents {
        bytes_contents: values.iter().map(text).collect(),
        ..InferTensorContents::default()
    };
    let whole = |values: Vec<i64>| InferTensorContents {
        int64_contents: values,
        ..InferTensorContents::default()
    };
    let numbers = |values: &[Value]| InferTensorContents {
        fp64_contents: values.iter().map(|value| value.as_f64().unwrap_or(f64::NAN)).collect(),
        ..InferTensorContents::default()
    };
    let tags = column("tags");
    let lists: Vec<&Vec<Value>> = tags.iter().map(|tags| tags.as_array().expect("tags")).collect();
    let flat: Vec<Value> = lists.iter().flat_map(|tags| tags.iter().cloned()).collect();
    let items = column("item").iter().map(|item| item.as_i64().expect("an id")).collect();
    let lengths = lists.iter().map(|tags| tags.len() as i64).collect();
    let input = |name: &str, datatype: &str, size: usize, contents| InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![size as i64],
        contents: Some(contents),
        ..InferInputTensor::default()
    };
    let wanted = |name: &&str| InferRequestedOutputTensor {
        name: (*name).to_owned(),
        ..InferRequestedOutputTensor::default()
    };
    let size = rows.len();
    ModelInferRequest {
        model_name: MODEL.to_owned(),
        inputs: vec![
            input("user", "BYTES", size, texts(&column("user"))),
            input("item", "INT64", size, whole(items)),
            input("tags", "BYTES", flat.len(), texts(&flat)),
            input("tags__lengths", "INT64", size, whole(lengths)),
            input("price", "FP64", size, numbers(&column("price"))),
            input("age", "FP64", size, numbers(&column("age"))),
        ],
        outputs: outputs.iter().map(wanted).collect(),
        ..ModelInferRequest::default()
    }
}

/// Returns the values of an output as the bits of its floats.
pub(crate) fn bits(response: &ModelInferResponse, name: &str) -> Vec<u32> {
    let at = response.outputs.iter().position(|output| output.name == name);
    let raw = &response.raw_output_contents[at.unwrap_or_else(|| panic!("{response:?}"))];
    raw.chunks_exact(4).map(|x| u32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
}

fn refused(outcome: Result<tonic::Response<ModelInferResponse>, Status>, code: Code, text: &str) {
    let status = outcome.expect_err("it is refused");
    assert!(status.code() == code && status.message().contains(text), "{code:?}: {status:?}");
}

/// Returns the value of the series whose line begins with `series`.
fn sample(server: &Server, series: &str) -> f64 {
    let metrics = server.get("/metrics").body;
    let line = metrics.lines().find(|line| line.starts_with(series));
    let value = line.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no series {series}:\n{metrics}"))
}

#[test]
fn scores_equal_those_of_http_on_both_addresses() {
    let (_place, mut server) = served(&["--grpc", "127.0.0.1:0"]);
    let rows = instances(&csv(3, 100));
    let names = ["logits", "probabilities"];
    let infer = format!("/v2/models/{MODEL}/infer");
    let wanted = server.post(&infer, infer_body(&rows, &names).as_bytes());
    let second = server.grpc.clone().expect("it was asked for");
    run(async {
        for address in [&server.address, &second] {
            let mut client = connect(address).await;
            let answer = client.model_infer(request(&rows, &names)).await.expect("scores");
            for name in names {
                let of_http: Vec<u32> = output(&wanted, name).iter().map(|x| x.to_bits()).collect();
                assert_eq!(bits(answer.get_ref(), name), of_http, "{name}");
            }
        }
    });
    // The requests of both protocols are counted by the version that answered, including failures.
    assert_eq!(server.post(&infer, b"{}").status, 400);
    let of = |name: &str| sample(&server, &format!("{name}{{model=\"{MODEL}\",version="));
    assert_eq!(
        (of("nv_inference_request_success"), of("nv_inference_request_failure")),
        (3.0, 1.0)
    );
    assert_eq!((of("nv_inference_count"), of("nv_inference_exec_count")), (300.0, 3.0));
    let spent = of("nv_inference_request_duration_us");
    assert!(spent >= of("nv_inference_compute_infer_duration_us") && spent > 0.0);
    // Both addresses still answer HTTP, in both versions of HTTP.
    let over = |protocol: &str| {
        let series = "zillion_serving_requests_total";
        sample(
            &server,
            &format!("{series}{{model=\"{MODEL}\",protocol=\"{protocol}\",status=\"200\"}}"),
        )
    };
    assert_eq!((over("grpc_v2"), over("v2")), (2.0, 1.0));
    assert!(server.terminate().success());
}

/// Returns a request to score these rows, with inputs as tensors of TensorFlow. A text that looks
/// like a number stays a text.
fn predict_request(rows: &[Value], label: Option<&str>) -> PredictRequest {
    let of = |input: &InferInputTensor| {
        let contents = input.contents.clone().expect("values");
        let dtype = match input.datatype.as_str() {
            "BYTES" => DataType::DtString,
            "INT64" => DataType::DtInt64,
            _ => DataType::DtDouble,
        };
        let dim = Dim { size: input.shape[0], name: String::new() };
        TensorProto {
            dtype: dtype.into(),
            tensor_shape: Some(TensorShapeProto { dim: vec![dim], unknown_rank: false }),
            string_val: contents.bytes_contents,
            int64_val: contents.int64_contents,
            tensor_content: contents.fp64_contents.iter().flat_map(|x| x.to_le_bytes()).collect(),
            ..TensorProto::default()
        }
    };
    let of_v2 = request(rows, &[]);
    let inputs = of_v2.inputs.iter().map(|input| (input.name.clone(), of(input))).collect();
    let version_choice = label.map(|label| VersionChoice::VersionLabel(label.to_owned()));
    let spec = ModelSpec { name: MODEL.to_owned(), version_choice, ..ModelSpec::default() };
    PredictRequest { model_spec: Some(spec), inputs, ..PredictRequest::default() }
}

#[test]
fn tensorflow_requests_have_the_same_scores() {
    let (_place, mut server) = served(&[]);
    let rows = instances(&csv(3, 30));
    run(async {
        let channel =
            Channel::from_shared(format!("http://{}", server.address)).expect("an address");
        let channel = channel.connect().await.expect("a connection");
        let mut v2 = GrpcInferenceServiceClient::new(channel.clone());
        let wanted = v2.model_infer(request(&rows, &["probabilities"])).await.expect("scores");
        let mut tf = PredictionServiceClient::new(channel);
        for label in [None, Some("stable")] {
            let answer = tf.predict(predict_request(&rows, label)).await.expect("scores");
            let output = &answer.get_ref().outputs["probabilities"];
            let found: Vec<u32> = output.float_val.iter().map(|score| score.to_bits()).collect();
            assert_eq!(found, bits(wanted.get_ref(), "probabilities"));
        }
        // One value of the user stands for all rows, and gives the scores of its copies.
        let user = rows[0]["user"].clone();
        let copies: Vec<Value> = rows
            .iter()
            .map(|row| {
                let mut row = row.as_object().expect("a row").clone();
                row.insert("user".to_owned(), user.clone());
                Value::Object(row)
            })
            .collect();
        let copied = predict_request(&copies, None);
        let mut shared = copied.clone();
        let of_user = shared.inputs.get_mut("user").expect("the user");
        of_user.int64_val.truncate(1);
        of_user.string_val.truncate(1);
        assert_ne!(shared, copied);
        let copied = tf.predict(copied).await.expect("scores").into_inner();
        let shared = tf.predict(shared).await.expect("scores").into_inner();
        let found = |answer: &PredictResponse| {
            let scores = &answer.outputs["probabilities"].float_val;
            scores.iter().map(|score| score.to_bits()).collect::<Vec<u32>>()
        };
        assert_eq!((found(&shared).len(), found(&shared)), (30, found(&copied)));
        let canary = tf.predict(predict_request(&rows, Some("canary"))).await;
        assert_eq!(canary.expect_err("no such label").code(), Code::NotFound);
    });
    let ours = format!("zillion_serving_requests_total{{model=\"{MODEL}\",protocol=\"grpc_tf\"");
    assert_eq!(sample(&server, &format!("{ours},status=\"200\"}}")), 4.0);
    assert_eq!(sample(&server, &format!("{ours},status=\"404\"}}")), 1.0);
    assert!(server.terminate().success());
}

#[test]
fn clients_choose_models_where_they_may() {
    let (place, mut ordinary) = served(&[]);
    let load = |name: &str| RepositoryModelLoadRequest {
        model_name: name.to_owned(),
        ..RepositoryModelLoadRequest::default()
    };
    let unload = |name: &str| RepositoryModelUnloadRequest {
        model_name: name.to_owned(),
        ..RepositoryModelUnloadRequest::default()
    };
    let rows = instances(&csv(3, 4));
    run(async {
        let mut client = connect(&ordinary.address).await;
        for refused in [
            client.repository_model_load(load(MODEL)).await.map(|_| ()),
            client.repository_model_unload(unload(MODEL)).await.map(|_| ()),
        ] {
            let status = refused.expect_err("it is not allowed");
            assert_eq!(status.code(), Code::PermissionDenied);
            assert!(status.message().contains("serve.model_control"), "{status:?}");
        }
        assert!(client.model_infer(request(&rows, &[])).await.is_ok());
    });
    assert!(ordinary.terminate().success());

    // A server without models is ready and serves no model.
    let mut server = Server::configured(&place, &["--model-control"], &[]);
    assert!(server.becomes_ready());
    run(async {
        let mut client = connect(&server.address).await;
        for _ in 0..2 {
            let index = client.repository_index(RepositoryIndexRequest::default()).await;
            let index = index.expect("an index").into_inner().models;
            let of = |model: &ModelIndex| {
                (model.name.clone(), model.state.clone(), model.reason.clone())
            };
            let wanted = (MODEL.to_owned(), "UNAVAILABLE".to_owned(), "not loaded".to_owned());
            assert_eq!(index.iter().map(of).collect::<Vec<_>>(), [wanted]);
            refused(
                client.model_infer(request(&rows, &[])).await,
                Code::NotFound,
                "served here: none",
            );
            client.repository_model_load(load(MODEL)).await.expect("it is loaded");
            assert!(client.model_infer(request(&rows, &[])).await.is_ok());
            client.repository_model_unload(unload(MODEL)).await.expect("it is unloaded");
        }
        let nobody = client.repository_model_load(load("nobody")).await.expect_err("there is none");
        assert!(
            nobody.code() == Code::NotFound && nobody.message().contains("`e2e`"),
            "{nobody:?}"
        );
    });
    // If a model of the registry cannot be loaded, the server does not keep its name and continues
    // as before.
    std::fs::create_dir_all(place.path(&format!("{REGISTRY}/empty/versions"))).expect("a folder");
    run(async {
        let mut client = connect(&server.address).await;
        let empty = client.repository_model_load(load("empty")).await.expect_err("nothing to load");
        assert!(
            empty.code() == Code::Unavailable && empty.message().contains("never set"),
            "{empty:?}"
        );
        let again = client.repository_model_unload(unload("empty")).await.expect_err("not kept");
        assert_eq!(again.code(), Code::NotFound);
    });
    assert!(server.terminate().success());
}

#[test]
fn failed_requests_have_the_code_of_the_protocol() {
    let limits = ["--max-rows", "50", "--max-body-bytes", "7000", "--max-values", "1000"];
    let (_place, mut server) = served(&limits);
    let rows = instances(&csv(3, 1000));
    let good = request(&rows[..4], &[]);
    run(async {
        let mut client = connect(&server.address).await;
        let with = |change: &dyn Fn(&mut ModelInferRequest)| {
            let mut request = good.clone();
            change(&mut request);
            request
        };
        for (request, code, text) in [
            (with(&|r| r.model_name = "nobody".into()), Code::NotFound, "`e2e`"),
            (with(&|r| r.model_version = "99".into()), Code::NotFound, "version 99"),
            (
                with(&|r| r.inputs[0].name = "usr".into()),
                Code::InvalidArgument,
                "did you mean `user`?",
            ),
            (with(&|r| r.inputs[1].shape = vec![5]), Code::InvalidArgument, "input `item`"),
            (with(&|r| r.inputs.truncate(3)), Code::InvalidArgument, "input `"),
            (request(&rows[..51], &[]), Code::ResourceExhausted, "serve.max_rows"),
            (request(&rows, &[]), Code::ResourceExhausted, "serve.max_body_bytes"),
        ] {
            refused(client.model_infer(request).await, code, text);
        }
        let tags = with(&|r| {
            let text = Bytes::from_static(b"t");
            r.inputs[2].shape = vec![1001];
            r.inputs[2].contents = Some(InferTensorContents {
                bytes_contents: vec![text; 1001],
                ..InferTensorContents::default()
            });
            r.inputs[3].contents.as_mut().expect("lengths").int64_contents = vec![1001, 0, 0, 0];
        });
        refused(client.model_infer(tags).await, Code::ResourceExhausted, "serve.max_values");
        // The bytes are not a message, or the method does not exist.
        let at = server.address.as_str();
        let infer = "/inference.GRPCInferenceService/ModelInfer";
        let (code, message) = call(at, infer, b"\x0a\xff", None).await;
        assert!(
            code == Code::InvalidArgument && message.contains("not%20a%20ModelInfer"),
            "{message}"
        );
        let metadata = "/inference.GRPCInferenceService/ModelMetadata";
        assert_eq!(call(at, metadata, b"\x0a\xff", None).await.0, Code::InvalidArgument);
        assert_eq!(
            call(at, "/inference.GRPCInferenceService/Nothing", b"", None).await.0,
            Code::Unimplemented
        );
        assert_eq!(call(at, "/nobody.Nothing/Nothing", b"", None).await.0, Code::Unimplemented);
        // The connection can still be used.
        assert!(client.model_infer(good.clone()).await.is_ok());
    });
    // A request with the same content type is refused at an address that cannot answer it.
    let head = "POST /inference.GRPCInferenceService/ModelInfer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n";
    let reply = server.send(head, b"").expect("an answer");
    assert!(reply.status == 505 && reply.error().contains("HTTP/2"), "{reply:?}");
    assert!(server.terminate().success());
}

/// Sends one call over plain HTTP/2, without a client library. The bytes in `message` are the
/// message of the call.
async fn call(address: &str, path: &str, message: &[u8], timeout: Option<&str>) -> (Code, String) {
    let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
    tokio::spawn(connection);
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(message.len() as u32);
    body.put(message);
    let mut request = hyper::Request::post(format!("http://{address}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(timeout) = timeout {
        request = request.header("grpc-timeout", timeout);
    }
    let request = request.body(Full(Some(body.freeze()))).expect("a request");
    let response = sender.send_request(request).await.expect("an answer");
    let header = |name: &str| response.headers().get(name).map(|value| value.as_bytes().to_vec());
    let code = header("grpc-status").expect("a failure says so in its head");
    let message = header("grpc-message").unwrap_or_default();
    (Code::from_bytes(&code), String::from_utf8_lossy(&message).into_owned())
}

/// An HTTP body that consists of one frame of data.
struct Full(Option<Bytes>);

impl hyper::body::Body for Full {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(self.0.take().map(|bytes| Ok(hyper::body::Frame::data(bytes))))
    }
}

#[test]
fn the_server_observes_the_deadline_of_the_client() {
    let (_place, mut server) = served(&[]);
    let rows = instances(&csv(3, 1000));
    let message = request(&rows, &[]).encode_to_vec();
    let infer = "/inference.GRPCInferenceService/ModelInfer";
    run(async {
        // A nanosecond is over before any row is scored. This client itself would wait without a
        // limit.
        let (code, said) = call(&server.address, infer, &message, Some("1n")).await;
        assert_eq!(code, Code::DeadlineExceeded, "{said}");
        let mut client = connect(&server.address).await;
        assert!(client.model_infer(request(&rows[..4], &[])).await.is_ok());
    });
    let late = "protocol=\"grpc_v2\",status=\"504\"} 1";
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains(late), "{metrics}");
    assert!(server.terminate().success());
}

#[test]
fn a_client_above_the_limit_gets_a_retry_delay() {
    let (_place, mut server) = served(&["--max-bytes-in-flight", "1"]);
    run(async {
        let mut client = connect(&server.address).await;
        let outcome = client.model_infer(request(&instances(&csv(3, 4)), &[])).await;
        let status = outcome.expect_err("nobody may wait");
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert_eq!(status.metadata().get("grpc-retry-pushback-ms").expect("when"), "1000");
        assert!(!status.details().is_empty());
    });
    assert!(server.terminate().success());
}
