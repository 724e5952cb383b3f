//! The lending of rows: one set of tables has all rows, and a set in another process borrows those
//! that it trains. A row goes with its weights, its optimizer state and its metadata, and comes
//! back in the same form.
//!
//! The lender keeps its copy of a row, which is old until the row comes back. All rows of a set are
//! lent to one borrower at a time, so no list says which ones are: the caller must give no other
//! process rows meanwhile.
//!
//! # Invariants
//! * The borrower has asked for a key before a step uses it. So a key without a row there has none
//!   at all, and the step creates it.
//! * The borrower's rows change in epochs of its own. [`TableSet::end_loan_epoch`] ends one, and
//!   the rows that changed in it are given back before the lender ends an epoch or begins a
//!   snapshot. So the lender marks each row in the epoch and generation of its steps.
//! * A row leaves the borrower only after it was given back.
//! * Tables with a fixed vocabulary are borrowed whole, because a step may change every row.

mod table;

use std::ops::Range;

use zillion_device::Workers;
use zillion_feature::{FeatureKey, LookupPlan, SLOTS, TableId};
use zillion_rows::{RowShape, TableSpec};

use crate::changes::{Changed, Changes};
use crate::error::{Error, Result};
use crate::set::{TableSet, each};
use crate::shard::Shard;
use crate::table::Table;

/// Rows of one table on their way between the lender and the borrower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentRows {
    /// The number of the table.
    pub table: TableId,
    /// The keys in the order of their slots, each of them once.
    pub keys: Vec<FeatureKey>,
    /// The words of the rows, one row after another ([`TableSet::lent_words`]). The list is empty
    /// in a question for rows.
    pub words: Vec<u32>,
}

impl LentRows {
    /// Makes an empty list of rows of a table.
    pub fn new(table: TableId) -> Self {
        Self { table, keys: Vec::new(), words: Vec::new() }
    }
}

/// Returns the setting with which the rows of a table cannot be lent, and the reason. Returns
/// `None` if they can.
pub fn lending_refusal(spec: &TableSpec) -> Option<String> {
    let (key, reason) = if !spec.admission.is_all() {
        ("admission", "the counts of keys without a row stay on the servers")
    } else if !spec.eviction.is_never() {
        ("eviction", "the servers would evict rows while they are lent")
    } else if spec.max_rows.is_some() && !spec.dense {
        ("max_rows", "the servers would evict rows while they are lent")
    } else if spec.max_bytes.is_some() {
        ("max_bytes", "the servers would evict rows while they are lent")
    } else if spec.grow.is_some() {
        ("grow", "rows that grow are on the host")
    } else {
        return None;
    };
    Some(format!("`tables.{}.{key}` is set, and {reason}", spec.name))
}

/// Returns the number of words of a lent row: those of its weights and those of its companion row.
pub fn lent_words(shape: &RowShape) -> usize {
    shape.spec.weight_bytes() / size_of::<u32>() + shape.companion_stride
}

impl TableSet {
    /// Returns the setting with which the rows of the set cannot be lent, and the reason. Returns
    /// `None` if they can.
    pub fn lending_refusal(&self) -> Option<String> {
        if self.shared.rows.is_some() {
            let reason = "the servers would evict rows while they are lent";
            return Some(format!("`train.max_table_bytes` is set, and {reason}"));
        }
        if self.spilling.is_some() {
            return Some("`run.spill` keeps rows on disk".to_owned());
        }
        self.specs().find_map(lending_refusal)
    }

    /// Returns the number of words of a lent row of each table.
    pub fn lent_words(&self) -> Vec<usize> {
        self.shapes.iter().map(|shape| lent_words(shape.row())).collect()
    }

    /// Returns copies of the rows of keys. Keys without a row are left out.
    ///
    /// # Errors
    /// Returns an error if rows of the set cannot be lent, or if a table is unknown.
    pub fn lend(&self, workers: &Workers, asked: &[LentRows]) -> Result<Vec<LentRows>> {
        self.check_loan(asked, false)?;
        let pieces = self.pieces(asked);
        let mut found: Vec<(Piece, LentRows)> =
            pieces.into_iter().map(|piece| (piece, LentRows::new(TableId(0)))).collect();
        workers.for_each_mut(&mut found, |_, (piece, rows)| {
            let of = &asked[piece.of];
            let table = &self.shards[piece.shard].tables[of.table.index()];
            table.copy_lent(&of.keys[piece.range.clone()], rows);
        });
        let mut lent: Vec<LentRows> = asked.iter().map(|of| LentRows::new(of.table)).collect();
        for (piece, mut rows) in found {
            lent[piece.of].keys.append(&mut rows.keys);
            lent[piece.of].words.append(&mut rows.words);
        }
        Ok(lent)
    }

    /// Returns copies of the rows of a table that are in the slots from `first` on, at least those
    /// of one slot, and no other slot once there are `words` words. Also returns the first slot
    /// that is left, or [`SLOTS`] if none is.
    ///
    /// # Errors
    /// Returns an error if rows of the set cannot be lent, or if the table is unknown.
    pub fn lend_slots(
        &self,
        table: TableId,
        first: usize,
        words: usize,
    ) -> Result<(LentRows, usize)> {
        self.check_loan(&[LentRows::new(table)], false)?;
        let mut rows = LentRows::new(table);
        let owned = self.owned(table);
        for slot in first.max(owned.start)..owned.end {
            if rows.words.len() >= words {
                return Ok((rows, slot));
            }
            let part = self.owner(table.index(), slot);
            let mut keys: Vec<FeatureKey> =
                part.index.slot_entries(slot).map(|(key, _)| key).collect();
            keys.sort_unstable();
            part.copy_lent(&keys, &mut rows);
        }
        Ok((rows, SLOTS))
    }

    /// Takes rows back that the borrower has changed or created, and marks them as changed.
    ///
    /// # Errors
    /// Returns an error if rows of the set cannot be lent, or if the rows do not fit the tables;
    /// then nothing has changed. After any other error, training can continue only from a
    /// checkpoint.
    pub fn take_lent(&mut self, workers: &Workers, rows: &[LentRows]) -> Result<()> {
        self.check_loan(rows, true)?;
        if let Some(frozen) = rows.iter().find(|of| self.frozen[of.table.index()]) {
            let reason = "the table is frozen, so no row of it can come back changed";
            return Err(Error::mismatch(self.shapes[frozen.table.index()].name(), reason));
        }
        for of in rows.iter().filter(|of| self.shapes[of.table.index()].spec.dense) {
            let part = |key: &FeatureKey| self.owner(of.table.index(), key.slot());
            if let Some(key) = of.keys.iter().find(|key| !part(key).has(**key)) {
                let reason = format!("key {:#018x} is not in the fixed vocabulary", key.0);
                return Err(Error::mismatch(self.shapes[of.table.index()].name(), reason));
            }
        }
        let (pieces, generation) = (self.pieces(rows), self.generations.now());
        each(workers, &mut self.shards, |at, shard| {
            for (table, keys, words) in shard_rows(&pieces, at, rows) {
                shard.tables[table].take_lent(keys, words, generation)?;
            }
            Ok(())
        })?;
        self.trim_changes();
        Ok(())
    }

    /// Makes the set one that borrows rows: it lists the keys that its steps change, and a GPU has
    /// a cache of its rows.
    ///
    /// # Errors
    /// Returns an error if the set has rows, or if its rows cannot be lent.
    pub fn begin_borrowing(&mut self) -> Result<()> {
        if let Some(reason) = self.lending_refusal() {
            return Err(Error::misuse(format!("rows cannot be borrowed, because {reason}")));
        }
        if self.shards.iter().any(|shard| shard.tables.iter().any(|table| table.rows() > 0)) {
            return Err(Error::misuse("a set with rows cannot borrow them; make an empty one"));
        }
        self.borrows = true;
        let epoch = self.generations.now();
        self.tables_mut().for_each(|table| {
            let (open, sealed) = (Changed::nothing(), Default::default());
            table.changes = Some(Changes { epoch, is_given_up: false, open, sealed });
        });
        Ok(())
    }

    /// Returns the keys of a plan that have no row here, without words. Tables without such keys
    /// are left out, and so are those that are borrowed whole.
    pub fn missing_rows(&self, workers: &Workers, plan: &LookupPlan) -> Vec<LentRows> {
        let ranges = self.ranges(plan);
        let mut shards: Vec<(&Shard, Vec<Vec<FeatureKey>>)> =
            self.shards.iter().map(|shard| (shard, Vec::new())).collect();
        workers.for_each_mut(&mut shards, |at, (shard, missing)| {
            for (table, range) in plan.tables.iter().zip(&ranges[at]) {
                let part = &shard.tables[table.table.index()];
                missing.push(part.missing(&table.keys[range.clone()]));
            }
        });
        let mut all = Vec::new();
        for (at, table) in plan.tables.iter().enumerate() {
            let of_shards = shards.iter_mut().map(|(_, missing)| std::mem::take(&mut missing[at]));
            let keys: Vec<FeatureKey> = of_shards.flatten().collect();
            if !keys.is_empty() {
                all.push(LentRows { table: table.table, keys, words: Vec::new() });
            }
        }
        all
    }

    /// Adds borrowed rows. Rows that the set has already are left out, because its own are newer.
    ///
    /// # Errors
    /// Returns an error if the rows do not fit the tables; then nothing has changed. Returns
    /// another error if there is no memory.
    pub fn add_borrowed(&mut self, workers: &Workers, rows: &[LentRows]) -> Result<()> {
        self.check_loan(rows, true)?;
        let pieces = self.pieces(rows);
        each(workers, &mut self.shards, |at, shard| {
            for (table, keys, words) in shard_rows(&pieces, at, rows) {
                shard.tables[table].add_borrowed(keys, words)?;
            }
            Ok(())
        })
    }

    /// Returns the tables that are borrowed whole.
    pub fn whole_loans(&self) -> Vec<TableId> {
        let tables = (0..).map(TableId).zip(&self.shapes);
        tables.filter(|(_, shape)| shape.spec.dense).map(|(table, _)| table).collect()
    }

    /// Ends the borrowing of a whole table, whose rows were added in the order of their slots, and
    /// those of a slot in the order of their keys.
    ///
    /// # Errors
    /// Returns an error if the table is unknown.
    pub fn end_whole_loan(&mut self, table: TableId) -> Result<()> {
        self.shape(table)?;
        let parts = self.shards.iter_mut().filter_map(|shard| shard.tables.get_mut(table.index()));
        parts.for_each(Table::finish_restoring);
        Ok(())
    }

    /// Returns the number of rows of the tables that are not borrowed whole.
    pub fn borrowed_rows(&self) -> u64 {
        let tables = (0..).map(TableId).zip(&self.shapes);
        tables.filter(|(_, shape)| !shape.spec.dense).map(|(table, _)| self.rows(table)).sum()
    }

    /// Ends the present epoch of a set that borrows rows. [`TableSet::next_changed`] then returns
    /// the rows that have changed in it, which the host must have.
    pub fn end_loan_epoch(&mut self) {
        self.generations.end_epoch();
        let next = self.generations.now();
        self.tables_mut().for_each(|table| table.seal_borrowed(next));
    }

    /// Returns some of the rows that have changed in the epochs that have ended, at most `words`
    /// words of them but at least one row. Each row is returned once. Returns `None` if there is
    /// none left.
    pub fn next_changed(&mut self, words: usize) -> Option<LentRows> {
        let of_tables = self.lent_words();
        for shard in &mut self.shards {
            for (index, table) in shard.tables.iter_mut().enumerate() {
                let keys = table.take_changed((words / of_tables[index].max(1)).max(1));
                if !keys.is_empty() {
                    let mut rows = LentRows::new(TableId(index as u16));
                    table.copy_lent(&keys, &mut rows);
                    return Some(rows);
                }
            }
        }
        None
    }

    /// Removes rows until at most `most` are left, those that were pushed the longest ago first.
    /// Rows of the `kept` plans stay in any case, and so do tables that are borrowed whole. All
    /// rows must have been given back. Returns the number of rows that were removed.
    pub fn release_borrowed(&mut self, kept: &[&LookupPlan], most: usize) -> u64 {
        let mut keys: Vec<Vec<u64>> = vec![Vec::new(); self.shapes.len()];
        for table in kept.iter().flat_map(|plan| &plan.tables) {
            keys[table.table.index()].extend(table.keys.iter().map(|key| key.0));
        }
        for keys in &mut keys {
            keys.sort_unstable();
            keys.dedup();
        }
        let mut ages: Vec<(u32, u16, u64)> = Vec::new();
        let mut rows = 0;
        for shard in &self.shards {
            let tables = shard.tables.iter().enumerate();
            for (index, table) in tables.filter(|(_, table)| table.dense.is_none()) {
                rows += table.rows() as usize;
                table.for_each_age(|key, last_step| {
                    if keys[index].binary_search(&key.0).is_err() {
                        ages.push((last_step, index as u16, key.0));
                    }
                });
            }
        }
        let excess = rows.saturating_sub(most).min(ages.len());
        if excess == 0 {
            return 0;
        }
        if excess < ages.len() {
            ages.select_nth_unstable(excess);
            ages.truncate(excess);
        }
        ages.sort_unstable_by_key(|&(_, table, key)| (table, key));
        for &(_, table, key) in &ages {
            let key = FeatureKey(key);
            let shard = self.map.shard_of(key.slot());
            self.shards[shard].tables[usize::from(table)].release(key);
        }
        let mut slots: Vec<(u16, usize)> =
            ages.iter().map(|&(_, table, key)| (table, FeatureKey(key).slot())).collect();
        slots.dedup();
        for (table, slot) in slots {
            let shard = self.map.shard_of(slot);
            self.shards[shard].tables[usize::from(table)].index.tidy(slot);
        }
        ages.len() as u64
    }

    /// Checks rows on their way, or a question for them.
    fn check_loan(&self, rows: &[LentRows], has_words: bool) -> Result<()> {
        if let Some(reason) = self.lending_refusal() {
            return Err(Error::misuse(format!("rows cannot be lent, because {reason}")));
        }
        let words = self.lent_words();
        for of in rows {
            let name = self.shape(of.table)?.name();
            let expected = if has_words { words[of.table.index()] * of.keys.len() } else { 0 };
            if of.words.len() != expected {
                let reason = format!(
                    "{} rows have {} words instead of {expected}; use the same job and the same \
                     version of the program on all hosts",
                    of.keys.len(),
                    of.words.len()
                );
                return Err(Error::mismatch(name, reason));
            }
            let slots = &self.owned[of.table.index()];
            if let Some(key) = of.keys.iter().find(|key| !slots.contains(&key.slot())) {
                let reason = format!(
                    "key {:#018x} is in slot {}, but the set owns {}..{}; send it to its owner",
                    key.0,
                    key.slot(),
                    slots.start,
                    slots.end
                );
                return Err(Error::mismatch(name, reason));
            }
            if let Some(pair) = of.keys.windows(2).find(|pair| pair[0].slot() > pair[1].slot()) {
                let reason = format!("key {:#018x} comes after one of a later slot", pair[1].0);
                return Err(Error::mismatch(name, reason));
            }
        }
        Ok(())
    }

    /// Cuts lists of keys at the bounds of the shards.
    fn pieces(&self, rows: &[LentRows]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (of, rows) in rows.iter().enumerate() {
            let mut first = 0;
            for (shard, part) in self.shards.iter().enumerate() {
                let slots = part.slots();
                let keys = &rows.keys[first..];
                let end = first + keys.partition_point(|key| key.slot() < slots.end);
                if end > first {
                    pieces.push(Piece { of, shard, range: first..end });
                }
                first = end;
            }
        }
        pieces
    }
}

/// A run of the keys of one list that belongs to one shard.
#[derive(Debug)]
struct Piece {
    of: usize,
    shard: usize,
    range: Range<usize>,
}

/// Returns the rows of each table that belong to one shard: the number of the table, the keys, and
/// the words.
fn shard_rows<'a>(
    pieces: &'a [Piece],
    shard: usize,
    rows: &'a [LentRows],
) -> impl Iterator<Item = (usize, &'a [FeatureKey], &'a [u32])> {
    pieces.iter().filter(move |piece| piece.shard == shard).map(|Piece { of, range, .. }| {
        let of = &rows[*of];
        let words = of.words.len() / of.keys.len().max(1);
        let part = range.start * words..range.end * words;
        (of.table.index(), &of.keys[range.clone()], &of.words[part])
    })
}

#[cfg(test)]
mod tests;
