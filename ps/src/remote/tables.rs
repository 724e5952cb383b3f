//! The implementation of [`TableAccess`] for tables on servers.

use zillion_embedding::{Adopted, Error as TableError, Pruned, TableStatistics};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId};
use zillion_rows::layer::WholeRow;
use zillion_rows::{LookupReport, TableLayout};

use super::{RemoteClient, bad_answer};
use crate::client::TableAccess;
use crate::error::{Error, Result};
use crate::wire::{
    AdoptRows, AdoptedRows, Op, Prefill, Reader, place_rows, read_json, take_rows, write_json,
    write_plan,
};

/// The number of keys or rows that one frame brings to a server.
const PIECE: usize = 16 << 10;

impl TableAccess for RemoteClient {
    fn layouts(&self) -> &[TableLayout] {
        &self.layouts
    }

    fn lookup(
        &mut self,
        plan: &LookupPlan,
        mut buffer: RowBuffer,
    ) -> Result<(RowBuffer, LookupReport)> {
        self.order.check_settled("lookup")?;
        self.settle_if_paced()?;
        let ranges: Vec<_> = (0..self.links.len()).map(|s| self.owners.ranges(s, plan)).collect();
        zillion_rows::shape_rows(&self.layouts, plan, &mut buffer)?;
        let bodies = self.ask_each(Op::Lookup, |server, body| {
            write_plan(body, plan, &ranges[server]);
        })?;
        place_rows(plan, &self.layouts, false, &mut buffer).map_err(bad_answer("lookup"))?;
        let mut report = LookupReport { missing: vec![0; self.layouts.len()] };
        for (body, ranges) in bodies.iter().zip(&ranges) {
            let mut reader = Reader::new(body);
            let mut read = || {
                for missing in &mut report.missing {
                    *missing += reader.u64()?;
                }
                take_rows(&mut reader, plan, ranges, &self.layouts, &mut buffer)
            };
            read().and_then(|()| reader.end()).map_err(bad_answer("lookup"))?;
        }
        self.links.iter_mut().zip(bodies).for_each(|(link, body)| link.reuse(body));
        Ok((buffer, report))
    }

    fn prefill(&mut self, table: TableId, keys: &[FeatureKey]) -> Result<u64> {
        self.order.check_settled("prefill")?;
        self.drop_ahead()?;
        let Some(spec) = self.specs.get(table.index()) else {
            let reason = format!("unknown number; the run has {} tables", self.specs.len());
            return Err(TableError::mismatch(&table.0.to_string(), reason).into());
        };
        let name = || spec.name.clone();
        let Some(cap) = spec.row_limit() else {
            return Err(TableError::NotDense { table: name() }.into());
        };
        if let Some(at) = keys.windows(2).position(|pair| pair[0] >= pair[1]) {
            let (table, index, key) = (name(), at + 1, keys[at + 1].0);
            return Err(TableError::Vocabulary { table, index, key }.into());
        }
        // No server knows the rows of the others, so the client compares the sum with the limit.
        let held = self.stats()?.get(table.index()).map_or(0, |statistics| statistics.rows);
        if held + keys.len() as u64 > cap {
            let rows = held + self.send_vocabulary(table, keys, true)?;
            if rows > cap {
                let table = self.specs[table.index()].name.clone();
                return Err(TableError::TooManyRows { table, rows, cap }.into());
            }
        }
        self.send_vocabulary(table, keys, false)
    }

    fn adopt<'a>(
        &mut self,
        table: TableId,
        from: &TableLayout,
        rows: &mut dyn Iterator<Item = (FeatureKey, WholeRow<'a>)>,
    ) -> Result<Adopted> {
        self.order.check_settled("adopt")?;
        self.drop_ahead()?;
        let limit = self.specs.get(table.index()).filter(|spec| !spec.dense);
        let limit = limit.and_then(|spec| spec.most_rows());
        let mut adopted = Adopted::default();
        let mut piece = piece_of(table, from);
        let mut owner = 0;
        for (key, row) in rows {
            let owns = self.owners.owner(table.index(), key.slot());
            if owns != owner || piece.keys.len() == PIECE {
                self.send_rows(owner, &mut piece, &mut adopted)?;
                owner = owns;
            }
            let rows = adopted.rows + piece.keys.len() as u64;
            if let Some(cap) = limit.filter(|&cap| rows >= cap) {
                let table = self.specs[table.index()].name.clone();
                return Err(TableError::TooManyRows { table, rows: rows + 1, cap }.into());
            }
            if row.weights.len() != from.width() {
                let reason = format!(
                    "a row of the version has {} floats, but its layout has {}; load the version \
                     again",
                    row.weights.len(),
                    from.width()
                );
                return Err(TableError::mismatch(&from.name, reason).into());
            }
            piece.keys.push(key.0);
            piece.counts.push(row.count);
            piece.weights.extend(row.weights.iter().map(|weight| weight.to_bits()));
        }
        // A piece without rows still makes the servers check the layout.
        self.send_rows(owner, &mut piece, &mut adopted)?;
        Ok(adopted)
    }

    fn prune(&mut self, _table: TableId, _share: f64) -> Result<Pruned> {
        let reason = "tables on servers cannot be pruned, because no server knows the weights of \
                      the others; keep the tables in the trainer"
            .to_owned();
        Err(Error::Argument { call: "prune", reason })
    }

    fn stats(&mut self) -> Result<Vec<TableStatistics>> {
        let bodies = self.ask_all(Op::Statistics, |_| {})?;
        let mut all: Vec<TableStatistics> = Vec::new();
        for body in bodies {
            let part: Vec<TableStatistics> = read_json(&body).map_err(bad_answer("stats"))?;
            if all.is_empty() {
                all = part;
            } else {
                all.iter_mut().zip(&part).for_each(|(sum, part)| sum.add(part));
            }
        }
        Ok(all)
    }
}

impl RemoteClient {
    /// Sends each server its part of a vocabulary. Returns the number of keys that the servers did
    /// not have.
    fn send_vocabulary(
        &mut self,
        table: TableId,
        keys: &[FeatureKey],
        only_count: bool,
    ) -> Result<u64> {
        let mut new = 0;
        let mut rest = keys;
        while let Some(first) = rest.first() {
            let owner = self.owners.owner(table.index(), first.slot());
            let is_own = |key: &&FeatureKey| self.owners.owner(table.index(), key.slot()) == owner;
            let count = rest.iter().take(PIECE).take_while(is_own).count();
            let (piece, behind) = rest.split_at(count);
            rest = behind;
            let keys = piece.iter().map(|key| key.0).collect();
            let prefill = Prefill { table: table.0, keys, only_count };
            let step = self.order.step().0;
            let link = &mut self.links[owner];
            let frame = link.send(Op::Prefill, step, |body| write_json(body, &prefill))?;
            let body = link.take(frame)?;
            new += Reader::new(&body).u64().map_err(bad_answer("prefill"))?;
        }
        Ok(new)
    }

    /// Sends a server its rows of a version, and empties the piece.
    fn send_rows(
        &mut self,
        owner: usize,
        piece: &mut AdoptRows,
        adopted: &mut Adopted,
    ) -> Result<()> {
        let step = self.order.step().0;
        let link = &mut self.links[owner];
        let frame = link.send(Op::Adopt, step, |body| write_json(body, piece))?;
        let body = link.take(frame)?;
        let taken: AdoptedRows = read_json(&body).map_err(bad_answer("adopt"))?;
        adopted.rows += taken.rows;
        adopted.unknown += taken.unknown;
        piece.keys.clear();
        piece.counts.clear();
        piece.weights.clear();
        Ok(())
    }
}

/// Returns a piece without rows.
fn piece_of(table: TableId, from: &TableLayout) -> AdoptRows {
    AdoptRows {
        table: table.0,
        segments: from.segments.iter().map(|s| (s.name.clone(), s.dim)).collect(),
        keys: Vec::new(),
        counts: Vec::new(),
        weights: Vec::new(),
    }
}
