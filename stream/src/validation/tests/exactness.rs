//! Figures of windows against brute force.

use super::*;
use crate::validation::compare;

fn check_window(window: &ClosedWindow, data: &Rows) {
    let end = window.start.0 + window.length as i64;
    let rows = data.within(window.start.0, end);
    assert_eq!(window.rows, rows.len() as u64);
    let weight: f64 = rows.iter().map(|&row| f64::from(data.weights[row])).sum();
    let of = |row: &usize| f64::from(data.weights[*row] * data.labels[*row]);
    let positives: f64 = rows.iter().map(of).sum();
    assert_eq!((window.weight, window.positives), (weight, positives));
    let paired = window.paired.unwrap();
    assert_eq!(paired.live.auc, window.live.auc);
    for (figures, scores) in [(window.live, &data.live), (paired.stable, &data.stable)] {
        let auc = brute_auc(&rows, &data.labels, &data.weights, scores).unwrap();
        let error = (figures.auc.unwrap() - auc).abs();
        assert!(error < 0.1 * window.live.auc_error.unwrap(), "{error} {:?}", window.live);
        let loss = plain_logloss(&rows, &data.labels, &data.weights, scores);
        assert!((figures.logloss.unwrap() - loss).abs() < 1e-9);
        let sum =
            |row: &usize| f64::from(data.weights[*row]) / (1.0 + f64::from(-scores[*row]).exp());
        let predicted: f64 = rows.iter().map(sum).sum();
        assert!((figures.calibration.unwrap() - predicted / positives).abs() < 1e-9);
        assert_eq!((figures.weight, figures.positives), (weight, positives));
    }
    let difference = paired.auc.unwrap().value;
    assert_eq!(difference, paired.live.auc.unwrap() - paired.stable.auc.unwrap());
    let difference = paired.logloss.unwrap().value;
    assert_eq!(difference, paired.live.logloss.unwrap() - paired.stable.logloss.unwrap());
}

#[test]
fn figures_equal_those_of_all_rows() {
    let mut random = Random(1);
    let data = Rows::draw(&mut random, 6_000, 0, 120_000, [0.3, 0.6]);
    let mut windows = Windows::new(settings()).unwrap();
    assert!(data.add(&mut windows, 0, data.len()).is_empty());
    let closed = windows.close(EventTime(600_000));
    let lengths: Vec<u64> = closed.iter().map(|window| window.length).collect();
    let minute = [10_000, 10_000, 10_000, 10_000, 10_000, 10_000, 60_000];
    assert_eq!(lengths, [&minute[..], &minute, &[600_000]].concat());
    closed.iter().for_each(|window| check_window(window, &data));
}

#[test]
fn equal_scores_count_one_half() {
    let labels = [0.0, 1.0, 0.0, 1.0, 1.0];
    let scores = [0.25, 0.25, 1.0, 1.0, -0.5];
    let paired = compare(&labels, None, &scores, &[3.0; 5]).unwrap().unwrap();
    // Positives at 0.25, 1.0 and -0.5 win 0.5, 1.5 and 0 of 2 negatives each.
    assert_eq!(paired.live.auc, Some(2.0 / 6.0));
    assert_eq!(paired.stable.auc, Some(0.5));
}

#[test]
fn extreme_scores_stay_in_the_figures() {
    let scores = [f32::MAX, f32::MIN, 1e9, -1e9];
    let paired = compare(&[1.0, 0.0, 1.0, 0.0], None, &scores, &[0.0; 4]).unwrap().unwrap();
    assert_eq!(paired.live.auc, Some(1.0));
    assert!(paired.live.logloss.unwrap() < 1e-9);
    let wrong = compare(&[0.0, 1.0], None, &[f32::MAX, f32::MIN], &[0.0; 2]).unwrap().unwrap();
    assert!((wrong.live.logloss.unwrap() - 100.0).abs() < 1e-9);
}

#[test]
fn scores_that_are_not_finite_are_counted() {
    let mut windows = Windows::new(Settings::default()).unwrap();
    let batch = Batch {
        times: &[EventTime(1); 4],
        labels: &[0.0, 1.0, 1.0, 0.0],
        weights: None,
        live: &[f32::NAN, 1.0, f32::INFINITY, -1.0],
        stable: Some(&[0.0, f32::NAN, 1.0, 0.5]),
        segments: &[],
    };
    windows.add(&batch).unwrap();
    let closed = windows.close(EventTime(10_000));
    let window = &closed[0];
    assert_eq!((window.rows, window.not_finite, window.stable_not_finite), (4, 2, 1));
    assert_eq!((window.live.rows, window.live.auc), (2, Some(1.0)));
    assert_eq!(window.paired.unwrap().live.rows, 1);
    assert_eq!(windows.counters().not_finite, 2);
}

#[test]
fn one_class_has_no_auc() {
    let mut windows = Windows::new(Settings::default()).unwrap();
    let batch = Batch {
        times: &[EventTime(1); 2],
        labels: &[0.0, 0.0],
        weights: None,
        live: &[0.0, 1.0],
        stable: None,
        segments: &[],
    };
    windows.add(&batch).unwrap();
    let closed = windows.close(EventTime(10_000));
    assert_eq!((closed[0].live.auc, closed[0].live.calibration), (None, None));
    assert_eq!((closed[0].live.auc_error, closed[0].paired), (None, None));
}

#[test]
fn bad_rows_and_settings_are_refused() {
    let refuse = |settings: Settings, name: &str| {
        let error = Windows::new(settings).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    };
    for windows in [vec![], vec![0, 10], vec![10, 15], vec![60, 10], vec![10, 10], vec![86_401]] {
        refuse(Settings { windows, ..Settings::default() }, "validation.windows");
    }
    let twice = vec!["a".to_owned(), "a".to_owned()];
    refuse(Settings { segments: twice, ..Settings::default() }, "validation.segments");
    refuse(Settings { max_segments: 0, ..Settings::default() }, "validation.max_segments");
    refuse(Settings { max_open: 0, ..Settings::default() }, "validation.max_open");

    let mut windows = Windows::new(Settings::default()).unwrap();
    let good = Batch {
        times: &[EventTime(1); 2],
        labels: &[0.0, 1.0],
        weights: None,
        live: &[0.0, 1.0],
        stable: None,
        segments: &[],
    };
    let before = windows.state().clone();
    let mut refuse = |batch: Batch<'_>, part: &str| {
        let error = windows.add(&batch).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refuse(Batch { labels: &[0.0, 0.5], ..good }, "row 1");
    refuse(Batch { weights: Some(&[1.0, -1.0]), ..good }, "row 1");
    refuse(Batch { weights: Some(&[f32::NAN, 1.0]), ..good }, "row 0");
    refuse(Batch { live: &[0.0], ..good }, "live scores");
    refuse(Batch { stable: Some(&[0.0]), ..good }, "stable scores");
    refuse(Batch { times: &[], ..good }, "event times");
    refuse(Batch { segments: &[&[1, 2]], ..good }, "segments");
    assert_eq!(*windows.state(), before);
}
