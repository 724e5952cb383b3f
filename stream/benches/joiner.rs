//! Benchmarks of the joiner on one core: events a second with a million pending rows of 300 bytes,
//! three of a hundred of them with feedback.
//!
//! `cargo bench -p zillion-stream --bench joiner`

use std::hint::black_box;
use std::num::NonZeroU32;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use zillion_device::Files;
use zillion_stream::joiner::{
    Bounds, Emit, Feedback, FeedbackValue, Impression, Joiner, Late, Negatives, SamplingCorrection,
    Settings,
};
use zillion_stream::watermark::TimeRules;
use zillion_stream::{EventTime, Partition};

const PENDING: u64 = 1_000_000;
const ROW_BYTES: usize = 300;
/// The number of events of an iteration.
const EVENTS: u64 = 20_000;
/// The number of events between two feedback events.
const FEEDBACK_EVERY: u64 = 33;
const PARTITION: Partition = Partition { stream: 0, number: 0 };

/// A joiner and the number of its events. Events are a millisecond apart.
struct Load {
    joiner: Joiner,
    events: u64,
}

impl Load {
    /// Creates a joiner in `folder` with [`PENDING`] rows.
    fn new(folder: &std::path::Path, emit: Emit) -> Self {
        let settings = Settings {
            times: TimeRules {
                disorder: 0,
                max_ahead: 60_000,
                accept_jump_after: NonZeroU32::MAX,
                start: None,
            },
            wait: PENDING,
            emit,
            negatives: Negatives { keep: 1.0, correction: SamplingCorrection::Weight },
            bounds: Bounds {
                max_rows: 4 * PENDING,
                max_disk_bytes: 4 << 30,
                max_memory_bytes: 1 << 30,
            },
        };
        let mut joiner = Joiner::create(folder, Files::new(), settings).expect("a folder");
        joiner.add_partition(PARTITION).expect("a new joiner");
        while joiner.next_row().expect("no row is read").is_some() {}
        let mut load = Self { joiner, events: 0 };
        load.run(PENDING + PENDING / FEEDBACK_EVERY);
        load
    }

    /// Gives events to the joiner and takes all rows.
    fn run(&mut self, events: u64) {
        let mut row = [7; ROW_BYTES];
        for number in self.events..self.events + events {
            let time = Some(EventTime(number as i64));
            let outcome = if number % FEEDBACK_EVERY == FEEDBACK_EVERY - 1 {
                // The impression was half a window ago.
                let key = number.saturating_sub(PENDING / 2 + 1).to_le_bytes();
                let value = FeedbackValue { kind: 0, value: 1.0 };
                self.joiner.add_feedback(PARTITION, Feedback { key: &key, time, value })
            } else {
                row[..8].copy_from_slice(&number.to_le_bytes());
                let key = number.to_le_bytes();
                let impression = Impression { key: &key, time, row: &row, weight: 1.0 };
                self.joiner.add_impression(PARTITION, impression)
            };
            let _ = black_box(outcome.expect("a disk with room"));
            while let Some(row) = self.joiner.next_row().expect("a disk that can be read") {
                black_box(row.row);
            }
        }
        self.events += events;
    }
}

fn events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("events");
    group.throughput(Throughput::Elements(EVENTS)).sample_size(50);
    for (name, emit) in
        [("at the window's end", Emit::Window), ("at once", Emit::Now(Late::Correct))]
    {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut load = Load::new(folder.path(), emit);
        group.bench_function(BenchmarkId::from_parameter(name), |bench| {
            bench.iter(|| load.run(EVENTS));
        });
        let extent = load.joiner.extent();
        assert!(extent.rows >= PENDING * 95 / 100, "{extent:?}");
    }
    group.finish();
}

criterion_group!(benches, events);
criterion_main!(benches);
