//! Checkpoints: what they hold, what a restored joiner does, and files that are not as written.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use zillion_device::durable::{Action, Op};
use zillion_device::{Failpoints, Files};

use super::*;

/// Returns inputs of all kinds that fill several segments.
pub(super) fn mixed_inputs(count: u32) -> Vec<Input> {
    let input = |number: u32| {
        let time = 1_000 + i64::from(number) * 3 - i64::from(number % 5) * 7;
        let key = |number: u32| format!("key {number}").into_bytes();
        let partition = number % 2;
        match number % 11 {
            3 | 7 => Input::Feedback {
                partition,
                key: key(number - 3),
                time: Some(time),
                kind: (number % 3) as u16,
                value: number as f32,
            },
            // This feedback comes before its impression.
            5 => Input::Feedback {
                partition,
                key: key(number + 8),
                time: Some(time),
                kind: 1,
                value: number as f32,
            },
            9 => Input::Idle(1),
            10 => Input::Back(1),
            _ => {
                let row = vec![number as u8; 600 + number as usize % 500];
                Input::Impression {
                    partition,
                    key: key(number),
                    time: Some(time),
                    row,
                    weight: 1.5,
                }
            }
        }
    };
    (0..count).map(input).chain([Input::End]).collect()
}

fn read_all(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    entries.map(|path| (name(&path), fs::read(&path).unwrap())).collect()
}

#[test]
fn restore_at_any_input_equals_going_on() {
    for emit in [Emit::Window, Emit::Now(Late::Correct)] {
        let inputs = mixed_inputs(150);
        let mut workplace = Workplace::new(settings(emit), 2);
        let mut checkpoints = Vec::new();
        let mut rows = Vec::new();
        for input in &inputs {
            checkpoints.push((workplace.checkpoint(), rows.len()));
            rows.extend(workplace.push(input).1);
        }
        let counters = workplace.counters();
        assert!(counters.positives > 20 && counters.joined_feedback > 20, "{counters:?}");
        // A restored joiner writes checkpoints at other inputs than the first one.
        for (at, (checkpoint, before)) in checkpoints.iter().enumerate().step_by(7) {
            let contents = read_all(checkpoint);
            workplace.restore(checkpoint);
            let mut after = Vec::new();
            for (number, input) in inputs[at..].iter().enumerate() {
                after.extend(workplace.push(input).1);
                if number % 40 == 13 {
                    workplace.checkpoint();
                }
            }
            assert_eq!(after, rows[*before..], "restored before input {at}");
            assert_eq!(workplace.counters(), counters);
            assert_eq!(read_all(checkpoint), contents, "a checkpoint never changes");
        }
    }
}

#[test]
fn two_joiners_write_the_same_checkpoint() {
    let inputs = mixed_inputs(150);
    let [one, other] = [0, 1].map(|_| {
        let mut workplace = Workplace::new(settings(Emit::Window), 2);
        workplace.push_all(&inputs[..140]);
        let checkpoint = workplace.checkpoint();
        read_all(&checkpoint)
    });
    assert!(one.len() >= 4, "{:?}", one.keys());
    assert_eq!(one, other);
}

#[test]
fn damaged_checkpoints_are_refused_by_name() {
    let mut workplace = Workplace::new(settings(Emit::Window), 2);
    workplace.push_all(&mixed_inputs(150)[..130]);
    let checkpoint = workplace.checkpoint();
    let names: Vec<String> = read_all(&checkpoint).into_keys().collect();
    assert!(names.contains(&"MANIFEST".into()) && names.contains(&"feedback".into()), "{names:?}");
    let attempt = |file: &str, what: &str| {
        let rows = workplace.folder.path().join("other");
        let restored = Joiner::restore(&checkpoint, rows, Files::new(), workplace.settings);
        let error = restored.expect_err(&format!("{file}: {what}")).to_string();
        assert!(error.contains(file), "{file}, {what}: {error}");
        assert!(
            error.contains("; restore the joiner from") || error.contains("; check"),
            "{error}"
        );
    };
    for name in &names {
        let path = checkpoint.join(name);
        let whole = fs::read(&path).unwrap();
        // The file may be linked, so it is replaced and not changed.
        let replace = |bytes: &[u8]| {
            fs::remove_file(&path).unwrap();
            fs::write(&path, bytes).unwrap();
        };
        for length in [0, 1, whole.len() / 2, whole.len() - 1] {
            replace(&whole[..length]);
            attempt(name, "cut off");
        }
        for at in (0..whole.len()).step_by((whole.len() / 50).max(1)).chain([whole.len() - 1]) {
            let mut altered = whole.clone();
            altered[at] ^= 1 << (at % 8);
            replace(&altered);
            attempt(name, "altered");
        }
        replace(&[&whole[..], b"more"].concat());
        attempt(name, "longer");
        fs::remove_file(&path).unwrap();
        attempt(name, "missing");
        fs::write(&path, whole).unwrap();
    }
    let rows = workplace.folder.path().join("other");
    Joiner::restore(&checkpoint, rows, Files::new(), workplace.settings).unwrap();
}

#[test]
fn an_altered_segment_is_found_when_it_is_read() {
    let mut workplace = Workplace::new(settings(Emit::Window), 2);
    workplace.push_all(&mixed_inputs(60)[..60]);
    let checkpoint = workplace.checkpoint();
    fs::remove_dir_all(checkpoint).unwrap();
    let segment = workplace.joiner.pending.segments()[0].path.clone();
    let mut bytes = fs::read(&segment).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&segment, bytes).unwrap();
    put(&mut workplace.joiner, &Input::End).unwrap();
    let error = drain(&mut workplace.joiner, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains(segment.to_str().unwrap()) && error.contains("is altered"), "{error}");
    let error = workplace.joiner.next_row().unwrap_err().to_string();
    assert_eq!(error, "the joiner has stopped after an error; restore it from its last checkpoint");
}

#[test]
fn a_segment_is_adopted_once() {
    let mut workplace = Workplace::new(settings(Emit::Window), 2);
    workplace.push_all(&mixed_inputs(60)[..60]);
    workplace.checkpoint();
    let segment = workplace.joiner.pending.segments()[0];
    let (file, cursor) = (segment.file.clone(), segment.cursor);
    let error = workplace.joiner.pending.adopt(file, cursor).unwrap_err().to_string();
    assert!(error.contains("has a row that is pending already"), "{error}");
}

#[test]
fn a_checkpoint_between_two_rows_goes_on_between_them() {
    let mut workplace = Workplace::new(settings(Emit::Window), 1);
    let inputs: Vec<Input> = (0..8).map(|n| impression(&n.to_string(), 1_000 + n)).collect();
    assert_eq!(workplace.push_all(&inputs), []);
    put(&mut workplace.joiner, &Input::End).unwrap();
    let first: Row = workplace.joiner.next_row().unwrap().unwrap().into();
    assert_eq!(first.reason, Reason::End);
    let checkpoint = workplace.checkpoint();
    workplace.restore(&checkpoint);
    let refused = put(&mut workplace.joiner, &impression("9", 1_009));
    assert!(matches!(refused, Err(JoinError::Undrained("the next input"))));
    let mut rows = vec![first];
    drain(&mut workplace.joiner, &mut rows).unwrap();
    let times: Vec<i64> = rows.iter().map(|row| row.time).collect();
    assert_eq!(times, (1_000..1_008).collect::<Vec<_>>());
    // The end applies to the rows before it only.
    assert_eq!(workplace.push(&impression("9", 1_009)), (Some(Outcome::Taken), vec![]));
}

#[test]
fn settings_that_give_rows_another_meaning_are_refused() {
    let mut workplace = Workplace::new(settings(Emit::Window), 2);
    workplace.push_all(&mixed_inputs(60)[..60]);
    let checkpoint = workplace.checkpoint();
    let rows = workplace.folder.path().join("rows");
    let refuse = |change: fn(&mut Settings), text: &str| {
        let mut settings = settings(Emit::Window);
        change(&mut settings);
        let restored = Joiner::restore(&checkpoint, &rows, Files::new(), settings);
        let error = restored.unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    };
    refuse(|s| s.emit = Emit::Now(Late::Drop), "`join.emit` is Now(Drop), but the checkpoint");
    refuse(|s| s.negatives.keep = 0.5, "`join.keep_negatives` is 0.5, but the checkpoint");
    refuse(
        |s| s.negatives.correction = SamplingCorrection::LogOdds,
        "`join.correction` is LogOdds, but the checkpoint",
    );
    // Bounds, the window and the rules of times may change.
    workplace.settings.wait = 50;
    workplace.settings.bounds.max_rows = 3;
    workplace.restore(&checkpoint);
    let (_, rows) = workplace.push(&Input::Back(1));
    assert!(rows.iter().any(|row| row.reason == Reason::Bound), "{rows:?}");
}

#[test]
fn a_smaller_disorder_makes_rows_due_at_the_restore() {
    let mut settings = settings(Emit::Window);
    settings.times.disorder = 100;
    let mut workplace = Workplace::new(settings, 1);
    workplace.push_all(&[impression("a", 1_000), feedback("b", 1_000, 1), impression("c", 1_150)]);
    let checkpoint = workplace.checkpoint();
    workplace.settings.times.disorder = 10;
    workplace.restore(&checkpoint);
    let refused = put(&mut workplace.joiner, &impression("d", 1_150));
    assert!(matches!(refused, Err(JoinError::Undrained("the next input"))));
    let mut rows = Vec::new();
    drain(&mut workplace.joiner, &mut rows).unwrap();
    assert_eq!((rows.len(), rows[0].time, rows[0].reason), (1, 1_000, Reason::Window));
    assert_eq!(workplace.counters().unmatched_feedback, 1);
    // The watermark goes on with the next events, so that the next row leaves too.
    let (_, rows) = workplace.push(&impression("d", 1_300));
    assert_eq!((rows.len(), rows[0].time, rows[0].reason), (1, 1_150, Reason::Window));
    workplace.settings.times.disorder = 500;
    let checkpoint = workplace.checkpoint();
    workplace.restore(&checkpoint);
    assert_eq!(workplace.joiner.watermarks().watermark(), Some(EventTime(1_290)));
    assert_eq!(workplace.push(&impression("e", 1_790)).1, []);
    assert_eq!(workplace.push(&impression("f", 1_950)).1[0].time, 1_300);
}

#[test]
fn leftovers_in_the_folder_are_removed() {
    let mut workplace = Workplace::new(settings(Emit::Window), 2);
    workplace.push_all(&mixed_inputs(150)[..60]);
    let checkpoint = workplace.checkpoint();
    // The joiner goes on and writes more segments. Then the process ends without a checkpoint.
    workplace.push_all(&mixed_inputs(150)[60..140]);
    let rows = workplace.folder.path().join("rows");
    fs::write(rows.join(".rows-000000000099.segment.tmp"), b"half").unwrap();
    workplace.restore(&checkpoint);
    let names = |folder: &Path| read_all(folder).into_keys().collect::<Vec<_>>();
    let mut expected = names(&checkpoint);
    expected.retain(|name| name.ends_with(".segment"));
    assert_eq!(names(&rows), expected);
}

/// A file system without links: the first creation of each segment in a checkpoint fails.
#[derive(Debug, Default)]
struct NoLinks(Mutex<Vec<PathBuf>>);

impl Failpoints for NoLinks {
    fn before(&self, op: Op, path: &Path) -> Action {
        let mut refused = self.0.lock().unwrap();
        let is_segment = path.extension().is_some_and(|ending| ending == "segment");
        if op == Op::Create && is_segment && !refused.contains(&path.to_path_buf()) {
            refused.push(path.to_path_buf());
            return Action::Fail(io::Error::from(io::ErrorKind::CrossesDevices));
        }
        Action::Proceed
    }
}

#[test]
fn segments_are_copied_where_links_are_impossible() {
    let inputs = mixed_inputs(100);
    let hook = Arc::new(NoLinks::default());
    let files = Files::with_failpoints(hook.clone());
    let folder = tempfile::tempdir().unwrap();
    let (rows, target) = (folder.path().join("rows"), folder.path().join("checkpoint"));
    let mut joiner = create(&rows, files.clone(), settings(Emit::Window), 2).unwrap();
    let mut emitted = Vec::new();
    for input in &inputs[..60] {
        put(&mut joiner, input).unwrap();
        drain(&mut joiner, &mut emitted).unwrap();
    }
    joiner.checkpoint(&target).unwrap();
    let copied = hook.0.lock().unwrap().len();
    assert!(copied > 0);
    drop(joiner);
    let mut joiner = Joiner::restore(&target, &rows, files, settings(Emit::Window)).unwrap();
    for input in &inputs[60..] {
        put(&mut joiner, input).unwrap();
        drain(&mut joiner, &mut emitted).unwrap();
    }
    let mut other = Workplace::new(settings(Emit::Window), 2);
    assert_eq!(emitted, other.push_all(&inputs));
    assert_eq!(hook.0.lock().unwrap().len(), 2 * copied, "copied out and back");
}
