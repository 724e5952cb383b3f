//! Tests of rows that are left out because they are bad or not sampled.
//!
//! The number of threads and the position at which reading resumes do not change which rows are
//! left out. All other rows are read.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, StringArray};
use proptest::prelude::*;
use zillion_feature::{Batch, Cursor, Schema, TableId};
use zillion_reader::{BatchOrder, Dataset, ReaderError, statistics, vocabulary};

use crate::fixture::{Folder, PLAIN, read, rows, schema, workers};

/// The fault in a row of the test data.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The id is negative, although its type is `u64`.
    Negative,
    Label,
    NoLabel,
    /// In text, the row has too few cells. In Parquet, a number is missing.
    Short,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        12 => Just(Fault::None),
        1 => Just(Fault::Negative),
        1 => Just(Fault::Label),
        1 => Just(Fault::NoLabel),
        1 => Just(Fault::Short),
    ]
}

fn job() -> Schema {
    schema(
        "[features.user]\nkind='id'\ntype='u64'\n[features.tags]\nkind='ids'\n\
         [features.price]\nkind='numeric'\ntransform='standardise'\n[labels.label]",
    )
}

/// A row of the data. The id of a row is its number, and every third row has the label 1.
struct Row {
    user: i64,
    tags: String,
    price: Option<i64>,
    label: Option<i64>,
}

fn row(i: usize, fault: Fault) -> Row {
    let id = i as i64;
    Row {
        user: if fault == Fault::Negative { -1 - id } else { id },
        tags: (0..i % 3).map(|t| t.to_string()).collect::<Vec<_>>().join("|"),
        price: (fault != Fault::Short).then_some(id % 7),
        label: match fault {
            Fault::Label => Some(2),
            Fault::NoLabel => None,
            _ => Some(i64::from(i.is_multiple_of(3))),
        },
    }
}

fn line(i: usize, fault: Fault) -> String {
    let Row { user, tags, price, label } = row(i, fault);
    let label = label.map_or(String::new(), |l| l.to_string());
    match price {
        Some(price) => format!("{user},{tags},{price},{label}"),
        None => format!("{user},{label}"),
    }
}

/// Writes files in Parquet or CSV. The rows are numbered across all files.
fn write(folder: &Folder, files: &[(bool, Vec<Fault>)], group: usize) -> Vec<String> {
    let mut next = 0;
    let mut names = Vec::new();
    for (index, (parquet, faults)) in files.iter().enumerate() {
        let numbered: Vec<(usize, Fault)> = (next..).zip(faults.iter().copied()).collect();
        next += faults.len();
        if *parquet {
            let all: Vec<Row> = numbered.iter().map(|&(i, fault)| row(i, fault)).collect();
            let column = |values: Vec<Option<i64>>| Arc::new(Int64Array::from(values)) as ArrayRef;
            let tags = StringArray::from_iter_values(all.iter().map(|r| &r.tags));
            names.push(format!("{index}.parquet"));
            folder.write_parquet(
                &names[index],
                vec![
                    ("user", column(all.iter().map(|r| Some(r.user)).collect())),
                    ("tags", Arc::new(tags)),
                    ("price", column(all.iter().map(|r| r.price).collect())),
                    ("label", column(all.iter().map(|r| r.label).collect())),
                ],
                group,
            );
        } else {
            let text: Vec<String> = numbered.iter().map(|&(i, fault)| line(i, fault)).collect();
            names.push(format!("{index}.csv"));
            folder.write(&names[index], format!("user,tags,price,label\n{}\n", text.join("\n")));
        }
    }
    names
}

fn open(folder: &Folder, names: &[String]) -> Dataset {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let dataset = folder.open(&names, &job()).unwrap().thinned(&folder.config, 9).unwrap();
    let known = statistics(&dataset, &workers(2));
    // If every row is left out, there are no values for the statistics.
    dataset.with_statistics(known.unwrap_or_else(|_| {
        let mut known = zillion_feature::Statistics::default();
        let column = zillion_feature::ColumnStatistics {
            count: 1,
            mean: 0.0,
            std: 1.0,
            min: 0.0,
            max: 0.0,
            boundaries: None,
        };
        known.columns.insert("price".into(), column);
        known
    }))
}

fn table(dataset: &Dataset, name: &str) -> TableId {
    let tables = &dataset.schema().tables;
    TableId(tables.iter().position(|table| table == name).unwrap() as u16)
}

/// The result of a pass. The first part holds the batches, each with the cursor after the batch and
/// the bad rows that the cursor passed in the batch. The second part holds the bad rows after the
/// last batch.
type Pass = (Vec<(Batch, Cursor, Vec<u64>)>, Vec<u64>);

fn pass(dataset: &Dataset, order: BatchOrder, from: Cursor, rejected: u64, threads: usize) -> Pass {
    let stream = dataset.batches(order, from, workers(threads)).unwrap();
    let mut stream = stream.with_rejected(rejected);
    let mut batches = Vec::new();
    while let Some(item) = stream.next() {
        let (batch, cursor) = item.unwrap();
        batches.push((batch, cursor, stream.take_rejected()));
    }
    let last = stream.take_rejected();
    (batches, last)
}

fn users(batches: &[(Batch, Cursor, Vec<u64>)]) -> Vec<usize> {
    let keys = batches.iter().flat_map(|(batch, ..)| &batch.sparse[0].keys);
    keys.map(|key| key.unmix() as usize).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn a_pass_leaves_out_what_it_must_and_resumes_anywhere(
        files in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(fault(), 1..60)), 1..4),
        group in 1usize..40,
        window in 1usize..90,
        batch_rows in 1usize..30,
        epoch in 0u64..3,
        shuffle in any::<bool>(),
        sample in prop_oneof![Just(None), Just(Some("0.6")), Just(Some("0.05"))],
        negatives in prop_oneof![Just(None), Just(Some("0.5")), Just(Some("0.1"))],
        at in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
    ) {
        let settings = format!(
            "shuffle_window = {window}\nmax_bad_rows = 1000\nrejects = 'r'\n{}{}",
            sample.map_or(String::new(), |s| format!("sample = {s}\n")),
            negatives.map_or(String::new(), |n| format!("negatives = {{ keep = {n} }}\n")),
        );
        let folder = Folder::with(&settings);
        let dataset = open(&folder, &write(&folder, &files, group));
        let faults: Vec<Fault> = files.iter().flat_map(|(_, f)| f.clone()).collect();
        let order = BatchOrder { seed: 5, shuffle, batch_rows, drop_last: false };
        let from = Cursor { epoch, row: 0 };
        let (whole, last) = pass(&dataset, order, from, 0, 1);

        // No row is bad and no row occurs twice. Without sampling, all good rows occur.
        let in_order = users(&whole);
        let mut seen = in_order.clone();
        seen.sort_unstable();
        prop_assert!(seen.windows(2).all(|w| w[0] < w[1]));
        prop_assert!(seen.iter().all(|&i| faults[i] == Fault::None));
        let good: Vec<usize> = (0..faults.len()).filter(|&i| faults[i] == Fault::None).collect();
        let bad: usize = whole.iter().map(|(.., r)| r.len()).sum::<usize>() + last.len();
        if sample.is_none() && negatives.is_none() {
            prop_assert_eq!(&seen, &good);
            prop_assert_eq!(bad, faults.len() - good.len());
        }
        if sample.is_none() {
            let ones = |i: &&usize| i.is_multiple_of(3);
            prop_assert!(good.iter().filter(ones).eq(seen.iter().filter(ones)));
        }
        // The sample is the same in every epoch, and a pass before the first epoch reads the whole
        // sample.
        if negatives.is_none() {
            let (other, _) = pass(&dataset, order, Cursor { epoch: epoch + 1, row: 0 }, 0, 2);
            let mut other = users(&other);
            other.sort_unstable();
            prop_assert_eq!(&other, &seen);
        }
        let table = table(&dataset, "user");
        let keys = vocabulary(&dataset, &[(table, 1000)], &workers(2)).unwrap();
        let known: Vec<usize> = keys[0].iter().map(|k| k.unmix() as usize).collect();
        prop_assert!(seen.iter().all(|i| known.contains(i)));
        if negatives.is_none() {
            prop_assert_eq!(known.len(), seen.len());
        }

        // All batches but the last are full, and the cursors count the rows of the data.
        let mut before = 0;
        for (i, (batch, cursor, rejected)) in whole.iter().enumerate() {
            prop_assert!(batch.rows == batch_rows || i + 1 == whole.len());
            prop_assert!(cursor.row >= before + batch.rows as u64 + rejected.len() as u64);
            prop_assert!(rejected.iter().all(|row| (before..cursor.row).contains(row)));
            before = cursor.row;
        }
        prop_assert!(last.iter().all(|&row| row >= before && row < faults.len() as u64));

        // Reading resumes at the cursor after a batch. The remaining batches are the same, with
        // several threads too.
        if !whole.is_empty() {
            let at = at.index(whole.len());
            let passed: usize = whole[..=at].iter().map(|(.., r)| r.len()).sum();
            let rest = pass(&dataset, order, whole[at].1, passed as u64, 3);
            prop_assert_eq!(&rest.0[..], &whole[at + 1..]);
            prop_assert_eq!(&rest.1, &last);
        }
        // Reading resumes at any row. The remaining rows are the same.
        let row = place.index(faults.len() + 1) as u64;
        let rest = users(&pass(&dataset, order, Cursor { epoch, row }, 0, 1).0);
        prop_assert!(in_order.ends_with(&rest));
        // Each bad row is listed once, with its place.
        let told = dataset.rejects();
        let mut places: Vec<_> = told.iter().map(|r| (r.file.clone(), r.row)).collect();
        places.dedup();
        prop_assert_eq!(places.len(), told.len());
        if sample.is_none() {
            prop_assert_eq!(told.len(), faults.len() - good.len());
        }
    }

    #[test]
    fn csv_and_parquet_leave_out_the_same_rows(
        faults in prop::collection::vec(fault(), 1..150),
        group in 1usize..70,
        sample in prop_oneof![Just("1.0"), Just("0.4")],
        keep in prop_oneof![Just("1.0"), Just("0.3")],
    ) {
        // The label of a record with too few cells is unknown. The label of a Parquet row without a
        // number is known.
        let whole = |fault| if fault == Fault::Short { Fault::Negative } else { fault };
        let faults: Vec<Fault> = faults.into_iter().map(whole).collect();
        let settings = format!(
            "max_bad_rows = 1000\nrejects = 'r'\nsample = {sample}\nnegatives = {{ keep = {keep} }}");
        let read = |parquet: bool| {
            let folder = Folder::with(&settings);
            let dataset = open(&folder, &write(&folder, &[(parquet, faults.clone())], group));
            let all = pass(&dataset, PLAIN, Cursor { epoch: 1, row: 0 }, 0, 2);
            let told: Vec<u64> = dataset.rejects().iter().map(|r| r.row).collect();
            (all, told)
        };
        prop_assert_eq!(read(true), read(false));
    }
}

#[test]
fn rows_that_are_lines_can_be_bad_too() {
    let folder = Folder::with("max_bad_rows = 100\nrejects = 'r'");
    let good = |i: usize| format!("{{\"user\":{i},\"label\":{}}}", i % 2);
    let lines = [good(1), "{\"user\":2,".into(), "{\"user\":-3,\"label\":1}".into(), good(4)];
    folder.write("a.jsonl", lines.join("\n"));
    folder.write("b.svm", "1 3:1 4:0.5\n0 5:x\n2 3:1\n-1 5:2 # a comment\n");
    let read_all = |file: &str, schema: &Schema| {
        let dataset = folder.open(&[file], schema).unwrap();
        let rows: usize =
            read(&dataset, PLAIN, Cursor::default(), 2).unwrap().iter().map(|(b, _)| b.rows).sum();
        let told: Vec<_> =
            dataset.rejects().into_iter().map(|r| (r.row, r.column, r.line.unwrap())).collect();
        (rows, told)
    };
    let json = schema("[features.user]\nkind='id'\ntype='u64'\n[labels.label]");
    let told = [(2, None, lines[1].clone()), (3, Some("user".to_owned()), lines[2].clone())];
    assert_eq!(read_all("a.jsonl", &json), (2, told.to_vec()));
    let svm = schema("[features.features]\nkind='ids'\n[labels.label]");
    let told = [(2, None, "0 5:x".to_owned()), (3, Some("label".to_owned()), "2 3:1".to_owned())];
    assert_eq!(read_all("b.svm", &svm), (2, told.to_vec()));
}

#[test]
fn negatives_are_the_same_rows_in_every_format() {
    let read_all = |threshold: &str, value: fn(i64) -> i64| {
        let folder = Folder::with("negatives = { keep = 0.3 }\nsample = 0.8");
        let (mut csv, mut json) = ("features,label\n".to_owned(), String::new());
        let mut svm = String::new();
        for i in 0..500 {
            let label = value(i);
            csv.push_str(&format!("{i},{label}\n"));
            json.push_str(&format!("{{\"label\":{label},\"features\":[{i}]}}\n"));
            svm.push_str(&format!("{label} {i}:1\n"));
        }
        folder.write("a.csv", csv);
        folder.write("a.jsonl", json);
        folder.write("a.svm", svm);
        let features: ArrayRef = Arc::new(Int64Array::from_iter_values(0..500));
        let label: ArrayRef = Arc::new(Int64Array::from_iter_values((0..500).map(value)));
        folder.write_parquet("a.parquet", vec![("features", features), ("label", label)], 64);
        let schema =
            schema(&format!("[features.features]\nkind='ids'\n[labels.label]\n{threshold}"));
        ["a.csv", "a.jsonl", "a.svm", "a.parquet"].map(|file| {
            let dataset = folder.open(&[file], &schema).unwrap();
            let dataset = dataset.thinned(&folder.config, 4).unwrap();
            rows(&read(&dataset, PLAIN, Cursor { epoch: 2, row: 0 }, 2).unwrap())
        })
    };
    // Every fifth row has label 1. The label is first a plain number, and then a rating whose
    // values 4 and 5 mean label 1.
    let plain = read_all("", |i| i64::from(i % 5 == 0));
    assert!((140..240).contains(&plain[0].len()), "{}", plain[0].len());
    assert!(plain.iter().all(|rows| *rows == plain[0]));
    let rated = read_all("at_least = 4", |i| if i % 5 == 0 { 4 + i % 2 } else { 1 + i % 3 });
    assert!(rated.iter().all(|rows| *rows == plain[0]));
}

#[test]
fn the_first_passes_see_what_training_sees() {
    let faults: Vec<Fault> = (0..90)
        .map(|i| match i % 11 {
            3 => Fault::Label,
            5 => Fault::Short,
            8 => Fault::Negative,
            _ => Fault::None,
        })
        .collect();
    for parquet in [true, false] {
        let folder = Folder::with("max_bad_rows = 30");
        let names = write(&folder, &[(parquet, faults.clone())], 20);
        let dirty = open(&folder, &names);
        // A second file contains the same good rows and no bad rows.
        let clean: Vec<String> =
            (0..90).filter(|&i| faults[i] == Fault::None).map(|i| line(i, Fault::None)).collect();
        let other = Folder::new();
        other.write("clean.csv", format!("user,tags,price,label\n{}\n", clean.join("\n")));
        let clean = open(&other, &["clean.csv".to_owned()]);
        assert_eq!(
            statistics(&dirty, &workers(2)).unwrap(),
            statistics(&clean, &workers(2)).unwrap()
        );
        assert_eq!(
            rows(&read(&dirty, PLAIN, Cursor::default(), 2).unwrap()),
            rows(&read(&clean, PLAIN, Cursor::default(), 2).unwrap())
        );
        let table = table(&dirty, "tags");
        assert_eq!(
            vocabulary(&dirty, &[(table, 99)], &workers(1)).unwrap(),
            vocabulary(&clean, &[(table, 99)], &workers(1)).unwrap()
        );
    }
}

#[test]
fn above_the_limit_the_first_few_are_named() {
    let mut faults = vec![Fault::None; 40];
    for (row, fault) in [(4, Fault::Label), (9, Fault::Negative), (30, Fault::NoLabel)] {
        faults[row] = fault;
    }
    for parquet in [true, false] {
        let read_all = |limit: usize| {
            let folder = Folder::with(&format!("max_bad_rows = {limit}\nshuffle_window = 8"));
            let names = write(&folder, &[(parquet, faults.clone())], 10);
            // The pass for the statistics has the same limit, so the statistics come from another
            // dataset.
            let with_all = Folder::with("max_bad_rows = 99");
            let known = open(&with_all, &write(&with_all, &[(parquet, faults.clone())], 10));
            let known = statistics(&known, &workers(1)).unwrap();
            let dataset = folder.open(&[&names[0]], &job()).unwrap().with_statistics(known);
            let order = BatchOrder { seed: 1, shuffle: false, batch_rows: 6, drop_last: false };
            let all = read(&dataset, order, Cursor::default(), 2);
            // The bad rows before the cursor count towards the limit at every cursor.
            let half = dataset.batches(order, Cursor { epoch: 0, row: 20 }, workers(1)).unwrap();
            let half: Result<Vec<_>, _> = half.with_rejected(2).collect();
            assert_eq!(all.is_err(), half.is_err(), "{limit}");
            all
        };
        let kept = read_all(3).unwrap();
        assert_eq!(kept.iter().map(|(b, _)| b.rows).sum::<usize>(), 37);
        match read_all(2).unwrap_err() {
            ReaderError::TooManyBadRows { limit: 2, examples } => {
                assert_eq!(examples.len(), 3);
                assert!(examples[0].contains("row 5"), "{examples:?}");
            }
            other => panic!("{other}"),
        }
        let strict = read_all(0).unwrap_err();
        assert!(strict.is_about_one_row() && strict.to_string().contains("row 5"), "{strict}");
    }
}

#[test]
fn what_ends_a_file_is_no_bad_row() {
    let folder = Folder::with("max_bad_rows = 100");
    folder.write("a.csv", "user,tags,price,label\n1,,1,1\n\"2,,1,1\n3,,1,1\n");
    let error = folder.open(&["a.csv"], &job()).unwrap();
    let error = statistics(&error, &workers(1)).unwrap_err();
    assert!(matches!(error, ReaderError::OpenQuote { .. }), "{error}");
    assert!(!error.is_about_one_row());
    folder.write("b.csv", "user,tags,label\n1,,1\n");
    let error = folder.open(&["b.csv"], &job()).unwrap_err();
    assert!(matches!(error, ReaderError::MissingColumn { .. }), "{error}");
}

#[test]
fn a_rejected_row_is_kept_as_it_is_written() {
    let folder = Folder::with("max_bad_rows = 100\nrejects = 'r'");
    folder.write(
        "a.csv",
        b"user,tags,price,label\n1,,1,1\n\n\r\n2,\"x\ny\",1,1\r\n3,,1,\n4,,1,1,\t\n5,\xff,1,1\n6,,1,0",
    );
    let schema = schema(
        "[features.user]\nkind='id'\n[features.tags]\nkind='ids'\n[features.price]\nkind='numeric'\n\
         [labels.label]",
    );
    let dataset = folder.open(&["a.csv"], &schema).unwrap();
    let kept = read(&dataset, PLAIN, Cursor::default(), 1).unwrap();
    assert_eq!(kept[0].0.rows, 2);
    let told = dataset.rejects();
    let shown: Vec<_> = told
        .iter()
        .map(|r| (r.row, r.column.as_deref(), r.line.as_deref().unwrap_or_default()))
        .collect();
    assert_eq!(
        shown,
        [
            (2, Some("tags"), "2,\"x\ny\",1,1"),
            (3, Some("label"), "3,,1,"),
            (4, None, "4,,1,1,\t"),
            (5, Some("tags"), "5,\u{fffd},1,1"),
        ]
    );
    assert!(told.iter().all(|r| r.file == "a.csv" && r.byte.is_some() && r.row_group.is_none()));
    assert!(told[1].reason.contains("missing"), "{:?}", told[1]);
}

#[test]
fn settings_that_mean_nothing_are_refused() {
    let refused = |settings: &str, labels: &str| {
        let folder = Folder::with(settings);
        folder.write("a.csv", "user,x,y\n1,1,1\n");
        let schema = schema(&format!("[features.user]\nkind='id'\n{labels}"));
        let opened = folder.open(&["a.csv"], &schema);
        opened.and_then(|d| d.thinned(&folder.config, 1)).unwrap_err().to_string()
    };
    let said = refused("rejects = 'r'", "[labels.x]");
    assert!(said.contains("data.max_bad_rows") && said.contains("`data.rejects`"), "{said}");
    let said = refused("negatives = { keep = 0.5 }", "[labels.x]\n[labels.y]");
    assert!(said.contains("x, y") && said.contains("`data.negatives.label`"), "{said}");
    let said = refused("negatives = { keep = 0.5, label = 'z' }", "[labels.x]");
    assert!(said.contains("unknown label `z` (labels: x)"), "{said}");
    for (settings, key) in [
        ("sample = 0.0", "data.sample"),
        ("sample = 1.5", "data.sample"),
        ("negatives = { keep = -1.0 }", "data.negatives.keep"),
        ("negatives = { kep = 0.5 }", "did you mean `keep`"),
        ("max_bad_rows = -1", "data.max_bad_rows"),
    ] {
        let said = crate::fixture::data_config(settings).unwrap_err();
        assert!(said.contains(key), "{settings}: {said}");
    }
}
