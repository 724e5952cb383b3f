//! The parser of Prometheus' text format and of the metric names in PromQL expressions.

use std::collections::{BTreeMap, BTreeSet};

/// The type and the labels of a metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) kind: String,
    pub(super) labels: BTreeSet<String>,
}

/// A map from the names of metrics to their types and labels.
#[derive(Clone, Debug, Default)]
pub(super) struct Families(pub(super) BTreeMap<String, Family>);

impl Families {
    /// Parses the text that a process returned for `/metrics`.
    pub(super) fn parse(text: &str) -> Self {
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type has a name");
                current = name.to_owned();
                families.entry(current.clone()).or_default().kind = kind.to_owned();
            } else if !line.starts_with('#') && !line.is_empty() {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                assert!(name.starts_with(&current), "a sample outside of its family: {line}");
                let family = families.get_mut(&current).expect("samples come after their type");
                family.labels.extend(labels_of(line).into_iter().filter(|label| label != "le"));
            }
        }
        assert!(!families.is_empty(), "nothing is exposed:\n{text}");
        Self(families)
    }

    /// Parses the tables of the list of metrics. The first three columns of each table are the
    /// name, the type and the labels.
    pub(super) fn documented(text: &str) -> Self {
        let mut families = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let name = cells[0].trim_matches('`').to_owned();
            let labels = cells[2].split(',').map(|label| label.trim().trim_matches('`'));
            let labels = labels.filter(|label| !label.is_empty()).map(str::to_owned).collect();
            assert_eq!(cells.len(), 5, "name, type, labels, unit, meaning: {line}");
            assert!(!cells[4].is_empty(), "no meaning: {line}");
            let family = Family { kind: cells[1].to_owned(), labels };
            assert!(families.insert(name, family).is_none(), "twice: {line}");
        }
        Self(families)
    }

    /// Returns the union of the metrics of two processes.
    pub(super) fn and(&self, other: &Self) -> Self {
        let mut all = self.clone();
        for (name, family) in &other.0 {
            let known = all.0.entry(name.clone()).or_insert_with(|| family.clone());
            assert_eq!(known.kind, family.kind, "{name} is of two types");
            known.labels.extend(family.labels.iter().cloned());
        }
        all
    }
}

/// Returns the names of the labels in a line of the text format.
fn labels_of(line: &str) -> Vec<String> {
    let Some((_, rest)) = line.split_once('{') else { return Vec::new() };
    let mut names = Vec::new();
    let mut rest = rest;
    while let Some((name, after)) = rest.split_once("=\"") {
        names.push(name.trim_start_matches([',', ' ']).to_owned());
        // In these tests, the values of labels contain no quotes.
        let Some((_, after)) = after.split_once('"') else { break };
        rest = after;
        if rest.starts_with('}') {
            break;
        }
    }
    names
}

/// Returns the four names that samples of a metric can have: the name alone, and the name with the
/// suffixes of a histogram.
pub(super) fn series_of(name: &str) -> [String; 4] {
    ["", "_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}"))
}

/// Returns the names of the metrics that an expression mentions: the metrics of Zillion, of Triton,
/// of the process and of recording rules.
pub(super) fn names_in(expression: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_string = false;
    let mut word = String::new();
    for c in expression.chars().chain([' ']) {
        if c == '"' {
            is_string = !is_string;
        }
        if !is_string && (c.is_ascii_alphanumeric() || c == '_' || c == ':') {
            word.push(c);
            continue;
        }
        let is_ours =
            ["zillion_", "zillion:", "nv_", "process_"].iter().any(|p| word.starts_with(p));
        if is_ours {
            names.push(std::mem::take(&mut word));
        }
        word.clear();
    }
    names
}

#[test]
fn names_and_labels_are_parsed() {
    let names = names_in(
        r#"sum by (zilch) (rate(zillion_a_total{b="zillion_c"}[5m])) / zillion:d:e > process_f"#,
    );
    assert_eq!(names, ["zillion_a_total", "zillion:d:e", "process_f"]);
    assert_eq!(labels_of(r#"a_bucket{b="c d",le="0.1"} 7"#), ["b", "le"]);
    assert!(labels_of("a 7").is_empty());
}
