//! Tests of times: derived features and event times are the same from every format.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Date32Array, Decimal128Array, Float64Array, Int64Array, StringArray,
    TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    TimestampSecondArray,
};
use zillion_feature::{Batch, Cursor, Encoder, Schema, Statistics};
use zillion_reader::{Dataset, RawRows};

use crate::fixture::{Folder, PLAIN, read, schema, write_ipc};

/// A job with three derived features: an id, a number and a bucket.
const PARTS: &str = "
    [features.hour]
    kind = 'id'
    column = 't'
    derive = 'hour'
    time_unit = 's'
    [features.days]
    kind = 'numeric'
    column = 't'
    derive = 'days'
    time_unit = 's'
    missing = 0
    [features.night]
    kind = 'bucketized'
    column = 't'
    derive = 'hour'
    time_unit = 's'
    boundaries = [6, 22]
    [labels.y]
    [columns]
    event_time = 'at'
    event_time_unit = 'ms'
";
/// Three times and a missing one, in seconds. The last one is on a full day.
const TIMES: [Option<i64>; 4] =
    [Some(1_700_000_000), None, Some(1_714_600_000), Some(1_714_608_000)];
const TEXTS: [&str; 4] =
    ["2023-11-14T22:13:20Z", "", "2024/5/1 23:46:40+02:00", "2024-05-02 00:00"];

fn labels() -> ArrayRef {
    Arc::new(Int64Array::from(vec![0, 1, 0, 1]))
}

fn event_times() -> ArrayRef {
    Arc::new(Int64Array::from(vec![1_700_000_000_000; 4]))
}

fn batch(dataset: &Dataset) -> Batch {
    read(dataset, PLAIN, Cursor::default(), 1).unwrap().swap_remove(0).0
}

/// Returns what the encoder of a server makes of the rows of a file.
fn encoded(folder: &Folder, file: &str, schema: &Schema) -> Batch {
    let mut rows = RawRows::open(&folder.config, &[folder.path(file)], schema).unwrap();
    let block = rows.next_block(9).unwrap().unwrap();
    let encoder = Encoder::new(schema, &Statistics::default(), &[]).unwrap();
    encoder.encode(block.rows, &block.columns).unwrap()
}

#[test]
fn a_derived_feature_is_the_same_from_every_format_and_in_a_request() {
    let seconds = |factor: i64| TIMES.map(|t| t.map(|t| t * factor)).to_vec();
    let arrays: Vec<(&str, ArrayRef)> = vec![
        ("s", Arc::new(Int64Array::from(seconds(1)))),
        ("float", Arc::new(Float64Array::from(TIMES.map(|t| t.map(|t| t as f64)).to_vec()))),
        ("ts", Arc::new(TimestampSecondArray::from(seconds(1)))),
        ("tms", Arc::new(TimestampMillisecondArray::from(seconds(1000)).with_timezone("UTC"))),
        ("tus", Arc::new(TimestampMicrosecondArray::from(seconds(1_000_000)))),
        (
            "tns",
            Arc::new(
                TimestampNanosecondArray::from(seconds(1_000_000_000)).with_timezone("+02:00"),
            ),
        ),
        ("text", Arc::new(StringArray::from(TEXTS.to_vec()))),
    ];
    let schema = schema(PARTS);
    let mut wanted: Option<Batch> = None;
    let mut check = |folder: &Folder, file: &str| {
        let found = batch(&folder.open(&[file], &schema).unwrap());
        let wanted = wanted.get_or_insert_with(|| found.clone());
        assert_eq!(*wanted, found, "{file}");
        let request = encoded(folder, file, &schema);
        assert_eq!(
            (&wanted.sparse, &wanted.numeric),
            (&request.sparse, &request.numeric),
            "{file}"
        );
    };
    let folder = Folder::new();
    for (name, array) in arrays {
        let columns = || vec![("t", array.clone()), ("y", labels()), ("at", event_times())];
        folder.write_parquet(&format!("{name}.parquet"), columns(), 3);
        write_ipc(&folder.path(&format!("{name}.arrow")), columns(), 3, None);
        check(&folder, &format!("{name}.parquet"));
        check(&folder, &format!("{name}.arrow"));
    }
    let mut csv = "t,y,at\n".to_owned();
    let mut lines = String::new();
    let values = labels();
    for (row, (text, seconds)) in TEXTS.into_iter().zip(TIMES).enumerate() {
        let y = arrow_array::cast::AsArray::as_primitive::<arrow_array::types::Int64Type>(&values)
            .value(row);
        // Half of the rows have a number.
        let number = seconds.filter(|_| row % 2 == 0).map(|seconds| seconds.to_string());
        csv.push_str(&format!("{},{y},1700000000000\n", number.as_deref().unwrap_or(text)));
        let value = number.unwrap_or_else(|| format!("\"{text}\""));
        lines.push_str(&format!("{{\"t\":{value},\"y\":{y},\"at\":1700000000000}}\n"));
    }
    folder.write("a.csv", csv);
    folder.write("a.jsonl", lines);
    check(&folder, "a.csv");
    check(&folder, "a.jsonl");
    let numbers = &wanted.unwrap().numeric[0];
    assert_eq!(numbers[1..], [0.0, 19844.908, 19845.0], "{numbers:?}");
}

#[test]
fn event_times_are_converted_to_the_unit() {
    let job = schema(
        "[features.x]\nkind='id'\n[labels.y]\n[columns]\nevent_time='t'\nevent_time_unit='s'",
    );
    let folder = Folder::new();
    let x = || labels();
    let arrays: Vec<(ArrayRef, i64)> = vec![
        (Arc::new(TimestampMillisecondArray::from(vec![1_714_608_000_999; 4])), 1_714_608_000),
        (Arc::new(Date32Array::from(vec![19_845; 4])), 1_714_608_000),
        (Arc::new(StringArray::from(vec!["2024-05-02 02:00:00.5+02:00"; 4])), 1_714_608_000),
        (Arc::new(Float64Array::from(vec![1_714_608_000.5; 4])), 1_714_608_000),
    ];
    for (array, wanted) in arrays {
        folder.write_parquet("a.parquet", vec![("x", x()), ("y", x()), ("t", array)], 9);
        let found = batch(&folder.open(&["a.parquet"], &job).unwrap());
        assert_eq!(found.event_time, Some(vec![wanted; 4]));
    }
    folder.write("a.csv", "x,y,t\n1,1,2024-05-02\n2,0,1714608000\n3,0,1714608000.0\n");
    folder.write(
        "a.jsonl",
        "{\"x\":1,\"y\":1,\"t\":\"2024-05-02T00:00:00Z\"}\n{\"x\":1,\"y\":1,\"t\":1714608000.0}\n",
    );
    for file in ["a.csv", "a.jsonl"] {
        let times = batch(&folder.open(&[file], &job).unwrap()).event_time.unwrap();
        assert!(times.iter().all(|&time| time == 1_714_608_000), "{file}: {times:?}");
    }
}

#[test]
fn event_times_have_the_order_of_the_job() {
    let job = |order: &str| {
        schema(&format!(
            "[features.x]\nkind='id'\n[labels.y]\n\
             [columns]\nevent_time='t'\nevent_time_unit='s'\n{order}"
        ))
    };
    let folder = Folder::new();
    folder.write("a.csv", "x,y,t\n1,1,02.05.2024\n");
    folder.write("a.jsonl", "{\"x\":1,\"y\":1,\"t\":\"02/05/2024\"}\n");
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["02.05.2024"; 4]));
    folder.write_parquet("a.parquet", vec![("x", labels()), ("y", labels()), ("t", texts)], 9);
    // 2 May and 5 February.
    for (order, wanted) in [("day_first", 1_714_608_000), ("month_first", 1_707_091_200)] {
        for file in ["a.csv", "a.jsonl", "a.parquet"] {
            let job = job(&format!("event_date_order='{order}'"));
            let times = batch(&folder.open(&[file], &job).unwrap()).event_time.unwrap();
            assert!(times.iter().all(|&time| time == wanted), "{file} {order}: {times:?}");
        }
    }
    let error = folder.error(&["a.csv"], &job(""));
    assert!(error.contains("set `columns.event_date_order`"), "{error}");
}

#[test]
fn a_cell_that_is_not_a_time_is_named_with_the_remedy() {
    let folder = Folder::new();
    folder.write("a.csv", "t,y,at\n2024-05-02,1,1700000000000\nyesterday,0,1700000000000\n");
    let error = folder.error(&["a.csv"], &schema(PARTS));
    for part in ["row 2", "`t`", "\"yesterday\" is not a time", "feature `hour`", "`data.null`"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    folder.write("a.csv", "t,y,at\n01.02.2024,1,1700000000000\n");
    let error = folder.error(&["a.csv"], &schema(PARTS));
    assert!(error.contains("`date_order = \"day_first\"`"), "{error}");
    folder.write("a.csv", "t,y,at\n1700000000000,1,1700000000000\n");
    let error = folder.error(&["a.csv"], &schema(PARTS));
    assert!(error.contains("set the `time_unit` of feature `hour`"), "{error}");
    folder.write("a.csv", "t,y,at\n2024-05-02,1,yesterday\n");
    let error = folder.error(&["a.csv"], &schema(PARTS));
    assert!(error.contains("\"yesterday\" is not an event time"), "{error}");

    let plain = schema("[features.t]\nkind='id'\n[labels.y]");
    // Parquet has no timestamps of seconds: they are whole numbers there.
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![1_700_000_000_000; 4]));
    folder.write_parquet("t.parquet", vec![("t", times), ("y", labels())], 9);
    let error = folder.error(&["t.parquet"], &plain);
    assert!(error.contains("a column of timestamps") && error.contains("derive"), "{error}");
    let no_unit = schema("[features.t]\nkind='id'\nderive='hour'\n[labels.y]");
    folder.write_parquet("n.parquet", vec![("t", labels()), ("y", labels())], 9);
    let error = folder.error(&["n.parquet"], &no_unit);
    assert!(error.contains("set the `time_unit`"), "{error}");
}

#[test]
fn decimals_and_booleans_are_read_as_what_they_are() {
    let decimal = |digits: [i128; 4], scale: i8| -> ArrayRef {
        let array = Decimal128Array::from(digits.to_vec());
        Arc::new(array.with_precision_and_scale(38, scale).unwrap())
    };
    let flags: ArrayRef = Arc::new(arrow_array::BooleanArray::from(vec![true, false, true, true]));
    let long = 1_234_567_890_123_456_789_012_i128;
    let folder = Folder::new();
    let columns = vec![
        ("id", decimal([4200, 4300, 4200, 4400], 2)),
        ("long", decimal([long, long + 1, long, long + 2], 0)),
        ("price", decimal([1999, 250, 1999, 0], 2)),
        ("flag", flags),
        ("y", labels()),
    ];
    folder.write_parquet("a.parquet", columns, 9);
    let job = "
        [features.id]
        kind = 'id'
        [features.long]
        kind = 'id'
        type = 'string'
        [features.price]
        kind = 'numeric'
        [features.flag]
        kind = 'id'
        type = 'string'
        [features.flag_number]
        kind = 'numeric'
        column = 'flag'
        [labels.y]";
    let mut csv = "id,long,price,flag,y\n".to_owned();
    for (row, (id, price)) in [(42, 19.99), (43, 2.5), (42, 19.99), (44, 0.0)].iter().enumerate() {
        let last = [0, 1, 0, 2][row];
        let flag = row != 1;
        csv.push_str(&format!("{id},{},{price},{flag},{}\n", long + last, row % 2));
    }
    folder.write("a.csv", csv);
    let job = schema(job);
    assert_eq!(folder.rows(&["a.parquet"], &job), folder.rows(&["a.csv"], &job));
    let raw = encoded(&folder, "a.parquet", &job);
    assert_eq!(raw.sparse, batch(&folder.open(&["a.csv"], &job).unwrap()).sparse);

    let fraction = schema("[features.price]\nkind='id'\n[labels.y]");
    let error = folder.error(&["a.parquet"], &fraction);
    assert!(
        error.contains("\"19.99\" is not a whole number") && error.contains("row 1"),
        "{error}"
    );
}

#[test]
fn values_make_a_label_in_every_format() {
    let folder = Folder::new();
    let text: ArrayRef = Arc::new(StringArray::from(vec!["no", "yes", "no", "yes"]));
    folder.write_parquet("a.parquet", vec![("x", labels()), ("y", text)], 2);
    folder.write("a.csv", "x,y\n0,no\n1, yes\n0,no\n1,yes\n");
    folder.write("a.jsonl", "{\"x\":0,\"y\":\"no\"}\n{\"x\":1,\"y\":\"yes\"}\n");
    let job = schema("[features.x]\nkind='id'\n[labels.y]\npositive='yes'\nnegative='no'");
    for file in ["a.parquet", "a.csv", "a.jsonl"] {
        let found = batch(&folder.open(&[file], &job).unwrap());
        let wanted: Vec<f32> = [0.0, 1.0, 0.0, 1.0][..found.rows].to_vec();
        assert_eq!(found.labels[0].values, wanted, "{file}");
    }
    folder.write("a.csv", "x,y\n0,no\n1,maybe\n");
    let error = folder.error(&["a.csv"], &job);
    for part in ["row 2", "\"maybe\"", "label `y`", "`negative`"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let plain = schema("[features.x]\nkind='id'\n[labels.y]");
    let error = folder.error(&["a.parquet"], &plain);
    assert!(error.contains("set `positive = \"<value>\"`"), "{error}");
    // Numbers may be the values too.
    folder.write("b.csv", "x,y\n0,1\n1,2\n0,1.0\n");
    let two = schema("[features.x]\nkind='id'\n[labels.y]\npositive=2\nnegative=1");
    let found = batch(&folder.open(&["b.csv"], &two).unwrap());
    assert_eq!(found.labels[0].values, [0.0, 1.0, 0.0]);
}

#[test]
fn vectors_are_the_same_from_every_format_and_in_a_request() {
    use arrow_array::types::{Float32Type, Float64Type};
    let rows = [Some([0.5, -2.0]), None, Some([1.0, 0.25]), Some([3.0, 4.0])];
    let list = |row: Option<[f64; 2]>| row.map(|row| row.map(Some));
    let wide = arrow_array::ListArray::from_iter_primitive::<Float64Type, _, _>(rows.map(list));
    let fixed = arrow_array::FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        rows.map(|row| list(row).map(|row| row.map(|x| x.map(|x| x as f32)))),
        2,
    );
    let folder = Folder::new();
    let arrays: [(&str, ArrayRef); 2] = [("wide", Arc::new(wide)), ("fixed", Arc::new(fixed))];
    for (name, array) in arrays {
        let columns = || vec![("v", array.clone()), ("y", labels())];
        folder.write_parquet(&format!("{name}.parquet"), columns(), 3);
        write_ipc(&folder.path(&format!("{name}.arrow")), columns(), 3, None);
    }
    folder.write("a.csv", "v,y\n0.5|-2,0\n,1\n1| 0.25,0\n3|4,1\n");
    folder.write(
        "a.jsonl",
        "{\"v\":[0.5,-2],\"y\":0}\n{\"v\":null,\"y\":1}\n{\"v\":[1,0.25],\"y\":0}\n{\"v\":\"3|4\",\"y\":1}\n",
    );
    let job = schema("[features.v]\nkind='vector'\nsize=2\nmissing=9\n[labels.y]");
    let files = ["wide.parquet", "wide.arrow", "fixed.parquet", "fixed.arrow", "a.csv", "a.jsonl"];
    for file in files {
        let found = batch(&folder.open(&[file], &job).unwrap());
        assert_eq!(found.numeric, [[0.5, 9.0, 1.0, 3.0], [-2.0, 9.0, 0.25, 4.0]], "{file}");
        assert_eq!(encoded(&folder, file, &job).numeric, found.numeric, "{file}");
    }
    let needed = schema("[features.v]\nkind='vector'\nsize=2\n[labels.y]");
    for file in files {
        let error = folder.error(&[file], &needed);
        assert!(error.contains("row 2") && error.contains("`missing = <number>`"), "{error}");
    }
    let long = schema("[features.v]\nkind='vector'\nsize=3\nmissing=0\n[labels.y]");
    for file in files {
        let error = folder.error(&[file], &long);
        assert!(error.contains("row 1") && error.contains("has `size = 3`"), "{error}");
    }
    folder.write("gap.jsonl", "{\"v\":[1,null],\"y\":0}\n");
    assert!(folder.error(&["gap.jsonl"], &needed).contains("a missing number"));
    let number = schema("[features.v]\nkind='numeric'\n[labels.y]");
    let error = folder.error(&["wide.parquet"], &number);
    assert!(error.contains("declare `kind = \"vector\"`"), "{error}");
    // Bad rows are left out whole.
    let lenient = Folder::with("max_bad_rows = 2");
    lenient.write("a.csv", "v,y\n1|2,0\n1|2|3,1\n1|x,0\n3|4,1\n");
    let found = batch(&lenient.open(&["a.csv"], &needed).unwrap());
    assert_eq!(found.numeric, [[1.0, 3.0], [2.0, 4.0]]);
}
