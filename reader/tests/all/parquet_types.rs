//! Tests that every column type of Parquet writers is decoded correctly.

use std::sync::Arc;

use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, DictionaryArray, FixedSizeListArray,
    Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, LargeBinaryArray,
    LargeListArray, LargeStringArray, ListArray, NullArray, StringArray, StringViewArray,
    TimestampMillisecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use zillion_feature::{Batch, Cursor, FeatureKey, Schema};

use crate::fixture::{Folder, PLAIN, read, schema, write_parquet};

/// Writes a Parquet file with the column `x` and a label, and returns its first batch. The file is
/// written with and without dictionaries, and both batches must be equal.
fn batch(feature: &str, column: ArrayRef) -> Batch {
    let job: Schema = schema(&format!("[features.x]\n{feature}\n[labels.label]"));
    let mut batches = Vec::new();
    for dictionary in [true, false] {
        let folder = Folder::new();
        let label: ArrayRef = Arc::new(Int8Array::from(vec![0; column.len()]));
        let columns = vec![("before", label.clone()), ("x", column.clone()), ("label", label)];
        write_parquet(&folder.path("a.parquet"), columns, 2, dictionary);
        let dataset = folder.open(&["a.parquet"], &job).unwrap();
        batches.push(read(&dataset, PLAIN, Cursor::default(), 1).unwrap().remove(0).0);
    }
    assert_eq!(batches[0], batches[1]);
    batches.remove(0)
}

#[test]
fn a_label_by_threshold_reads_alike_in_text_and_parquet() {
    let job = schema(
        "[features.user]\nkind='id'\n[labels.like]\ncolumn='r'\nat_least=4\n[labels.ok]\ncolumn='r'\nat_least=2.5",
    );
    let folder = Folder::new();
    folder.write("a.csv", "user,r\n1,4\n2,3.5\n3,\n4,-1\n");
    let user: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4]));
    let r: ArrayRef = Arc::new(Float64Array::from(vec![Some(4.0), Some(3.5), None, Some(-1.0)]));
    folder.write_parquet("a.parquet", vec![("user", user.clone()), ("r", r)], 9);
    let wanted = folder.rows(&["a.csv"], &job);
    assert_eq!(folder.rows(&["a.parquet"], &job), wanted);
    let batches = read(&folder.open(&["a.csv"], &job).unwrap(), PLAIN, Cursor::default(), 1);
    let labels = &batches.unwrap()[0].0.labels;
    assert_eq!(
        (&labels[0].values[..], &labels[1].values[..]),
        (&[1., 0., 0., 0.][..], &[1., 1., 0., 0.][..])
    );
    for label in labels {
        assert_eq!(label.mask.as_deref(), Some(&[true, true, false, true][..]));
    }
    // A boolean cannot be compared with 2.5, and a text is not a number.
    let flag: ArrayRef = Arc::new(BooleanArray::from(vec![true; 4]));
    folder.write_parquet("flag.parquet", vec![("user", user), ("r", flag)], 9);
    let refused = folder.open(&["flag.parquet"], &job).unwrap_err().to_string();
    assert!(refused.contains("needs numbers to compare with its `at_least`"), "{refused}");
    folder.write("b.csv", "user,r\n1,good\n");
    let refused = read(&folder.open(&["b.csv"], &job).unwrap(), PLAIN, Cursor::default(), 1);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("\"good\" is not a number, which label `like` needs"), "{refused}");
}

#[test]
fn integers_of_every_width_are_ids_and_numbers() {
    let missing = FeatureKey::missing("x");
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int8Array::from(vec![Some(1), None, Some(100)])),
        Arc::new(Int16Array::from(vec![Some(1), None, Some(100)])),
        Arc::new(Int32Array::from(vec![Some(1), None, Some(100)])),
        Arc::new(Int64Array::from(vec![Some(1), None, Some(100)])),
        Arc::new(UInt8Array::from(vec![Some(1), None, Some(100)])),
        Arc::new(UInt16Array::from(vec![Some(1), None, Some(100)])),
        Arc::new(UInt32Array::from(vec![Some(1), None, Some(100)])),
        Arc::new(UInt64Array::from(vec![Some(1), None, Some(100)])),
        Arc::new(
            DictionaryArray::<Int8Type>::try_new(
                Int8Array::from(vec![Some(1), None, Some(0)]),
                Arc::new(Int64Array::from(vec![100, 1])),
            )
            .unwrap(),
        ),
    ];
    for column in columns {
        let name = column.data_type().clone();
        for raw in ["i64", "u64"] {
            let keys = &batch(&format!("kind='id'\ntype='{raw}'"), column.clone()).sparse[0];
            let wanted = [FeatureKey::from_i64(1), missing, FeatureKey::from_i64(100)];
            assert_eq!((keys.keys.as_slice(), &keys.offsets), (wanted.as_slice(), &None), "{name}");
        }
        let single = &batch("kind='ids'", column.clone()).sparse[0];
        assert_eq!(single.offsets.as_deref(), Some([0, 1, 1, 2].as_slice()), "{name}");
        let numeric = batch("kind='numeric'\nmissing=-2", column.clone()).numeric;
        assert_eq!(numeric, [[1.0, -2.0, 100.0]], "{name}");
        let bucket = &batch("kind='bucketized'\nboundaries=[1, 50]", column).sparse[0];
        let wanted = [FeatureKey::from_u64(1), missing, FeatureKey::from_u64(2)];
        assert_eq!(bucket.keys, wanted, "{name}");
    }
    let negative: ArrayRef = Arc::new(Int32Array::from(vec![-7, 0, 7]));
    let keys = &batch("kind='id'", negative).sparse[0].keys;
    assert_eq!(keys[0], FeatureKey::from_i64(-7));
}

#[test]
fn floats_and_booleans_are_numbers_and_booleans_are_ids() {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Float32Array::from(vec![Some(0.0), None, Some(1.0)])),
        Arc::new(Float64Array::from(vec![Some(0.0), None, Some(1.0)])),
        Arc::new(BooleanArray::from(vec![Some(false), None, Some(true)])),
    ];
    for column in columns {
        assert_eq!(batch("kind='numeric'\nmissing=5", column).numeric, [[0.0, 5.0, 1.0]]);
    }
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![Some(false), None, Some(true)]));
    let wanted = [FeatureKey::from_i64(0), FeatureKey::missing("x"), FeatureKey::from_i64(1)];
    assert_eq!(batch("kind='id'", flags).sparse[0].keys, wanted);
    // A missing value is replaced before the transform, so it is transformed too.
    let x: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.0), None, Some(-1.0)]));
    let logs = &batch("kind='numeric'\ntransform='log1p'\nmissing=1", x).numeric[0];
    assert_eq!((logs[0], logs[2]), (logs[1], -logs[1]));
}

#[test]
fn whole_floats_are_ids_and_a_column_without_values_is_missing() {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![Some(7), None, Some(-3)])),
        Arc::new(Float32Array::from(vec![Some(7.0), None, Some(-3.0)])),
        Arc::new(Float64Array::from(vec![Some(7.0), None, Some(-3.0)])),
    ];
    let missing = FeatureKey::missing("x");
    for column in columns {
        let keys = &batch("kind='id'", column.clone()).sparse[0].keys;
        assert_eq!(*keys, [FeatureKey::from_i64(7), missing, FeatureKey::from_i64(-3)]);
        let lists = &batch("kind='ids'", column).sparse[0];
        assert_eq!(lists.keys, [FeatureKey::from_i64(7), FeatureKey::from_i64(-3)]);
        assert_eq!(lists.offsets.as_deref(), Some([0, 1, 1, 2].as_slice()));
    }
    let nothing: ArrayRef = Arc::new(NullArray::new(3));
    for id in ["kind='id'", "kind='id'\ntype='string'"] {
        assert_eq!(batch(id, nothing.clone()).sparse[0].keys, [missing; 3], "{id}");
    }
    for ids in ["kind='ids'", "kind='ids'\ntype='string'"] {
        assert_eq!(batch(ids, nothing.clone()).sparse[0].keys, [], "{ids}");
    }
    assert_eq!(batch("kind='numeric'\nmissing=5", nothing).numeric, [[5.0; 3]]);
}

#[test]
fn strings_of_every_kind_hash_alike_and_empty_ones_are_missing() {
    let values = vec![Some("ä"), None, Some("")];
    let bytes = || values.iter().map(|v| v.map(str::as_bytes));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(values.clone())),
        Arc::new(LargeStringArray::from(values.clone())),
        Arc::new(StringViewArray::from(values.clone())),
        Arc::new(bytes().collect::<BinaryArray>()),
        Arc::new(bytes().collect::<LargeBinaryArray>()),
        Arc::new(values.iter().copied().collect::<DictionaryArray<Int32Type>>()),
    ];
    for column in columns {
        let name = column.data_type().clone();
        let missing = FeatureKey::missing("x");
        let keys = &batch("kind='id'\ntype='string'", column.clone()).sparse[0].keys;
        assert_eq!(*keys, [FeatureKey::from_text("ä"), missing, missing], "{name}");
        let lists = &batch("kind='ids'\ntype='string'", column).sparse[0];
        assert_eq!(lists.offsets.as_deref(), Some([0, 1, 1, 1].as_slice()), "{name}");
    }
}

#[test]
fn lists_of_every_kind_are_ids() {
    let rows = || [Some(vec![Some(3), None, Some(4)]), None, Some(vec![Some(5), Some(5), None])];
    let columns: Vec<ArrayRef> = vec![
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows())),
        Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(rows())),
        Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(rows(), 3)),
    ];
    for column in columns {
        let name = column.data_type().clone();
        let lists = &batch("kind='ids'", column).sparse[0];
        assert_eq!(lists.offsets.as_deref(), Some([0, 2, 2, 4].as_slice()), "{name}");
        assert_eq!(lists.keys, [3, 4, 5, 5].map(FeatureKey::from_u64), "{name}");
    }
    let text: ArrayRef = Arc::new(StringArray::from(vec![Some("3|4"), None, Some("5|5|")]));
    let lists = &batch("kind='ids'\ntype='i64'", text).sparse[0];
    assert_eq!(lists.keys, [3, 4, 5, 5].map(FeatureKey::from_u64));
    let mut words =
        arrow_array::builder::ListBuilder::new(arrow_array::builder::StringBuilder::new());
    words.append_option(Some([Some("a"), None, Some("")]));
    words.append_option(None::<[Option<&str>; 0]>);
    words.append_option(Some([Some("b"), Some("c")]));
    let lists = &batch("kind='ids'\ntype='string'", Arc::new(words.finish())).sparse[0];
    assert_eq!(lists.keys, ["a", "b", "c"].map(FeatureKey::from_text));
    assert_eq!(lists.offsets.as_deref(), Some([0, 1, 1, 3].as_slice()));
}

#[test]
fn groups_and_times_keep_their_meaning() {
    let job =
        schema("[features.x]\nkind='id'\n[labels.label]\n[columns]\ngroup='g'\nevent_time='t'");
    let x: ArrayRef = Arc::new(Int8Array::from(vec![1, 0]));
    let times: Vec<(ArrayRef, [i64; 2])> = vec![
        (Arc::new(Int32Array::from(vec![5, -6])), [5, -6]),
        (Arc::new(TimestampMillisecondArray::from(vec![5000, 6000])), [5000, 6000]),
        (Arc::new(Date32Array::from(vec![19_000, 19_001])), [19_000, 19_001]),
    ];
    let groups: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(vec![-7, 8])),
        Arc::new(Int64Array::from(vec![-7, 8])),
        Arc::new(StringArray::from(vec!["-7", "8"])),
    ];
    for (time, wanted) in times {
        for group in &groups {
            let folder = Folder::new();
            let columns = vec![
                ("x", x.clone()),
                ("label", x.clone()),
                ("g", group.clone()),
                ("t", time.clone()),
            ];
            folder.write_parquet("a.parquet", columns, 9);
            let dataset = folder.open(&["a.parquet"], &job).unwrap();
            let batch = read(&dataset, PLAIN, Cursor::default(), 1).unwrap().remove(0).0;
            assert_eq!(batch.event_time.as_deref(), Some(wanted.as_slice()));
            let keys = [-7, 8].map(|g| FeatureKey::from_i64(g).0);
            assert_eq!(batch.group.as_deref(), Some(keys.as_slice()));
        }
    }
}

#[test]
fn two_features_may_read_one_column() {
    let job = schema(
        "[features.a]\nkind='id'\ntype='string'\ncolumn='x'\n[features.b]\nkind='ids'\ntype='string'\ncolumn='x'\n[labels.label]",
    );
    let folder = Folder::new();
    let x: ArrayRef = Arc::new(StringArray::from(vec!["p|q", "p"]));
    let label: ArrayRef = Arc::new(Int8Array::from(vec![1, 0]));
    folder.write_parquet("a.parquet", vec![("x", x), ("label", label)], 9);
    folder.write("a.csv", "x,label\np|q,1\np,0\n");
    let rows = folder.rows(&["a.parquet"], &job);
    assert_eq!(rows, folder.rows(&["a.csv"], &job));
    assert_eq!(rows.len(), 2);
}
