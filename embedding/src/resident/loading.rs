//! The memory of resident rows: how the rows come to their device, and how their memory grows.

use zillion_device::gpu::GpuError;
use zillion_feature::LookupPlan;

use crate::error::{Error, Result};
use crate::resident::ResidentTables;
use crate::resident::block::Block;
use crate::resident::caching::CacheState;
use crate::resident::copies::Copies;
use crate::resident::device::ResidentOptions;
use crate::resident::layout::Layout;
use crate::resident::moves::Moves;
use crate::resident::norm::{Norm, Starts};
use crate::resident::results::Results;
use crate::resident::room::{free_bytes, is_about_memory, kept_free, usable_bytes, with_most_room};
use crate::resident::table::{Places, ResidentTable};
use crate::set::TableSet;

/// The parts of their rows that tables may have as room at first, as `1 / part`.
pub(super) const ROOM: [Option<usize>; 4] = [Some(4), Some(8), Some(16), None];

/// The parts of their rows that tables may have as room when they are loaded again. Without any
/// room, the rows would be loaded again in one of the next steps.
const ROOM_AGAIN: [Option<usize>; 3] = [Some(4), Some(8), Some(16)];

impl ResidentTables {
    /// Makes the tables and all else that steps need. The rows are not copied.
    pub(super) fn without_rows(
        options: &ResidentOptions,
        tables: &TableSet,
        places: Places<'_>,
    ) -> Result<Self> {
        let resident = ResidentTable::all(options, tables, places, |_, _| 0)?;
        let row_bytes = resident.iter().map(|table| table.form.row_bytes()).max().unwrap_or(0);
        let layout = layout(&resident, &vec![0; resident.len()], options);
        let results = layout.results.len();
        let rest = || {
            let norm = Norm::new(options, &layout.norm)?;
            let copies = Copies::new(options, row_bytes)?;
            Ok((norm, Results::new(options, results)?, Block::new(options, layout)?, copies))
        };
        let (norm, results, block, copies) = rest().map_err(|error| match error {
            GpuError::OutOfMemory { .. } => {
                let own = resident.iter().map(ResidentTable::bytes).sum::<usize>() as u64;
                no_room_beside(options, tables, &resident, own)
            }
            other => other.into(),
        })?;
        let made = Self {
            options: options.clone(),
            tables: resident,
            block,
            norm,
            results,
            copies,
            generation: 1,
            begun: None,
            keys: Vec::new(),
            records: Vec::new(),
            starts: Starts::default(),
            cache: None,
        };
        made.check_room(tables)?;
        Ok(made)
    }

    /// Makes sure that the rows are on the device, and that there is room for those of a plan. If
    /// all rows do not fit any more, the device has a cache from then on.
    pub(super) fn have_room(&mut self, tables: &mut TableSet, plan: &LookupPlan) -> Result<()> {
        let had = match self.cache {
            Some(_) => self.have_cache(tables, plan),
            None => self.have_all(tables, plan),
        };
        match had {
            Err(error) if is_about_memory(&error) => {
                let is_first = self.cache.is_none();
                self.settle(tables)?;
                self.drop_rows(tables);
                if is_first {
                    self.cache = Some(CacheState::new(error.to_string()));
                    let cached = self.have_cache(tables, plan);
                    if cached.is_err() {
                        self.cache = None;
                    }
                    return cached;
                }
                Err(error)
            }
            had => had,
        }
    }

    /// Makes sure that all rows are on the device, with room for those of a plan.
    fn have_all(&mut self, tables: &mut TableSet, plan: &LookupPlan) -> Result<()> {
        if self.tables.is_empty() {
            self.load(tables, plan)?;
        }
        match self.make_room(tables, plan) {
            // The old and the new memory of a slab do not fit side by side, but the new one may fit
            // alone.
            Err(error) if is_about_memory(&error) => {
                self.settle(tables)?;
                self.tables.clear();
                self.load(tables, plan)?;
                self.make_room(tables, plan)
            }
            made => made,
        }
    }

    /// Copies all rows of the set to the device again, with places for the new rows of a plan.
    fn load(&mut self, tables: &TableSet, plan: &LookupPlan) -> Result<()> {
        let ranges = tables.ranges(plan);
        let loaded = with_most_room(&ROOM_AGAIN, |room| {
            // The memory of an earlier try is free again.
            self.tables.clear();
            let places = Places::All(room);
            self.tables = ResidentTable::all(&self.options, tables, places, |shard, index| {
                ranges[shard][index].len()
            })?;
            let lists = self.block.layout.tables.iter();
            let keys: Vec<usize> = lists.map(|table| table.needs.keys).collect();
            self.lay_out(&keys)?;
            self.check_room(tables)
        });
        let loaded = loaded.and_then(|()| self.copy_in(tables));
        if loaded.is_err() {
            // The next step tries again.
            self.tables.clear();
        }
        loaded
    }

    pub(super) fn copy_in(&mut self, tables: &TableSet) -> Result<()> {
        let whole = |table: &ResidentTable| table.places.iter().all(|p| p.cached_slots().is_none());
        for (index, table) in self.tables.iter().enumerate().filter(|(_, table)| whole(table)) {
            self.copies.load(&self.options, tables, table, index)?;
        }
        Ok(())
    }

    /// Makes the block and the norm for batches with these numbers of keys. Waits for the device.
    pub(super) fn lay_out(&mut self, keys: &[usize]) -> Result<(), GpuError> {
        self.generation += 1;
        let layout = layout(&self.tables, keys, &self.options);
        self.options.gpu.synchronize(self.options.stream)?;
        let norm = Norm::new(&self.options, &layout.norm)?;
        self.block = Block::new(&self.options, layout)?;
        self.norm = norm;
        Ok(())
    }

    /// Makes room for the keys of a plan: in the block, and for the rows that it may create.
    pub(super) fn make_room(&mut self, tables: &TableSet, plan: &LookupPlan) -> Result<()> {
        self.keys = plan.tables.iter().map(|table| table.keys.len()).collect();
        let present = self.block.layout.tables.iter().map(|table| table.needs.keys);
        let pairs: Vec<(usize, usize)> = present.zip(self.keys.iter().copied()).collect();
        if pairs.iter().any(|(present, needed)| needed > present) {
            // An eighth more, so that a few larger batches change nothing.
            let grown = pairs.iter().map(|&(present, needed)| match needed > present {
                true => needed + needed / 8,
                false => present,
            });
            self.lay_out(&grown.collect::<Vec<_>>())?;
        }
        let ranges = tables.ranges(plan);
        let mut short = Vec::new();
        let takes_places = |table: &ResidentTable| {
            table.creates || table.places.iter().any(|places| places.cached_slots().is_some())
        };
        let tables_with_places =
            self.tables.iter_mut().enumerate().filter(|(_, table)| takes_places(table));
        for (index, table) in tables_with_places {
            let shards = tables.shards.iter().zip(&ranges);
            let rows =
                shards.map(|(shard, ranges)| shard.tables[index].slabs.len() + ranges[index].len());
            if table.reserve(rows) {
                short.push(index);
            }
        }
        if short.is_empty() {
            return Ok(());
        }
        let kept = kept_free(&self.options, self.own_bytes());
        for index in short {
            self.tables[index].grow(&self.options, tables.shapes[index].name(), kept)?;
            self.generation += 1;
        }
        Ok(())
    }

    /// Checks that what is kept for batches is free.
    pub(super) fn check_room(&self, tables: &TableSet) -> Result<()> {
        let own = self.own_bytes();
        if free_bytes(&self.options)? < kept_free(&self.options, own) {
            return Err(no_room_beside(&self.options, tables, &self.tables, own));
        }
        Ok(())
    }

    /// Returns the bytes of the device's memory that the rows and their steps take.
    pub(super) fn own_bytes(&self) -> u64 {
        let tables: usize = self.tables.iter().map(ResidentTable::bytes).sum();
        let moves = self.cache.as_ref().and_then(|cache| cache.moves.as_ref());
        let moves = moves.map_or(0, Moves::device_bytes);
        (tables + self.norm.bytes() + self.block.bytes() + self.copies.bytes() + moves) as u64
    }
}

/// Returns the layout of the block for batches with these numbers of keys.
fn layout(tables: &[ResidentTable], keys: &[usize], options: &ResidentOptions) -> Layout {
    let needs = tables.iter().zip(keys).map(|(table, &keys)| table.needs(keys, options.clips));
    Layout::new(&needs.collect::<Vec<_>>())
}

/// Returns the error of tables that leave too little memory, of which they take `own` bytes. The
/// error names the largest table.
fn no_room_beside(
    options: &ResidentOptions,
    tables: &TableSet,
    resident: &[ResidentTable],
    own: u64,
) -> Error {
    let largest = resident.iter().enumerate().max_by_key(|(_, table)| table.slab.bytes());
    let Some((index, table)) = largest else { return Error::misuse("the set has no table") };
    let (rows, row_bytes) = table.slab.sizes();
    let reason = format!(
        "its rows need {} bytes of the memory of the GPU ({rows} rows of {row_bytes} bytes), and \
         all rows {own} bytes of {}, which leaves {} free, and {} must stay free for the batches; \
         use a GPU with more memory, or train with `run.device = \"cpu\"`",
        table.slab.bytes(),
        usable_bytes(options),
        free_bytes(options).unwrap_or(0),
        kept_free(options, own)
    );
    Error::mismatch(tables.shapes[index].name(), reason)
}
