//! Tests of the memory of buffers after a burst of requests, measured by the capacities of the
//! buffers.

use zillion_feature::LookupPlan;

use super::*;
use crate::testing::Example;

/// A pool whose requests score the example, with the start time of the test.
struct Server {
    example: Example,
    pool: ScratchPool,
    began: Instant,
}

impl Server {
    fn new() -> Self {
        Self { example: Example::new(), pool: ScratchPool::default(), began: Instant::now() }
    }

    fn at(&self, seconds: f64) -> Instant {
        self.began + Duration::from_secs_f64(seconds)
    }

    /// Scores `requests` requests of `values` values each, all at the same time. `seconds` is this
    /// time, counted from the start.
    fn score(&self, seconds: f64, requests: usize, values: usize) {
        let batch = self.example.batch(values);
        let mut used = Vec::new();
        for _ in 0..requests {
            let scratch = self.pool.take();
            let mut scratch = scratch.unwrap_or_else(|| Scratch::new(self.example.scorer()));
            let plan = LookupPlan::build(&batch, &self.example.schema, &mut scratch.plan);
            let Example { source, params, .. } = &self.example;
            scratch.scorer.score(&batch, &plan, &mut source.clone(), params).unwrap();
            used.push(scratch);
        }
        for scratch in used {
            self.pool.put(scratch, request_size(&batch), self.at(seconds));
        }
    }

    fn scratches(&self) -> usize {
        self.pool.lock().idle.len()
    }

    fn bytes(&self) -> usize {
        self.pool.lock().idle.iter().map(|(scratch, _)| scratch.bytes()).sum()
    }
}

const SMALL_REQUEST: usize = 1000;
const BURST: usize = 50_000;

#[test]
fn memory_returns_to_its_size_after_a_burst() {
    let server = Server::new();
    server.score(0.0, 1, SMALL_REQUEST);
    let before = server.bytes();
    server.score(1.0, 3, BURST);
    assert_eq!(server.scratches(), 3);
    assert!(server.bytes() > 30 * before, "{} and {before} bytes", server.bytes());
    (0..120).for_each(|i| server.score(1.0 + f64::from(i) / 4.0, 1, SMALL_REQUEST));
    assert_eq!(server.scratches(), 1);
    assert!(5 * server.bytes() <= 6 * before, "{} and {before} bytes", server.bytes());
}

#[test]
fn memory_returns_without_further_requests() {
    let server = Server::new();
    server.score(0.0, 1, SMALL_REQUEST);
    let before = server.bytes();
    server.score(1.0, 3, BURST);
    server.pool.release_idle(server.at(2.0));
    assert_eq!(server.scratches(), 3, "the burst is still recent");
    server.pool.release_idle(server.at(30.0));
    assert_eq!(server.scratches(), 1);
    assert!(server.bytes() <= before, "{} and {before} bytes", server.bytes());
}

#[test]
fn requests_that_come_again_find_their_buffers() {
    let server = Server::new();
    server.score(0.0, 2, BURST);
    let bytes = server.bytes();
    for second in 1..12 {
        server.score(f64::from(second) - 0.5, 1, SMALL_REQUEST);
        server.pool.release_idle(server.at(f64::from(second) - 0.4));
        assert_eq!((server.scratches(), server.bytes()), (2, bytes));
        server.score(f64::from(second), 2, BURST);
    }
}

#[test]
fn threads_that_are_not_needed_any_more_leave_no_buffers() {
    let server = Server::new();
    server.score(0.0, 8, SMALL_REQUEST);
    assert_eq!(server.scratches(), 8);
    server.score(9.0, 2, SMALL_REQUEST);
    assert_eq!(server.scratches(), 8);
    server.score(11.0, 1, SMALL_REQUEST);
    assert_eq!(server.scratches(), 2);
}
