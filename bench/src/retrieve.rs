//! The benchmark `zillion bench retrieve`: the time of a search for the nearest items of a user.
//!
//! The vectors are random, and lie in clusters as those of a trained tower do. There is a centre
//! for every 1,000 items, with the direction of normal draws. A vector is a centre plus 0.5 times a
//! vector of normal draws, scaled to length 1. A user is drawn like an item. The draws are those of
//! a fixed seed. Decaying vectors are such vectors whose element `i` is divided by the square root
//! of `1 + i` before the scaling. Gaussian vectors have no centre, which is the hardest case for an
//! approximate search: the best items are hardly better than the others.
//!
//! Vectors can also be drawn like those of a trained model: each is a random mean of three items of
//! a published version, with the length of one of them. Such vectors have the mean, the principal
//! components and the lengths of the trained ones, however many are drawn.
//!
//! The recall of the approximate search is the part of the items of the exact search that it finds,
//! on average over the searches.
//!
//! The search is the one of the server, without the tower of the user, a queue and a network. The
//! processor time is that of the calling thread, which is all of it on one thread.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use zillion_console::compute_pool;
use zillion_device::clock::thread_time;
use zillion_device::machine::CpuTimes;
use zillion_feature::random::{combine, mix64};
use zillion_rows::layer::Unthrottled;
use zillion_scorer::{Choice, Found, ItemIds, ItemVectors, RoundedItems, find_near, find_nearest};

use crate::args::{BenchRetrieveArgs, VectorKind};
use crate::load::figures::{Percentiles, round};
use crate::print_outcome;

/// The number of items for each cluster.
const CLUSTER: usize = 1000;
/// The size of the draws around a centre, against those of the centre.
const SPREAD: f32 = 0.5;

#[derive(Serialize)]
struct Outcome {
    items: usize,
    dim: usize,
    k: usize,
    threads: usize,
    searches: usize,
    search: &'static str,
    vectors: &'static str,
    /// The part of the items of the exact search that the approximate search finds.
    recall: Option<f64>,
    #[serde(flatten)]
    latency: Percentiles,
    min_ms: f64,
    /// The processor time of the calling thread for a search, in milliseconds.
    cpu_ms: Option<f64>,
    /// The bytes of the vectors that the first look of a search reads in a second, in GB, at its
    /// shortest time.
    gb_per_second: f64,
    file_bytes: usize,
    memory_bytes: usize,
    /// The bytes of the rounded vectors, which the approximate search has besides.
    rounded_bytes: Option<usize>,
    /// The time for rounding the vectors at a load, in seconds.
    round_seconds: Option<f64>,
    /// The time for writing the file of a version from the vectors, in seconds.
    write_seconds: f64,
    /// The time for reading the file, with all checks, in seconds.
    read_seconds: f64,
    /// The number of processors that other programs kept busy.
    other_cpus: Option<f64>,
}

pub(crate) fn run(args: &BenchRetrieveArgs, is_json: bool) -> Result<()> {
    let count = args.items.get() as usize;
    let source = Source::open(args)?;
    let dim = source.dim;
    let workers = compute_pool(Some(args.threads))?;
    let vectors: Vec<f32> = (0..count).flat_map(|item| source.draw(item as u64)).collect();
    let ids = ItemIds::Ints((0..count as i64).collect());
    let items = ItemVectors::new(ids, vectors, dim, 10.0, Vec::new(), &mut Unthrottled)?;
    let began = Instant::now();
    let bytes = items.to_bytes()?;
    let write_seconds = began.elapsed().as_secs_f64();
    drop(items);
    let began = Instant::now();
    let items = ItemVectors::from_bytes(&bytes, &mut Unthrottled)?;
    let read_seconds = began.elapsed().as_secs_f64();
    let file_bytes = bytes.len();
    drop(bytes);
    let began = Instant::now();
    let rounded = match args.approximate {
        true => Some(RoundedItems::new(&items, &mut Unthrottled)?),
        false => None,
    };
    let round_seconds = rounded.is_some().then(|| began.elapsed().as_secs_f64());
    let k = args.k.get();
    let user = |number: usize| source.draw(u64::MAX - number as u64);
    let exact = |user: &[f32]| find_nearest(&items, user, k, Choice::default(), &workers, None);
    let search = |user: &[f32]| match &rounded {
        None => exact(user),
        Some(rounded) => find_near(&items, rounded, user, k, Choice::default(), &workers, None),
    };
    // The first search is not counted, because it is the first to touch the vectors.
    search(&user(args.searches.get()))?;
    let users: Vec<Vec<f32>> = (0..args.searches.get()).map(user).collect();
    let (cpus, cpu) = (CpuTimes::now(), thread_time());
    let mut latencies = Vec::with_capacity(args.searches.get());
    let mut answers = Vec::with_capacity(args.searches.get());
    for user in &users {
        let began = Instant::now();
        let answer = search(user)?;
        latencies.push(began.elapsed());
        answers.push(answer);
    }
    let cpu = thread_time().zip(cpu).map(|(now, before)| now.saturating_sub(before));
    let other_cpus = CpuTimes::now().since(&cpus).other_cpus;
    let mut recall = None;
    if args.approximate {
        let mut sum = 0.0;
        for (user, answer) in users.iter().zip(&answers) {
            sum += shared(&exact(user)?, answer);
        }
        recall = Some(round(sum / users.len() as f64));
    }
    let shortest = latencies.iter().min().copied().unwrap_or_default();
    let searches = latencies.len();
    let rounded_bytes = rounded.as_ref().map(RoundedItems::bytes);
    let read_bytes = rounded_bytes.unwrap_or(4 * count * dim);
    let outcome = Outcome {
        items: count,
        dim,
        k: args.k.get(),
        threads: args.threads.get(),
        searches,
        search: if args.approximate { "approximate" } else { "exact" },
        vectors: source.name(),
        recall,
        min_ms: round(shortest.as_secs_f64() * 1e3),
        latency: Percentiles::of(latencies),
        cpu_ms: cpu.map(|cpu| round(cpu.as_secs_f64() * 1e3 / searches as f64)),
        gb_per_second: round(rate(read_bytes, shortest)),
        file_bytes,
        memory_bytes: items.bytes(),
        rounded_bytes,
        round_seconds,
        write_seconds,
        read_seconds,
        other_cpus,
    };
    print_outcome(&outcome, is_json)
}

/// Returns a rate in GB a second.
fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / 1e9 / time.as_secs_f64().max(1e-9)
}

/// Returns the part of the exact items that an answer has.
fn shared(exact: &[Found], answer: &[Found]) -> f64 {
    let found = exact.iter().filter(|best| answer.iter().any(|found| found.item == best.item));
    found.count() as f64 / exact.len().max(1) as f64
}

/// A source of vectors.
struct Source {
    kind: VectorKind,
    count: usize,
    dim: usize,
    /// The items of a trained model, which the vectors are like.
    trained: Option<ItemVectors>,
}

impl Source {
    fn open(args: &BenchRetrieveArgs) -> Result<Self> {
        let trained = match &args.like {
            Some(path) => {
                let bytes = std::fs::read(path)
                    .with_context(|| format!("cannot read the items of {}", path.display()))?;
                let items = ItemVectors::from_bytes(&bytes, &mut Unthrottled)?;
                ensure!(!items.is_empty(), "{} has no items to imitate", path.display());
                Some(items)
            }
            None => None,
        };
        let dim = trained.as_ref().map_or(args.dim.get(), ItemVectors::dim);
        Ok(Self { kind: args.vectors, count: args.items.get() as usize, dim, trained })
    }

    fn name(&self) -> &'static str {
        match (&self.trained, self.kind) {
            (Some(_), _) => "trained",
            (None, VectorKind::Clusters) => "clusters",
            (None, VectorKind::Decaying) => "decaying",
            (None, VectorKind::Gaussian) => "gaussian",
        }
    }

    /// Draws the vector with a number.
    fn draw(&self, number: u64) -> Vec<f32> {
        match &self.trained {
            Some(trained) => draw_between(trained, number),
            None => draw(self.kind, self.count, self.dim, number),
        }
    }
}

/// Draws a vector between three items, with the length of the first.
fn draw_between(items: &ItemVectors, number: u64) -> Vec<f32> {
    let uniform = |i: u64| mix64(combine(combine(4, number), i));
    let parts: [(&[f32], f32); 3] = std::array::from_fn(|i| {
        let at = (uniform(2 * i as u64) % items.len() as u64) as usize * items.dim();
        let weight = (uniform(2 * i as u64 + 1) >> 40) as f32 / (1u64 << 24) as f32;
        (&items.vectors()[at..at + items.dim()], weight)
    });
    let element = |at: usize| parts.iter().map(|(vector, weight)| weight * vector[at]).sum();
    let mut vector: Vec<f32> = (0..items.dim()).map(element).collect();
    let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    let factor = length(parts[0].0) / length(&vector).max(f32::MIN_POSITIVE);
    vector.iter_mut().for_each(|x| *x *= factor);
    vector
}

/// Draws a vector of length 1, for most kinds near the centre of one of the clusters of `count`
/// items.
fn draw(kind: VectorKind, count: usize, dim: usize, number: u64) -> Vec<f32> {
    let clusters = count.div_ceil(CLUSTER).max(1) as u64;
    let centre = mix64(combine(1, number)) % clusters;
    let float = |at: usize| {
        let of = |seed: u64, which: u64| normal(combine(combine(seed, which), at as u64));
        let near = || of(2, centre) + SPREAD * of(3, number);
        match kind {
            VectorKind::Clusters => near(),
            VectorKind::Decaying => near() / ((1 + at) as f32).sqrt(),
            VectorKind::Gaussian => of(3, number),
        }
    };
    let mut vector: Vec<f32> = (0..dim).map(float).collect();
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    vector.iter_mut().for_each(|x| *x /= length);
    vector
}

/// Returns a draw that is nearly normal: the sum of twelve uniform ones.
fn normal(seed: u64) -> f32 {
    let uniform = |i: u64| (mix64(combine(seed, i)) >> 40) as f32 / (1u64 << 24) as f32;
    (0..12).map(uniform).sum::<f32>() - 6.0
}
