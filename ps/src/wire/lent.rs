//! Rows on the wire that are lent to a trainer or come back, with their optimizer state.

use zillion_embedding::LentRows;
use zillion_feature::{TableId, TablePlan};

use super::{Reader, WireError, WireResult, Writer};

/// Appends rows of several tables, or a question for them.
pub(crate) fn write_lent<'a>(out: &mut Vec<u8>, rows: impl ExactSizeIterator<Item = LentPart<'a>>) {
    let mut out = Writer(out);
    out.u16(rows.len() as u16);
    for LentPart { table, keys, words } in rows {
        out.u16(table.0);
        out.u32(keys.len() as u32);
        out.keys(keys);
        out.all(words);
    }
}

/// The rows of one table that one server has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LentPart<'a> {
    pub(crate) table: TableId,
    pub(crate) keys: &'a [zillion_feature::FeatureKey],
    pub(crate) words: &'a [u32],
}

impl<'a> From<&'a LentRows> for LentPart<'a> {
    fn from(LentRows { table, keys, words }: &'a LentRows) -> Self {
        Self { table: *table, keys, words }
    }
}

/// Reads rows of several tables. `words` has the number of words of a row of each table, or zeros
/// if the body is a question. Checks that the keys of a table are sorted by slot, and that no key
/// and no table occurs twice.
///
/// # Errors
/// Returns an error that names the table and the first bad key.
pub(crate) fn read_lent(body: &mut Reader<'_>, words: &[usize]) -> WireResult<Vec<LentRows>> {
    let count = usize::from(body.u16()?);
    let mut seen = vec![false; words.len()];
    let mut all = Vec::new();
    for _ in 0..count {
        let table = TableId(body.u16()?);
        match seen.get_mut(table.index()) {
            Some(seen) if !*seen => *seen = true,
            Some(_) => {
                return Err(WireError::new(format!("table {} is named twice", table.0)));
            }
            None => {
                return Err(WireError::new(format!(
                    "table {} is unknown; the run has {} tables, numbered from 0",
                    table.0,
                    words.len()
                )));
            }
        }
        let keys = body.u32()? as usize;
        let keys = body.keys(keys)?;
        let plan = TablePlan::checked(table, keys, None);
        let keys = plan.map_err(|e| WireError::new(e.to_string()))?.keys;
        let count = keys.len().saturating_mul(words[table.index()]);
        let words = body.u32s(count)?;
        all.push(LentRows { table, keys, words });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use zillion_feature::FeatureKey;

    use super::*;

    fn rows(table: u16, keys: &[u64], words: usize) -> LentRows {
        let words = (0..(keys.len() * words) as u32).map(|word| word * 7).collect();
        let keys = keys.iter().copied().map(FeatureKey).collect();
        LentRows { table: TableId(table), keys, words }
    }

    fn read(rows: &[LentRows], words: &[usize]) -> WireResult<Vec<LentRows>> {
        let mut body = Vec::new();
        write_lent(&mut body, rows.iter().map(LentPart::from));
        let mut reader = Reader::new(&body);
        let read = read_lent(&mut reader, words)?;
        reader.end().map(|()| read)
    }

    #[test]
    fn rows_are_what_was_sent() {
        let sent = [rows(2, &[3, 9, 5 << 52, u64::MAX], 4), rows(0, &[], 6), rows(1, &[7], 1)];
        assert_eq!(read(&sent, &[6, 1, 4]).unwrap(), sent);
        assert_eq!(read(&[], &[6]).unwrap(), []);
        let question = [rows(1, &[8, 9], 0)];
        assert_eq!(read(&question, &[0, 0]).unwrap(), question);
    }

    #[test]
    fn bad_rows_are_refused_by_name() {
        for (sent, problem) in [
            (vec![rows(3, &[1], 4)], "table 3 is unknown"),
            (vec![rows(1, &[1], 4), rows(1, &[2], 4)], "table 1 is named twice"),
            (vec![rows(1, &[5 << 52, 3], 4)], "table 1"),
            (vec![rows(1, &[7, 3, 7], 4)], "table 1"),
            (vec![rows(1, &[7, 9], 3)], "too early"),
            (vec![rows(1, &[7, 9], 5)], "too many"),
        ] {
            let error = read(&sent, &[4, 4]).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        // A count that no body can have costs nothing.
        let mut body = vec![1, 0, 0, 0];
        body.extend(u32::MAX.to_le_bytes());
        assert!(read_lent(&mut Reader::new(&body), &[usize::MAX]).is_err());
    }
}
