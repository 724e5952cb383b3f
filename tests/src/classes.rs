//! Tests of a label of classes, from the job file to the server and the exported model.

use serde_json::json;

use crate::harness::{ROWS, Workplace, csv};
use crate::scored::{ExportedNames, predicted, predicted_lines};
use crate::server::{MODEL, REGISTRY, Server, infer_body, instances, operate, output};
use crate::serving::{bits, publishing};

const CLASSES: [&str; 8] = [
    "--set",
    "labels.label.kind='class'",
    "--set",
    "labels.label.classes=[1, 0]",
    "--set",
    "train.batch_size=500",
    "--set",
    "train.plateau.metric='accuracy'",
];

#[test]
fn each_class_has_a_probability_by_every_way_of_scoring() {
    let place = Workplace::new();
    let said = publishing(&place, "run", 1000, &CLASSES);
    assert!(said.contains("accuracy 0.") && said.contains("label=1"), "{said}");
    place.write("rows.csv", &csv(7, ROWS));
    let (run, rows) = (place.text("run"), place.text("rows.csv"));
    operate(&place, &["publish", &run, "--set", &format!("data.root={}", place.text(""))]);

    // The checkpoint and the version predict the same probabilities, which sum to 1.
    let lines = predicted_lines(&[&run, &rows]);
    let mut probabilities: Vec<f32> = Vec::new();
    for line in &lines {
        let of = |class: &str| line["probabilities"][class].as_f64().expect("a probability");
        assert!((of("1") + of("0") - 1.0).abs() < 1e-6, "{line}");
        assert_eq!(line["class"], if of("1") >= of("0") { "1" } else { "0" });
        probabilities.extend([of("1") as f32, of("0") as f32]);
    }
    let registry = place.text(REGISTRY);
    let version = ["--registry", &registry, "--model", MODEL, &rows];
    assert_eq!(predicted_lines(&version), lines);
    assert!(predicted(&[&run, &rows]).starts_with("label=1\tlabel=0\n"));

    // The server answers with one row of probabilities for each row.
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    let all = instances(&csv(7, ROWS));
    let asked = &all[..500];
    let infer = format!("/v2/models/{MODEL}/infer");
    let reply = server.post(&infer, infer_body(asked, &["probabilities"]).as_bytes());
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.json()["outputs"][0]["shape"], json!([500, 2]));
    assert_eq!(bits(&output(&reply, "probabilities")), bits(&probabilities[..1000]));
    let body = json!({ "instances": asked }).to_string();
    let ask = |server: &mut Server, verb: &str, body: &str| {
        server.post(&format!("/v1/models/{MODEL}:{verb}"), body.as_bytes())
    };
    let reply = ask(&mut server, "predict", &body).json();
    let rows = reply["predictions"].as_array().expect("rows");
    assert_eq!((rows.len(), rows[3].as_array().map(Vec::len)), (500, Some(2)));
    let examples = json!({ "examples": &asked[..2] }).to_string();
    let reply = ask(&mut server, "classify", &examples).json();
    assert_eq!(reply["results"][0][0][0], "1", "{reply}");
    let reply = ask(&mut server, "regress", &examples);
    assert_eq!(reply.status, 400, "{reply:?}");

    // The exported model has the probabilities of all classes, and a column for each.
    let exported = ExportedNames::of(&place);
    assert!(exported.has("probabilities") && exported.has("logits/label=0"));
}
