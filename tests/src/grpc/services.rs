//! Tests of what a gRPC server tells about itself: health checks, reflection, the models in its
//! repository, and an orderly stop.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tonic::Code;
use tonic::transport::Channel;
use zillion_serving::proto::health::HealthCheckRequest;
use zillion_serving::proto::health::health_check_response::ServingStatus;
use zillion_serving::proto::health::health_client::HealthClient;
use zillion_serving::proto::inference::{RepositoryIndexRequest, ServerReadyRequest};
use zillion_serving::proto::reflection::{v1, v1alpha};

use super::{connect, refused, request, run, served};
use crate::harness::{Workplace, csv};
use crate::server::{MODEL, PATIENCE, REGISTRY, Server, instances, operate};

#[test]
fn health_follows_readiness_and_ends_with_the_server() {
    let place = Workplace::new();
    // If the registry has no model, the server runs but is not ready.
    std::fs::create_dir(place.path(REGISTRY)).expect("a folder");
    let mut server = Server::start(&place, &["--grpc", "127.0.0.1:0"]);
    let address = server.grpc.clone().expect("it was asked for");
    let check = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime for the client");
    let mut watch = runtime.block_on(async {
        let mut client = connect(&address).await;
        assert!(
            !client.server_ready(ServerReadyRequest {}).await.expect("an answer").get_ref().ready
        );
        let rows = instances(&csv(3, 4));
        refused(client.model_infer(request(&rows, &[])).await, Code::Unavailable, "no version");
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
        let mut health = HealthClient::new(channel.connect().await.expect("a connection"));
        for service in
            ["", "inference.GRPCInferenceService", "tensorflow.serving.PredictionService"]
        {
            let answer = health.check(check(service)).await.expect("an answer");
            assert_eq!(answer.get_ref().status(), ServingStatus::NotServing);
        }
        let unknown = health.check(check("nobody")).await.expect_err("there is none");
        assert!(unknown.code() == Code::NotFound && unknown.message().contains("`nobody`"));
        let mut watch = health.watch(check("")).await.expect("an answer").into_inner();
        let first = watch.message().await.expect("a message").expect("a status");
        assert_eq!(first.status(), ServingStatus::NotServing);
        watch
    });
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    place.train_ok("run", &["--set", &registry, "--set", "train.epochs=1"]);
    assert!(server.becomes_ready());
    let next = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, watch.message()).await.expect("in time").expect("a message")
    });
    assert_eq!(next.expect("a status").status(), ServingStatus::Serving);
    // A server that is stopping reports this. A client that watches the health does not keep the
    // server alive.
    let pid = server.pid().to_string();
    assert!(std::process::Command::new("kill").arg(&pid).status().expect("`kill` runs").success());
    runtime.block_on(async {
        let last = tokio::time::timeout(PATIENCE, watch.message()).await.expect("in time");
        assert_eq!(last.expect("a message").expect("a status").status(), ServingStatus::NotServing);
        let end = tokio::time::timeout(PATIENCE, watch.message()).await.expect("in time");
        assert!(end.expect("an end").is_none());
    });
    drop((watch, runtime));
    let began = Instant::now();
    while server.is_running() {
        assert!(began.elapsed() < PATIENCE, "the server does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(server.terminate().success());
}

#[test]
fn services_describe_themselves() {
    let (_place, mut server) = served(&[]);
    let names = run(async {
        let channel =
            Channel::from_shared(format!("http://{}", server.address)).expect("an address");
        let channel = channel.connect().await.expect("a connection");
        let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
        let ask =
            |what| v1::ServerReflectionRequest { host: String::new(), message_request: Some(what) };
        use v1::server_reflection_request::MessageRequest;
        let mut names = Vec::new();
        for symbol in ["inference.GRPCInferenceService", "tensorflow.serving.PredictRequest"] {
            let questions = [
                ask(MessageRequest::ListServices(String::new())),
                ask(MessageRequest::FileContainingSymbol(symbol.to_owned())),
            ];
            let questions = tonic::codegen::tokio_stream::iter(questions);
            let answer = client.server_reflection_info(questions).await;
            let mut answers = answer.expect("an answer").into_inner();
            use v1::server_reflection_response::MessageResponse;
            while let Some(answer) = answers.message().await.expect("an answer") {
                match answer.message_response.expect("an answer") {
                    MessageResponse::ListServicesResponse(list) => {
                        names = list.service.into_iter().map(|service| service.name).collect();
                    }
                    MessageResponse::FileDescriptorResponse(files) => {
                        assert!(!files.file_descriptor_proto.is_empty(), "{symbol}");
                    }
                    other => panic!("{symbol}: {other:?}"),
                }
            }
        }
        let mut old = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
        let question = v1alpha::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(
                v1alpha::server_reflection_request::MessageRequest::ListServices(String::new()),
            ),
        };
        let answer =
            old.server_reflection_info(tonic::codegen::tokio_stream::iter([question])).await;
        let first = answer.expect("an answer").into_inner().message().await.expect("an answer");
        assert!(first.expect("services").message_response.is_some());
        names
    });
    for name in [
        "inference.GRPCInferenceService",
        "tensorflow.serving.PredictionService",
        "tensorflow.serving.ModelService",
        "zillion.v1.RetrievalService",
        "grpc.health.v1.Health",
    ] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    assert!(server.terminate().success());
}

#[test]
fn closed_versions_leave_no_series_behind() {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let publish = ["--set", &registry, "--set", "publish.every=8", "--set", "train.epochs=1"];
    place.train_ok("run", &publish);
    let show: Value =
        serde_json::from_str(&operate(&place, &["model", "show", "--json"])).expect("JSON");
    let newest = show["version"].as_u64().expect("a number");
    assert!(newest >= 3, "{show}");
    let mut server = Server::start(&place, &["--retain", "0"]);
    assert!(server.becomes_ready());
    let body = json!({ "instances": instances(&csv(3, 2)) }).to_string();
    let open = |version: u64| {
        server.wait_for(version);
        let reply = server.post(&format!("/v1/models/{MODEL}:predict"), body.as_bytes());
        assert_eq!(reply.status, 200, "{reply:?}");
        let metrics = server.get("/metrics").body;
        let of = |line: &&str| line.starts_with("nv_inference_count{");
        let lines: Vec<String> = metrics.lines().filter(of).map(str::to_owned).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains(&format!("version=\"{version}\"}} 2")), "{lines:?}");
    };
    open(newest);
    for version in [1, 2, 1] {
        operate(&place, &["model", "rollback", "--to", &version.to_string()]);
        open(version);
    }
    run(async {
        let mut client = connect(&server.address).await;
        let asked = RepositoryIndexRequest { ready: true, ..RepositoryIndexRequest::default() };
        let index = client.repository_index(asked).await.expect("an index").into_inner();
        let open: Vec<&str> = index.models.iter().map(|model| model.version.as_str()).collect();
        assert_eq!(open, ["1"], "{index:?}");
    });
    assert!(server.terminate().success());
}
