//! The generated batches that the tests use.

use zillion_feature::random::{combine, unit_f32};
use zillion_nn::{
    ColumnInput, ColumnView, GraphInputs, Inputs, LabelView, OccurrenceView, TableInput, TableView,
};

/// A source of deterministic numbers.
pub(crate) struct Numbers {
    seed: u64,
    next: u64,
}

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, next: 0 }
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.next += 1;
        combine(self.seed, self.next)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns a number, uniform in ±1.
    pub(crate) fn signed(&mut self) -> f32 {
        2.0 * unit_f32((self.bits() >> 32) as u32) - 1.0
    }

    pub(crate) fn many(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.signed()).collect()
    }
}

pub(crate) struct Table {
    pub(crate) stride: usize,
    pub(crate) values: Vec<f32>,
}

/// A column of a batch, with the list of unique-row indices of each row.
pub(crate) struct Column {
    pub(crate) table: usize,
    pub(crate) lists: Vec<Vec<u32>>,
    pub(crate) single: bool,
    pub(crate) weighted: bool,
    inverse: Vec<u32>,
    offsets: Vec<i32>,
    pub(crate) weights: Vec<f32>,
    base: u32,
}

pub(crate) struct Data {
    pub(crate) rows: usize,
    pub(crate) tables: Vec<Table>,
    pub(crate) columns: Vec<Column>,
    pub(crate) numeric: Vec<Vec<f32>>,
    pub(crate) labels: Vec<f32>,
    pub(crate) mask: Vec<bool>,
    pub(crate) weight: Vec<f32>,
    occurrences: Vec<(Vec<u32>, Vec<u32>)>,
}

/// Returns the inputs of the tests. Column 0 has single values, and column 1 has lists. Both are in
/// table 0, whose stride is 8. Column 2 has weighted lists, and column 3 has weighted single
/// values. Both are in table 1, whose stride is 4. There are sixteen numeric columns and one label.
pub(crate) fn graph_inputs() -> GraphInputs {
    let table = |name: &str, stride| TableInput { name: name.into(), stride };
    let column = |name: &str, table| ColumnInput { name: name.into(), table };
    GraphInputs {
        tables: vec![table("items", 8), table("words", 4)],
        columns: vec![column("item", 0), column("history", 0), column("text", 1), column("tag", 1)],
        numeric: (0..16).map(|i| format!("n{i}")).collect(),
        labels: vec!["clicked".into()],
    }
}

impl Data {
    /// Creates a batch with lists of up to four values.
    pub(crate) fn new(rows: usize, seed: u64) -> Self {
        Self::with_lists(rows, seed, 5)
    }

    /// Creates a batch with lists of fewer than `bound` values.
    pub(crate) fn with_lists(rows: usize, seed: u64, bound: usize) -> Self {
        let mut numbers = Numbers::new(seed);
        let unique = [9usize, 6];
        let tables = [8usize, 4];
        let tables: Vec<Table> = tables
            .iter()
            .zip(unique)
            .map(|(&stride, unique)| Table { stride, values: numbers.many(stride * unique) })
            .collect();
        let mut columns = Vec::new();
        let mut bases = [0u32; 2];
        for (table, single, weighted) in
            [(0, true, false), (0, false, false), (1, false, true), (1, true, true)]
        {
            let lists: Vec<Vec<u32>> = (0..rows)
                .map(|_| {
                    let len = if single { 1 } else { numbers.below(bound) };
                    (0..len).map(|_| numbers.below(unique[table]) as u32).collect()
                })
                .collect();
            let inverse = lists.concat();
            let mut offsets = vec![0];
            for list in &lists {
                offsets.push(offsets[offsets.len() - 1] + list.len() as i32);
            }
            // The weights are far from zero, so that weighted averages can be computed precisely.
            let weights = (0..inverse.len()).map(|_| 1.25 + 0.75 * numbers.signed()).collect();
            let base = bases[table];
            bases[table] += inverse.len() as u32;
            columns.push(Column {
                table,
                lists,
                single,
                weighted,
                inverse,
                offsets,
                weights,
                base,
            });
        }
        let occurrences = (0..2)
            .map(|table| {
                let mut offsets = vec![0];
                let mut positions = Vec::new();
                for key in 0..unique[table] as u32 {
                    for column in columns.iter().filter(|c: &&Column| c.table == table) {
                        let at = column.inverse.iter().enumerate().filter(|&(_, &k)| k == key);
                        positions.extend(at.map(|(i, _)| column.base + i as u32));
                    }
                    offsets.push(positions.len() as u32);
                }
                (offsets, positions)
            })
            .collect();
        Self {
            rows,
            tables,
            columns,
            numeric: (0..16).map(|_| numbers.many(rows)).collect(),
            labels: (0..rows).map(|_| numbers.below(2) as f32).collect(),
            mask: (0..rows).map(|i| i == 0 || numbers.below(5) > 0).collect(),
            weight: (0..rows).map(|_| 1.5 + numbers.signed()).collect(),
            occurrences,
        }
    }

    pub(crate) fn inputs(&self) -> Inputs<'_> {
        let tables = self.tables.iter().map(|t| TableView {
            values: &t.values,
            stride: t.stride,
            unique: t.values.len() / t.stride,
        });
        let columns = self.columns.iter().map(|c| ColumnView {
            table: c.table,
            inverse: &c.inverse,
            offsets: (!c.single).then_some(c.offsets.as_slice()),
            weights: c.weighted.then_some(c.weights.as_slice()),
            base: c.base,
        });
        Inputs {
            rows: self.rows,
            tables: tables.collect(),
            columns: columns.collect(),
            occurrences: self
                .occurrences
                .iter()
                .map(|(offsets, positions)| OccurrenceView { offsets, positions })
                .collect(),
            numeric: self.numeric.iter().map(Vec::as_slice).collect(),
            labels: vec![LabelView { values: &self.labels, mask: Some(&self.mask) }],
            weight: Some(&self.weight),
        }
    }
}
