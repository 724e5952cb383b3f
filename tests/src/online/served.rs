//! The AUC of the versions that a pointer named, on rows that no run has seen.

use std::fmt::Write as _;

use serde_json::Value;

use super::place::{Place, is_click, mix};

/// The number of rows on which versions are compared.
const ROWS: u64 = 40_000;
/// The number of the first such row, which is far from those of every stream.
const FIRST: u64 = 1 << 40;

/// A version and its AUC on the rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) version: u64,
    pub(super) auc: f64,
}

/// Returns the versions that the pointer `stable` named, in the order of its moves: those whose
/// newest event is behind `from_ms`, and the last one before them.
pub(super) fn served_versions(place: &Place, from_ms: u64) -> Vec<Served> {
    let versions = named_versions(place);
    let timed: Vec<(u64, u64)> =
        versions.iter().map(|&version| (version, newest_event(place, version))).collect();
    let begin = timed.iter().position(|&(_, time)| time > from_ms).unwrap_or(timed.len() - 1);
    let mut file = String::from("user,item\n");
    let mut labels = Vec::new();
    for number in FIRST..FIRST + ROWS {
        let (user, item) = (mix(number) % 300, mix(number ^ 77) % 100);
        writeln!(file, "{user},{item}").expect("a string grows");
        labels.push(is_click(user, item, number));
    }
    std::fs::write(place.path("fresh.csv"), file).expect("a file");
    let score = |&(version, _): &(u64, u64)| {
        let auc = auc(&predict(place, version), &labels);
        Served { version, auc }
    };
    timed[begin.saturating_sub(1)..].iter().map(score).collect()
}

/// Returns the versions that the pointer `stable` named, in the order of its moves.
pub(super) fn named_versions(place: &Place) -> Vec<u64> {
    let log = ["model", "log", "--model", "live", "--registry", "registry", "--json"];
    let moves = place.ok(&[&log[..], &["--limit", "100000"]].concat());
    let moves = crate::harness::last_json(&moves);
    let moves = moves.as_array().expect("a list of moves").iter().rev();
    moves.map(|entry| entry["to"]["version"].as_u64().expect("a version")).collect()
}

/// Returns the time of the newest event of a version.
pub(super) fn newest_event(place: &Place, version: u64) -> u64 {
    let version = version.to_string();
    let show = ["model", "show", &version, "--model", "live", "--registry", "registry", "--json"];
    let shown: Value = crate::harness::last_json(&place.ok(&show));
    let origin = shown.pointer("/manifest/origin").or_else(|| shown.pointer("/origin"));
    origin.and_then(|origin| origin["newest_event_ms"].as_u64()).expect("a newest event")
}

fn predict(place: &Place, version: u64) -> Vec<f64> {
    let version = version.to_string();
    let model = ["predict", "--model", "live", "--registry", "registry", "--version", &version];
    let scores = place.ok(&[&model[..], &["fresh.csv"]].concat());
    scores.lines().filter_map(|line| line.split(',').next()?.parse().ok()).collect()
}

/// Returns the share of pairs of a positive and a negative row in which the positive one has the
/// higher score; a tie counts one half.
pub(crate) fn auc(scores: &[f64], labels: &[bool]) -> f64 {
    assert_eq!(scores.len(), labels.len());
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]));
    let (mut wins, mut below, mut at) = (0.0, 0.0, 0);
    while at < order.len() {
        let same = |index: &&usize| scores[**index] == scores[order[at]];
        let tied: Vec<usize> = order[at..].iter().take_while(same).copied().collect();
        let positives = tied.iter().filter(|&&row| labels[row]).count() as f64;
        let negatives = tied.len() as f64 - positives;
        wins += positives * (below + negatives / 2.0);
        below += negatives;
        at += tied.len();
    }
    wins / (below * (labels.len() as f64 - below))
}

#[test]
fn an_auc_counts_pairs() {
    let labels = [true, false, true, false];
    assert_eq!(auc(&[0.9, 0.1, 0.8, 0.2], &labels), 1.0);
    assert_eq!(auc(&[0.5, 0.5, 0.5, 0.5], &labels), 0.5);
    assert_eq!(auc(&[0.9, 0.8, 0.1, 0.2], &labels), 0.5);
}
