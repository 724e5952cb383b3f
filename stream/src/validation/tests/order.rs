//! The closing of windows, late rows, and checkpoints at any moment.

use super::*;

/// Feeds batches of 64 rows with a watermark that follows the rows by 15 seconds.
fn feed(windows: &mut Windows, data: &Rows, batches: std::ops::Range<usize>) -> Vec<ClosedWindow> {
    let mut closed = Vec::new();
    for batch in batches {
        let (from, to) = (batch * 64, (batch * 64 + 64).min(data.len()));
        closed.extend(data.add(windows, from, to));
        let seen = data.times[..to].iter().max().unwrap();
        closed.extend(windows.close(EventTime(seen.0 - 15_000)));
    }
    closed
}

/// Draws rows in about the order of time, over 25 minutes.
fn draw() -> Rows {
    let mut random = Random(7);
    let mut data = Rows::default();
    for step in 0..300 {
        let more = Rows::draw(&mut random, 10, step * 5_000, step * 5_000 + 22_000, [0.3, 0.5]);
        data.times.extend(more.times);
        data.labels.extend(more.labels);
        data.weights.extend(more.weights);
        data.live.extend(more.live);
        data.stable.extend(more.stable);
        data.segment.extend(more.segment.iter().map(|value| value + step as u64 / 50));
    }
    data
}

#[test]
fn a_restore_after_any_batch_changes_no_bit() {
    let data = draw();
    let few = Settings { max_segments: 4, ..settings() };
    let batches = data.len().div_ceil(64);
    let mut whole = Windows::new(few.clone()).unwrap();
    let expected = feed(&mut whole, &data, 0..batches);
    assert!(expected.iter().filter(|window| window.length == 600_000).count() == 2);
    assert!(whole.counters().late > 0 && whole.counters().other_segments > 0);
    for split in 0..=batches {
        let mut first = Windows::new(few.clone()).unwrap();
        let mut closed = feed(&mut first, &data, 0..split);
        let stored = serde_json::to_vec(first.state()).unwrap();
        let state = serde_json::from_slice(&stored).unwrap();
        let mut second = Windows::restore(few.clone(), state).unwrap();
        assert_eq!(serde_json::to_vec(second.state()).unwrap(), stored);
        closed.extend(feed(&mut second, &data, split..batches));
        assert_eq!(closed, expected, "split after batch {split}");
        assert_eq!(second.state(), whole.state());
    }
}

#[test]
fn late_rows_are_counted_and_left_out() {
    let mut windows = Windows::new(settings()).unwrap();
    let mut random = Random(3);
    Rows::draw(&mut random, 50, 0, 10_000, [0.3; 2]).add(&mut windows, 0, 50);
    assert!(windows.close(EventTime(9_999)).is_empty());
    let closed = windows.close(EventTime(10_000));
    assert_eq!((closed.len(), closed[0].rows, closed[0].start), (1, 50, EventTime(0)));
    Rows::draw(&mut random, 30, 0, 10_000, [0.3; 2]).add(&mut windows, 0, 30);
    Rows::draw(&mut random, 20, 10_000, 20_000, [0.3; 2]).add(&mut windows, 0, 20);
    assert_eq!((windows.counters().rows, windows.counters().late), (70, 30));
    let closed = windows.close(EventTime(60_000));
    let rows: Vec<(u64, u64)> = closed.iter().map(|w| (w.length, w.rows)).collect();
    assert_eq!(rows, [(10_000, 20), (60_000, 70)]);
    assert!(windows.close(EventTime(60_000)).is_empty());
    // A watermark that goes back opens nothing.
    assert!(windows.close(EventTime(0)).is_empty());
    Rows::draw(&mut random, 5, 50_000, 60_000, [0.3; 2]).add(&mut windows, 0, 5);
    assert_eq!(windows.counters().late, 35);
}

#[test]
fn too_many_open_windows_are_closed_early() {
    let few = Settings { max_open: 2, ..settings() };
    let mut windows = Windows::new(few).unwrap();
    let mut random = Random(3);
    for window in [3i64, 1, 2, 9] {
        let rows = Rows::draw(&mut random, 10, window * 10_000, window * 10_000 + 9, [0.3; 2]);
        let closed = rows.add(&mut windows, 0, 10);
        let starts: Vec<i64> = closed.iter().map(|window| window.start.0).collect();
        match window {
            2 => assert_eq!(starts, [10_000]),
            9 => assert_eq!(starts, [20_000]),
            _ => assert!(starts.is_empty()),
        }
    }
    assert_eq!(windows.counters().closed_early, 2);
    let closed = windows.close(EventTime(120_000));
    let ends: Vec<(i64, u64, u64)> = closed.iter().map(|w| (w.start.0, w.length, w.rows)).collect();
    let expected =
        [(30_000, 10_000, 10), (0, 60_000, 30), (90_000, 10_000, 10), (60_000, 60_000, 10)];
    assert_eq!(ends, expected);
}

#[test]
fn a_state_of_other_settings_is_refused() {
    let windows = Windows::new(settings()).unwrap();
    let state = windows.state().clone();
    let other = Settings { windows: vec![10, 60], ..settings() };
    let error = Windows::restore(other, state.clone()).unwrap_err().to_string();
    assert!(error.contains("validation.windows"), "{error}");
    let error = Windows::restore(Settings::default(), state).unwrap_err().to_string();
    assert!(error.contains("validation.segments"), "{error}");
}
