//! Test of the language of comments. The file `tests/language.toml` records the number of faults of
//! each crate. This number may only become smaller.
//!
//! A fault is a doc comment with at most three words, a doc comment that begins with a question
//! word or a pronoun, or a comment line that is too wide. `docs/STYLE.md` has the rules that a
//! program cannot check.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::source::{Source, all_sources};
use crate::harness::root;

/// The words with which a doc comment must not begin.
const OPENINGS: [&str; 14] = [
    "What", "Who", "Whose", "Whoever", "Where", "Of", "How", "That", "It", "He", "They", "So",
    "Nobody", "Somebody",
];

/// The maximum number of words of a doc comment that counts as too short.
const SHORT_DOC: usize = 3;

/// The largest width of a comment line, in characters.
const WIDEST_COMMENT: usize = 100;

/// The file with the recorded numbers of faults.
const RECORD: &str = "tests/language.toml";

/// The places in a crate at which a rule is broken.
#[derive(Default)]
struct Faults {
    short_docs: Vec<String>,
    openings: Vec<String>,
    wide_comments: Vec<String>,
}

impl Faults {
    fn counts(&self) -> BTreeMap<&'static str, usize> {
        BTreeMap::from([
            ("short_docs", self.short_docs.len()),
            ("openings", self.openings.len()),
            ("wide_comments", self.wide_comments.len()),
        ])
    }

    fn places(&self, rule: &str) -> &[String] {
        match rule {
            "short_docs" => &self.short_docs,
            "openings" => &self.openings,
            _ => &self.wide_comments,
        }
    }
}

/// Compares the faults with the recorded numbers.
/// `TIDY_LOWER=1 cargo test -p zillion-tests --release tidy` lowers these numbers; no command
/// raises them.
#[test]
fn counts_of_poor_language_only_fall() {
    let mut faults: BTreeMap<String, Faults> = BTreeMap::new();
    for source in all_sources() {
        faults.entry(source.crate_folder().to_owned()).or_default().read(&source);
    }
    let text = std::fs::read_to_string(root().join(RECORD)).expect("the record can be read");
    let record: BTreeMap<String, BTreeMap<String, usize>> =
        toml::from_str(&text).expect("the record is TOML");
    let lowers = std::env::var_os("TIDY_LOWER").is_some();
    let mut complaints = String::new();
    let mut lowered = String::new();
    for (folder, faults) in &faults {
        let mut kept = Vec::new();
        for (rule, count) in faults.counts() {
            let allowed =
                record.get(folder).and_then(|counts| counts.get(rule)).copied().unwrap_or(0);
            if count > allowed {
                let places = faults.places(rule).join("\n    ");
                let _ = writeln!(
                    complaints,
                    "{folder}: {count} {rule}, allowed are {allowed}:\n    {places}"
                );
            } else if count < allowed && !lowers {
                let _ = writeln!(
                    complaints,
                    "{folder}: {rule} fell from {allowed} to {count}: lower {RECORD}"
                );
            }
            kept.push((rule, count.min(allowed)));
        }
        if kept.iter().any(|(_, count)| *count > 0) {
            let _ = writeln!(lowered, "\n[{folder}]");
            for (rule, count) in kept.iter().filter(|(_, count)| *count > 0) {
                let _ = writeln!(lowered, "{rule} = {count}");
            }
        }
    }
    if lowers {
        let head: String = text
            .lines()
            .take_while(|line| line.starts_with('#'))
            .map(|l| format!("{l}\n"))
            .collect();
        std::fs::write(root().join(RECORD), head + &lowered).expect("the record can be written");
    }
    assert!(complaints.is_empty(), "{complaints}");
}

impl Faults {
    /// Adds the faults of a file.
    fn read(&mut self, source: &Source) {
        let mut docs: Option<Doc> = None;
        for (number, line) in source.text.lines().enumerate() {
            let place = format!("{}:{}", source.path, number + 1);
            let comment = line.trim_start();
            if comment.starts_with("//") && line.chars().count() > WIDEST_COMMENT {
                self.wide_comments.push(place.clone());
            }
            let marker = ["///", "//!"].into_iter().find(|marker| comment.starts_with(marker));
            let marker = marker.filter(|_| !comment.starts_with("////"));
            if docs.as_ref().is_some_and(|doc| Some(doc.marker) != marker) {
                self.close(docs.take());
            }
            if let Some(marker) = marker {
                let doc = docs.get_or_insert_with(|| Doc { marker, place, words: Vec::new() });
                doc.words.extend(comment[marker.len()..].split_whitespace().map(str::to_owned));
            }
        }
        self.close(docs);
    }

    fn close(&mut self, doc: Option<Doc>) {
        let Some(doc) = doc else { return };
        let opening = doc.words.first().map(|word| word.trim_matches(|c: char| !c.is_alphabetic()));
        if opening.is_some_and(|word| OPENINGS.contains(&word)) {
            self.openings.push(format!("{}: {}", doc.place, doc.words.join(" ")));
        }
        if doc.words.len() <= SHORT_DOC {
            self.short_docs.push(format!("{}: {}", doc.place, doc.words.join(" ")));
        }
    }
}

/// A doc comment: adjacent lines with the same marker.
struct Doc {
    marker: &'static str,
    place: String,
    words: Vec<String>,
}
