//! The bytes of one row of a batch, in which a pending row waits on disk.
//!
//! All numbers are little-endian. The columns follow each other in the order of the schema:
//!
//! | column | bytes |
//! |---|---|
//! | one key | 8 |
//! | a list of keys | 4 for the number of keys; 8 for each key; 4 for each weight |
//! | a number | 4 |
//! | a label | 4, and 1 for whether it is known |
//! | the weight | 4 |
//! | the group, if rows have one | 8 |
//! | the event time | 8 |

use std::ops::Range;

use zillion_feature::{Batch, FeatureKey, LabelColumn, Schema};

use super::columns::RowShape;

/// The bit in the number of keys that says that the keys have weights.
const HAS_WEIGHTS: u32 = 1 << 31;

/// The bytes of a row do not have the columns of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes of a pending row do not have the columns of the job; restore the file")]
pub struct WrongRow;

/// Appends the bytes of row `row` of a batch to `bytes`. A batch without labels gives a row whose
/// labels are 0.
pub(super) fn encode(batch: &Batch, shape: &RowShape, row: usize, bytes: &mut Vec<u8>) {
    for (column, &is_list) in batch.sparse.iter().zip(&shape.lists) {
        let keys = column.row(row);
        let weights = column.weights.as_ref().map(|weights| match &column.offsets {
            Some(offsets) => &weights[offsets[row] as usize..offsets[row + 1] as usize],
            None => &weights[row..=row],
        });
        if is_list {
            let flag = if weights.is_some() { HAS_WEIGHTS } else { 0 };
            bytes.extend((keys.len() as u32 | flag).to_le_bytes());
        }
        keys.iter().for_each(|key| bytes.extend(key.0.to_le_bytes()));
        if is_list {
            weights.into_iter().flatten().for_each(|weight| bytes.extend(weight.to_le_bytes()));
        }
    }
    batch.numeric.iter().for_each(|column| bytes.extend(column[row].to_le_bytes()));
    for label in 0..shape.labels {
        let column = batch.labels.get(label).filter(|column| !column.values.is_empty());
        let value = column.map_or(0.0, |column| column.values[row]);
        let is_known = column.and_then(|column| Some(column.mask.as_ref()?[row])).unwrap_or(true);
        bytes.extend(value.to_le_bytes());
        bytes.push(u8::from(is_known));
    }
    bytes.extend(batch.weight.as_ref().map_or(1.0, |weights| weights[row]).to_le_bytes());
    if shape.group {
        bytes.extend(batch.group.as_ref().map_or(0, |groups| groups[row]).to_le_bytes());
    }
    bytes.extend(batch.event_time.as_ref().map_or(0, |times| times[row]).to_le_bytes());
}

/// Copies some rows of a batch to a batch of their own.
///
/// # Errors
/// Returns an error if the batch does not have the columns of the schema.
pub(crate) fn copy_rows(
    schema: &Schema,
    batch: &Batch,
    rows: Range<usize>,
) -> Result<Batch, WrongRow> {
    let shape = RowShape::of(schema);
    let (mut copy, mut bytes) = (shape.empty(), Vec::new());
    for row in rows {
        bytes.clear();
        encode(batch, &shape, row, &mut bytes);
        decode(&mut copy, &shape, &bytes)?;
    }
    Ok(copy)
}

/// Appends a row to a batch that has the columns of `shape`.
///
/// # Errors
/// Returns an error if the bytes are not those of a row with these columns. The batch then has
/// columns of different lengths and must not be used.
pub(super) fn decode(batch: &mut Batch, shape: &RowShape, bytes: &[u8]) -> Result<(), WrongRow> {
    let mut rest = bytes;
    for (column, &is_list) in batch.sparse.iter_mut().zip(&shape.lists) {
        let (count, has_weights) = match is_list {
            true => {
                let count = u32::from_le_bytes(take(&mut rest)?);
                ((count & !HAS_WEIGHTS) as usize, count & HAS_WEIGHTS != 0)
            }
            false => (1, false),
        };
        if count > rest.len() / 8 {
            return Err(WrongRow);
        }
        let before = column.keys.len();
        for _ in 0..count {
            column.keys.push(FeatureKey(u64::from_le_bytes(take(&mut rest)?)));
        }
        if has_weights {
            let weights = column.weights.get_or_insert_with(|| vec![1.0; before]);
            for _ in 0..count {
                weights.push(f32::from_le_bytes(take(&mut rest)?));
            }
        } else if let Some(weights) = &mut column.weights {
            weights.resize(column.keys.len(), 1.0);
        }
        if let Some(offsets) = &mut column.offsets {
            offsets.push(column.keys.len() as i32);
        }
    }
    for column in &mut batch.numeric {
        column.push(f32::from_le_bytes(take(&mut rest)?));
    }
    for column in &mut batch.labels {
        let value = f32::from_le_bytes(take(&mut rest)?);
        let [is_known] = take(&mut rest)?;
        push_label(column, value, is_known != 0);
    }
    let weight = f32::from_le_bytes(take(&mut rest)?);
    batch.weight.get_or_insert_default().push(weight);
    if shape.group {
        batch.group.get_or_insert_default().push(u64::from_le_bytes(take(&mut rest)?));
    }
    batch.event_time.get_or_insert_default().push(i64::from_le_bytes(take(&mut rest)?));
    batch.rows += 1;
    if rest.is_empty() { Ok(()) } else { Err(WrongRow) }
}

/// Appends a label, which may be unknown.
fn push_label(column: &mut LabelColumn, value: f32, is_known: bool) {
    if !is_known && column.mask.is_none() {
        column.mask = Some(vec![true; column.values.len()]);
    }
    column.values.push(value);
    if let Some(mask) = &mut column.mask {
        mask.push(is_known);
    }
}

/// Replaces a label of the last row of a batch.
pub(super) fn set_last_label(column: &mut LabelColumn, value: f32, is_known: bool) {
    column.values.pop();
    if let Some(mask) = &mut column.mask {
        mask.pop();
    }
    push_label(column, value, is_known);
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], WrongRow> {
    let (bytes, after) = rest.split_first_chunk::<N>().ok_or(WrongRow)?;
    *rest = after;
    Ok(*bytes)
}

#[cfg(test)]
mod tests {
    use super::super::columns::tests::sample;
    use super::*;

    #[test]
    fn rows_read_back_as_they_were_written() {
        let (shape, batch) = sample();
        let mut read = shape.empty();
        for row in 0..batch.rows {
            let mut bytes = Vec::new();
            encode(&batch, &shape, row, &mut bytes);
            decode(&mut read, &shape, &bytes).unwrap();
            // Every shorter and every longer row is refused.
            for length in 0..bytes.len() {
                assert_eq!(decode(&mut shape.empty(), &shape, &bytes[..length]), Err(WrongRow));
            }
            bytes.push(0);
            assert_eq!(decode(&mut shape.empty(), &shape, &bytes), Err(WrongRow));
        }
        // A list without keys has no weights to remember.
        assert_eq!(read, batch);
    }

    #[test]
    fn a_number_of_keys_that_is_too_large_is_refused() {
        let (shape, _) = sample();
        let mut bytes = vec![0; 8];
        bytes.extend(u32::MAX.to_le_bytes());
        bytes.extend([0; 64]);
        assert_eq!(decode(&mut shape.empty(), &shape, &bytes), Err(WrongRow));
    }

    #[test]
    fn a_label_is_replaced() {
        let mut column = LabelColumn { values: vec![0.0, 0.0], mask: None };
        set_last_label(&mut column, 1.0, true);
        assert_eq!(column, LabelColumn { values: vec![0.0, 1.0], mask: None });
        set_last_label(&mut column, 0.0, false);
        assert_eq!(column.mask, Some(vec![true, false]));
    }
}
