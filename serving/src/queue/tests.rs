//! Tests of the queue, with works that record their order.

use std::sync::Mutex;

use super::*;

const BOUND: Duration = Duration::from_millis(40);

fn flow(principal: &str) -> FlowKey {
    FlowKey { model: "m".into(), principal: principal.into() }
}

fn claim(principal: &str, millis: u64, now: Instant) -> Claim {
    let (estimate, deadline) = (Duration::from_millis(millis), now + Duration::from_secs(1));
    Claim { flow: flow(principal), estimate, deadline }
}

/// A record of the requests whose turn has come, in order.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<String>>>);

impl Order {
    fn work(&self, name: &str) -> impl FnOnce(Turn) + Send + 'static {
        let (order, name) = (self.clone(), name.to_owned());
        move |turn| {
            let name = if turn == Turn::TooLate { format!("{name} late") } else { name };
            order.0.lock().unwrap().push(name);
        }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[test]
fn the_bound_is_a_time_and_an_idle_queue_takes_anything() {
    let queue = Arc::new(Queue::new(2));
    let (order, now) = (Order::default(), Instant::now());
    // 500 ms of work come to an empty queue: there is nothing to wait for.
    let long = queue.push(claim("a", 500, now), BOUND, now, order.work("long")).unwrap();
    let full = queue.push(claim("a", 1, now), BOUND, now, order.work("x")).unwrap_err();
    assert_eq!((full.waiting, full.backlog), (1, Duration::from_millis(250)));
    assert!(queue.check(&claim("a", 1, now), BOUND, now).is_err());
    drop(long);
    assert_eq!((queue.waiting(), queue.backlog()), (0, Duration::ZERO));
    let mut places = Vec::new();
    while let Ok(place) = queue.push(claim("a", 5, now), BOUND, now, order.work("x")) {
        places.push(place);
    }
    // 40 ms of two threads are 80 ms of work.
    assert_eq!(places.len(), 16);
    assert!(order.take().is_empty());
}

#[test]
fn flows_take_turns_and_each_has_its_share() {
    let queue = Arc::new(Queue::new(1));
    let (order, now) = (Order::default(), Instant::now());
    let mut places = Vec::new();
    while let Ok(place) = queue.push(claim("burst", 2, now), BOUND, now, order.work("burst")) {
        places.push(place);
    }
    assert_eq!(places.len(), 20);
    // The bound is reached, and another flow still gets half of it.
    let mut others = 0;
    while let Ok(place) = queue.push(claim("other", 2, now), BOUND, now, order.work("other")) {
        places.push(place);
        others += 1;
    }
    assert_eq!(others, 10);
    for _ in 0..6 {
        queue.run_next(BOUND);
    }
    assert_eq!(order.take(), ["burst", "other", "burst", "other", "burst", "other"]);
}

#[test]
fn what_cannot_finish_is_not_begun() {
    let queue = Arc::new(Queue::new(1));
    let (order, now) = (Order::default(), Instant::now());
    let soon =
        |estimate| Claim { deadline: now + Duration::from_millis(30), ..claim("a", estimate, now) };
    let mut places = vec![queue.push(soon(20), BOUND, now, order.work("first")).unwrap()];
    // 20 ms of work come before it, so that 15 ms of work cannot be done in 30.
    assert!(queue.push(soon(15), BOUND, now, order.work("refused")).is_err());
    places.push(queue.push(soon(10), BOUND, now, order.work("second")).unwrap());
    places.push(queue.push(claim("a", 5, now), BOUND, now, order.work("third")).unwrap());
    std::thread::sleep(Duration::from_millis(25));
    queue.run_next(BOUND);
    assert_eq!(order.take(), ["first late", "second late", "third"]);
    queue.run_next(BOUND);
    assert!(order.take().is_empty() && queue.waiting() == 0);
    assert_eq!(queue.backlog(), Duration::ZERO);
}

#[test]
fn under_pressure_the_newest_comes_first() {
    let queue = Arc::new(Queue::new(1));
    let (order, now) = (Order::default(), Instant::now());
    let bound = Duration::from_millis(5);
    let names = ["1", "2", "3"];
    let _places: Vec<Place> = names
        .map(|name| queue.push(claim("a", 1, now), bound, now, order.work(name)).unwrap())
        .into();
    std::thread::sleep(Duration::from_millis(12));
    for _ in names {
        queue.run_next(bound);
    }
    assert_eq!(order.take(), ["3", "2", "1"]);
}

#[test]
fn withdrawn_requests_leave_no_trace() {
    let queue = Arc::new(Queue::new(1));
    let (order, now) = (Order::default(), Instant::now());
    let first = queue.push(claim("a", 5, now), BOUND, now, order.work("first")).unwrap();
    let second = queue.push(claim("b", 5, now), BOUND, now, order.work("second")).unwrap();
    drop(first);
    queue.run_next(BOUND);
    drop(second);
    queue.run_next(BOUND);
    assert_eq!(order.take(), ["second"]);
    assert_eq!((queue.waiting(), queue.backlog()), (0, Duration::ZERO));
}
