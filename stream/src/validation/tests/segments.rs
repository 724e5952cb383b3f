//! The figures of segments, and their bound.

use super::*;
use crate::validation::SegmentFigures;

#[test]
fn each_segment_has_its_own_figures() {
    let mut random = Random(11);
    let data = Rows::draw(&mut random, 4_000, 0, 10_000, [0.3, 0.6]);
    let few = Settings { max_segments: 3, ..settings() };
    let mut windows = Windows::new(few).unwrap();
    data.add(&mut windows, 0, data.len());
    let closed = windows.close(EventTime(10_000));
    let segments = &closed[0].segments;
    assert_eq!(segments.len(), 4);
    assert_eq!(segments.iter().map(|segment| segment.live.rows).sum::<u64>(), 4_000);
    let named: Vec<u64> = segments.iter().filter_map(|segment| segment.value).collect();
    assert_eq!(named.len(), 3);
    assert_eq!(segments[3].value, None);
    for segment in segments {
        let is_in = |row: &usize| match segment.value {
            Some(value) => data.segment[*row] == value,
            None => !named.contains(&data.segment[*row]),
        };
        let rows: Vec<usize> = (0..data.len()).filter(is_in).collect();
        assert_eq!(segment.live.rows, rows.len() as u64);
        for (figures, scores) in [(Some(segment.live), &data.live), (segment.stable, &data.stable)]
        {
            let figures = figures.unwrap();
            let auc = brute_auc(&rows, &data.labels, &data.weights, scores).unwrap();
            assert!((figures.auc.unwrap() - auc).abs() < 2e-3);
            let loss = plain_logloss(&rows, &data.labels, &data.weights, scores);
            assert!((figures.logloss.unwrap() - loss).abs() < 1e-9);
        }
    }
    let other = segments[3].live.rows;
    assert_eq!(windows.counters().other_segments, other);
}

#[test]
fn values_that_are_gone_make_room_for_others() {
    let few = Settings { windows: vec![10, 20], max_segments: 2, ..settings() };
    let mut windows = Windows::new(few).unwrap();
    let mut add = |second: i64, values: &[u64]| {
        let mut random = Random(1);
        let start = second * 1000;
        let mut rows = Rows::draw(&mut random, values.len(), start, start + 1, [0.3; 2]);
        rows.segment = values.to_vec();
        rows.add(&mut windows, 0, values.len());
        windows.close(EventTime(start + 10_000))
    };
    let values = |segments: &[SegmentFigures]| -> Vec<Option<u64>> {
        segments.iter().map(|segment| segment.value).collect()
    };
    let closed = add(0, &[1, 2, 3]);
    assert_eq!(values(&closed[0].segments), [Some(1), Some(2), None]);
    // The value 3 stays among the others while the longest window is open.
    let closed = add(10, &[1, 3]);
    assert_eq!(values(&closed[0].segments), [Some(1), None]);
    assert_eq!(values(&closed[1].segments), [Some(1), Some(2), None]);
    let closed = add(20, &[3, 1]);
    assert_eq!(values(&closed[0].segments), [Some(1), None]);
    let closed = add(30, &[1]);
    assert_eq!(closed[1].length, 20_000);
    // The value 2 was not in the last window of 20 seconds.
    let closed = add(40, &[3, 1]);
    assert_eq!(values(&closed[0].segments), [Some(1), Some(3)]);
}
