//! A benchmark of the cost of a checkpoint that is written beside training. The table has 10
//! million rows of 16 weights, or the number of rows in the first argument. Pulls and pushes of
//! 1,000 uniform keys are measured before the checkpoint, and while it is written.
//!
//! At the end, the checkpoint is restored, and opened with and without the comparison of its
//! digest.
//!
//! The benchmark prints the times and the rate of the operations, by the clock and by the
//! processor time of the thread. If other programs run on the machine, only the processor time is
//! meaningful.

mod common;

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{gradients, plan_of_range, random_plan, rowwise, spec, update};
use zillion_device::{Files, Workers, thread_time};
use zillion_embedding::{TableSet, TableView};
use zillion_feature::random::mix64;
use zillion_feature::{LookupPlan, RowBuffer};
use zillion_rows::{DEFAULT_SHARDS, Dtype, TableParts};

const KEYS: u64 = 1000;
/// The number of rows that are copied to the checkpoint after each push.
const COPIED: usize = KEYS as usize / 12;
/// The number of different plans. They are made before the measurement and used repeatedly.
const PLANS: u64 = 2000;
/// The number of times that the checkpoint is restored and opened.
const RESTORED: usize = 15;

/// The times of all measured operations, by the clock and by the processor time.
#[derive(Default)]
struct Times {
    wall: Vec<Duration>,
    busy: Vec<Duration>,
}

impl Times {
    fn measure(&mut self, operation: impl FnOnce()) {
        let busy = || thread_time().unwrap_or_default();
        let (began, before) = (Instant::now(), busy());
        operation();
        self.busy.push(busy().saturating_sub(before));
        self.wall.push(began.elapsed());
    }

    /// Prints one line for each of the two clocks, and returns the mean time of an operation by
    /// each clock, in seconds.
    fn print(&mut self, name: &str) -> [f64; 2] {
        [("wall", &mut self.wall), ("busy", &mut self.busy)].map(|(clock, times)| {
            times.sort_unstable();
            let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
            let mean = times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64;
            eprintln!(
                "{name} ({clock}): {} operations, mean {:.1} us, p50 {:.1?}, p99 {:.1?}, p99.99 {:.1?}, longest {:.1?}",
                times.len(),
                mean * 1e6,
                at(0.5),
                at(0.99),
                at(0.9999),
                at(1.0),
            );
            mean
        })
    }
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let rows = numbers.first().copied().unwrap_or(10_000_000).max(KEYS);
    let threads = numbers.get(1).copied().unwrap_or(2) as usize;
    let workers = Workers::new(NonZeroUsize::new(threads).expect("one thread at least"));
    let workers = workers.expect("threads");
    let spec = spec(rowwise(), Dtype::F32);
    let mut set = TableSet::new(vec![spec], DEFAULT_SHARDS).expect("a valid spec");
    for first in (0..rows).step_by(1 << 16) {
        let plan = plan_of_range(first..(first + (1 << 16)).min(rows));
        set.push(&workers, &plan, &gradients(&plan), update(1)).expect("memory");
    }
    let plans: Vec<LookupPlan> = (0..PLANS).map(|i| random_plan(i, KEYS, rows)).collect();
    let raw: Vec<RowBuffer> = plans.iter().map(gradients).collect();
    let mut pulled = RowBuffer::default();
    let mut step = 1;
    let mut operate = |set: &mut TableSet, times: &mut Times| {
        let at = (mix64(step) % PLANS) as usize;
        step += 1;
        times
            .measure(|| set.pull(&workers, &plans[at], false, &mut pulled).expect("the plan fits"));
        times.measure(|| {
            set.push(&workers, &plans[at], &raw[at], update(step)).expect("memory");
            set.advance_snapshot(&workers, COPIED);
        });
    };

    let mut before = Times::default();
    (0..20_000).for_each(|_| operate(&mut set, &mut before));
    let alone = before.print("alone");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut during = Times::default();
    let (began, mut most) = (Instant::now(), 0);
    during.measure(|| {
        set.begin_snapshot(&workers, folder.path(), &Files::new()).expect("a folder");
    });
    eprintln!("beginning: {:.1?}", during.wall[0]);
    while !set.snapshot_is_ready() {
        operate(&mut set, &mut during);
        if during.wall.len() % 1024 == 1 {
            most = set.statistics()[0].snapshot_bytes.max(most);
        }
        // With one thread, no task writes the checkpoint in the background.
        if threads == 1 && during.wall.len() > 100_000 {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let finishing = Instant::now();
    let parts = set.finish_snapshot(&workers).expect("a disk");
    eprintln!("finishing: {:.1?}", finishing.elapsed());
    let beside = during.print("during");
    let bytes: u64 = parts[0].parts.iter().map(|part| part.bytes).sum();
    eprintln!(
        "{} rows, {:.2} GB in {} parts, written in {seconds:.1} s; kept and in flight at most {:.0} MB; throughput \
         {:.0} % by the clock, {:.0} % of the thread's time",
        parts[0].rows,
        bytes as f64 / 1e9,
        parts[0].parts.len(),
        most as f64 / 1e6,
        100.0 * alone[0] / beside[0],
        100.0 * alone[1] / beside[1],
    );
    drop(set);
    restore(&workers, folder.path(), &parts);
}

/// Prints the least times of restoring a checkpoint, of opening it for reading, and of opening it
/// without comparing its digest. The processor time is that of this thread, so it is the whole time
/// only with one thread.
fn restore(workers: &Workers, folder: &Path, parts: &[TableParts]) {
    let mut plain = parts.to_vec();
    plain.iter_mut().for_each(|table| table.digest = None);
    let spec = || spec(rowwise(), Dtype::F32);
    let view = |parts: &[TableParts]| drop(TableView::open(workers, folder, spec(), parts));
    let restore = || {
        let mut set = TableSet::new(vec![spec()], DEFAULT_SHARDS).expect("a valid spec");
        set.restore(workers, folder, parts).expect("the checkpoint is good");
    };
    let work: [(&str, &dyn Fn()); 3] = [
        ("restored", &restore),
        ("opened", &|| view(parts)),
        ("opened without the digest", &|| view(&plain)),
    ];
    for (name, work) in work {
        let mut times = Times::default();
        (0..RESTORED).for_each(|_| times.measure(work));
        let least = |times: &[Duration]| times.iter().min().copied().unwrap_or_default();
        let (wall, busy) = (least(&times.wall), least(&times.busy));
        eprintln!("{name}: {wall:.1?} (wall), {busy:.1?} (busy)");
    }
}
