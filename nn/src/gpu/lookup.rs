//! The launches of lookups, and of the gradients of table rows.
//!
//! All lookups of a table with the same number of rows are one launch, which runs before the other
//! nodes. The gradients of rows come last.

use zillion_device::gpu::kernels::{
    Factors, GATHER, GATHER_LISTS, Gather as GatherLaunch, GatherJob, Geometry, GradientSource,
    LIST_FACTORS, ROW_SUMS, RowUpdate,
};
use zillion_device::gpu::{Kernel, Memory};
use zillion_feature::Pooling;

use crate::error::Result;
use crate::gpu::binder::{Binder, Place};
use crate::gpu::row_plan::{GradientOf, RowPlan, Thresholds};
use crate::graph::op::{Gather, Op};
use crate::graph::shape::{Dim, NodeId};
use crate::lowered::gathers_of;
use crate::ops::factor_kind;

/// The largest number of floats of a lookup, and the largest number of lookups of a launch. A
/// kernel reads both from one word.
const MOST_FLOATS: usize = 1 << 15;
const MOST_JOBS: usize = 1 << 16;

/// The largest number of blocks of a launch of row sums. Blocks take several groups of rows.
const MOST_ROW_BLOCKS: usize = 1 << 14;

/// The largest number of blocks of a launch of the sums of long rows: four for each multiprocessor
/// of a large GPU.
const MOST_LONG_BLOCKS: usize = 4 * 132;

/// The data that is computed once in each run from the lists and weights of the columns.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// The addresses of the factors of a column's values, by pooling.
    factors: Vec<(usize, Pooling, u64)>,
    /// The addresses of the row of each value of a column.
    row_of: Vec<(usize, u64)>,
}

impl Lists {
    /// Returns the address of the factors of a lookup's values, or 0 if all factors are 1.
    fn factors_of(&self, gather: &Gather) -> u64 {
        let kind = factor_kind(gather.pooling);
        let found = self.factors.iter().find(|&&(c, p, _)| c == gather.column && p == kind);
        found.map_or(0, |&(_, _, address)| address)
    }
}

/// A group of lookups that one launch serves.
struct Group {
    table: NodeId,
    rows: Dim,
    kernel: &'static Kernel,
    first: NodeId,
    jobs: Vec<GatherJob>,
}

impl Binder<'_> {
    /// Adds the launches of the factors of lists and, for a training step, of the rows of values.
    pub(crate) fn lists(&mut self, trains: bool) -> Result<Lists> {
        let mut lists = Lists::default();
        let lowered = self.setting.lowered;
        let nodes = lowered.graph.nodes.iter().enumerate();
        let gathers =
            nodes.flat_map(|(at, node)| gathers_of(&node.op).iter().map(move |g| (at, g)));
        for (index, gather) in gathers {
            let column = gather.column;
            if self.setting.batch.columns[column].is_none() {
                continue;
            }
            self.begin(NodeId(index as u32));
            let (has_lists, weighted) =
                (self.setting.form.lists[column], self.setting.form.weighted[column]);
            let pooling = factor_kind(gather.pooling);
            let averaged = matches!(pooling, Pooling::Mean | Pooling::Sqrtn) && has_lists;
            let known = lists.factors_of(gather) != 0;
            let kind = match pooling {
                Pooling::Sum | Pooling::Max => Factors::PLAIN,
                Pooling::Mean => Factors::MEAN,
                Pooling::Sqrtn => Factors::SQRTN,
            };
            if (weighted || averaged) && !known {
                let out = self.values.take(4 * self.setting.most.values[column]);
                self.factors(column, Factors { kind, out, ..Factors::default() })?;
                lists.factors.push((column, pooling, out));
            }
            if trains && has_lists && !lists.row_of.iter().any(|&(known, _)| known == column) {
                let row_of = self.values.take(4 * self.setting.most.values[column]);
                self.factors(column, Factors { row_of, ..Factors::default() })?;
                lists.row_of.push((column, row_of));
            }
        }
        Ok(lists)
    }

    fn factors(&mut self, column: usize, factors: Factors) -> Result<()> {
        let rows = self.count(Dim::Batch);
        let Some(places) = self.setting.batch.columns[column] else { return Ok(()) };
        let offsets = places.offsets.map_or(0, |at| self.batch(at));
        let weights = places.weights.map_or(0, |at| self.batch(at));
        let factors = Factors { offsets, weights, rows, ..factors };
        self.launch(&LIST_FACTORS, Geometry::elements(u64::from(rows.most)), &factors)
    }

    /// Adds the launches of all lookups.
    pub(crate) fn gathers(&mut self, lists: &Lists) -> Result<()> {
        let mut groups: Vec<Group> = Vec::new();
        let lowered = self.setting.lowered;
        for (index, node) in lowered.graph.nodes.iter().enumerate() {
            let id = NodeId(index as u32);
            let (Op::Gather(gather) | Op::GatherArgMax(gather), Some(_)) =
                (&node.op, lowered.classes[index])
            else {
                continue;
            };
            if gather.dim >= MOST_FLOATS {
                let reason =
                    format!("it reads {} floats, and {MOST_FLOATS} is too many", gather.dim);
                return Err(self.refuse(id, reason));
            }
            let Some(places) = self.setting.batch.columns[gather.column] else { continue };
            let factors = lists.factors_of(gather);
            let offsets = places.offsets.filter(|_| gather.pooling.is_some());
            let copies = gather.pooling.is_none() || (offsets.is_none() && factors == 0);
            let kind = match (&node.op, gather.pooling) {
                (Op::GatherArgMax(_), _) => GatherJob::ARG_MAX,
                _ if copies => GatherJob::COPY,
                (_, Some(Pooling::Max)) => GatherJob::MAX,
                _ => GatherJob::SUM,
            };
            let kernel = if kind == GatherJob::COPY { &GATHER } else { &GATHER_LISTS };
            let Place { address, stride } = self.place(id)?;
            let job = GatherJob {
                inverse: self.batch(places.inverse),
                offsets: offsets.map_or(0, |at| self.batch(at)),
                factors,
                out: address,
                out_stride: stride as u32,
                offset: gather.offset as u32,
                dim: gather.dim as u32,
                kind,
            };
            let (table, rows) = (node.inputs[0], node.shape.rows);
            let same = |group: &&mut Group| {
                group.table == table
                    && group.rows == rows
                    && std::ptr::eq(group.kernel, kernel)
                    && group.jobs.len() < MOST_JOBS
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.jobs.push(job),
                None => groups.push(Group { table, rows, kernel, first: id, jobs: vec![job] }),
            }
        }
        for Group { table, rows, kernel, first, jobs } in groups {
            self.begin(first);
            let Place { address, stride } = self.place(table)?;
            let units = GatherJob::units(&jobs, address, stride as u32);
            let gather = GatherLaunch {
                table: address,
                slots: 0,
                jobs: self.store(&jobs),
                units: self.store(&units),
                rows: self.count(rows),
                unit_count: units.len() as u32,
                table_stride: stride as u32,
            };
            self.launch(kernel, gather.geometry(), &gather)?;
        }
        Ok(())
    }

    /// Adds the launch of the gradients of a table's rows. Returns the memory of the gradients,
    /// which has the rows of the table in the order of the batch's plan.
    pub(crate) fn row_gradients(&mut self, plan: &RowPlan, lists: &Lists) -> Result<Memory> {
        self.begin(plan.node);
        let places = self.setting.batch.tables[plan.table];
        let stride = self.setting.form.strides[plan.table];
        let unique = self.setting.most.unique[plan.table];
        let bytes = 4 * stride * unique;
        let sums = self.values.take(bytes);
        let slots = plan.slots.len().max(1);
        let mut sources = Vec::with_capacity(plan.sources.len());
        for (index, source) in plan.sources.iter().enumerate() {
            let begin = plan.parts[index / slots].begin;
            sources.push(match source {
                Some(of) => self.source(of, begin as usize, lists)?,
                None => GradientSource::default(),
            });
        }
        let update = RowUpdate {
            sources: self.store(&sources),
            parts: self.store(&plan.parts),
            starts: self.batch(places.starts),
            occurrences: self.batch(places.occurrences),
            classes: self.batch(places.classes),
            places: self.batch(places.places),
            sums,
            stride: stride as u32,
            width: stride as u32,
            part_count: plan.parts.len() as u32,
            gathers: plan.slots.len() as u32,
            gather_bits: plan.slot_bits(),
            sum_stride: stride as u32,
            ..RowUpdate::default()
        };
        match RowUpdate::threads(stride as u32).filter(|_| is_fast(&update, plan, &sources)) {
            Some(threads) => {
                // Each row of a class has more occurrences than the threshold of the class.
                let most = self.setting.most.occurrences[plan.table];
                let class = |threshold: u32| unique.min(most / (threshold as usize + 1));
                let long_rows = class(Thresholds::LEAST.long);
                // Long rows take the longest time, so they begin first.
                if long_rows > 0 {
                    let most = long_rows.min(MOST_LONG_BLOCKS) as u32;
                    let (kernel, geometry) = update.long(threads, most);
                    self.launch(kernel, geometry, &update)?;
                    self.put_beside();
                }
                let (kernel, _) = update.short(threads, unique as u32);
                let medium_blocks = class(Thresholds::LEAST.medium).div_ceil(8);
                let blocks = medium_blocks + unique.div_ceil(256 / threads as usize);
                let geometry = Geometry::line(blocks.min(MOST_ROW_BLOCKS) as u32, 256);
                self.launch(kernel, geometry, &update)?;
            }
            None => self.launch(&ROW_SUMS, update.sums_geometry(unique as u32), &update)?,
        }
        Ok(Memory::new(sums, bytes))
    }

    /// Returns the memory of the gradients of a table whose rows no gradient reaches.
    pub(crate) fn zero_gradients(&mut self, table: usize) -> Memory {
        let bytes = 4 * self.setting.form.strides[table] * self.setting.most.unique[table];
        Memory::new(self.values.take(bytes), bytes)
    }

    /// Returns the gradient of a lookup, from the float `begin` of the row on.
    fn source(&self, of: &GradientOf, begin: usize, lists: &Lists) -> Result<GradientSource> {
        let GradientOf { gather, gradient, winners } = of;
        let skipped = 4 * (begin - gather.offset) as u64;
        let gradient = self.place(*gradient)?;
        let mut source = GradientSource {
            gradient: gradient.address + skipped,
            stride: gradient.stride as u32,
            factors: lists.factors_of(gather),
            ..GradientSource::default()
        };
        if source.factors != 0 {
            source.flags |= GradientSource::FACTORS;
        }
        let places = self.setting.batch.columns[gather.column];
        let offsets = places.and_then(|places| places.offsets).filter(|_| gather.pooling.is_some());
        let rows = lists.row_of.iter().find(|&&(column, _)| column == gather.column);
        if let (Some(offsets), Some(&(_, row_of))) = (offsets, rows) {
            source.offsets = self.batch(offsets);
            source.row_of = row_of;
            source.flags |= GradientSource::LISTS;
        }
        if let Some(winners) = winners {
            let winners = self.place(*winners)?;
            source.winners = winners.address + skipped;
            source.winner_stride = winners.stride as u32;
            source.flags |= GradientSource::WINNERS;
        }
        Ok(source)
    }
}

/// Returns whether the fast kernels can compute the sums of rows. They read and write vectors of
/// four floats, and do not know the largest values of lists.
fn is_fast(update: &RowUpdate, plan: &RowPlan, sources: &[GradientSource]) -> bool {
    let of_part = sources.chunks(plan.slots.len().max(1));
    update.sum_stride.is_multiple_of(4)
        && plan.parts.iter().zip(of_part).all(|(part, sources)| {
            let vectors = part.end - part.begin >= 4;
            let fits = |source: &GradientSource| {
                let aligned = source.gradient.is_multiple_of(16) && source.stride.is_multiple_of(4);
                source.flags & GradientSource::WINNERS == 0 && (aligned || !vectors)
            };
            part.begin.is_multiple_of(4) && sources.iter().all(fits)
        })
}
