//! Tests of the retrieval of items by a server: the scores are those of predictions, the items are
//! those of the version, and a version without items says so.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Instant;

use serde_json::{Value, json};
use tonic::Code;
use tonic::transport::Channel;
use zillion_serving::proto::inference::model_infer_request::InferInputTensor;
use zillion_serving::proto::inference::{InferTensorContents, ModelInferRequest};
use zillion_serving::proto::zillion::v1::retrieval_service_client::RetrievalServiceClient;
use zillion_serving::proto::zillion::v1::{ItemIds, RetrieveRequest};

use crate::harness::{Workplace, stderr, zillion};
use crate::retrieval::{ITEMS, place};
use crate::server::{MODEL, PATIENCE, REGISTRY, Reply, Server, floats};

/// Trains and publishes the model of the retrieval tests with the catalogue in `data/items.csv`.
fn published() -> Workplace {
    let place = place();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let model = format!("publish.model={MODEL}");
    let items = ["publish.items.path=data/items.csv", "publish.items.id=id", "train.epochs=2"];
    let mut arguments = vec!["--set", &registry, "--set", &model];
    items.iter().for_each(|setting| arguments.extend(["--set", setting]));
    place.train_ok("run", &arguments);
    place
}

/// Publishes the checkpoint of the run with these further arguments.
fn publish(place: &Workplace, more: &[&str]) -> std::process::Output {
    let (run, registry) = (place.text("run"), place.text(REGISTRY));
    let root = format!("data.root={}", place.text(""));
    let mut arguments = vec!["publish", &run, "--registry", &registry, "--model", MODEL];
    arguments.extend(["--set", &root]);
    arguments.extend(more);
    zillion(&arguments).output().expect("the binary runs")
}

pub(crate) fn retrieve(server: &Server, body: &Value) -> Reply {
    server.post(&format!("/v1/models/{MODEL}:retrieve"), body.to_string().as_bytes())
}

/// Returns the ids and the scores of an answer.
pub(crate) fn found(reply: &Reply) -> Vec<(u64, f32)> {
    assert_eq!(reply.status, 200, "{reply:?}");
    let answer = reply.json();
    let items = answer["items"].as_array().expect("items").clone();
    let item = |item: &Value| {
        (item["id"].as_u64().expect("an id"), item["score"].as_f64().expect("a score") as f32)
    };
    items.iter().map(item).collect()
}

/// Returns items with the bits of their scores.
pub(crate) fn bits(found: Vec<(u64, f32)>) -> Vec<(u64, u32)> {
    found.into_iter().map(|(item, score)| (item, score.to_bits())).collect()
}

pub(crate) fn version(reply: &Reply) -> u64 {
    reply.json()["model_version"].as_str().expect("a version").parse().expect("a number")
}

#[test]
fn retrieved_items_have_the_scores_of_predictions() {
    let place = published();
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    for history in [vec![1, 2, 3], vec![], vec![55], vec![99_999, 7, 7, 12]] {
        let instance = |item: u64| json!({ "history": history, "item": item });
        let instances: Vec<Value> = (0..ITEMS).map(instance).collect();
        let body = json!({ "instances": instances }).to_string();
        let reply = server.post(&format!("/v1/models/{MODEL}:predict"), body.as_bytes());
        assert_eq!(reply.status, 200, "{reply:?}");
        let scores = floats(&reply.json()["predictions"]);
        let mut expected: Vec<(u64, u32)> =
            (0..ITEMS).zip(&scores).map(|(item, score)| (item, score.to_bits())).collect();
        let score = |&(_, bits): &(u64, u32)| f32::from_bits(bits);
        // The file has the items in the order of their ids, and so has a draw.
        expected.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.0.cmp(&b.0)));
        let all = retrieve(&server, &json!({ "context": { "history": history }, "k": 1000 }));
        assert_eq!(bits(found(&all)), expected);
        let context = json!({ "history": history });
        let exclude: Vec<u64> = expected.iter().step_by(2).map(|(item, _)| *item).collect();
        let body = json!({ "context": context, "k": 5, "exclude": exclude, "exact": true });
        let odd: Vec<(u64, u32)> = expected.iter().skip(1).step_by(2).take(5).copied().collect();
        assert_eq!(bits(found(&retrieve(&server, &body))), odd);
        let body = json!({ "context": context, "only": exclude, "exclude": [exclude[0], 1234567] });
        let reply = retrieve(&server, &body);
        let even: Vec<(u64, u32)> = expected.iter().step_by(2).skip(1).take(10).copied().collect();
        assert_eq!(bits(found(&reply)), even);
        assert_eq!(reply.json()["unknown_ids"], 1);
        // So few items are all candidates of the approximate search.
        for (exact, expects) in [(json!(false), false), (json!(null), true)] {
            let body = json!({ "context": context, "k": 7, "exact": exact });
            let reply = retrieve(&server, &body);
            assert_eq!(bits(found(&reply)), expected[..7]);
            assert_eq!(reply.json()["exact"], expects);
        }
    }
    let refused = |body: Value, status: u16, text: &str| {
        let reply = retrieve(&server, &body);
        assert_eq!(reply.status, status, "{reply:?}");
        assert!(reply.error().contains(text), "{reply:?}");
    };
    let context = json!({ "history": [1] });
    refused(json!({ "context": context, "k": 1001 }), 413, "serve.max_retrieved");
    refused(json!({ "context": { "history": [1], "item": 3 } }), 400, "no input of this name");
    refused(json!({ "context": {} }), 400, "input `history`: it is not in the request");
    refused(
        json!({ "context": context, "only": ["x"] }),
        400,
        "input `only`, row 0: the value is not a whole number",
    );
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains(&format!("zillion_serving_items{{model=\"{MODEL}\"}} {ITEMS}")));
    assert!(metrics.contains("protocol=\"retrieve\""));
    let document = server.get("/openapi.json").json();
    let path = &document["paths"][format!("/v1/models/{MODEL}:retrieve")];
    assert!(path["post"].is_object(), "{path}");
    let schema = &document["components"]["schemas"][format!("{MODEL}.RetrieveRequest")];
    assert!(schema["properties"]["context"]["properties"]["history"].is_object(), "{schema}");
}

/// Returns a request over gRPC for the items of a user with this history.
fn message(history: &[i64]) -> RetrieveRequest {
    let input = |name: &str, size: usize, values: Vec<i64>| InferInputTensor {
        name: name.to_owned(),
        datatype: "INT64".to_owned(),
        shape: vec![size as i64],
        contents: Some(InferTensorContents { int64_contents: values, ..Default::default() }),
        ..InferInputTensor::default()
    };
    let length = vec![history.len() as i64];
    let user = ModelInferRequest {
        model_name: MODEL.to_owned(),
        id: "a request".to_owned(),
        inputs: vec![
            input("history", history.len(), history.to_vec()),
            input("history__lengths", 1, length),
        ],
        ..ModelInferRequest::default()
    };
    RetrieveRequest { user: Some(user), ..RetrieveRequest::default() }
}

#[test]
fn both_protocols_retrieve_the_same_items() {
    let place = published();
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    let ids = |ints: &[i64]| Some(ItemIds { ints: ints.to_vec(), ..ItemIds::default() });
    crate::grpc::run(async {
        let address = format!("http://{}", server.address);
        let channel = Channel::from_shared(address).expect("an address");
        let channel = channel.connect().await.expect("the server takes connections");
        let mut client = RetrievalServiceClient::new(channel);
        for history in [&[1, 2, 3][..], &[], &[55], &[99_999, 7, 7, 12]] {
            for (exact, k) in [(None, None), (Some(true), Some(60)), (Some(false), Some(3))] {
                let mut body = json!({ "context": { "history": history }, "exact": exact, "k": k });
                let mut request = RetrieveRequest { exact, k, ..message(history) };
                for is_limited in [false, true] {
                    if is_limited {
                        body["only"] = json!([1, 2, 3, 4, 5, 6, 777]);
                        body["exclude"] = json!([2, 5, 888]);
                        request.only = ids(&[1, 2, 3, 4, 5, 6, 777]);
                        request.exclude = ids(&[2, 5, 888]);
                    }
                    let reply = retrieve(&server, &body);
                    let answer = client.retrieve(request.clone()).await.expect("an answer");
                    let answer = answer.into_inner();
                    let items = answer.items.expect("items").ints.into_iter().map(|id| id as u64);
                    let items: Vec<(u64, f32)> = items.zip(answer.scores).collect();
                    assert_eq!(bits(items), bits(found(&reply)));
                    let json = reply.json();
                    assert_eq!(json["model_version"], answer.model_version);
                    assert_eq!(json["unknown_ids"], answer.unknown_ids);
                    assert_eq!(json["exact"], answer.exact);
                    assert_eq!((&*answer.model_name, &*answer.id), (MODEL, "a request"));
                }
            }
        }
        let mut unknown = message(&[1]);
        unknown.user.as_mut().expect("a user").model_name = "other".to_owned();
        let mut other = message(&[1]);
        other.user.as_mut().expect("a user").inputs[0].name = "item".to_owned();
        let texts = Some(ItemIds { texts: vec!["x".to_owned()], ..ItemIds::default() });
        for (request, code, text) in [
            (RetrieveRequest { user: None, ..message(&[1]) }, Code::InvalidArgument, "`user`"),
            (unknown, Code::NotFound, "other"),
            (other, Code::InvalidArgument, "no input of this name"),
            (
                RetrieveRequest { k: Some(1001), ..message(&[1]) },
                Code::ResourceExhausted,
                "serve.max_retrieved",
            ),
            (RetrieveRequest { k: Some(0), ..message(&[1]) }, Code::InvalidArgument, "`k` is 0"),
            (
                RetrieveRequest { only: texts, ..message(&[1]) },
                Code::InvalidArgument,
                "input `only`, row 0: the value is not a whole number",
            ),
        ] {
            let status = client.retrieve(request).await.expect_err("it is refused");
            assert!(status.code() == code && status.message().contains(text), "{status:?}");
        }
    });
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("protocol=\"grpc_retrieve\",status=\"200\"} 24"), "{metrics}");
}

#[test]
fn the_items_of_an_answer_are_those_of_its_version() {
    let place = published();
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    let ask = || retrieve(&server, &json!({ "context": { "history": [3] }, "k": 500 }));
    let ids = |reply: &Reply| found(reply).iter().map(|item| item.0).collect::<BTreeSet<_>>();
    let (old, first) = ((0..ITEMS).collect::<BTreeSet<u64>>(), version(&ask()));
    assert_eq!(ids(&ask()), old);
    // The new catalogue lacks some items, and has some that training has not seen.
    let new: BTreeSet<u64> = (10..ITEMS).chain(1000..1005).collect();
    let mut file = "number\n".to_owned();
    new.iter().for_each(|item| writeln!(file, "{item}").expect("memory"));
    place.write("new.csv", &file);
    let path = place.text("new.csv");
    let output = publish(&place, &["--items", &path, "--items-id", "number"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let began = Instant::now();
    loop {
        let reply = ask();
        let is_new = version(&reply) > first;
        assert_eq!(ids(&reply), if is_new { new.clone() } else { old.clone() });
        if is_new {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "the new version does not come");
    }
    // The same items again are the same version.
    let output = publish(&place, &["--items", &path, "--items-id", "number", "--json"]);
    let again: Value = crate::harness::last_json(&crate::harness::stdout(&output));
    assert_eq!(again["was_there"], true, "{again}");
    // A version without items does not retrieve, and says what to do. It is published only if that
    // is asked for.
    let refused = publish(&place, &["--json"]);
    let said = stderr(&refused);
    assert!(!refused.status.success() && said.contains("--without-items"), "{said}");
    let output = publish(&place, &["--without-items", "--json"]);
    let bare = crate::harness::last_json(&crate::harness::stdout(&output));
    server.wait_for(bare["version"].as_u64().expect("a number"));
    let reply = ask();
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(reply.error().contains("`publish.items`"), "{reply:?}");
    let old = format!("/v1/models/{MODEL}/versions/{first}:retrieve");
    let body = json!({ "context": { "history": [3] } }).to_string();
    assert_eq!(found(&server.post(&old, body.as_bytes())).len(), 10);
}

#[test]
fn wrong_catalogues_are_refused_by_name() {
    let place = published();
    for (file, expected) in [
        ("id,kind\n1,k1\n2,k2\n1,k1\n", "the id 1 occurs twice"),
        ("id,kind\n1,k1\n,k2\n", "row 2 has no id of an item in column `id`"),
        (
            "number,kind\n1,k1\n",
            "column `id` of feature `item` is missing; the columns are `number`, `kind`",
        ),
        ("id,kind\nx,k1\n", "column `id`, row 1 (byte 8): \"x\" is not a whole number"),
    ] {
        place.write("wrong.csv", file);
        let output = publish(&place, &["--items", &place.text("wrong.csv"), "--items-id", "id"]);
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains(expected), "{file}: {said}");
        assert!(said.contains("wrong.csv"), "{said}");
    }
    // An input of both towers would give an item the score of another one.
    let job = std::fs::read_to_string(place.path("job.toml")).expect("the job");
    let cross = "[features.both]\nkind = 'cross'\nof = ['kind', 'item']\n[tables.\"*\"]";
    let job = job.replacen("[tables.\"*\"]", cross, 1);
    let job = job.replacen("user = [\"history\"]", "user = [\"history\", \"both\"]", 1);
    place.write("job.toml", &job);
    let registry = format!("publish.registry={}", place.text("crossed"));
    let catalogue = ["publish.items.path=data/items.csv", "publish.items.id=id"];
    let crossed = ["--set", &registry, "--set", catalogue[0], "--set", catalogue[1]];
    let (code, said) = place.train_fails(&crossed);
    assert!(code != 0 && said.contains("both towers need the input `item`"), "{said}");
    let dnn = ["--set", "publish.registry=registry", "--set", "publish.items.path=items.csv"];
    let (code, said) = Workplace::new().train_fails(&dnn);
    assert!(code == 2 && said.contains("publish.items") && said.contains("two_tower"), "{said}");
}
