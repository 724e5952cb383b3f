//! The hot keys of a layer: for each table, the keys whose rows training has used most, so that a
//! server knows which rows to bring to its caches before it answers the first request.
//!
//! The *decayed count* of a row is the number of its pushes, halved once for each half-life since
//! its last push. A layer lists the keys with the largest decayed counts, at most
//! [`HotRule::most`] of each table. A file is an Arrow file with the columns `table` (u32, the
//! number of the table), `key` (u64), `count` (u32) and `last` (u32: the step of the last push, or
//! its event time), tables in ascending order and the hottest key of a table first. The metadata
//! have the half-life of each table. A layer of several writers has a file of each.
//!
//! # Invariants
//! * The list depends only on the rows of the layer and on the rule, and not on threads or shards.
//! * Counts are compared as if all rows had decayed to one time. This time drops out of the
//!   comparison, so that lists of layers of different times are merged without loss.

use std::cmp::Reverse;
use std::sync::Arc;

use arrow_array::{ArrayRef, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use zillion_feature::FeatureKey;

use super::FORMAT;
use crate::arrow_file::ArrowFile;
use crate::layout::{HotRule, TableLayout};

/// The key of the metadata with the half-lives of the tables.
pub(super) const HALF_LIVES: &str = "zillion.half_lives";
/// The label of a file of hot keys.
pub(super) const LABEL: &str = "hot";

/// A key of a layer with the uses of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotKey {
    /// The key of the row.
    pub key: FeatureKey,
    /// The number of pushes of the row.
    pub count: u32,
    /// The step or the event time of the last push, in seconds.
    pub last: u32,
}

/// The hot keys of a table, the hottest one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotTable {
    keys: Vec<HotKey>,
    half_life: u64,
    /// The latest time of a push among the keys.
    newest: u32,
}

/// The hot keys of all tables of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HotKeys {
    tables: Vec<HotTable>,
}

impl HotKey {
    /// Returns a number that orders keys by their decayed counts: the logarithm of the count in
    /// half-lives, and the time of the last push, both in units of 1/256.
    fn priority(self, half_life: u64) -> u64 {
        let count = u64::from(self.count.max(1));
        let exponent = count.ilog2();
        let fraction = ((count << 8) >> exponent) & 0xff;
        (u64::from(exponent << 8) + fraction) * half_life + (u64::from(self.last) << 8)
    }

    /// Returns the place in the list of a table: a smaller one is nearer to the begin.
    fn place(self, half_life: u64) -> (Reverse<u64>, u64) {
        (Reverse(self.priority(half_life)), self.key.0)
    }
}

impl HotTable {
    /// Returns the keys, the hottest one first.
    pub fn keys(&self) -> &[HotKey] {
        &self.keys
    }

    /// Returns the decayed count of a key at the time of the latest push of the table.
    pub fn decayed_count(&self, key: HotKey) -> u32 {
        let halvings = u64::from(self.newest.saturating_sub(key.last)) / self.half_life.max(1);
        u32::try_from(halvings).ok().and_then(|by| key.count.checked_shr(by)).unwrap_or(0)
    }
}

/// A collector of the hot keys of one table, while its rows are written.
#[derive(Debug)]
pub(super) struct HotPicker {
    rule: HotRule,
    keys: Vec<HotKey>,
    /// The place behind which a key is not among the hottest ones.
    limit: Option<(Reverse<u64>, u64)>,
}

impl HotPicker {
    pub(super) fn new(rule: HotRule) -> Self {
        Self { rule, keys: Vec::new(), limit: None }
    }

    /// Adds a key. In memory are at most twice the keys of the list, and some.
    pub(super) fn add(&mut self, key: HotKey) {
        let place = key.place(self.rule.half_life);
        if self.limit.is_some_and(|limit| place > limit) {
            return;
        }
        self.keys.push(key);
        let most = self.rule.most as usize;
        if self.keys.len() >= 2 * most + 1024 {
            self.shorten(most);
        }
    }

    /// Keeps the hottest keys in any order.
    fn shorten(&mut self, most: usize) {
        let half_life = self.rule.half_life;
        let Some(last) = most.checked_sub(1).filter(|&last| last < self.keys.len()) else { return };
        self.keys.select_nth_unstable_by_key(last, |key| key.place(half_life));
        self.limit = Some(self.keys[last].place(half_life));
        self.keys.truncate(most);
    }

    /// Returns the keys in their order.
    pub(super) fn finish(mut self) -> Vec<HotKey> {
        self.shorten(self.rule.most as usize);
        let half_life = self.rule.half_life;
        self.keys.sort_unstable_by_key(|key| key.place(half_life));
        self.keys
    }
}

/// Returns the columns of a file of hot keys.
pub(super) fn hot_fields() -> Vec<Field> {
    let number = |name: &str, of: DataType| Field::new(name, of, false);
    vec![
        number("table", DataType::UInt32),
        number("key", DataType::UInt64),
        number("count", DataType::UInt32),
        number("last", DataType::UInt32),
    ]
}

/// Returns the text of the half-lives of all tables; 0 for a table without a rule.
pub(super) fn half_lives_text(rules: &[Option<HotRule>]) -> String {
    let of = |rule: &Option<HotRule>| rule.map_or(0, |rule| rule.half_life).to_string();
    rules.iter().map(of).collect::<Vec<_>>().join(",")
}

/// Reads the text of the half-lives.
fn read_half_lives(text: &str, tables: usize) -> Option<Vec<u64>> {
    if text.len() > 24 * tables {
        return None;
    }
    let lives: Vec<u64> = text.split(',').map(|one| one.parse().ok()).collect::<Option<_>>()?;
    (lives.len() == tables && lives.iter().all(|&life| life <= HotRule::MAX_HALF_LIFE))
        .then_some(lives)
}

impl HotKeys {
    /// Adds the keys of a file to those of other writers. `rows` are the numbers of rows of the
    /// tables.
    ///
    /// # Errors
    /// Returns the reason if the keys are not those of such tables, or not in their order.
    pub(super) fn add_file(&mut self, file: &ArrowFile<'_>, rows: &[u64]) -> Result<(), String> {
        if file.metadata("zillion.format") != FORMAT || file.metadata("zillion.layer") != LABEL {
            return Err(format!("the file is not a `{LABEL}` of format `{FORMAT}`"));
        }
        let fields = hot_fields();
        if !file.schema.fields().iter().map(AsRef::as_ref).eq(fields.iter()) {
            return Err("the file does not have the columns of hot keys".to_owned());
        }
        let lives = read_half_lives(file.metadata(HALF_LIVES), rows.len());
        let lives = lives.ok_or("the half-lives of the tables cannot be read")?;
        let known: usize = self.tables.iter().map(|list| list.keys.len()).sum();
        let most = rows.iter().fold(0u64, |sum, rows| sum.saturating_add(*rows));
        // The manifest may name a file again and again, so all files count together.
        if (known + file.rows) as u64 > most {
            return Err("the lists have more keys than the layer".to_owned());
        }
        let mut columns = file.columns();
        let tables = columns.numbers::<u32>("table")?;
        let keys = columns.numbers::<u64>("key")?;
        let counts = columns.numbers::<u32>("count")?;
        let lasts = columns.numbers::<u32>("last")?;
        self.tables.resize(rows.len(), HotTable::default());
        let mut before: Option<(u32, (Reverse<u64>, u64))> = None;
        for row in 0..file.rows {
            let (table, key) = (tables[row], FeatureKey(keys[row]));
            let hot = HotKey { key, count: counts[row], last: lasts[row] };
            let life = lives.get(table as usize).copied().filter(|&life| life > 0);
            let life = life.ok_or_else(|| format!("row {row}: table {table} has no hot keys"))?;
            let place = (table, hot.place(life));
            if before.is_some_and(|before| before >= place) {
                return Err(format!("row {row}: the keys are not in the order of their counts"));
            }
            before = Some(place);
            let list = &mut self.tables[table as usize];
            list.newest = list.newest.max(hot.last);
            list.keys.push(hot);
        }
        for (list, life) in self.tables.iter_mut().zip(lives) {
            if list.half_life != 0 && list.half_life != life {
                return Err("the files of the writers have different half-lives".to_owned());
            }
            list.half_life = life;
            list.keys.shrink_to_fit();
        }
        Ok(())
    }

    /// Orders the keys of several writers.
    pub(super) fn sort(&mut self) {
        for list in &mut self.tables {
            let half_life = list.half_life;
            list.keys.sort_unstable_by_key(|key| key.place(half_life));
        }
    }

    /// Shortens the lists of several writers to what one writer would have listed.
    pub(super) fn shorten(&mut self, layouts: &[TableLayout]) {
        for (list, layout) in self.tables.iter_mut().zip(layouts) {
            let Some(rule) = layout.hot else { continue };
            list.keys.truncate(rule.most as usize);
            list.newest = list.keys.iter().map(|hot| hot.last).max().unwrap_or(0);
        }
    }

    /// Returns the list of a table; `None` if no writer has listed the keys of the table.
    pub(super) fn table(&self, table: usize) -> Option<&HotTable> {
        self.tables.get(table).filter(|list| list.half_life > 0)
    }

    /// Yields the keys of all tables, each with the number of its table.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, HotKey)> {
        let tables = self.tables.iter().enumerate();
        tables.flat_map(|(table, list)| list.keys.iter().map(move |&key| (table, key)))
    }
}

/// Returns the columns of a file with the lists of all tables.
pub(super) fn columns(lists: &[Vec<HotKey>]) -> Vec<ArrayRef> {
    let of_table = |(table, list): (u32, &Vec<HotKey>)| vec![table; list.len()];
    let tables: Vec<u32> = (0..).zip(lists).flat_map(of_table).collect();
    let all = || lists.iter().flatten();
    vec![
        Arc::new(UInt32Array::from(tables)),
        Arc::new(UInt64Array::from_iter_values(all().map(|hot| hot.key.0))),
        Arc::new(UInt32Array::from_iter_values(all().map(|hot| hot.count))),
        Arc::new(UInt32Array::from_iter_values(all().map(|hot| hot.last))),
    ]
}

#[cfg(test)]
mod tests;
