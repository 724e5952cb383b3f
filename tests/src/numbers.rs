//! Tests of a label that is a count, from the job file to the server and the exported model.

use serde_json::Value;

use crate::harness::{ROWS, Workplace, csv};
use crate::scored::{ExportedNames, predicted, predicted_lines};
use crate::server::{MODEL, REGISTRY, Server, floats, infer_body, instances, operate, output};
use crate::serving::{bits, publishing};

const COUNT: [&str; 6] = [
    "--set",
    "labels.label.kind='count'",
    "--set",
    "train.batch_size=500",
    "--set",
    "train.plateau.metric='rmse'",
];

#[test]
fn a_count_is_predicted_as_its_mean_by_every_way_of_scoring() {
    let place = Workplace::new();
    let said = publishing(&place, "run", 1000, &COUNT);
    assert!(said.contains("label label has the mean 0."), "{said}");
    assert!(said.contains("rmse 0.") && said.contains("deviance 0."), "{said}");
    place.write("rows.csv", &csv(7, ROWS));
    let (run, rows) = (place.text("run"), place.text("rows.csv"));
    operate(&place, &["publish", &run, "--set", &format!("data.root={}", place.text(""))]);

    // The checkpoint and the version predict the exponential of the score, to the bit.
    let lines = predicted_lines(&[&run, &rows]);
    let number = |line: &Value, key: &str| line[key].as_f64().expect("a number");
    let scores: Vec<f32> = lines.iter().map(|line| number(line, "score") as f32).collect();
    for (line, &score) in lines.iter().zip(&scores) {
        assert_eq!(number(line, "prediction"), f64::from(score).exp());
    }
    let registry = place.text(REGISTRY);
    let version = ["--registry", &registry, "--model", MODEL, &rows, "--batch", "500"];
    assert_eq!(predicted_lines(&version), lines);
    let table = predicted(&[&run, &rows]);
    let first = table.lines().nth(1).and_then(|line| line.parse::<f64>().ok());
    assert_eq!(first, Some(number(&lines[0], "prediction")));

    // The server answers with the same numbers, and has no probabilities.
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    let infer = format!("/v2/models/{MODEL}/infer");
    let asked = &instances(&csv(7, ROWS))[..500];
    let reply = server.post(&infer, infer_body(asked, &["predictions", "logits"]).as_bytes());
    assert_eq!(reply.status, 200, "{reply:?}");
    let means: Vec<f32> = scores.iter().map(|&z| f64::from(z).exp() as f32).collect();
    assert_eq!(bits(&output(&reply, "predictions")), bits(&means[..500]));
    assert_eq!(bits(&output(&reply, "logits")), bits(&scores[..500]));
    let reply = server.post(&infer, infer_body(asked, &["probabilities"]).as_bytes());
    assert_eq!(reply.status, 400, "{reply:?}");
    let body = serde_json::json!({ "instances": asked }).to_string();
    let reply = server.post(&format!("/v1/models/{MODEL}:predict"), body.as_bytes());
    assert_eq!(bits(&floats(&reply.json()["predictions"])), bits(&means[..500]));

    // The exported model has the output too.
    let exported = ExportedNames::of(&place);
    assert!(exported.has("predictions") && !exported.has("probabilities"));
}
