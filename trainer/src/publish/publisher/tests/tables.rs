//! Tests of versions of tables that are trained outside of a run.

use super::super::super::tables::{DenseModel, ExpectedScores, TablesPublisher, fill_params};
use super::*;

#[test]
fn another_schema_begins_a_base() {
    let mut run = Run::new(true, "");
    run.publish().unwrap();
    assert!(continues(&run.publish().unwrap(), 1));
    run.job.schema.labels[0].weight = 2.0;
    run.publisher = open(&run.job, run.folder.path(), &run.clock, &Files::new(), false);
    assert!(run.publish().unwrap().version.is_base());
    assert!(continues(&run.publish().unwrap(), 3));
}

#[test]
fn tables_are_published_if_the_scores_are_right() {
    let mut run = Run::new(true, "");
    let logits = run.publisher.score_parity_rows(&mut run.table, &run.params).unwrap().logits;
    let expect = |scores: &[f32]| {
        let (task, are_probabilities) = ("click".to_owned(), false);
        [ExpectedScores { task, scores: scores.to_vec(), are_probabilities }]
    };
    let config = run.job.publish.clone().unwrap();
    let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
    let (scratch, files) = (run.folder.path().join("scratch"), Files::new());
    let place = (&run.job, &config);
    let open = |has_onnx| {
        let clock = run.clock.clone();
        TablesPublisher::open(place, has_onnx, "t", &scratch, &workers, &files, clock).unwrap()
    };
    let (mut tables, mut of_onnx) = (open(false), open(true));
    let mut publish = |run: &mut Run, step, expected: &[ExpectedScores]| {
        let dense = DenseModel::Graph(&run.params);
        tables.publish(step, &mut run.table, dense, (expected, 1e-5), false)
    };
    // No build takes a file that is no model, and a publisher takes one kind of dense model.
    for (dense, problem) in
        [(DenseModel::Onnx(b""), "ONNX"), (DenseModel::Graph(&run.params), "an ONNX file")]
    {
        let said = of_onnx.publish(1, &mut run.table, dense, (&[], 1e-5), false).unwrap_err();
        assert!(said.to_string().contains(problem), "{said}");
    }
    let mut wrong = expect(&logits[0]);
    wrong[0].scores[2] += 0.1;
    let said = publish(&mut run, 1, &wrong).unwrap_err().to_string();
    assert!(said.contains("`click` for row 3") && said.contains("nothing is published"), "{said}");
    wrong[0].task = "other".to_owned();
    let said = publish(&mut run, 1, &wrong).unwrap_err().to_string();
    assert!(said.contains("`other` has 3 scores for 0 rows"), "{said}");
    assert_eq!(run.model().latest().unwrap(), None);

    let first = publish(&mut run, 1, &expect(&logits[0])).unwrap();
    assert!(first.version.is_base() && first.version.origin.run == "t" && first.moved.is_some());
    run.change(USERS - 1);
    let second = publish(&mut run, 2, &expect(&logits[0])).unwrap();
    assert!(continues(&second, 1));
    assert_eq!((second.version.layer.rows(), second.version.origin.step), (1, 2));
}

#[test]
fn parameters_have_the_names_and_sizes_of_the_graph() {
    let run = Run::new(true, "");
    let mut values: Vec<(String, Vec<f32>)> =
        run.params.iter().map(|(spec, floats)| (spec.name.clone(), floats.to_vec())).collect();
    assert_eq!(fill_params(&run.job, &values).unwrap(), run.params);
    let said =
        |values: &[(String, Vec<f32>)]| fill_params(&run.job, values).unwrap_err().to_string();
    values.push(("more".to_owned(), Vec::new()));
    assert!(said(&values).contains("`more` of the model is not one of the model's graph"));
    values.pop();
    values[0].1.push(1.0);
    let found = said(&values);
    assert!(found.contains("has 21 floats; give 4 × 5"), "{found}");
    values.remove(0);
    assert!(said(&values).contains("has no value; give 4 × 5 floats"));
}
