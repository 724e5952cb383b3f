//! Tests of the notes about the files of a run.

use super::tests::Place;
use super::*;
use crate::checkpoint::TrainingFile;
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

#[test]
fn a_resumed_run_says_what_it_does_not_do() {
    let place = Place::new();
    let epochs = |n: u64| place.job("run", &format!("{LR}epochs = {n}\n"));
    let (_, steps) = train_noted(epochs(2), false).unwrap();
    let (notes, again) = train_noted(epochs(2), true).unwrap();
    assert_eq!((again, notes.count("trains nothing"), notes.count("not those of")), (steps, 0, 0));
    let (notes, fewer) = train_noted(epochs(1), true).unwrap();
    assert_eq!((fewer, notes.count("`train.epochs = 1` trains nothing")), (steps, 1));

    let mut other = epochs(2);
    other.data.train.0 = vec!["valid.csv".to_owned()];
    let (notes, _) = train_noted(other, true).unwrap();
    assert_eq!(notes.count("none of their rows are trained on; set `train.epochs`"), 1);

    // Other labels in a file of the same size.
    let path = place.path("train.csv");
    let text = std::fs::read_to_string(&path).unwrap();
    let flipped = text.replace(",1\n", ",x\n").replace(",0\n", ",1\n").replace(",x\n", ",0\n");
    assert!(flipped.len() == text.len() && flipped != text);
    std::fs::write(&path, flipped).unwrap();
    let (notes, more) = train_noted(epochs(3), true).unwrap();
    assert_eq!((more, notes.count("so the next epochs train on other rows")), (steps / 2 * 3, 1));
}

#[test]
fn changed_contents_are_refused_inside_an_epoch() {
    let place = Place::new();
    let (_, _) = train_noted(place.job("run", LR), false).unwrap();
    let mut checkpoint = place.newest("run");
    let file = |sample: Option<&str>| {
        let sample = sample.map(str::to_owned);
        vec![TrainingFile { name: "train.csv".to_owned(), bytes: 7, sample }]
    };
    checkpoint.manifest.cursor.row = 64;
    checkpoint.manifest.files = file(Some("aa"));
    let error = checkpoint.check_files(&file(Some("bb"))).unwrap_err().to_string();
    assert!(error.contains("(digest aa) then and is train.csv of 7 bytes (digest bb)"), "{error}");
    checkpoint.check_files(&file(Some("aa"))).unwrap();
    // Checkpoints of earlier versions have no digests.
    checkpoint.manifest.files = file(None);
    checkpoint.check_files(&file(Some("bb"))).unwrap();
    assert!(checkpoint.check_files(&[]).is_err());
}
