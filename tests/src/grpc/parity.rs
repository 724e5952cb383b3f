//! A test that 10,000 rows have the same bits over each protocol of gRPC, and as binary tensors
//! over HTTP, as `zillion predict` gives them. The module `serving` compares the protocols of JSON.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};
use tonic::transport::Channel;
use zillion_serving::proto::inference::ModelInferRequest;
use zillion_serving::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use zillion_serving::proto::tensorflow::serving::prediction_service_client::PredictionServiceClient;

use super::{bits, predict_request, request, run};
use crate::harness::{Workplace, csv};
use crate::server::{MODEL, Server, instances, operate};
use crate::serving::{self, probability, published, publishing};
use crate::serving_protocols::{binary_body, post};

/// The number of rows.
const ROWS: usize = 10_000;

/// The number of rows of a request, which is the size of the job's batches.
const BATCH: usize = 500;

/// Moves the values of a request from typed lists to raw tensors.
fn with_raw_tensors(mut request: ModelInferRequest) -> ModelInferRequest {
    let raw = request.inputs.iter_mut().map(|input| {
        let contents = input.contents.take().expect("values");
        let mut bytes = BytesMut::new();
        for text in contents.bytes_contents {
            bytes.put_u32_le(text.len() as u32);
            bytes.put_slice(&text);
        }
        contents.int64_contents.iter().for_each(|&number| bytes.put_i64_le(number));
        contents.fp64_contents.iter().for_each(|&number| bytes.put_f64_le(number));
        Bytes::from(bytes)
    });
    request.raw_input_contents = raw.collect();
    request
}

#[test]
fn many_rows_have_the_bits_of_predict_in_all_tensors() {
    let place = Workplace::new();
    publishing(&place, "run", 1000, &["--set", "train.batch_size=500"]);
    let latest = operate(&place, &["model", "list", "--json"]);
    let latest: Value = serde_json::from_str(&latest).expect("JSON");
    let latest = latest["versions"][0]["version"].as_u64().expect("a number");
    place.write("rows.csv", &csv(7, ROWS));
    let wanted = published(&place, latest, "rows.csv", BATCH);
    assert_eq!(wanted.len(), ROWS);
    let chances: Vec<f32> = wanted.iter().map(|&logit| probability(logit)).collect();

    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    let rows = instances(&csv(7, ROWS));
    run(async {
        let channel = Channel::from_shared(format!("http://{}", server.address));
        let channel = channel.expect("an address").connect().await.expect("a connection");
        let mut v2 = GrpcInferenceServiceClient::new(channel.clone());
        let mut tf = PredictionServiceClient::new(channel);
        for (batch, rows) in rows.chunks(BATCH).enumerate() {
            let at = batch * BATCH..batch * BATCH + rows.len();
            let lists = request(rows, &["logits", "probabilities"]);
            for request in [lists.clone(), with_raw_tensors(lists)] {
                let answer = v2.model_infer(request).await.expect("scores").into_inner();
                assert_eq!(answer.model_version, latest.to_string());
                assert_eq!(bits(&answer, "logits"), serving::bits(&wanted[at.clone()]));
                assert_eq!(bits(&answer, "probabilities"), serving::bits(&chances[at.clone()]));
            }
            let answer = tf.predict(predict_request(rows, None)).await.expect("scores");
            let output = &answer.get_ref().outputs["probabilities"];
            assert_eq!(serving::bits(&output.float_val), serving::bits(&chances[at]));
        }
    });
    let path = format!("/v2/models/{MODEL}/infer");
    for (batch, rows) in rows.chunks(BATCH).enumerate() {
        let outputs = json!([{ "name": "logits", "parameters": { "binary_data": true } }]);
        let (length, body) = binary_body(rows, outputs);
        let header = format!("Inference-Header-Content-Length: {length}\r\n");
        let answer = post(&server, &path, &header, &body);
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        let floats = &answer.body[answer.body.len() - 4 * rows.len()..];
        let found: Vec<f32> =
            floats.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
        let at = batch * BATCH;
        assert_eq!(serving::bits(&found), serving::bits(&wanted[at..at + rows.len()]));
    }
    assert!(server.terminate().success());
}
