//! Tests of the two ways of a request: on its own thread, and over the pool.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread::{self, ThreadId};

use tokio::runtime::Runtime;
use zillion_access::Principal;
use zillion_device::Workers;

use super::*;
use crate::admission::Head;
use crate::budget::Holder;
use crate::config::Follow;
use crate::host::Host;
use crate::queue::Wire;

/// The number of bytes, and that of rows and values, of the requests of these tests.
const SIZE: (usize, usize) = (1000, 40);

/// A server of one model whose pool has one thread.
struct Place {
    scoring: Scoring,
    host: Arc<Host>,
    limits: Limits,
    runtime: Runtime,
    registry: prometheus::Registry,
}

impl Place {
    /// Waits until no work counts as running. A thread of the pool ends its work shortly after
    /// its answer is there.
    fn wait_for_rest(&self) {
        let patience = Instant::now() + Duration::from_secs(30);
        while self.scoring.load().1 != Duration::ZERO {
            assert!(Instant::now() < patience, "work is left as running");
            thread::yield_now();
        }
    }

    fn new() -> Self {
        let registry = prometheus::Registry::new();
        let metrics = Arc::new(Metrics::new(&registry).unwrap());
        metrics.begin("m");
        let workers = Arc::new(Workers::new(NonZeroUsize::new(2).unwrap()).unwrap());
        let follow = Follow::Latest;
        // The bound is so high that no time of a busy machine reaches it.
        let inline_time = Duration::from_secs(100);
        let limits =
            Limits { inline_time, request_time: Duration::from_secs(60), ..Limits::default() };
        Self {
            scoring: Scoring::new(workers, 1, metrics),
            host: Arc::new(Host::new("m", follow, true, None)),
            limits,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
            registry,
        }
    }

    fn admit(&self, principal: &str, lag: Duration) -> Result<Admitted> {
        let principal = Principal { name: principal.into(), ..Principal::anonymous() };
        let caller = self.scoring.enter(&Arc::new(principal)).unwrap();
        let (holder, bytes) = (Holder::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)), SIZE.0);
        let head = Head {
            host: &self.host,
            caller: &caller,
            wire: Wire::Tensors,
            bytes,
            holder,
            booked: bytes,
            time: None,
            lag,
            gathering: None,
        };
        self.scoring.admit(&head, &self.limits)
    }

    fn run<T: Send + 'static>(
        &self,
        is_packed: bool,
        work: impl FnMut(&Turned) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let admitted = self.admit("a", Duration::ZERO)?;
        let run = self.scoring.run(&admitted, (SIZE.0, is_packed), &self.limits, work);
        self.runtime.block_on(run)
    }

    /// Runs a request, and returns the thread of its work.
    fn thread(&self) -> ThreadId {
        self.run(false, |_| done(thread::current().id())).unwrap()
    }

    fn inline_count(&self) -> u64 {
        let families = self.registry.gather();
        let family =
            families.iter().find(|family| family.name() == "zillion_serving_scored_inline_total");
        family.unwrap().get_metric()[0].get_counter().get_value() as u64
    }
}

fn done<T>(value: T) -> Outcome<T> {
    Outcome::Done(Ok(value), Some(SIZE.1))
}

#[test]
fn small_requests_stay_on_their_thread_once_measured() {
    let mut place = Place::new();
    let own = thread::current().id();
    assert_ne!(place.thread(), own, "nothing was measured");
    assert_eq!((place.inline_count(), place.thread(), place.inline_count()), (0, own, 1));
    // A packed body may become any work.
    assert_ne!(place.run(true, |_| done(thread::current().id())).unwrap(), own);
    let inline_time = place.limits.inline_time;
    place.limits.inline_time = Duration::ZERO;
    assert_ne!(place.thread(), own, "it is turned off");
    place.limits.inline_time = Duration::from_nanos(1);
    assert_ne!(place.thread(), own, "the work is longer");
    place.limits.inline_time = inline_time;
    assert_eq!((place.thread(), place.inline_count()), (own, 2));
    assert_eq!(place.scoring.load().0, 0);
    place.wait_for_rest();
}

#[test]
fn work_that_is_too_long_is_handed_over_and_done_once() {
    let place = Place::new();
    place.thread();
    let own = thread::current().id();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let recorded = calls.clone();
    let work = move |turned: &Turned| {
        let is_inline = turned.inline_time.is_some();
        recorded.lock().unwrap().push((thread::current().id() == own, is_inline));
        match is_inline {
            true => Outcome::HandedOver,
            false => done(7),
        }
    };
    assert_eq!(place.run(false, work).unwrap(), 7);
    assert_eq!(*calls.lock().unwrap(), [(true, true), (false, false)]);
    assert_eq!(place.inline_count(), 0, "the answer came from the pool");
}

#[test]
fn a_panic_is_the_same_error_on_both_ways() {
    let place = Place::new();
    let fail = |is_packed| {
        let panics = |_: &Turned| -> Outcome<()> { panic!("a test") };
        place.run(is_packed, panics).unwrap_err()
    };
    let on_pool = fail(true);
    place.thread();
    let here = fail(false);
    assert_eq!(here.to_string(), on_pool.to_string());
    assert_eq!(here.kind().http_status(), 500);
    // The thread and the queue go on.
    assert_eq!(place.thread(), thread::current().id());
    place.wait_for_rest();
}

#[test]
fn no_small_request_overtakes_one_that_waits() {
    let place = Place::new();
    place.thread();
    let (order, began) = (Arc::new(Mutex::new(Vec::new())), mpsc::channel());
    let (release, released) = mpsc::channel::<()>();
    let note = |name: &'static str| {
        let order = order.clone();
        move |turned: &Turned| {
            order.lock().unwrap().push((name, turned.inline_time.is_some()));
            done(())
        }
    };
    let admitted = ["big", "big", "small"].map(|name| place.admit(name, Duration::ZERO).unwrap());
    let limits = &place.limits;
    let blocking = {
        let (work, began) = (note("first"), began.0);
        move |turned: &Turned| {
            began.send(()).unwrap();
            released.recv().unwrap();
            work(turned)
        }
    };
    // Two large requests of one caller: one is in work, and one waits.
    let large = (20_000, false);
    let first = place.scoring.run(&admitted[0], large, limits, blocking);
    let second = place.scoring.run(&admitted[1], large, limits, note("second"));
    let small = place.scoring.run(&admitted[2], (SIZE.0, false), limits, note("small"));
    let finish = async {
        tokio::task::yield_now().await;
        began.1.recv().unwrap();
        tokio::task::yield_now().await;
        assert!(order.lock().unwrap().is_empty(), "the small request waits for its turn");
        assert_eq!(place.scoring.load().0, 2);
        release.send(()).unwrap();
    };
    let all = async { tokio::join!(first, second, small, finish) };
    let (first, second, small, ()) = place.runtime.block_on(all);
    assert!(first.is_ok() && second.is_ok() && small.is_ok());
    // The queue gives the turn to the caller that had less.
    let order = order.lock().unwrap();
    assert_eq!(*order, [("first", false), ("small", false), ("second", false)]);
    assert_eq!(place.inline_count(), 0);
}

#[test]
fn a_thread_that_lags_leaves_requests_to_the_queue() {
    let place = Place::new();
    place.thread();
    let own = thread::current().id();
    let run = |lag| {
        let admitted = place.admit("a", lag)?;
        let work = |_: &Turned| done(thread::current().id());
        let run = place.scoring.run(&admitted, (SIZE.0, false), &place.limits, work);
        place.runtime.block_on(run)
    };
    let millis = Duration::from_millis;
    assert_eq!(run(millis(9)).unwrap(), own);
    assert_ne!(run(millis(11)).unwrap(), own);
    let refused = run(millis(31)).unwrap_err();
    assert_eq!(refused.kind().http_status(), 429, "{refused}");
}
