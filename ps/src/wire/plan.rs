//! Lookup plans on the wire: the keys of each table, and their numbers of occurrences.

use std::ops::Range;

use zillion_feature::{LookupPlan, TableId, TablePlan};

use super::{Reader, WireError, WireResult, Writer};

/// Appends the keys of a plan that one server owns. `ranges` has the range of keys of each table of
/// the plan.
pub(crate) fn write_plan(out: &mut Vec<u8>, plan: &LookupPlan, ranges: &[Range<usize>]) {
    let mut out = Writer(out);
    out.u64(plan.rows as u64);
    out.u16(plan.tables.len() as u16);
    for (table, range) in plan.tables.iter().zip(ranges) {
        let offsets = &table.occurrences.offsets;
        let has_counts = offsets.len() == table.keys.len() + 1;
        out.u16(table.table.0);
        out.u8(u8::from(has_counts));
        out.u32(range.len() as u32);
        out.keys(&table.keys[range.clone()]);
        if has_counts {
            let counts = offsets[range.start..=range.end].windows(2);
            out.0.reserve(range.len() * size_of::<u32>());
            counts.for_each(|pair| out.u32(pair[1] - pair[0]));
        }
    }
}

/// Reads a plan, and checks everything that the tables assume: the keys of a table are sorted by
/// slot, no key occurs twice, and no table is named twice.
///
/// # Errors
/// Returns an error that names the table and the first bad key.
pub(crate) fn read_plan(body: &mut Reader<'_>, tables: usize) -> WireResult<LookupPlan> {
    let rows = usize::try_from(body.u64()?).unwrap_or(usize::MAX);
    let count = usize::from(body.u16()?);
    if count > tables {
        return Err(WireError::new(format!(
            "the plan has {count} tables, but the run has {tables}; make the plan for this run"
        )));
    }
    let mut seen = vec![false; tables];
    let plans = (0..count).map(|_| {
        let table = TableId(body.u16()?);
        match seen.get_mut(table.index()) {
            Some(seen) if !*seen => *seen = true,
            Some(_) => {
                return Err(WireError::new(format!("the plan names table {} twice", table.0)));
            }
            None => {
                return Err(WireError::new(format!(
                    "the plan names table {}, but the run has {tables} tables, numbered from 0",
                    table.0
                )));
            }
        }
        let has_counts = body.bool()?;
        let keys = body.u32()? as usize;
        let keys = body.keys(keys)?;
        let counts = if has_counts { Some(body.u32s(keys.len())?) } else { None };
        TablePlan::checked(table, keys, counts.as_deref())
            .map_err(|e| WireError::new(e.to_string()))
    });
    let tables = plans.collect::<WireResult<_>>()?;
    Ok(LookupPlan { rows, tables, columns: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &[u64], counts: Option<&[u32]>) -> WireResult<LookupPlan> {
        let mut body = Vec::new();
        let mut out = Writer(&mut body);
        out.u64(5);
        out.u16(1);
        out.u16(0);
        out.u8(u8::from(counts.is_some()));
        out.u32(keys.len() as u32);
        out.all(keys);
        counts.iter().for_each(|counts| out.all(counts));
        let mut reader = Reader::new(&body);
        let plan = read_plan(&mut reader, 1)?;
        reader.end().map(|()| plan)
    }

    #[test]
    fn a_plan_is_what_was_sent() {
        // Inside a slot, keys may be in any order.
        let plan = read(&[9, 3, 5 << 52, u64::MAX], Some(&[1, 4, 2, 1])).unwrap();
        assert_eq!(plan.tables[0].slots, [(0, 0), (5, 2), (4095, 3)]);
        assert_eq!(plan.tables[0].occurrences.offsets, [0, 1, 5, 7, 8]);
        let mut again = Vec::new();
        let (whole, end) = (0..4, 2..4);
        write_plan(&mut again, &plan, std::slice::from_ref(&whole));
        let sent = read_plan(&mut Reader::new(&again), 1).unwrap();
        assert_eq!(sent, plan);
        let mut part = Vec::new();
        write_plan(&mut part, &plan, std::slice::from_ref(&end));
        let part = read_plan(&mut Reader::new(&part), 1).unwrap();
        assert_eq!(part.tables[0].keys, plan.tables[0].keys[2..]);
        assert_eq!(part.tables[0].occurrences.offsets, [0, 2, 3]);
    }

    #[test]
    fn bad_plans_are_refused_by_name() {
        for (keys, counts) in [
            (&[5 << 52, 3][..], None),
            (&[7, 3, 7], None),
            (&[1, 2], Some(&[1, 0][..])),
            (&[1, 2], Some(&[u32::MAX, 1])),
        ] {
            let error = read(keys, counts).unwrap_err().to_string();
            assert!(error.contains("table 0"), "{error}");
        }
    }
}
