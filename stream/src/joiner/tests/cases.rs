//! Late, early, duplicated and missing feedback; idle partitions; wrong times; wrong inputs.

use super::*;

fn ids(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| String::from_utf8(row.row.clone()).unwrap()).collect()
}

#[test]
fn feedback_within_the_window_makes_a_positive() {
    let mut joiner = Workplace::new(settings(Emit::Window), 1);
    let rows = joiner.push_all(&[
        impression("a", 1_000),
        impression("b", 1_001),
        feedback("b", 1_101, 4),
        feedback("b", 1_050, 2),
        // The watermark is at 1_101, a millisecond after the window of the first impression.
        impression("c", 1_111),
    ]);
    assert_eq!(ids(&rows), ["row of a"], "the window of the second ends a millisecond later");
    assert_eq!((rows[0].feedback.as_slice(), rows[0].reason), (&[][..], Reason::Window));
    let rows = joiner.push_all(&[impression("d", 1_112)]);
    assert_eq!(ids(&rows), ["row of b"]);
    assert_eq!(rows[0].feedback, [(2, 2.5), (4, 4.5)], "in the order of kinds");
    assert_eq!((rows[0].time, rows[0].weight, rows[0].cancels), (1_001, 1.0, 0.0));
    let counters = joiner.counters();
    assert_eq!((counters.positives, counters.negatives), (1, 1));
    assert_eq!((counters.impressions, counters.joined_feedback), (4, 2));
}

/// An event may be late by exactly the disorder, and feedback counts up to exactly `wait`.
#[test]
fn a_window_includes_its_last_millisecond() {
    let mut joiner = Workplace::new(settings(Emit::Window), 1);
    joiner.push_all(&[impression("a", 1_000), feedback("early", 1_000, 1)]);
    // The watermark is at 1_100, which is the last moment of the windows above.
    assert_eq!(joiner.push(&impression("b", 1_110)), (Some(Outcome::Taken), vec![]));
    assert_eq!(joiner.push(&feedback("a", 1_100, 2)), (Some(Outcome::Taken), vec![]));
    assert_eq!(joiner.push(&feedback("other", 1_000, 1)).0, Some(Outcome::Early));
    assert_eq!(joiner.push(&impression("early", 1_000)).0, Some(Outcome::Taken));
    assert_eq!(joiner.counters().joined_feedback, 2);
    assert_eq!(joiner.counters().unmatched_feedback, 0);
    let (_, rows) = joiner.push(&impression("c", 1_111));
    assert_eq!(ids(&rows), ["row of a", "row of early"]);
    assert_eq!((&rows[0].feedback, &rows[1].feedback), (&vec![(2, 2.5)], &vec![(1, 1.5)]));
    assert_eq!(joiner.counters().unmatched_feedback, 1, "that of `other`");
    assert_eq!(joiner.push(&impression("d", 1_000)).0, Some(Outcome::Late));
    assert_eq!(joiner.push(&feedback("d", 1_000, 1)).0, Some(Outcome::Late));
}

#[test]
fn late_feedback_is_counted_and_dropped() {
    let mut joiner = Workplace::new(settings(Emit::Window), 1);
    let rows = joiner.push_all(&[impression("a", 1_000)]);
    assert_eq!(rows, []);
    // The row is pending, but the feedback is after its window.
    let (outcome, rows) = joiner.push(&feedback("a", 1_105, 0));
    assert_eq!((outcome, rows.len()), (Some(Outcome::Late), 0));
    let rows = joiner.push_all(&[impression("b", 1_200)]);
    assert_eq!((ids(&rows), &rows[0].feedback), (vec!["row of a".to_owned()], &vec![]));
    // The row has left, and the feedback is far behind the watermark.
    let (outcome, _) = joiner.push(&feedback("a", 1_020, 0));
    assert_eq!(outcome, Some(Outcome::Late));
    // The row has left, and the feedback is newer: it waits for an impression that does not come.
    let (outcome, _) = joiner.push(&feedback("a", 1_150, 0));
    assert_eq!(outcome, Some(Outcome::Early));
    joiner.push_all(&[impression("c", 1_300)]);
    let counters = joiner.counters();
    assert_eq!((counters.late_feedback, counters.unmatched_feedback), (2, 1));
    assert_eq!(counters.positives, 0);
    let (outcome, _) = joiner.push(&impression("late", 1_189));
    assert_eq!((outcome, joiner.counters().late_impressions), (Some(Outcome::Late), 1));
}

#[test]
fn early_feedback_waits_for_its_impression() {
    let mut joiner = Workplace::new(settings(Emit::Window), 1);
    let early = [feedback("a", 1_000, 1), feedback("b", 1_000, 1), feedback("c", 1_000, 1)];
    for input in &early {
        assert_eq!(joiner.push(input).0, Some(Outcome::Early));
    }
    joiner.push_all(&[impression("a", 1_003), impression("c", 850)]);
    let counters = joiner.counters();
    assert_eq!((counters.joined_feedback, counters.unmatched_feedback), (1, 0));
    assert_eq!(counters.late_impressions, 1, "its window has passed");
    let rows = joiner.push_all(&[impression("d", 1_114)]);
    assert_eq!((ids(&rows), &rows[0].feedback), (vec!["row of a".into()], &vec![(1, 1.5)]));
    assert_eq!(joiner.counters().unmatched_feedback, 2, "those of `b` and `c`");
    assert_eq!(joiner.joiner.extent().early_feedback, 0);
}

#[test]
fn duplicates_change_nothing() {
    let mut joiner = Workplace::new(settings(Emit::Window), 1);
    let (first, second) = (impression("a", 1_000), feedback("a", 1_001, 7));
    for input in [&first, &second, &first, &second, &feedback("e", 1_001, 7)] {
        joiner.push(input);
    }
    assert_eq!(joiner.push(&first).0, Some(Outcome::Duplicate));
    assert_eq!(joiner.push(&second).0, Some(Outcome::Duplicate));
    assert_eq!(joiner.push(&feedback("e", 1_002, 7)).0, Some(Outcome::Duplicate));
    let (_, rows) = joiner.push(&Input::End);
    assert_eq!((rows.len(), rows[0].reason), (1, Reason::End));
    assert_eq!(rows[0].feedback, [(7, 7.5)]);
    let counters = joiner.counters();
    assert_eq!((counters.duplicate_impressions, counters.duplicate_feedback), (2, 3));
    assert_eq!(counters.unmatched_feedback, 1);
    // An impression that comes again after its row has left is late, not new.
    joiner.push(&impression("b", 1_200));
    assert_eq!(joiner.push(&first).0, Some(Outcome::Late));
}

#[test]
fn rows_leave_by_time_and_then_by_arrival() {
    let mut joiner = Workplace::new(settings(Emit::Window), 1);
    let rows = joiner.push_all(&[
        impression("c", 1_005),
        impression("b", 1_003),
        impression("a", 1_005),
        impression("d", 1_000),
        impression("e", 1_500),
    ]);
    assert_eq!(ids(&rows), ["row of d", "row of b", "row of c", "row of a"]);
}

#[test]
fn an_idle_partition_holds_no_rows_back() {
    let mut joiner = Workplace::new(settings(Emit::Window), 2);
    assert_eq!(joiner.push_all(&[impression("a", 1_000), impression("b", 1_500)]), []);
    let (_, rows) = joiner.push(&Input::Idle(1));
    assert_eq!(ids(&rows), ["row of a"], "the watermark no longer waits for the partition");
    joiner.push(&Input::Back(1));
    assert_eq!(joiner.push_all(&[impression("c", 1_900)]), [], "the partition counts again");
    let late = Input::Impression {
        partition: 1,
        key: b"d".into(),
        time: Some(1_890),
        row: b"row of d".into(),
        weight: 1.0,
    };
    assert_eq!(ids(&joiner.push_all(&[late])), ["row of b"]);
}

#[test]
fn an_event_a_year_ahead_moves_nothing() {
    let mut joiner = Workplace::new(settings(Emit::Window), 1);
    joiner.push_all(&[impression("a", 1_000)]);
    for input in [impression("b", 1_000 + YEAR), feedback("a", 1_000 + YEAR, 1)] {
        let (outcome, rows) = joiner.push(&input);
        assert_eq!(outcome, Some(Outcome::Refused(Refusal::Time(RefusedTime::Ahead))));
        assert_eq!(rows, []);
    }
    let without_time =
        Input::Feedback { partition: 0, key: b"a".into(), time: None, kind: 0, value: 1.0 };
    joiner.push_all(&[impression("c", -5), without_time]);
    assert_eq!(joiner.joiner.watermarks().watermark(), Some(EventTime(990)));
    let (_, rows) = joiner.push(&feedback("a", 1_020, 3));
    assert_eq!(rows, []);
    let counters = joiner.counters();
    assert_eq!((counters.refused_ahead, counters.refused_negative), (2, 1));
    assert_eq!((counters.refused_missing, counters.joined_feedback), (1, 1));
}

#[test]
fn a_row_emitted_at_once_is_corrected_later() {
    let mut joiner = Workplace::new(settings(Emit::Now(Late::Correct)), 1);
    let (_, rows) = joiner.push(&impression("a", 1_000));
    let negative = Row {
        row: b"row of a".into(),
        time: 1_000,
        weight: 1.0,
        cancels: 0.0,
        feedback: vec![],
        reason: Reason::Now,
    };
    assert_eq!(rows, std::slice::from_ref(&negative));
    let (_, rows) = joiner.push(&feedback("a", 1_100, 3));
    let correction = Row {
        cancels: 1.0,
        feedback: vec![(3, 3.5)],
        reason: Reason::Correction,
        ..negative.clone()
    };
    assert_eq!(rows, std::slice::from_ref(&correction));
    assert_eq!(joiner.push(&feedback("a", 1_100, 3)), (Some(Outcome::Duplicate), vec![]));
    let (_, rows) = joiner.push(&feedback("a", 1_090, 1));
    assert_eq!(rows, [Row { feedback: vec![(1, 1.5)], ..correction }]);
    let (outcome, rows) = joiner.push(&feedback("a", 1_101, 2));
    assert_eq!((outcome, rows.len()), (Some(Outcome::Late), 0));
    // Feedback that came before makes a positive at once.
    joiner.push(&feedback("b", 1_100, 5));
    let (_, rows) = joiner.push(&impression("b", 1_099));
    assert_eq!((rows[0].feedback.as_slice(), rows[0].reason), (&[(5, 5.5)][..], Reason::Now));
    assert_eq!(joiner.push(&Input::End).1, [], "no row leaves a second time");
    let counters = joiner.counters();
    assert_eq!((counters.negatives, counters.positives, counters.corrections), (1, 3, 2));
}

#[test]
fn late_feedback_may_be_dropped_instead() {
    let mut joiner = Workplace::new(settings(Emit::Now(Late::Drop)), 1);
    let (_, rows) = joiner.push(&impression("a", 1_000));
    assert_eq!((ids(&rows), rows[0].reason), (vec!["row of a".to_owned()], Reason::Now));
    assert_eq!(joiner.push(&feedback("a", 1_001, 1)), (Some(Outcome::Late), vec![]));
    assert_eq!(joiner.push(&impression("a", 1_001)), (Some(Outcome::Duplicate), vec![]));
    assert_eq!(joiner.counters().late_feedback, 1);
}

#[test]
fn a_correction_cancels_only_what_was_emitted() {
    let mut settings = settings(Emit::Now(Late::Correct));
    settings.negatives.keep = 0.5;
    let mut joiner = Workplace::new(settings, 1);
    let (mut kept, mut left_out) = (0, 0);
    for number in 0..200 {
        let key = format!("{number}");
        let (_, first) = joiner.push(&impression(&key, 1_000));
        let (_, second) = joiner.push(&feedback(&key, 1_000, 0));
        let emitted = first.first().map_or(0.0, |row| row.weight);
        assert_eq!((second[0].weight, second[0].cancels), (1.0, emitted));
        if first.is_empty() {
            left_out += 1;
        } else {
            assert_eq!(emitted, 2.0, "a kept negative stands for two");
            kept += 1;
        }
    }
    assert_eq!(joiner.counters().sampled_out, left_out);
    assert!(kept > 60 && left_out > 60, "{kept}, {left_out}");
}

#[test]
fn unusable_inputs_are_refused_and_counted() {
    let mut joiner = Workplace::new(settings(Emit::Window), 1);
    let input = |weight, bytes| Input::Impression {
        partition: 0,
        key: b"a".into(),
        time: Some(1_000),
        row: vec![0; bytes],
        weight,
    };
    for weight in [f32::NAN, -1.0, f32::INFINITY, f32::MAX] {
        assert_eq!(joiner.push(&input(weight, 1)).0, Some(Outcome::Refused(Refusal::Number)));
    }
    let largest = (settings(Emit::Window).segment_bytes() - 44) as usize;
    assert_eq!(joiner.push(&input(1.0, largest + 1)).0, Some(Outcome::Refused(Refusal::Large)));
    let value = Input::Feedback {
        partition: 0,
        key: b"a".into(),
        time: Some(1_000),
        kind: 0,
        value: f32::NAN,
    };
    assert_eq!(joiner.push(&value).0, Some(Outcome::Refused(Refusal::Number)));
    assert_eq!(joiner.joiner.watermarks().watermark(), None);
    assert_eq!(joiner.push(&input(1.0, largest)).0, Some(Outcome::Taken));
    let counters = joiner.counters();
    assert_eq!((counters.refused_number, counters.refused_large), (5, 1));
}

#[test]
fn rows_must_be_taken_before_the_next_input() {
    let mut workplace = Workplace::new(settings(Emit::Now(Late::Correct)), 1);
    let joiner = &mut workplace.joiner;
    put(joiner, &impression("a", 1_000)).unwrap();
    let error = put(joiner, &impression("b", 1_000)).unwrap_err().to_string();
    assert_eq!(
        error,
        "the last input of the joiner still has rows; take all of them before the next input"
    );
    let target = workplace.folder.path().join("early");
    assert!(matches!(joiner.checkpoint(&target), Err(JoinError::Undrained("a checkpoint"))));
    let mut rows = Vec::new();
    drain(joiner, &mut rows).unwrap();
    joiner.checkpoint(&target).unwrap();
    let unknown = Input::Idle(9);
    let error = put(joiner, &unknown).unwrap_err().to_string();
    assert!(error.contains("partition 9 of stream 0 is unknown"), "{error}");
    let unknown =
        Input::Feedback { partition: 9, key: b"a".into(), time: Some(1), kind: 0, value: 0.0 };
    assert!(matches!(put(joiner, &unknown), Err(JoinError::UnknownPartition(_))));
    put(joiner, &impression("b", 1_000)).unwrap();
    assert_eq!(rows.len(), 1);
}
