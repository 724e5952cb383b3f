//! Tests of the notes about the files of a run.

use super::tests::Place;
use super::*;
use crate::observer::Observer;

/// An observer that keeps the notes of a run.
#[derive(Default)]
struct Notes(Vec<String>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
}

impl Notes {
    /// Returns the number of notes with a text.
    fn count(&self, text: &str) -> usize {
        self.0.iter().filter(|note| note.contains(text)).count()
    }
}

/// Trains a job, and returns the notes and the steps of the run.
fn train_noted(job: Job, resume: bool) -> Result<(Notes, u64)> {
    let mut notes = Notes::default();
    let options = TrainOptions { resume, ..TrainOptions::new(1).unwrap() };
    let report = train(job, options, &mut notes)?;
    Ok((notes, report.steps))
}

const LR: &str = "[model]\nkind = 'lr'\n[train]\nbatch_size = 64\n";

#[test]
fn a_run_notes_once_that_it_is_judged_by_rows_that_it_learns() {
    let place = Place::new();
    let (notes, _) = train_noted(place.job("apart", LR), false).unwrap();
    assert_eq!(notes.count("also in `data.train`"), 0, "{:?}", notes.0);
    let mut job = place.job("shared", LR);
    job.data.train.0.push("valid.csv".to_owned());
    let (notes, _) = train_noted(job, false).unwrap();
    assert_eq!(notes.count("also in `data.train`"), 1, "{:?}", notes.0);
    assert!(notes.count("valid.csv is also") == 1 && notes.count("`data.test`: ") == 1);
}
