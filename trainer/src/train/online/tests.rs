//! Tests of a run that meets the folder of another one.

use zillion_device::Files;
use zillion_stream::LogLock;

use super::*;
use crate::observer::Silent;

#[test]
fn a_second_start_changes_nothing_in_the_folder_of_a_live_run() {
    let place = tempfile::tempdir().unwrap();
    let text = format!(
        "[features.user]\nkind = 'id'\n[labels.click]\n[columns]\nevent_time = 'time'\n\
         event_time_unit = 'ms'\n[model]\nkind = 'lr'\n[run]\noutput = '{0}/run'\n\
         [validation]\nwindows = [1]\n[[stream]]\nname = 'events'\npath = '{0}/events'\n",
        place.path().display()
    );
    std::fs::create_dir(place.path().join("events")).unwrap();
    let start = || {
        let job = Job::from_value(toml::from_str(&text).unwrap()).unwrap();
        let options =
            TrainOptions { files: Files::new().scratch(), ..TrainOptions::new(1).unwrap() };
        options.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        train_online(job, options, &mut Silent)
    };
    let run = place.path().join("run");
    let lock = LogLock::take(&Files::new().scratch(), run.join("stream/log")).unwrap();
    // The live run writes a checkpoint, its history of windows, and the parts of a merge.
    let files = [
        "checkpoints/.step-000000000027.tmp/tables/user/part-00000",
        "stream/validation.jsonl",
        "compaction/layer/part-00000",
    ];
    for file in files {
        std::fs::create_dir_all(run.join(file).parent().unwrap()).unwrap();
        std::fs::write(run.join(file), "of the live run\n").unwrap();
    }
    let error = start().unwrap_err().to_string();
    assert!(error.contains("another process writes to the log"), "{error}");
    for file in files {
        assert_eq!(std::fs::read_to_string(run.join(file)).unwrap(), "of the live run\n", "{file}");
    }
    // After the end of the live run, a start removes what that run has left.
    drop(lock);
    start().unwrap();
    assert!(!run.join("checkpoints/.step-000000000027.tmp").exists());
}
