//! The number of bytes of some rows of a column. The sizes that arrays report include rows outside
//! of a slice, such as all elements of a column of lists.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;

/// The number of bytes that count for a value whose type has no fixed width, such as a view.
const OTHER: usize = 16;

/// Returns the number of bytes of the rows in `rows`. Nulls count like values.
pub(crate) fn weigh(array: &ArrayRef, rows: Range<usize>) -> usize {
    let length = rows.len();
    let small = |offsets: &[i32]| offsets[rows.start] as usize..offsets[rows.end] as usize;
    let large = |offsets: &[i64]| offsets[rows.start] as usize..offsets[rows.end] as usize;
    match array.data_type() {
        DataType::Utf8 => 4 * length + small(array.as_string::<i32>().value_offsets()).len(),
        DataType::LargeUtf8 => 8 * length + large(array.as_string::<i64>().value_offsets()).len(),
        DataType::Binary => 4 * length + small(array.as_binary::<i32>().value_offsets()).len(),
        DataType::LargeBinary => 8 * length + large(array.as_binary::<i64>().value_offsets()).len(),
        DataType::FixedSizeBinary(width) => length * usize::try_from(*width).unwrap_or_default(),
        DataType::Utf8View => {
            let texts = array.as_string_view();
            rows.map(|row| OTHER + texts.value(row).len()).sum()
        }
        DataType::BinaryView => {
            let values = array.as_binary_view();
            rows.map(|row| OTHER + values.value(row).len()).sum()
        }
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            4 * length + weigh(lists.values(), small(lists.value_offsets()))
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            8 * length + weigh(lists.values(), large(lists.value_offsets()))
        }
        DataType::FixedSizeList(_, width) => {
            let width = usize::try_from(*width).unwrap_or_default();
            weigh(array.as_fixed_size_list().values(), rows.start * width..rows.end * width)
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let entries = small(map.value_offsets());
            let columns = map.entries().columns().iter();
            4 * length + columns.map(|column| weigh(column, entries.clone())).sum::<usize>()
        }
        DataType::Struct(_) => {
            array.as_struct().columns().iter().map(|column| weigh(column, rows.clone())).sum()
        }
        other => length * other.primitive_width().unwrap_or(OTHER),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int64Type;
    use arrow_array::{FixedSizeListArray, Int64Array, ListArray, StringArray, StructArray};
    use arrow_schema::Field;

    use super::*;

    #[test]
    fn only_the_rows_in_the_range_count() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "bcd", ""]));
        let lists = [Some(vec![Some(1); 100]), None, Some(vec![Some(1), None])];
        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
        let lists: ArrayRef = Arc::new(lists);
        assert_eq!(weigh(&numbers, 0..3), 24);
        assert_eq!(weigh(&texts, 1..3), 8 + 3);
        assert_eq!(weigh(&lists, 1..3), 8 + 16);
        assert_eq!(weigh(&lists.slice(2, 1), 0..1), 4 + 16);
        let pairs = [Some(vec![Some(1), Some(2)]), Some(vec![Some(1), Some(2)])];
        let pairs = FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>(pairs, 2);
        assert_eq!(weigh(&(Arc::new(pairs) as ArrayRef), 1..2), 16);
        let fields = vec![
            (Arc::new(Field::new("number", DataType::Int64, true)), numbers),
            (Arc::new(Field::new("list", lists.data_type().clone(), true)), lists),
        ];
        let whole: ArrayRef = Arc::new(StructArray::from(fields));
        assert_eq!(weigh(&whole, 2..3), 8 + 4 + 16);
    }
}
