//! Tests of the windows that verdicts judge, and of the batches that the log leaves out or keeps.

use zillion_feature::{FeatureKey, PlanScratch};
use zillion_stream::gate::Outcome;

use super::*;

/// The rows of a batch, which are enough for a window to be judged.
const ROWS: u64 = 40;
/// The beginning of event time, a multiple of a minute, in seconds.
const BEGIN: u64 = 1_700_000_400;

fn job() -> Job {
    let text = "name = 'm'\n[features.user]\nkind = 'id'\n[labels.click]\n[columns]\nevent_time = 'time'\n\
                event_time_unit = 'ms'\n[model]\nkind = 'lr'\n[run]\noutput = 'run'\n[publish]\n\
                registry = 'registry'\n[[stream]]\nname = 'events'\npath = 'events'\n\
                [validation]\nwindows = [10, 60]\n[gate]\nmin_rows = 40\nanchor_rows = 400\n\
                anchor_every = 1\nanchor_delay_seconds = 10\n";
    Job::from_value(toml::from_str(text).unwrap()).unwrap()
}

/// Observes batch `number`, whose rows have the time `second`, with a watermark at `watermark`
/// seconds. Returns the lengths of the windows that it closes, in seconds.
fn observe(
    judging: &mut Judging,
    number: u64,
    (second, rows): (u64, u64),
    watermark: u64,
) -> Vec<u64> {
    let job = job();
    let mut batch = RowShape::of(&job.schema).empty();
    batch.rows = rows as usize;
    batch.sparse[0].keys = (0..rows).map(|row| FeatureKey(1 + row % 7)).collect();
    batch.labels[0].values = (0..rows).map(|row| (row % 2) as f32).collect();
    batch.weight = None;
    batch.event_time = Some(vec![(BEGIN + second) as i64 * 1000; rows as usize]);
    let plan = LookupPlan::build(&batch, &job.schema, &mut PlanScratch::default());
    let live: Vec<f32> = batch.labels[0].values.iter().map(|label| label - 0.5).collect();
    let scores = BatchScores { live: &live, stable: Some(&live), missing: 0 };
    let watermark = Some(EventTime((BEGIN + watermark) as i64 * 1000));
    let closed = judging.observe(&job, (number, watermark), (&batch, &plan, None), scores).unwrap();
    closed.iter().map(|window| window.length / 1000).collect()
}

/// Judges the present state. It must pass, and becomes a version unless versions are held.
fn publish(judging: &mut Judging, version: u64) -> bool {
    let verdict = judging.judge(None).unwrap().unwrap();
    assert!(verdict.outcome < Outcome::Hold, "{verdict:?}");
    judging.end_verdict(&verdict);
    let is_held = judging.is_held();
    if !is_held {
        judging.note_published(version);
    }
    !is_held
}

/// Writes the state of a checkpoint and reads it.
fn reopen(judging: &Judging) -> Judging {
    let stored = serde_json::to_string(&judging.state()).unwrap();
    Judging::open(&job(), Some(serde_json::from_str(&stored).unwrap())).unwrap().unwrap()
}

#[test]
fn a_longer_window_is_not_judged_again() {
    let mut judging = Judging::open(&job(), None).unwrap().unwrap();
    assert!(observe(&mut judging, 1, (45, ROWS), 40).is_empty());
    assert_eq!(observe(&mut judging, 2, (56, 0), 51), [10]);
    assert_eq!(judging.recent.len(), 1);
    assert!(publish(&mut judging, 1));
    // The minute ends, and its last ten seconds have no row.
    assert_eq!(observe(&mut judging, 3, (66, ROWS), 61), [60]);
    assert!(judging.recent.is_empty(), "the rows of the minute were judged");
    assert_eq!(judging.history.good, [2]);
    assert!(publish(&mut judging, 2));
    assert_eq!(judging.history.good, [2], "no window was judged");
}

#[test]
fn a_window_from_before_a_gap_does_not_end_the_wait() {
    let mut judging = Judging::open(&job(), None).unwrap().unwrap();
    observe(&mut judging, 1, (5, ROWS), 0);
    observe(&mut judging, 2, (13, ROWS), 11);
    assert!(publish(&mut judging, 1));
    observe(&mut judging, 3, (25, ROWS), 19);
    // An event of the time of later windows must not make the wait longer.
    observe(&mut judging, 3, (3_000, 1), 19);
    // The batches from 4 to 9 are left out. The checkpoint has the open windows from 10 s and from
    // 20 s on.
    let mut judging = reopen(&judging);
    judging.set_gaps(vec![10]);
    assert!(!judging.is_held(), "the gap is ahead");
    assert_eq!(observe(&mut judging, 10, (29, ROWS), 24), [10]);
    assert!(!publish(&mut judging, 2), "all rows of the window are from before the gap");
    assert_eq!(observe(&mut judging, 11, (36, ROWS), 31), [10]);
    assert!(!publish(&mut judging, 2), "some rows of the window are from before the gap");
    // A checkpoint between the batches changes nothing.
    judging = reopen(&judging);
    judging.set_gaps(vec![10]);
    assert!(!publish(&mut judging, 2));
    assert_eq!(observe(&mut judging, 12, (45, ROWS), 40), [10]);
    assert!(publish(&mut judging, 2));
    // Later versions do not wait again.
    observe(&mut judging, 13, (46, ROWS), 41);
    assert!(publish(&mut judging, 3));
}

#[test]
fn windows_with_few_rows_end_the_wait_behind_a_gap() {
    let mut judging = Judging::open(&job(), None).unwrap().unwrap();
    observe(&mut judging, 1, (5, ROWS), 0);
    let mut judging = reopen(&judging);
    judging.set_gaps(vec![3]);
    let mut windows = 0;
    for batch in 3..100 {
        observe(&mut judging, batch, (batch * 10, 1), batch * 10);
        if publish(&mut judging, 1) {
            windows = batch - 3;
            break;
        }
    }
    // The first window is that of batch 3. Each batch closes the window of the one before.
    assert_eq!(windows, HELD_WINDOWS as u64);
}

/// Returns a validation with versions after the batches 10, 20 and 30, each of which closes the
/// window before it.
fn with_versions() -> Judging {
    let mut judging = Judging::open(&job(), None).unwrap().unwrap();
    for step in 1..=3 {
        observe(&mut judging, step * 10 - 9, (step * 10 + 5, ROWS), step * 10);
        observe(&mut judging, step * 10, (step * 10 + 10, 0), step * 10 + 10);
        assert!(publish(&mut judging, step));
    }
    assert_eq!(judging.history.good, [20, 30]);
    judging
}

#[test]
fn a_state_from_before_batches_were_kept_forgets_their_versions_and_rows() {
    // The state has the decisions before 50, and decision 70 keeps the batches from 21 to 39.
    let judging = with_versions();
    assert_eq!(judging.gate.as_ref().unwrap().anchor().len(), 2 * ROWS as usize);
    let mut kept = reopen(&judging);
    kept.set_kept(&[(70, 21, 40)], 50);
    assert_eq!(kept.history.versions, [(10, 1), (20, 2)]);
    assert_eq!(kept.known_good(), Some(20));
    // The batches are repeated, and labels are right again behind them.
    observe(&mut kept, 35, (45, ROWS), 41);
    observe(&mut kept, 40, (56, ROWS), 51);
    observe(&mut kept, 41, (75, ROWS), 70);
    assert!(publish(&mut kept, 4));
    assert_eq!(kept.gate.as_ref().unwrap().anchor().len(), 3 * ROWS as usize, "of batch 40 only");
    assert_eq!(kept.history.good, [20, 41]);
    assert_eq!(kept.next_stable(0), Some(2), "version 3 is in quarantine");
    // A state that was written behind the decision has forgotten them already.
    let mut later = reopen(&judging);
    later.set_kept(&[(70, 21, 40)], 71);
    assert_eq!(later.history.versions.len(), 3);
}
