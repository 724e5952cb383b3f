//! Tests of versions whose dense model is an ONNX file. The scores are compared where the build has
//! the feature `onnx` and the library is installed; the refusal is tested in every build.

use super::*;
use crate::testing::Example;

/// Returns the part of the example's graph before the dense layers, whose output is the input of
/// the ONNX model of the rest.
fn interface(example: &Example) -> OnnxInterface {
    OnnxInterface::new(&example.lookups(), &example.schema)
}

#[test]
fn the_interface_has_the_names_of_the_features_and_tasks() {
    let example = Example::new();
    let interface = interface(&example);
    assert_eq!(interface.inputs, [("item.vector".to_owned(), 4)]);
    assert_eq!(interface.outputs, ["logits"]);
    let job = r#"{"features": {"item": {"kind": "id"}}, "labels": {"y": {}, "z": {}}}"#;
    let schema = Schema::from_job(&serde_json::from_str(job).unwrap()).unwrap();
    let both = OnnxInterface::new(&example.lookups(), &schema);
    assert_eq!(both.outputs, ["logits", "logits/z"]);
    assert_eq!(onnx_tasks(&schema), ["y", "z"]);
}

#[cfg(not(feature = "onnx"))]
#[test]
fn a_build_without_onnx_says_what_to_do() {
    let example = Example::new();
    let said = OnnxModel::load(b"", interface(&example)).unwrap_err().to_string();
    assert!(said.contains("(its feature `onnx`); build it with this feature"), "{said}");
}

#[cfg(feature = "onnx")]
mod with_library {
    use std::io::Write as _;
    use std::sync::Arc;

    use zillion_feature::{FeatureKey, LookupPlan, PlanScratch, RowBuffer, SharedColumns};
    use zillion_nn::{OnnxColumn, Settings};
    use zillion_rows::{LookupReport, RowSource, TableLayout};

    use super::*;
    use crate::error::Error;
    use crate::scorer::Scorer;

    /// A source in which each key has a row of its own.
    struct KeyRows;

    impl RowSource for KeyRows {
        fn tables(&self) -> &[TableLayout] {
            &[]
        }

        fn lookup(
            &mut self,
            plan: &LookupPlan,
            rows: &mut RowBuffer,
        ) -> zillion_rows::Result<LookupReport> {
            rows.reshape(plan.tables.iter().map(|table| (table.keys.len(), 4)));
            for (table, rows) in plan.tables.iter().zip(&mut rows.tables) {
                for (at, value) in rows.values.iter_mut().enumerate() {
                    let FeatureKey(key) = table.keys[at / 4];
                    *value = (key.wrapping_mul(at as u64 % 4 + 7) % 1009) as f32 / 1009.0 - 0.5;
                }
            }
            Ok(LookupReport { missing: vec![0; plan.tables.len()] })
        }
    }

    /// Returns the example's dense model as an ONNX file, written by the exporter of graphs.
    fn exported(example: &Example) -> Vec<u8> {
        let column = OnnxColumn { list: false, segments: vec![("vector".to_owned(), 0, 4)] };
        example.graph.to_onnx(&example.params, &[column], &Default::default()).unwrap().bytes
    }

    /// Returns the model, or `None` after a line that says that the library is missing.
    fn load(example: &Example) -> Option<OnnxModel> {
        match OnnxModel::load(&exported(example), interface(example)) {
            Ok(model) => Some(model),
            Err(error) if error.to_string().contains("ORT_DYLIB_PATH") => {
                let listed = include_str!("../../../tests/allowed_skips.txt");
                assert!(listed.contains("\nonnx_runtime  "), "the skip is not on the list");
                // The test harness hides the output of `eprintln!` if a test passes.
                writeln!(std::io::stderr(), "SKIPPED onnx_runtime: {error}").unwrap();
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn an_onnx_model_scores_as_the_graph_from_which_it_was_written() {
        let example = Example::new();
        let Some(model) = load(&example) else { return };
        let mut whole = example.scorer();
        let (graph, settings) = (example.lookups(), Settings::default());
        let mut scorer =
            Scorer::with_outputs(&graph, &["item.vector"], settings, example.workers.clone())
                .unwrap();
        let model = Arc::new(model);
        scorer.set_onnx(Some(model.clone()));
        let empty = example.no_params();
        // The largest batch is computed in several parts.
        for rows in [1, 7, 2500] {
            let batch = example.batch(rows);
            let plan = LookupPlan::build(&batch, &example.schema, &mut PlanScratch::default());
            let expected = whole.score(&batch, &plan, &mut KeyRows, &example.params).unwrap();
            let found = scorer.score(&batch, &plan, &mut KeyRows, &empty).unwrap();
            assert_eq!((found.outputs.len(), found.outputs[0].len()), (1, rows));
            for (found, expected) in found.outputs[0].iter().zip(expected.outputs[0]) {
                assert!((found - expected).abs() < 1e-6, "{found} {expected}");
            }
            let each = scorer.score_each(&[(batch, plan)], &mut KeyRows, &empty).unwrap();
            assert_eq!((each.len(), each[0].len()), (1, rows));
        }
        // One id for all rows.
        let shared = zillion_feature::Batch {
            rows: 5,
            shared: SharedColumns::new([0], []),
            ..example.batch(1)
        };
        let plan = LookupPlan::build(&shared, &example.schema, &mut PlanScratch::default());
        let found = scorer.score(&shared, &plan, &mut KeyRows, &empty).unwrap();
        let first = found.outputs[0][0];
        assert!(found.outputs[0].len() == 5 && found.outputs[0].iter().all(|x| *x == first));
        let late = || true;
        let stopped = scorer.score_unless(&shared, &plan, &mut KeyRows, &empty, Some(&late));
        assert!(matches!(stopped, Err(Error::Late)));
        // Wherever a batch becomes late, the session is kept for the next batch.
        let batch = example.batch(2500);
        let plan = LookupPlan::build(&batch, &example.schema, &mut PlanScratch::default());
        for last in 0..8 {
            let looks = std::sync::atomic::AtomicU32::new(0);
            let late = || looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= last;
            let scored = scorer.score_unless(&batch, &plan, &mut KeyRows, &empty, Some(&late));
            assert!(matches!(scored, Ok(_) | Err(Error::Late)));
            assert_eq!(model.idle_sessions(), 1);
        }
    }

    #[test]
    fn another_interface_is_refused_when_the_model_is_loaded() {
        let example = Example::new();
        if load(&example).is_none() {
            return;
        }
        let refusal = |change: &dyn Fn(&mut OnnxInterface)| {
            let mut wanted = interface(&example);
            change(&mut wanted);
            OnnxModel::load(&exported(&example), wanted).unwrap_err().to_string()
        };
        let said = refusal(&|wanted| wanted.inputs[0].1 = 5);
        assert!(said.contains("no input `item.vector` of floats [rows, 5]"), "{said}");
        let said = refusal(&|wanted| wanted.inputs.clear());
        assert!(said.contains("nothing fills the input `item.vector`"), "{said}");
        let said = refusal(&|wanted| wanted.outputs.push("logits/z".to_owned()));
        assert!(said.contains("no output `logits/z` with one float for each row"), "{said}");
        let said = OnnxModel::load(b"nothing", interface(&example)).unwrap_err().to_string();
        assert!(said.contains("not an ONNX model"), "{said}");
    }
}
