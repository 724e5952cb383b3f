//! Tests of requests that are scored together: whose client leaves, that are late, that fail, and
//! that belong to several versions.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;

/// A version whose scores are the numbers of rows times a factor. It counts its passes.
#[derive(Debug)]
struct Version {
    factor: f32,
    passes: Mutex<Vec<usize>>,
}

/// The number of rows of a request on which a version panics.
const BAD: usize = 13;

impl ScoreJoined for Version {
    fn score_joined(
        &self,
        batches: &[&Batch],
        _: LateCheck<'_>,
    ) -> zillion_scorer::Result<Vec<RowScores>> {
        self.passes.lock().unwrap().push(batches.len());
        assert!(batches.iter().all(|batch| batch.rows != BAD), "a bad request");
        let score = |batch: &&Batch| RowScores {
            logits: vec![vec![self.factor * batch.rows as f32]],
            ..RowScores::default()
        };
        Ok(batches.iter().map(score).collect())
    }
}

fn version(factor: f32) -> Arc<Version> {
    Arc::new(Version { factor, passes: Mutex::default() })
}

fn request(servable: &Arc<Version>, rows: usize) -> ReadRows<Version> {
    let batch = Batch { rows, ..Batch::default() };
    let deadline = Instant::now() + Duration::from_secs(600);
    ReadRows { servable: servable.clone(), batch, deadline }
}

fn logit(joined: Poll<Joined>) -> Option<f32> {
    match joined {
        Poll::Ready(Joined { scores: Some(Ok(scores)), .. }) => Some(scores.logits[0][0]),
        _ => None,
    }
}

/// Returns the context of a thread that polls everything once in each turn.
fn turn() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[test]
fn a_request_whose_client_leaves_is_not_scored() {
    let (gathering, version) = (Gathering::default(), version(1.0));
    let mut first = Box::pin(gathering.score(request(&version, 2)));
    let mut second = pin!(gathering.score(request(&version, 3)));
    assert!(first.as_mut().poll(&mut turn()).is_pending());
    assert!(second.as_mut().poll(&mut turn()).is_pending());
    // The client of the request that would begin the pass leaves.
    drop(first);
    assert_eq!(logit(second.poll(&mut turn())), Some(3.0));
    assert_eq!(*version.passes.lock().unwrap(), [1]);
    // One that leaves after its pass leaves no outcome behind.
    let mut third = pin!(gathering.score(request(&version, 4)));
    let mut fourth = Box::pin(gathering.score(request(&version, 5)));
    assert!(third.as_mut().poll(&mut turn()).is_pending());
    assert!(fourth.as_mut().poll(&mut turn()).is_pending());
    assert_eq!(logit(third.poll(&mut turn())), Some(4.0));
    assert_eq!(gathering.lock().done.len(), 1);
    drop(fourth);
    assert!(gathering.lock().done.is_empty() && gathering.lock().waiting.is_empty());
    assert_eq!(*version.passes.lock().unwrap(), [1, 2]);
}

#[test]
fn requests_of_two_versions_get_the_scores_of_their_own() {
    let gathering = Gathering::default();
    let versions = [version(1.0), version(-2.0)];
    let mut all: Vec<_> =
        (0..6).map(|at| Box::pin(gathering.score(request(&versions[at % 2], at + 1)))).collect();
    for one in &mut all {
        assert!(one.as_mut().poll(&mut turn()).is_pending());
    }
    let scores: Vec<_> = all.iter_mut().map(|one| logit(one.as_mut().poll(&mut turn()))).collect();
    assert_eq!(scores, [1.0, -4.0, 3.0, -8.0, 5.0, -12.0].map(Some));
    for version in &versions {
        assert_eq!(*version.passes.lock().unwrap(), [3]);
    }
}

#[test]
fn a_late_request_is_refused_beside_a_good_one() {
    let (gathering, version) = (Gathering::default(), version(1.0));
    let late = ReadRows { deadline: Instant::now(), ..request(&version, 2) };
    let (mut late, mut good) =
        (pin!(gathering.score(late)), pin!(gathering.score(request(&version, 3))));
    assert!(late.as_mut().poll(&mut turn()).is_pending());
    assert!(good.as_mut().poll(&mut turn()).is_pending());
    let Poll::Ready(joined) = late.poll(&mut turn()) else { panic!("it has waited a turn") };
    assert!(matches!(joined.scores, Some(Err(zillion_scorer::Error::Late))), "{joined:?}");
    assert_eq!(logit(good.poll(&mut turn())), Some(3.0));
    assert_eq!(*version.passes.lock().unwrap(), [1]);
}

#[test]
fn a_request_that_panics_fails_alone() {
    let (gathering, version) = (Gathering::default(), version(1.0));
    let mut all: Vec<_> = [2, BAD, 4]
        .into_iter()
        .map(|rows| Box::pin(gathering.score(request(&version, rows))))
        .collect();
    for one in &mut all {
        assert!(one.as_mut().poll(&mut turn()).is_pending());
    }
    let mut outcomes = all.iter_mut().map(|one| one.as_mut().poll(&mut turn()));
    assert_eq!(logit(outcomes.next().unwrap()), Some(2.0));
    let Poll::Ready(bad) = outcomes.next().unwrap() else { panic!("the pass is done") };
    assert!(bad.scores.is_none(), "{bad:?}");
    assert_eq!(logit(outcomes.next().unwrap()), Some(4.0));
    // Together first, and then each alone.
    assert_eq!(*version.passes.lock().unwrap(), [3, 1, 1, 1]);
}
