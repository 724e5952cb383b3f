//! Tests of the record of a run.

use super::*;

fn record(epochs: &[(u64, u64, bool)]) -> RunRecord {
    let epoch = |&(epoch, step, is_best): &(u64, u64, bool)| EpochRecord {
        epoch,
        step,
        rows: 100,
        loss: Some(0.5),
        regulariser: Some(0.0),
        valid: Some(serde_json::json!({ "auc": 0.7 })),
        rate_scale: 1.0,
        seconds: 1.0,
        is_best,
    };
    RunRecord {
        format: FORMAT,
        name: "clicks".to_owned(),
        settings: serde_json::json!({ "train": { "epochs": 3 } }),
        losses: LossCurve::default(),
        epochs: epochs.iter().map(epoch).collect(),
        best_epoch: epochs.iter().rev().find(|epoch| epoch.2).map(|epoch| epoch.0),
        report: None,
    }
}

#[test]
fn a_repeated_epoch_replaces_the_first_one() {
    let record = record(&[(1, 10, true), (2, 20, false), (3, 30, true)]);
    let mut recorder = Recorder { path: PathBuf::from("unused"), record };
    recorder.rewind(20, 2);
    assert_eq!(recorder.epochs().len(), 2);
    assert_eq!(recorder.record.best_epoch, Some(1));
    recorder.rewind(0, 0);
    assert!(recorder.epochs().is_empty() && recorder.record.best_epoch.is_none());
}

#[test]
fn a_record_is_read_back_and_damage_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(RECORD_FILE);
    assert_eq!(RunRecord::read(folder.path()).expect("no file"), None);
    let written = record(&[(1, 10, true)]);
    let recorder = Recorder { path: path.clone(), record: written.clone() };
    recorder.save(&Files::new()).expect("it is written");
    assert_eq!(RunRecord::read(folder.path()).expect("it is read"), Some(written));
    let text = std::fs::read_to_string(&path).expect("a file");
    for (damaged, expected) in [
        (text.replace("\"format\":1", "\"format\":9"), "the format 9"),
        (text.replace("\"format\":1", "\"format\":\"x\""), "no number"),
        (text[..text.len() / 2].to_owned(), "not JSON"),
        (text.replace("\"epochs\":[", "\"epochs\":[7,"), "not a record"),
        (text.replace("\"name\"", "\"nick\""), "not a record"),
    ] {
        std::fs::write(&path, damaged).expect("it is written");
        let error = RunRecord::read(folder.path()).expect_err("it is damaged").to_string();
        assert!(error.contains(expected) && error.contains("train the run again"), "{error}");
    }
}

#[test]
fn random_damage_never_panics() {
    let bytes = serde_json::to_vec(&record(&[(1, 10, true), (2, 20, true)])).expect("JSON");
    let mut word = 7u64;
    for _ in 0..2_000 {
        let mut damaged = bytes.clone();
        for _ in 0..3 {
            word = zillion_feature::random::mix64(word);
            let at = (word % damaged.len() as u64) as usize;
            damaged[at] = (word >> 40) as u8;
        }
        let _ = RunRecord::parse(Path::new(RECORD_FILE), &damaged);
    }
}
