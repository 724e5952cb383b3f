//! Models that share the memory of a device, a device that fails, and requests that become late
//! behind a batch.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;

/// Two models on one device: the versions, and what they are made of.
struct Pair {
    device: Arc<ScoringDevice>,
    engines: [Arc<DeviceEngine>; 2],
    versions: [Arc<DeviceVersion>; 2],
    source: LayerSource,
    params: Arc<Params>,
}

impl Pair {
    fn new(world: &World, memory: u64) -> Self {
        let (device, first) = world.engine(memory, 7);
        let engines = [first, world.engine_on(&device)];
        let (source, params) = (world.source(2), world.params(4));
        let load = |engine: &Arc<DeviceEngine>| {
            Arc::new(engine.load(params.clone(), source.clone(), &mut Unthrottled).unwrap())
        };
        let versions = [load(&engines[0]), load(&engines[1])];
        Self { device, engines, versions, source, params }
    }

    /// Scores batches with a model, and compares the scores with those of a processor.
    fn check(&self, world: &World, model: usize, rows: &[usize]) {
        for &rows in rows {
            let batch = world.batch(rows as u64, rows);
            let expected = world.expected(&self.source, &self.params, &batch);
            let scores = score(&self.versions[model], &batch).unwrap();
            assert_eq!(bits(&scores), bits(&expected), "model {model}, {rows} rows");
        }
    }

    fn used(&self) -> u64 {
        self.device.statistics().used_bytes
    }
}

/// Large batches of each bucket.
const LARGE: [usize; 3] = [250, 1000, 4000];

#[test]
fn a_model_gets_the_memory_that_another_one_does_not_use() {
    let world = world();
    let pair = Pair::new(&world, 64 << 20);
    pair.check(&world, 0, &LARGE);
    let first = pair.used();
    pair.check(&world, 1, &[1000]);
    let second = pair.used() - first;
    // There is not enough for the batches of both.
    let pair = Pair::new(&world, first + second / 2);
    pair.check(&world, 0, &LARGE);
    pair.check(&world, 1, &[1000]);
    // A version of the second model comes while the first one has nearly all.
    pair.check(&world, 0, &LARGE);
    let params = world.params(5);
    let next = pair.engines[1].load(params.clone(), world.source(6), &mut Unthrottled).unwrap();
    assert_eq!(pair.device.statistics().versions_without_rows, 0);
    let batch = world.batch(3, 90);
    let expected = world.expected(&world.source(6), &params, &batch);
    assert_eq!(bits(&score(&Arc::new(next), &batch).unwrap()), bits(&expected));
}

#[test]
fn models_that_fit_only_one_after_the_other_take_turns() {
    let world = world();
    let pair = Pair::new(&world, 64 << 20);
    let loaded = pair.used();
    pair.check(&world, 0, &[1000]);
    let batch = pair.used() - loaded;
    let pair = Pair::new(&world, loaded + batch + batch / 2);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (pair, world) = (&pair, &world);
            scope.spawn(move || (0..6).for_each(|_| pair.check(world, thread % 2, &[1000])));
        }
    });
}

#[test]
fn memory_of_a_burst_is_given_back_with_time() {
    let world = world();
    let pair = Pair::new(&world, 64 << 20);
    pair.check(&world, 0, &[100]);
    let small = pair.used();
    pair.check(&world, 0, &LARGE);
    let large = pair.used();
    let release = |after: u64| {
        pair.engines[0].drop_surplus_executors(Instant::now() + Duration::from_secs(after));
        pair.used()
    };
    assert_eq!(release(0), large);
    pair.check(&world, 0, &[100]);
    // The executor that was used last stays.
    let left = release(3600);
    assert!(left < large && left >= small, "{small} {left} {large}");
    pair.check(&world, 0, &LARGE);
}

#[test]
fn a_device_that_fails_is_seen_by_the_next_request() {
    let world = world();
    let device = ScoringDevice::open("emulated:8:fail=60", Some(64 << 20)).unwrap();
    let engine = world.engine_on(&device);
    let version = engine.load(world.params(1), world.source(3), &mut Unthrottled).unwrap();
    let (version, batch) = (Arc::new(version), world.batch(1, 20));
    assert!(score(&version, &batch).is_ok() && !device.has_failed());
    let failed = (0..60).find_map(|_| score(&version, &batch).err());
    assert!(failed.is_some_and(|error| !matches!(error, Error::Late)));
    assert!(device.has_failed() && device.statistics().has_failed);
    // The loader looks too, and the failure stays.
    version.release_idle(Instant::now());
    assert!(device.has_failed());
}

#[test]
fn a_delta_is_uploaded_at_most_three_times() {
    let mut world = world();
    world.add_layer((500..525).map(|id| (id, Some(0.25))).collect());
    let (device, engine) = world.engine(64 << 20, 9);
    let mut open = None;
    for layers in 1..=8 {
        let (source, params) = (world.source(layers), world.params(1));
        let version = engine.load(params.clone(), source.clone(), &mut Unthrottled).unwrap();
        let version = Arc::new(version);
        let batch = world.batch(layers as u64, 50);
        let expected = world.expected(&source, &params, &batch);
        assert_eq!(bits(&score(&version, &batch).unwrap()), bits(&expected));
        // The version before goes when the next one is there.
        open = Some(version);
    }
    // Deltas have up to 25 rows. One after the other, seven deltas come in groups of 1, 2, 1, 4, 1,
    // 2 and 1 deltas.
    let uploaded = device.statistics().uploaded_rows;
    assert!(uploaded <= 300 + 12 * 25, "{uploaded}");
    drop(open);
}

#[test]
fn a_request_that_becomes_late_behind_a_batch_is_withdrawn() {
    let world = world();
    let (device, engine) = world.engine(64 << 20, 10);
    let version = engine.load(world.params(1), world.source(2), &mut Unthrottled).unwrap();
    let version = Arc::new(version);
    let (begin, has_begun) = mpsc::channel();
    let (end, may_end) = mpsc::channel::<()>();
    let (may_end, checks) = (std::sync::Mutex::new(may_end), AtomicUsize::new(0));
    let is_late = AtomicBool::new(false);
    let batch = world.batch(1, 5);
    std::thread::scope(|scope| {
        let batcher = &engine.batcher;
        let running = scope.spawn(move || {
            batcher.alone(|_| {
                begin.send(()).unwrap();
                may_end.lock().unwrap().recv().unwrap();
                Ok(())
            })
        });
        has_begun.recv().unwrap();
        let (version, batch, checks, is_late) = (&version, &batch, &checks, &is_late);
        let late = scope.spawn(move || {
            let check = || {
                checks.fetch_add(1, Ordering::Relaxed);
                is_late.load(Ordering::Relaxed)
            };
            let request = Prepared::new(&batch.0, &batch.1, version.strides()).unwrap();
            version.score(request, Some(&check))
        });
        // The second check is made with the request in the list, behind the batch.
        while checks.load(Ordering::Relaxed) < 2 {
            std::thread::yield_now();
        }
        is_late.store(true, Ordering::Relaxed);
        end.send(()).unwrap();
        let late = late.join().unwrap();
        assert!(matches!(late, Err(Error::Late)), "{late:?}");
        running.join().unwrap().unwrap();
        let expected = world.expected(&world.source(2), &world.params(1), batch);
        assert_eq!(bits(&score(version, batch).unwrap()), bits(&expected));
    });
    assert_eq!(device.statistics().requests, 1);
}
