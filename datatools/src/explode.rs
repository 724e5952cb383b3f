//! The change of lists to rows, such as a list of shown items to one row for each impression.
//!
//! The other columns of a row are repeated for each of its elements. If several columns are
//! exploded, the lists of a row must have the same length, and element `i` of each list goes to the
//! same new row. The files are read once. Memory contains one batch of rows with their lists, and
//! new rows of about [`BYTES`] at a time, however long the lists and the repeated values are.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::take::take;
use zillion_device::{Files, Workers};
use zillion_reader::{ColumnType, Result};

use crate::parquet_files::{failed, find_column, setting, wrong_type};
use crate::rewrite::{RewrittenFile, RowFiles, Transform};
use crate::weight::weigh;

/// The maximum number of rows of a batch that is written.
const ROWS: usize = 65_536;
/// The number of bytes of new rows at which a batch is written, even if it has fewer rows.
const BYTES: usize = 32 << 20;

/// The settings of a change of lists to rows.
#[derive(Clone, Debug)]
pub struct ExplodeSpec {
    /// The columns of lists. In the new files they contain one element in each row.
    pub columns: Vec<String>,
    /// The name of a new column with the position of the element in its list, counted from 0, or
    /// `None` for no such column.
    pub position: Option<String>,
    /// Whether a row whose lists are empty or missing becomes one row with missing values. Such
    /// rows are left out if it is false.
    pub keep_empty: bool,
}

/// The result of a change of lists to rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exploded {
    /// The reports about the new files.
    pub files: Vec<RewrittenFile>,
    /// The number of rows whose lists are empty or missing.
    pub empty: u64,
}

/// Changes lists to rows. `seen` is called with the number of rows that were read so far.
///
/// # Errors
/// Returns an error if a column is missing or has no lists, if the lists of a row differ in length,
/// if a name is used twice, if a source cannot be read, or if [`RowFiles::targets`] refuses a new
/// file.
pub fn explode(
    spec: &ExplodeSpec,
    rows: &RowFiles,
    workers: &Arc<Workers>,
    files: &Files,
    seen: &mut dyn FnMut(u64),
) -> Result<Exploded> {
    if spec.columns.is_empty() {
        return Err(setting("no column is named; name at least one column of lists", "columns"));
    }
    // An element of a text file that is left out would move the elements behind it.
    let has_places = spec.columns.len() > 1 || spec.position.is_some();
    let mut rows = rows.clone();
    for (name, of) in &mut rows.columns {
        if let ColumnType::List(raw) = *of
            && has_places
            && spec.columns.contains(name)
        {
            *of = ColumnType::WholeList(raw);
        }
    }
    let mut exploder =
        Exploder { spec, schema: Arc::new(Schema::empty()), read: 0, empty: 0, open: None };
    let files = rows.rewrite(&mut exploder, workers, files, seen)?;
    Ok(Exploded { files, empty: exploder.empty })
}

struct Exploder<'a> {
    spec: &'a ExplodeSpec,
    schema: SchemaRef,
    /// The number of rows of the source before the open batch.
    read: u64,
    empty: u64,
    open: Option<Open>,
}

/// A batch whose rows are being exploded.
struct Open {
    batch: RecordBatch,
    lists: Vec<Lists>,
    /// The columns that are not exploded. A row of them is repeated for each element.
    repeated: Vec<ArrayRef>,
    /// The row and the position of the next element.
    row: usize,
    position: usize,
}

/// The lists of one column: the elements of all rows, and the place of the elements of each row.
struct Lists {
    values: ArrayRef,
    starts: Vec<u64>,
    lengths: Vec<usize>,
}

impl Transform for Exploder<'_> {
    fn start(&mut self, source: &SchemaRef, path: &Path) -> Result<SchemaRef> {
        self.read = 0;
        let mut fields: Vec<Arc<Field>> = source.fields().to_vec();
        for (at, name) in self.spec.columns.iter().enumerate() {
            if self.spec.columns[..at].contains(name) {
                let problem = format!("column `{name}` is named twice; name it once");
                return Err(setting(problem, "columns"));
            }
            let empty = RecordBatch::new_empty(source.clone());
            let array = find_column(&empty, name, "columns", path)?;
            let element = element_type(array.data_type()).ok_or_else(|| {
                let needed = "only a column of lists can become rows";
                wrong_type(name, array.data_type(), needed, path)
            })?;
            for field in fields.iter_mut().filter(|field| field.name() == name) {
                *field = Arc::new(Field::new(name, element.clone(), true));
            }
        }
        if let Some(name) = &self.spec.position {
            if source.column_with_name(name).is_some() {
                let problem = format!(
                    "file `{}` has a column `{name}`; choose another name for the position",
                    path.display()
                );
                return Err(setting(problem, "position"));
            }
            fields.push(Arc::new(Field::new(name, DataType::UInt32, true)));
        }
        self.schema = Arc::new(Schema::new(fields));
        Ok(self.schema.clone())
    }

    fn push(&mut self, batch: RecordBatch, path: &Path) -> Result<()> {
        let mut lists: Vec<Lists> = Vec::with_capacity(self.spec.columns.len());
        for name in &self.spec.columns {
            let next = Lists::of(find_column(&batch, name, "columns", path)?);
            if let Some(first) = lists.first() {
                let differs = |row: &usize| first.lengths[*row] != next.lengths[*row];
                if let Some(row) = (0..batch.num_rows()).find(differs) {
                    let problem = format!(
                        "row {} of {} has {} elements in `{}` and {} in `{name}`; explode columns \
                         of different lengths one after another",
                        self.read + row as u64 + 1,
                        path.display(),
                        first.lengths[row],
                        self.spec.columns[0],
                        next.lengths[row],
                    );
                    return Err(setting(problem, "columns"));
                }
            }
            lists.push(next);
        }
        self.read += batch.num_rows() as u64;
        let lengths = lists.first().map(|first| first.lengths.as_slice()).unwrap_or_default();
        self.empty += lengths.iter().filter(|&&length| length == 0).count() as u64;
        let schema = batch.schema();
        let columns = schema.fields().iter().zip(batch.columns());
        let repeated = columns.filter(|(field, _)| !self.spec.columns.contains(field.name()));
        let repeated = repeated.map(|(_, array)| array.clone()).collect();
        self.open = Some(Open { batch, lists, repeated, row: 0, position: 0 });
        Ok(())
    }

    fn pull(&mut self, path: &Path) -> Result<Option<RecordBatch>> {
        let Some(open) = &mut self.open else { return Ok(None) };
        let chosen = open.next_rows(self.spec.keep_empty);
        if chosen.rows.is_empty() {
            self.open = None;
            return Ok(None);
        }
        let rows = UInt32Array::from_iter_values(chosen.rows.iter().copied());
        let gather = |array: &ArrayRef, at: &dyn Array| {
            take(array, at, None).map_err(|error| failed("select rows of the file", path, error))
        };
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.schema.fields().len());
        for (field, array) in open.batch.schema().fields().iter().zip(open.batch.columns()) {
            match self.spec.columns.iter().position(|name| name == field.name()) {
                Some(at) => {
                    let elements = chosen.elements(&open.lists[at]);
                    columns.push(gather(&open.lists[at].values, &elements)?);
                }
                None => columns.push(gather(array, &rows)?),
            }
        }
        if self.spec.position.is_some() {
            columns.push(Arc::new(UInt32Array::from(chosen.positions)));
        }
        RecordBatch::try_new(self.schema.clone(), columns)
            .map(Some)
            .map_err(|error| failed("explode the rows of the file", path, error))
    }
}

/// The source row and the position in its lists for each row that is written. A position is missing
/// for a row whose lists are empty.
struct Chosen {
    rows: Vec<u32>,
    positions: Vec<Option<u32>>,
}

impl Chosen {
    /// Returns the index of the element for each row that is written.
    fn elements(&self, lists: &Lists) -> UInt64Array {
        let pairs = self.rows.iter().zip(&self.positions);
        pairs.map(|(&row, at)| at.map(|at| lists.starts[row as usize] + u64::from(at))).collect()
    }
}

impl Open {
    /// Returns the next rows to write: at most [`ROWS`], and about [`BYTES`] or a single row.
    fn next_rows(&mut self, keep_empty: bool) -> Chosen {
        let mut chosen = Chosen { rows: Vec::new(), positions: Vec::new() };
        let lengths = self.lists.first().map(|lists| lists.lengths.as_slice()).unwrap_or_default();
        let mut left = BYTES;
        while self.row < lengths.len() && chosen.rows.len() < ROWS && left > 0 {
            let length = lengths[self.row];
            if length == 0 {
                if keep_empty {
                    chosen.rows.push(self.row as u32);
                    chosen.positions.push(None);
                    left = left.saturating_sub(self.new_row_bytes());
                }
                self.row += 1;
                continue;
            }
            let bytes = self.new_row_bytes();
            // A row that is heavier than the rest of the batch ends the batch.
            let fit = (left / bytes).max(1).min(ROWS - chosen.rows.len());
            let end = length.min(self.position + fit);
            left = left.saturating_sub(bytes.saturating_mul(end - self.position));
            for position in self.position..end {
                chosen.rows.push(self.row as u32);
                chosen.positions.push(Some(position as u32));
            }
            (self.row, self.position) =
                if end == length { (self.row + 1, 0) } else { (self.row, end) };
        }
        chosen
    }

    /// Returns the number of bytes of a new row of the current row, at least 1. The elements of a
    /// list count with their mean.
    fn new_row_bytes(&self) -> usize {
        let row = self.row;
        let repeated = self.repeated.iter().map(|array| weigh(array, row..row + 1));
        let elements = self.lists.iter().map(|lists| {
            let (start, length) = (lists.starts[row] as usize, lists.lengths[row]);
            weigh(&lists.values, start..start + length).div_ceil(length.max(1))
        });
        repeated.chain(elements).sum::<usize>().max(1)
    }
}

impl Lists {
    /// Reads the lists of an array whose type [`element_type`] accepts.
    fn of(array: &ArrayRef) -> Self {
        let rows = 0..array.len();
        let (values, bounds): (ArrayRef, Vec<(u64, u64)>) = match array.data_type() {
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                let offsets = lists.value_offsets();
                let bounds = rows.map(|row| (offsets[row] as u64, offsets[row + 1] as u64));
                (lists.values().clone(), bounds.collect())
            }
            DataType::FixedSizeList(..) => {
                let lists = array.as_fixed_size_list();
                let start = |row| lists.value_offset_at(row) as u64;
                let bounds = rows.map(|row| (start(row), start(row) + lists.value_length() as u64));
                (lists.values().clone(), bounds.collect())
            }
            _ => {
                let lists = array.as_list::<i32>();
                let offsets = lists.value_offsets();
                let bounds = rows.map(|row| (offsets[row] as u64, offsets[row + 1] as u64));
                (lists.values().clone(), bounds.collect())
            }
        };
        // A missing list may have elements behind its null.
        let length = |(row, (start, end)): (usize, &(u64, u64))| match array.is_null(row) {
            true => 0,
            false => (end - start) as usize,
        };
        let lengths = bounds.iter().enumerate().map(length).collect();
        Self { values, starts: bounds.iter().map(|&(start, _)| start).collect(), lengths }
    }
}

/// Returns the type of the elements of a list type, or `None` for other types.
fn element_type(found: &DataType) -> Option<DataType> {
    match found {
        DataType::List(element)
        | DataType::LargeList(element)
        | DataType::FixedSizeList(element, _) => Some(element.data_type().clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::ListArray;
    use arrow_array::types::{Int64Type, UInt32Type};
    use zillion_reader::DataConfig;

    use super::*;
    use crate::parquet_files::{properties, write_parquet};
    use crate::rewrite::{one_worker, read_back};

    type Items = Vec<Option<Vec<Option<i64>>>>;

    fn write(path: &Path, items: Items, clicks: Items) {
        let rows = items.len() as i64;
        let list =
            |lists: Items| Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("user", Arc::new((0..rows).map(Some).collect::<arrow_array::Int64Array>())),
            ("items", list(items)),
            ("clicks", list(clicks)),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut batches = vec![vec![batch.clone()]];
        write_parquet(path, batch.schema(), properties(), &Files::new(), || {
            Ok(batches.pop().unwrap_or_default())
        })
        .unwrap();
    }

    fn run(folder: &Path, spec: &ExplodeSpec) -> Result<Exploded> {
        let rows = RowFiles {
            config: DataConfig::default(),
            sources: vec![folder.join("shown.parquet")],
            columns: Vec::new(),
            max_bad_rows: 0,
            out: folder.join("out"),
            overwrite: true,
        };
        explode(spec, &rows, &one_worker(), &Files::new(), &mut |_| ())
    }

    fn spec() -> ExplodeSpec {
        ExplodeSpec {
            columns: vec!["items".to_owned(), "clicks".to_owned()],
            position: Some("position".to_owned()),
            keep_empty: false,
        }
    }

    #[test]
    fn each_element_becomes_a_row() {
        let folder = tempfile::tempdir().unwrap();
        let some = |items: &[i64]| Some(items.iter().copied().map(Some).collect());
        let items = vec![some(&[7, 8, 9]), None, some(&[]), some(&[5])];
        let clicks = vec![some(&[0, 1, 0]), None, some(&[]), some(&[1])];
        write(&folder.path().join("shown.parquet"), items, clicks);
        let done = run(folder.path(), &spec()).unwrap();
        assert_eq!((done.empty, done.files[0].read, done.files[0].rows), (2, 4, 4));
        let batch = read_back(&done.files[0].path);
        let whole = |name: &str| -> Vec<Option<i64>> {
            batch[name].as_primitive::<Int64Type>().iter().collect()
        };
        assert_eq!(whole("user"), [Some(0), Some(0), Some(0), Some(3)]);
        assert_eq!(whole("items"), [Some(7), Some(8), Some(9), Some(5)]);
        assert_eq!(whole("clicks"), [Some(0), Some(1), Some(0), Some(1)]);
        assert_eq!(batch["position"].as_primitive::<UInt32Type>().values(), &[0, 1, 2, 0]);

        let done = run(folder.path(), &ExplodeSpec { keep_empty: true, ..spec() }).unwrap();
        assert_eq!((done.empty, done.files[0].rows), (2, 6));
        let batch = read_back(&done.files[0].path);
        let items: Vec<Option<i64>> = batch["items"].as_primitive::<Int64Type>().iter().collect();
        assert_eq!(items, [Some(7), Some(8), Some(9), None, None, Some(5)]);
        assert_eq!(batch["position"].null_count(), 2);
    }

    #[test]
    fn a_missing_element_of_a_text_file_moves_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let list = ColumnType::List(zillion_feature::RawType::I64);
        let run = |name: &str, text: &str, spec: &ExplodeSpec| {
            let source = folder.path().join(name);
            std::fs::write(&source, text).unwrap();
            let columns = ["items", "clicks"].map(|name| (name.to_owned(), list));
            let rows = RowFiles {
                config: DataConfig::default(),
                sources: vec![source],
                columns: columns.into(),
                max_bad_rows: 0,
                out: folder.path().join("out"),
                overwrite: true,
            };
            explode(spec, &rows, &one_worker(), &Files::new(), &mut |_| ())
        };
        let json = "{\"items\":[null,11,12],\"clicks\":[0,null,1]}\n";
        let csv = "items,clicks\n|11|12,0||1\n";
        let one = ExplodeSpec { columns: vec!["items".to_owned()], ..spec() };
        for (name, text) in [("a.jsonl", json), ("a.csv", csv)] {
            for spec in [&spec(), &one] {
                let refused = run(name, text, spec).unwrap_err().to_string();
                assert!(refused.contains("has a missing element"), "{refused}");
            }
            // Without places, the missing element is one row less.
            let plain = ExplodeSpec { position: None, ..one.clone() };
            assert_eq!(run(name, text, &plain).unwrap().files[0].rows, 2);
        }
        let whole = "{\"items\":[7,11],\"clicks\":[0,1]}\n";
        assert_eq!(run("b.jsonl", whole, &spec()).unwrap().files[0].rows, 2);
    }

    #[test]
    fn long_lists_are_written_in_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let long: Vec<Option<i64>> = (0..150_000).map(Some).collect();
        let items = vec![Some(vec![Some(-1)]), Some(long), Some(vec![Some(-2)])];
        write(&folder.path().join("shown.parquet"), items.clone(), items);
        let done = run(folder.path(), &spec()).unwrap();
        let batch = read_back(&done.files[0].path);
        let found = batch["clicks"].as_primitive::<Int64Type>().values();
        let wanted = std::iter::once(-1).chain(0..150_000).chain(std::iter::once(-2));
        assert!(found.iter().copied().eq(wanted));
    }

    #[test]
    fn heavy_rows_are_written_in_light_batches() {
        // Two rows with a text of 1 MiB: 100 elements, and lists of numbers beside it.
        let list = |lengths: [usize; 2]| -> ArrayRef {
            let lists = lengths.map(|length| Some((0..length as i64).map(Some)));
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))
        };
        let text: ArrayRef = Arc::new(arrow_array::StringArray::from(vec!["x".repeat(1 << 20); 2]));
        let columns = vec![("text", text), ("far", list([1 << 17, 0])), ("items", list([100, 3]))];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let spec =
            ExplodeSpec { columns: vec!["items".to_owned()], position: None, keep_empty: false };
        let schema = Arc::new(Schema::empty());
        let mut exploder = Exploder { spec: &spec, schema, read: 0, empty: 0, open: None };
        let path = Path::new("rows");
        exploder.start(&batch.schema(), path).unwrap();
        exploder.push(batch, path).unwrap();
        let (mut sizes, mut items) = (Vec::new(), Vec::new());
        while let Some(new) = exploder.pull(path).unwrap() {
            sizes.push(new.num_rows());
            items.extend_from_slice(new["items"].as_primitive::<Int64Type>().values());
        }
        // A new row of the first row has 2 MiB and a little, so 15 of them have less than 32 MiB.
        assert!(sizes.len() >= 7 && sizes.iter().all(|&rows| rows <= 17), "{sizes:?}");
        assert!(items.into_iter().eq((0..100).chain(0..3)));
    }

    #[test]
    fn wrong_columns_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let one = vec![Some(vec![Some(1)]), Some(vec![Some(1), None])];
        let other = vec![Some(vec![Some(1)]), Some(vec![Some(1)])];
        write(&folder.path().join("shown.parquet"), one, other);
        let columns = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        for (names, position, problem) in [
            (columns(&["items", "clicks"]), None, "row 2 of"),
            (columns(&["items", "items"]), None, "named twice"),
            (columns(&["user"]), None, "only a column of lists"),
            (columns(&["item"]), None, "did you mean `items`?"),
            (columns(&[]), None, "no column is named"),
            (columns(&["items"]), Some("user"), "another name"),
        ] {
            let position = position.map(str::to_owned);
            let spec = ExplodeSpec { columns: names, position, keep_empty: false };
            let error = run(folder.path(), &spec).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
            assert!(!folder.path().join("out/shown.parquet").exists());
        }
    }
}
