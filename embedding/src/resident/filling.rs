//! The filling of a step's block: counts, places of rows, keys, rules, and the lists of the norm.

use zillion_device::gpu::GpuError;
use zillion_feature::{FeatureKey, LookupPlan};

use crate::error::Result;
use crate::resident::block::Block;
use crate::resident::device::ResidentOptions;
use crate::resident::layout::{NormPart, TableLists};
use crate::resident::norm::Starts;
use crate::resident::phase::ShardRecord;
use crate::resident::table::ResidentTable;
use crate::set::TableSet;
use crate::shape::TableStep;
use crate::table::record::Record;

/// A step whose bookkeeping is done.
pub(super) struct Filling<'a> {
    pub(super) tables: &'a TableSet,
    pub(super) plan: &'a LookupPlan,
    /// The steps of the tables without whole-table rules.
    pub(super) steps: &'a [Option<TableStep>],
    /// The steps of the tables with whole-table rules.
    pub(super) swept: &'a [Option<TableStep>],
}

impl Filling<'_> {
    /// Writes the block of the step and enqueues its copy.
    pub(super) fn send(
        &self,
        options: &ResidentOptions,
        resident: &[ResidentTable],
        records: &[ShardRecord],
        starts: &mut Starts,
        block: &mut Block,
    ) -> Result<()> {
        block.begin(options)?;
        let swept = resident.iter().filter_map(|table| table.swept.as_ref());
        starts.begin(swept.filter(|_| options.clips).map(|swept| swept.slots.as_slice()));
        let mut has_new = false;
        for (index, table) in resident.iter().enumerate() {
            let lists = block.layout.tables[index].clone();
            let records = records.iter().map(|record| &record.tables[index]).collect::<Vec<_>>();
            let keys = &self.plan.tables[index].keys;
            if let Some(step) = self.steps[index].as_ref().or(self.swept[index].as_ref()) {
                let rules = table.form.rules(&self.tables.shapes[index], step);
                block.write(lists.rules, &rules)?;
                block.write(lists.rounding, &[step.rounding.seed()])?;
            }
            let new = write_rows(block, &lists, keys, &records)?;
            block.write(lists.count, &[keys.len() as u32, new])?;
            has_new |= new > 0;
            if lists.needs.norm == NormPart::Keys {
                let waiting = waiting(&records);
                let squares = block.layout.norm.squares as u32;
                let order = starts.add_keys(&self.plan.tables[index], &waiting, squares);
                block.write(lists.order, order)?;
            }
        }
        if options.clips {
            starts.write(block)?;
        }
        Ok(block.send(options, has_new)?)
    }
}

/// Writes the places of the rows of a table, and those of its new rows with their keys. Returns the
/// number of new rows.
fn write_rows(
    block: &mut Block,
    lists: &TableLists,
    keys: &[FeatureKey],
    records: &[&Record],
) -> Result<u32, GpuError> {
    if lists.needs.reads_keys {
        block.write(lists.keys, keys)?;
    }
    let (mut first, mut new) = (0, 0);
    for record in records {
        block.write(lists.slots + first * size_of::<u32>(), &record.rows)?;
        if !record.new.is_empty() {
            let positions = || record.new.iter().map(|&at| at as usize);
            let slots: Vec<u32> = positions().map(|at| record.rows[at]).collect();
            let keys: Vec<FeatureKey> = positions().map(|at| keys[first + at]).collect();
            block.write(lists.new_slots + new * size_of::<u32>(), &slots)?;
            block.write(lists.new_keys + new * size_of::<u64>(), &keys)?;
            new += slots.len();
        }
        first += record.rows.len();
    }
    Ok(new as u32)
}

/// Returns the positions in the plan of the keys that waited for admission.
fn waiting(records: &[&Record]) -> Vec<u32> {
    let mut waiting = Vec::new();
    let mut first = 0;
    for record in records {
        waiting.extend(record.waiting.iter().map(|at| first + at));
        first += record.rows.len() as u32;
    }
    waiting
}
