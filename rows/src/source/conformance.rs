//! The conformance suite of [`RowSource`], which the tests of each implementation call.

use std::collections::BTreeMap;

use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId, TablePlan, TableRows};

use super::RowSource;

/// The rows that a source must have: for each table, the weights of each key without padding.
pub type ExpectedRows = Vec<BTreeMap<FeatureKey, Vec<f32>>>;

/// Creates a plan that looks up the given keys of each table, for tests. The plan has the unique
/// keys in slot order with their occurrences, and no columns.
pub fn plan_of(keys: &[Vec<FeatureKey>]) -> LookupPlan {
    let tables = keys.iter().enumerate().map(|(table, keys)| {
        let mut seen = std::collections::BTreeSet::new();
        let mut unique: Vec<FeatureKey> =
            keys.iter().copied().filter(|k| seen.insert(*k)).collect();
        unique.sort_by_key(|key| key.slot());
        let mut slots: Vec<(u16, u32)> = Vec::new();
        for (i, key) in unique.iter().enumerate() {
            if slots.last().is_none_or(|&(slot, _)| usize::from(slot) != key.slot()) {
                slots.push((key.slot() as u16, i as u32));
            }
        }
        let mut places: BTreeMap<FeatureKey, Vec<u32>> = BTreeMap::new();
        for (position, &key) in keys.iter().enumerate() {
            places.entry(key).or_default().push(position as u32);
        }
        let mut occurrences = zillion_feature::Occurrences { offsets: vec![0], positions: vec![] };
        for key in &unique {
            occurrences.positions.extend(&places[key]);
            occurrences.offsets.push(occurrences.positions.len() as u32);
        }
        TablePlan { table: TableId(table as u16), keys: unique, slots, occurrences }
    });
    LookupPlan { rows: 0, tables: tables.collect(), columns: Vec::new() }
}

/// Compares a source with the rows that it must have. `absent` lists keys of each table that the
/// source must not have. `default` returns the row that a lookup of an absent key must give.
///
/// # Errors
/// Returns a description of the first difference if the source does not give the expected rows.
pub fn check(
    source: &mut dyn RowSource,
    expected: &ExpectedRows,
    absent: &[Vec<FeatureKey>],
    default: &dyn Fn(TableId, FeatureKey) -> Vec<f32>,
) -> Result<(), String> {
    if source.tables().len() != expected.len() {
        return Err(format!(
            "the source has {} tables instead of {}",
            source.tables().len(),
            expected.len()
        ));
    }
    let present: Vec<Vec<FeatureKey>> =
        expected.iter().map(|rows| rows.keys().copied().collect()).collect();
    let both: Vec<Vec<FeatureKey>> =
        present.iter().zip(absent).map(|(a, b)| [a.clone(), b.clone()].concat()).collect();
    let nothing: Vec<Vec<FeatureKey>> = expected.iter().map(|_| Vec::new()).collect();
    // The buffer has held other contents, and more of them.
    let used = TableRows {
        stride: 7,
        values: vec![f32::NAN; 70_000],
        counts: Some(vec![3; 10]),
        uses: None,
    };
    let mut rows = RowBuffer { tables: vec![used; 3] };
    for (name, keys) in [
        ("present keys", &present),
        ("no keys", &nothing),
        ("absent keys", &absent.to_vec()),
        ("present and absent keys", &both),
        // The lookup of absent keys must not have inserted a row.
        ("absent keys again", &absent.to_vec()),
    ] {
        let plan = plan_of(keys);
        let report = source.lookup(&plan, &mut rows).map_err(|e| format!("{name}: {e}"))?;
        if report.missing.len() != expected.len() {
            return Err(format!(
                "{name}: the report has {} tables instead of {}",
                report.missing.len(),
                expected.len()
            ));
        }
        for (index, table) in plan.tables.iter().enumerate() {
            check_table(source, &rows, index, table, &expected[index], default)
                .map_err(|e| format!("{name}: table {index}: {e}"))?;
            let missing = table.keys.iter().filter(|k| !expected[index].contains_key(k)).count();
            if report.missing[index] != missing as u64 {
                return Err(format!(
                    "{name}: table {index}: {} keys reported missing instead of {missing}",
                    report.missing[index]
                ));
            }
        }
    }
    let beyond =
        TablePlan { table: TableId(expected.len() as u16), ..plan_of(&[vec![]]).tables.remove(0) };
    let plan = LookupPlan { tables: vec![beyond], ..LookupPlan::default() };
    match source.lookup(&plan, &mut rows) {
        Ok(_) => Err("the source accepts a plan with a table that it does not have".to_owned()),
        Err(_) => Ok(()),
    }
}

fn check_table(
    source: &dyn RowSource,
    rows: &RowBuffer,
    index: usize,
    plan: &TablePlan,
    expected: &BTreeMap<FeatureKey, Vec<f32>>,
    default: &dyn Fn(TableId, FeatureKey) -> Vec<f32>,
) -> Result<(), String> {
    let layout = &source.tables()[index];
    let table = rows.tables.get(index).ok_or("the buffer has no rows for the table")?;
    if table.stride != layout.stride || table.values.len() != plan.keys.len() * layout.stride {
        return Err(format!(
            "the buffer has {} floats at stride {}",
            table.values.len(),
            table.stride
        ));
    }
    for (i, &key) in plan.keys.iter().enumerate() {
        let mut wanted = match expected.get(&key) {
            Some(row) => row.clone(),
            None => default(TableId(index as u16), key),
        };
        wanted.resize(layout.stride, 0.0);
        let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        if bits(table.row(i)) != bits(&wanted) {
            return Err(format!(
                "key {:#018x} reads as {:?} instead of {wanted:?}",
                key.0,
                table.row(i)
            ));
        }
    }
    Ok(())
}
