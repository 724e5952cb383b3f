//! The summary of a timeline. It has the time and the rates of each kind of kernel, compared with
//! the limits of the machine, the share of each part of the work, and the bound of the job.
//!
//! The limit of a kernel is its roofline: the longer of two times. The first is the time of its
//! operations at the best product rate (measured by the probe, or reached by a product of the run).
//! The second is the time of its bytes at the measured rate of the near caches. Both rates can be
//! reached, because tiles stay in these caches. For work that reads rows of tables, the limit is
//! the rate of random rows instead.

use std::collections::BTreeMap;

use serde::Serialize;
use zillion_device::Activity;
use zillion_nn::timeline::{Work, moved_bytes};
use zillion_nn::{Op, cost};

use super::timeline::{Sampled, SpanKind, Stage, Timeline, kind_of};
use super::{Bound, Limits, Shares, advice, is_kernel};
use crate::profile::advice::Circumstances;
use crate::stage_seconds::StageSeconds;

/// The figures of all kernels of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KernelFigures {
    /// The name of the operation, with the operations fused to it.
    pub kind: String,
    /// The number of nodes of this kind.
    pub nodes: usize,
    /// The time for each batch in milliseconds, summed over all threads.
    pub ms: f64,
    /// The share of these kernels in the time of all kernels.
    pub share: f64,
    /// The number of floating-point operations in a second of one thread, in billions.
    pub gflops: f64,
    /// The number of bytes that one thread moves in a second, in billions. Only the bytes that must
    /// be moved are counted.
    pub gbytes: f64,
    /// The best possible time divided by the measured time: 1 is the roofline. Absent if the
    /// operations and bytes of the kernels are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_limit: Option<f64>,
    /// Whether the kernel is a matrix product.
    pub is_product: bool,
}

/// The figures of the tables' rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TableFigures {
    /// The mean number of rows that a batch pulls.
    pub rows: f64,
    /// The number of rows that are pulled in a second, in millions.
    pub pull_mrows_s: f64,
    /// The rate of pulled cache lines divided by the probed rate of random reads.
    pub pull_of_limit: f64,
    /// The number of rows that are pushed in a second, in millions.
    pub push_mrows_s: f64,
    /// The rate of pushed cache lines divided by the probed rate of random updates. The lines of
    /// optimizer state are not counted.
    pub push_of_limit: f64,
}

/// The summary of a profile.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The number of batches since the process started.
    pub batches: u64,
    /// The interval of recorded batches, in batches.
    pub every: u64,
    /// The number of recorded batches that this summary counts. The first batch of the process is
    /// left out if there is another one, because buffers grow in the first batch.
    pub counted: usize,
    /// The time of each stage of the thread that drives the run, in milliseconds for each batch.
    pub stages: Vec<(&'static str, f64)>,
    /// The figures of the kernels, in descending order of their time.
    pub kernels: Vec<KernelFigures>,
    /// The figures of the tables' rows.
    pub tables: TableFigures,
    /// The best rates of the machine.
    pub limits: Limits,
    /// The number of samples in a second if all operations of the model ran at the best product
    /// rate and nothing else took time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_samples_per_second: Option<f64>,
    /// The shares of the kinds of work in the time of the steps.
    pub shares: Shares,
    /// The kind of work with the largest share.
    pub bound: Bound,
    /// The lines of advice on settings to change.
    pub advice: Vec<String>,
}

#[derive(Default)]
struct Sum {
    nodes: std::collections::BTreeSet<Work>,
    nanos: u64,
    flops: u64,
    bytes: u64,
    is_product: bool,
}

impl Timeline {
    /// Summarises the timeline. `probed` has the rates of the machine, and `seconds` the time of
    /// the stages of the whole run.
    pub fn summary(&self, probed: &Limits, seconds: &StageSeconds) -> Summary {
        let later = self.sampled.get(1..).filter(|later| !later.is_empty());
        let counted = later.unwrap_or(&self.sampled);
        let batches = counted.len().max(1) as f64;
        let sums = self.sums(counted);
        let all: u64 = sums.values().map(|sum| sum.nanos).sum();
        let limits = &raise_to_reached(probed, &sums, self.lanes);
        let threads = limits.threads.max(1) as f64;
        let flops: u64 = sums.values().map(|sum| sum.flops).sum();
        let figures = |(kind, sum): (&String, &Sum)| {
            let seconds = sum.nanos as f64 / 1e9;
            let least = (sum.flops as f64 / limits.product_flops)
                .max(sum.bytes as f64 / limits.cached_bytes)
                * threads;
            KernelFigures {
                kind: kind.clone(),
                nodes: sum.nodes.len(),
                ms: 1e3 * seconds / batches,
                share: sum.nanos as f64 / all.max(1) as f64,
                gflops: sum.flops as f64 / sum.nanos.max(1) as f64,
                gbytes: sum.bytes as f64 / sum.nanos.max(1) as f64,
                of_limit: (least > 0.0 && seconds > 0.0).then(|| least / seconds),
                is_product: sum.is_product,
            }
        };
        let mut kernels: Vec<KernelFigures> = sums.iter().map(figures).collect();
        kernels.sort_by(|a, b| b.ms.total_cmp(&a.ms));

        let stage = |stage: Stage| nanos_of(counted, stage) as f64;
        let stages = [
            Stage::Wait,
            Stage::Pull,
            Stage::Model,
            Stage::Staging,
            Stage::Push,
            Stage::Optimizer,
            Stage::Other,
        ];
        let tables = table_figures(counted, limits);
        let shares = self.shares(counted, &sums);
        let products = sums.values().filter(|sum| sum.is_product);
        let (product_flops, product_nanos) =
            products.fold((0, 0), |(flops, nanos), sum| (flops + sum.flops, nanos + sum.nanos));
        let reached = product_flops as f64 / product_nanos.max(1) as f64 * 1e9;
        let run =
            seconds.of_the_driver().iter().map(|(_, s)| s).sum::<f64>().max(f64::MIN_POSITIVE);
        let known = Circumstances {
            threads: self.workers,
            lanes: self.lanes,
            products_of_limit: (product_flops > 0)
                .then(|| reached * threads / limits.product_flops),
            pulls_of_limit: (tables.rows > 0.0).then_some(tables.pull_of_limit),
            checkpoint: seconds.checkpoint / run,
            publish: seconds.publish / run,
            validate: seconds.validate / run,
        };
        let rows: usize = counted.iter().map(|sampled| sampled.rows).sum();
        Summary {
            batches: self.batches,
            every: self.every,
            counted: counted.len(),
            stages: stages.map(|s| (s.name(), stage(s) / 1e6 / batches)).to_vec(),
            kernels,
            tables,
            limits: *limits,
            bound_samples_per_second: (flops > 0)
                .then(|| rows as f64 * limits.product_flops / flops as f64),
            bound: shares.bound(),
            advice: advice(&shares, &known),
            shares,
        }
    }

    /// Sums the time and the cost of the kernels by kind.
    fn sums(&self, counted: &[Sampled]) -> BTreeMap<String, Sum> {
        let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
        for sampled in counted {
            let mut met = std::collections::BTreeSet::new();
            for span in &sampled.spans {
                let SpanKind::Kernel(work) = span.kind else { continue };
                if !is_kernel(work) {
                    continue;
                }
                let sum = sums.entry(kind_of(&self.graph, work)).or_default();
                sum.nanos += span.nanos;
                sum.nodes.insert(work);
                if let (Work::Node(id), true) = (work, met.insert(work)) {
                    // The cost is counted once a batch, although each tile has a span of its own.
                    let sizes = sampled.sizes();
                    sum.flops += cost(&self.graph, id, &sizes).flops;
                    sum.bytes += moved_bytes(&self.graph, id, &sizes);
                    sum.is_product = matches!(
                        self.graph.node(id).op.head(),
                        Op::Linear
                            | Op::MatMulNt
                            | Op::MatMulTn
                            | Op::InBatchLse(_)
                            | Op::InBatchQueryGrad(_)
                            | Op::InBatchItemGrad(_)
                    );
                }
            }
        }
        sums
    }

    /// Computes the shares of the steps' time. For the model, the times of all threads are summed.
    /// For the other stages, only the time of the driver is used.
    fn shares(&self, counted: &[Sampled], sums: &BTreeMap<String, Sum>) -> Shares {
        let stage = |stage: Stage| nanos_of(counted, stage) as f64;
        let threads = self.workers.max(1) as f64;
        let kernels = |products: bool| -> f64 {
            let of = sums.values().filter(|sum| sum.is_product == products);
            of.map(|sum| sum.nanos).sum::<u64>() as f64 / threads
        };
        let model = stage(Stage::Model);
        let (products, others) = (kernels(true), kernels(false));
        let decoding = counted.iter().map(decoding_beside_the_model).sum::<u64>() as f64 / threads;
        let idle = (model - products - others - decoding).max(0.0);
        let reader = stage(Stage::Wait) + decoding;
        let table = stage(Stage::Pull) + stage(Stage::Staging) + stage(Stage::Push);
        let memory = others + stage(Stage::Optimizer);
        let waiting = idle + stage(Stage::Other);
        let total = (reader + table + products + memory + waiting).max(f64::MIN_POSITIVE);
        Shares {
            reader: reader / total,
            table: table / total,
            products: products / total,
            memory: memory / total,
            waiting: waiting / total,
        }
    }
}

/// Returns the measured limits. If the run's products were faster than the probe, their rate
/// replaces the product rate. The probe can be too slow if another process used the processors.
fn raise_to_reached(probed: &Limits, sums: &BTreeMap<String, Sum>, lanes: usize) -> Limits {
    let products = sums.values().filter(|sum| sum.is_product && sum.nanos > 0);
    let rates = products.map(|sum| sum.flops as f64 / (sum.nanos as f64 / 1e9));
    let reached = rates.fold(0.0, f64::max) * probed.threads.min(lanes).max(1) as f64;
    Limits { product_flops: probed.product_flops.max(reached), ..*probed }
}

fn nanos_of(counted: &[Sampled], stage: Stage) -> u64 {
    let spans = counted.iter().flat_map(|sampled| &sampled.spans);
    spans.filter(|span| span.kind == SpanKind::Stage(stage)).map(|span| span.nanos).sum()
}

fn table_figures(counted: &[Sampled], limits: &Limits) -> TableFigures {
    let rows: u64 = counted.iter().map(|sampled| sampled.unique_rows).sum();
    let lines: u64 = counted.iter().map(|sampled| sampled.row_lines).sum();
    // The time of a push is unknown in a step whose optimizer took longer.
    let is_push = |span: &super::Span| span.kind == SpanKind::Stage(Stage::Push);
    let known = counted.iter().filter(|sampled| sampled.spans.iter().any(is_push));
    let (pushed_rows, pushed_lines) = known
        .map(|sampled| (sampled.unique_rows, sampled.row_lines))
        .fold((0, 0), |sum, step| (sum.0 + step.0, sum.1 + step.1));
    let seconds = |stage| nanos_of(counted, stage) as f64 / 1e9;
    let rate = |count: u64, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    TableFigures {
        rows: rows as f64 / counted.len().max(1) as f64,
        pull_mrows_s: rate(rows, seconds(Stage::Pull)) / 1e6,
        pull_of_limit: rate(lines, seconds(Stage::Pull)) / limits.row_reads,
        push_mrows_s: rate(pushed_rows, seconds(Stage::Push)) / 1e6,
        push_of_limit: rate(pushed_lines, seconds(Stage::Push)) / limits.row_updates,
    }
}

/// Returns the time of decoding, planning and other background tasks while the model ran, in
/// nanoseconds summed over all threads.
fn decoding_beside_the_model(sampled: &Sampled) -> u64 {
    let of_model = |span: &&super::Span| span.kind == SpanKind::Stage(Stage::Model);
    let in_background = |kind: SpanKind| {
        matches!(kind, SpanKind::Decode | SpanKind::Plan | SpanKind::Pool(Activity::Task, _))
    };
    let mut nanos = 0;
    for model in sampled.spans.iter().filter(of_model) {
        let beside = sampled.spans.iter().filter(|span| in_background(span.kind));
        let mut stretches: Vec<(u32, u64, u64)> = beside
            .map(|s| (s.thread, s.begin.max(model.begin), s.end().min(model.end())))
            .filter(|&(_, begin, end)| begin < end)
            .collect();
        // Decoding lies inside of its task if the whole task was recorded, and is counted once.
        stretches.sort_unstable();
        let (mut thread, mut seen) = (None, 0);
        for (of, begin, end) in stretches {
            if thread != Some(of) {
                (thread, seen) = (Some(of), 0);
            }
            nanos += end.saturating_sub(begin.max(seen));
            seen = seen.max(end);
        }
    }
    nanos
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Span;

    fn span(kind: SpanKind, thread: u32, begin: u64, end: u64) -> Span {
        Span { kind, thread, lane: None, begin, nanos: end - begin }
    }

    #[test]
    fn background_work_is_counted_once_and_only_beside_the_model() {
        let spans = vec![
            span(SpanKind::Stage(Stage::Pull), 0, 0, 100),
            span(SpanKind::Stage(Stage::Model), 0, 100, 200),
            // One task lasts from before the model to its middle and is recorded as a task and as
            // decoding. Another task lies inside of the first one.
            span(SpanKind::Pool(Activity::Task, 1), 1, 50, 150),
            span(SpanKind::Decode, 1, 60, 140),
            span(SpanKind::Plan, 1, 140, 150),
            span(SpanKind::Decode, 2, 190, 260),
        ];
        let sampled = Sampled { spans, ..Sampled::default() };
        assert_eq!(decoding_beside_the_model(&sampled), 50 + 10);
    }
}
