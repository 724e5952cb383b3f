//! Tests of the queue, with works that record their order.

use std::sync::Mutex;

use super::*;

const BOUND: Duration = Duration::from_millis(40);

fn flow(principal: &str) -> FlowKey {
    FlowKey { model: "m".into(), principal: principal.into() }
}

fn claim(principal: &str, millis: u64, now: Instant) -> Claim {
    let (estimate, deadline) = (Duration::from_millis(millis), now + Duration::from_secs(1000));
    Claim { flow: flow(principal), estimate, deadline }
}

/// A record of the requests whose turn has come, in order.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<String>>>);

impl Order {
    fn work(&self, name: &str) -> impl FnOnce(Turn) + Send + 'static {
        let (order, name) = (self.clone(), name.to_owned());
        move |turn| {
            let name = match turn {
                Turn::Begin(_) => name,
                Turn::TooLate => format!("{name} late"),
                Turn::Crowded(_) => format!("{name} crowded"),
            };
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

/// A bound that no test reaches by its own time.
const LONG: Duration = Duration::from_secs(100);

#[test]
fn flows_take_turns_and_each_has_its_share() {
    let queue = Arc::new(Queue::new(1));
    let (order, now) = (Order::default(), Instant::now());
    let mut places = Vec::new();
    while let Ok(place) = queue.push(claim("burst", 5000, now), LONG, now, order.work("burst")) {
        places.push(place);
    }
    assert_eq!(places.len(), 20);
    // The bound is reached, and another flow still gets half of it, and a third one a third.
    for (name, share) in [("other", 10), ("third", 6)] {
        let before = places.len();
        while let Ok(place) = queue.push(claim(name, 5000, now), LONG, now, order.work(name)) {
            places.push(place);
        }
        assert_eq!(places.len() - before, share);
    }
    for _ in 0..6 {
        queue.run_next(LONG);
    }
    assert_eq!(order.take(), ["burst", "other", "third", "burst", "other", "third"]);
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
    queue.run_next(Duration::from_millis(10));
    assert_eq!(order.take(), ["first late", "second late", "third"]);
    queue.run_next(BOUND);
    assert!(order.take().is_empty() && queue.waiting() == 0);
    assert_eq!(queue.backlog(), Duration::ZERO);
}

#[test]
fn an_idle_server_tries_a_request_of_any_estimate() {
    let estimates = Estimates::default();
    estimates.record(300, Duration::from_micros(300));
    let queue = Arc::new(Queue::new(1));
    let (order, now) = (Order::default(), Instant::now());
    let bytes = 4 << 20;
    // Each byte above the first 300 costs its usual time, and not the time of a request of 300.
    let estimate = estimates.of_bytes(bytes);
    assert!(estimate < Duration::from_millis(250), "{estimate:?}");
    let _places = [estimate, Duration::from_secs(2000)].map(|estimate| {
        let claim = Claim { estimate, ..claim("a", 0, now) };
        let place = queue.push(claim, BOUND, now, order.work("large")).unwrap();
        queue.run_next(LONG);
        assert_eq!(order.take(), ["large"]);
        place
    });
}

#[test]
fn a_request_that_waited_too_long_is_refused_and_the_next_begins() {
    let queue = Arc::new(Queue::new(1));
    let (order, now) = (Order::default(), Instant::now());
    let bound = Duration::from_millis(50);
    let mut places: Vec<Place> = ["1", "2"]
        .map(|name| queue.push(claim("a", 1, now), bound, now, order.work(name)).unwrap())
        .into();
    std::thread::sleep(places[0].patience + Duration::from_millis(5));
    let later = Instant::now();
    places.push(queue.push(claim("a", 1, now), bound, later, order.work("3")).unwrap());
    queue.run_next(bound);
    assert_eq!(order.take(), ["1 crowded", "2 crowded", "3"]);
    assert_eq!((queue.waiting(), queue.backlog()), (0, Duration::ZERO));
    // One that is withdrawn is not told anything, and one that has begun is not withdrawn.
    places.push(queue.push(claim("a", 1, now), bound, later, order.work("4")).unwrap());
    assert_eq!(places[3].withdraw().unwrap().waiting, 1);
    assert!(places[3].withdraw().is_none() && places[2].withdraw().is_none());
    queue.run_next(bound);
    assert!(order.take().is_empty());
}

#[test]
fn estimates_that_are_too_low_admit_no_more_than_the_bound() {
    let queue = Arc::new(Queue::new(1));
    let now = Instant::now();
    let work = |_| std::thread::sleep(Duration::from_millis(4));
    let push = |bound| queue.push(claim("a", 1, now), bound, Instant::now(), work);
    let _places: Vec<Place> = (0..40).map(|_| push(LONG).unwrap()).collect();
    assert_eq!(queue.backlog(), BOUND);
    (0..25).for_each(|_| queue.run_next(LONG));
    // Each takes four times its estimate, so that the 15 that still wait are more than the bound.
    assert!(queue.backlog() > BOUND);
    assert!(push(BOUND).is_err());
}

#[test]
fn a_client_that_always_has_one_request_waiting_takes_turns() {
    let queue = Arc::new(Queue::new(1));
    let (order, now) = (Order::default(), Instant::now());
    let push = |name| queue.push(claim(name, 200, now), LONG, now, order.work(name)).unwrap();
    let mut places: Vec<Place> = (0..10).map(|_| push("b")).collect();
    for _ in 0..20 {
        // The next request of `a` comes after its last one was answered.
        if !queue.lock().flows.contains_key(&flow("a")) {
            places.push(push("a"));
        }
        queue.run_next(LONG);
    }
    let order = order.take();
    assert_eq!(order.iter().filter(|name| *name == "b").count(), 10, "{order:?}");
}

#[test]
fn a_flow_pays_for_the_time_that_its_work_took() {
    let queue = Arc::new(Queue::new(1));
    let (order, now) = (Order::default(), Instant::now());
    let slow = |_| std::thread::sleep(Duration::from_millis(100));
    let mut places = vec![queue.push(claim("sly", 1, now), LONG, now, slow).unwrap()];
    let mut push = |name: &str| {
        places.push(queue.push(claim(name, 5, now), LONG, now, order.work(name)).unwrap());
    };
    push("fair");
    queue.run_next(LONG);
    ["sly", "fair", "fair", "fair"].into_iter().for_each(&mut push);
    (0..5).for_each(|_| queue.run_next(LONG));
    // The work of 100 ms was estimated as 1 ms, and others catch up before its next request.
    assert_eq!(order.take(), ["fair", "fair", "fair", "fair", "sly"]);
}

#[test]
fn the_memory_of_flows_is_bounded() {
    let queue = Arc::new(Queue::new(1));
    let now = Instant::now();
    let push = |name: &str| queue.push(claim(name, 1, now), LONG, now, |_| ()).unwrap();
    let mut place = push("always");
    for number in 0..5000 {
        let other = push(&number.to_string());
        queue.run_next(LONG);
        let next = push("always");
        queue.run_next(LONG);
        drop((other, std::mem::replace(&mut place, next)));
    }
    let most = queue.lock().finished.len();
    assert!(most <= 2 * REMEMBERED, "{most}");
    // An idle server remembers nothing.
    queue.run_next(LONG);
    queue.run_next(LONG);
    assert_eq!(queue.waiting(), 0);
    let _place = push("always");
    assert!(queue.lock().finished.is_empty());
}

#[test]
fn the_first_request_of_a_flow_waits_whatever_its_estimate_is() {
    let queue = Arc::new(Queue::new(1));
    let now = Instant::now();
    let _others: Vec<Place> =
        (0..3).map(|_| queue.push(claim("b", 5, now), BOUND, now, |_| ()).unwrap()).collect();
    let _first = queue.push(claim("a", 500, now), BOUND, now, |_| ()).unwrap();
    assert!(queue.push(claim("a", 500, now), BOUND, now, |_| ()).is_err());
}

#[test]
fn idle_work_waits_for_all_requests_and_is_bounded() {
    let queue = Arc::new(Queue::new(1));
    let (order, now) = (Order::default(), Instant::now());
    let idle = || {
        let work = order.work("idle");
        queue.push_idle(Duration::from_millis(1), move || work(Turn::Begin(Duration::ZERO)))
    };
    assert_eq!([(); 6].map(|()| idle()), [true, true, true, true, false, false]);
    let _place = queue.push(claim("a", 1, now), BOUND, now, order.work("request")).unwrap();
    (0..7).for_each(|_| queue.run_next(BOUND));
    assert_eq!(order.take(), ["request", "idle", "idle", "idle", "idle"]);
    let _place = queue.push(claim("a", 1, now), BOUND, now, order.work("request")).unwrap();
    assert!(!idle(), "none comes while a request waits");
    assert_eq!(queue.lock().running_work, Duration::ZERO);
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
