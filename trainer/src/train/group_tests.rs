//! Tests of runs whose loss compares the rows of groups.

use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::Path;

use zillion_feature::random::{combine, mix64};

use super::tests::Place;
use super::*;
use crate::observer::{InspectOptions, InspectedStep, Silent};

const MODEL: &str = "[model]\nkind = 'deepfm'\nhidden = [8]\n[columns]\ngroup = 'request'\n";

fn draw(part: u64, salt: u64, index: u64) -> u64 {
    mix64(combine(combine(part, salt), index))
}

/// Writes requests of 2 to 9 rows. Some requests have few labels of 1 and others many, and inside
/// each request the item decides.
fn write(path: &Path, part: u64, requests: u64) {
    let mut text = "user,item,price,label,request\n".to_owned();
    for request in 0..requests {
        let (user, rows) = (draw(part, 1, request) % 40, 2 + draw(part, 2, request) % 8);
        for row in 0..rows {
            let index = 16 * request + row;
            let item = draw(part, 3, index) % 30;
            let chance = (user % 4) * 15 + (item % 5) * 12;
            let label = u8::from(draw(part, 4, index) % 100 < chance);
            writeln!(text, "{user},{item},0.5,{label},{request}").unwrap();
        }
    }
    std::fs::write(path, text).unwrap();
}

fn place() -> Place {
    let place = Place::new();
    write(&place.path("train.csv"), 0, 600);
    write(&place.path("valid.csv"), 1, 300);
    place
}

fn settings(loss: &str, epochs: u64) -> String {
    format!(
        "{MODEL}[eval]\nndcg_at = [5]\nmrr_at = [10]\n[train]\nbatch_size = 64\n\
         epochs = {epochs}\noptimizer = {{ kind = 'adam', lr = 0.01 }}\n\
         [train.loss.click]\nkind = '{loss}'\n"
    )
}

/// An observer that checks that no group is divided between batches.
#[derive(Default)]
struct Whole {
    rows: std::collections::HashMap<u64, usize>,
    sizes: Vec<usize>,
}

impl Observer for Whole {
    fn inspect_options(&self) -> InspectOptions {
        InspectOptions { steps: true, ..InspectOptions::default() }
    }

    fn inspect(&mut self, stepped: &InspectedStep<'_>) {
        let keys = stepped.batch.group.as_deref().unwrap();
        for group in keys.chunk_by(|a, b| a == b) {
            assert_eq!(self.rows.insert(group[0], group.len()), None, "a group is in two batches");
        }
        assert!(keys.len() <= 64 && stepped.loss.is_finite());
        self.sizes.push(keys.len());
    }
}

#[test]
fn batches_have_whole_groups_and_all_rows() {
    let place = place();
    for loss in ["pairwise", "listwise"] {
        let mut whole = Whole::default();
        let job = place.job(loss, &settings(loss, 1));
        train(job, TrainOptions::new(2).unwrap(), &mut whole).unwrap();
        let text = std::fs::read_to_string(place.path("train.csv")).unwrap();
        let rows = text.lines().count() - 1;
        assert_eq!((whole.rows.len(), whole.sizes.iter().sum::<usize>()), (600, rows));
        assert!(whole.rows.values().all(|rows| (2..10).contains(rows)));
        // A batch is as full as whole groups allow.
        let full = &whole.sizes[..whole.sizes.len() - 1];
        assert!(full.iter().all(|&rows| rows > 64 - 9), "{full:?}");
    }
}

#[test]
fn order_in_groups_is_learned_and_measured() {
    let place = place();
    for loss in ["pairwise", "listwise"] {
        let report = place.run(loss, &settings(loss, 4));
        let test = report.test.unwrap();
        let figure = |name: &str| {
            test.ranking.iter().find(|f| f.name == name).and_then(|f| f.value).unwrap()
        };
        // A random order has a GAUC of 0.5; the best one has more than 0.7.
        assert!(test.gauc.unwrap() > 0.62, "{loss}: {test:?}");
        assert!(figure("ndcg@5") > 0.6 && figure("mrr@10") > 0.5, "{loss}: {test:?}");
    }
}

#[test]
fn runs_over_groups_repeat_and_resume() {
    let place = place();
    for loss in ["pairwise", "listwise"] {
        let output = |name: &str| format!("{loss}-{name}");
        place.run(&output("whole"), &settings(loss, 2));
        let options = TrainOptions::new(3).unwrap();
        train(place.job(&output("three"), &settings(loss, 2)), options, &mut Silent).unwrap();
        assert_eq!(place.files(&output("three")), place.files(&output("whole")));
        place.run(&output("parts"), &settings(loss, 1));
        let options = TrainOptions { resume: true, ..TrainOptions::new(1).unwrap() };
        train(place.job(&output("parts"), &settings(loss, 2)), options, &mut Silent).unwrap();
        assert_eq!(place.files(&output("parts")), place.files(&output("whole")));
    }
}

#[test]
fn groups_that_are_not_whole_are_refused_with_their_key() {
    let place = place();
    let run = |output: &str, batch: u64| {
        let more =
            settings("pairwise", 1).replace("batch_size = 64", &format!("batch_size = {batch}"));
        let job = place.job(output, &more);
        train(job, TrainOptions::new(1).unwrap(), &mut Silent).unwrap_err().to_string()
    };
    let error = run("small", 5);
    assert!(error.contains("more than 5 rows") && error.contains("`train.batch_size`"), "{error}");
    let mut text = std::fs::read_to_string(place.path("train.csv")).unwrap();
    text.push_str("1,2,0.5,1,17\n");
    std::fs::write(place.path("train.csv"), text).unwrap();
    let error = run("twice", 64);
    for part in ["the group `17`", "had ended before it", "`columns.group`"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn what_does_not_fit_losses_of_groups_is_refused_by_its_key() {
    let place = Place::new();
    let pairs = "[train.loss.click]\nkind = 'pairwise'\n";
    let without = MODEL.replace("[columns]\ngroup = 'request'\n", "");
    for (label, more, words) in [
        ("", format!("{without}{pairs}"), "`columns.group`"),
        ("kind = 'number'", format!("{MODEL}{pairs}"), "`pairwise` learns labels of another kind"),
        ("", format!("{MODEL}[train]\ndrop_last = true\n{pairs}"), "`train.drop_last`"),
        ("", format!("{without}[eval]\nmrr_at = [3]"), "eval.mrr_at"),
        ("", format!("{MODEL}[eval]\nmrr_at = [0]"), "eval.mrr_at"),
        (
            "",
            format!("{MODEL}[labels.buy]\ncolumn = 'b'\n{pairs}").replace("deepfm", "esmm"),
            "esmm multiplies probabilities",
        ),
    ] {
        let make = AssertUnwindSafe(|| place.job_with(label, "x", &more));
        let error = std::panic::catch_unwind(make).expect_err(words);
        let error = error.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(error.contains(words), "{label} {more}: {error}");
    }
    let job = place.job("x", &format!("{MODEL}{pairs}"));
    assert_eq!(job.judge().to_string(), "gauc");
}
