//! Tests of rows in the form of requests: if they are encoded, they become the batches that
//! training reads from the same files.

mod generator;

use std::collections::BTreeSet;
use std::path::PathBuf;

use proptest::prelude::*;
use zillion_feature::{
    Batch, Cursor, Encoder, LabelColumn, RawColumns, RawValue, RawValues, Schema,
};
use zillion_reader::{BatchOrder, Dataset, RawBlock, RawRows, ReaderError, SideTables};

use crate::fixture::{Folder, read, schema, workers};
use generator::{FORMATS, JOB, row, write, write_sides};

fn files(folder: &Folder, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| folder.path(name)).collect()
}

fn blocks(mut rows: RawRows, limit: usize) -> Result<Vec<RawBlock>, ReaderError> {
    let mut blocks = Vec::new();
    while let Some(block) = rows.next_block(limit)? {
        blocks.push(block);
    }
    Ok(blocks)
}

/// Returns all rows of the files as one block.
fn block(folder: &Folder, names: &[&str], schema: &Schema) -> RawBlock {
    let rows = RawRows::open_labelled(&folder.config, &files(folder, names), schema).unwrap();
    blocks(rows, 1000).unwrap().remove(0)
}

/// Reads the files and returns the message of the first error, without the name of the folder.
fn error(folder: &Folder, names: &[&str], schema: &Schema) -> String {
    let rows = RawRows::open(&folder.config, &files(folder, names), schema);
    let error = rows.and_then(|rows| blocks(rows, 2)).unwrap_err();
    error.to_string().replace(&folder.path("").display().to_string(), "")
}

/// Checks that the encoded blocks of files are equal to the batches of the same files. Floats are
/// also compared bit by bit, because `Eq` does not distinguish 0 from -0.
fn compare(folder: &Folder, names: &[&str], schema: &Schema, limit: usize) {
    let paths = files(folder, names);
    let dataset = Dataset::open(&folder.config, &paths, schema).unwrap();
    let statistics = zillion_reader::statistics(&dataset, &workers(1)).unwrap();
    let dataset = dataset.with_statistics(statistics.clone());
    let order = BatchOrder { seed: 9, shuffle: false, batch_rows: limit, drop_last: false };
    let batches = read(&dataset, order, Cursor::default(), 2).unwrap();

    let sides = SideTables::load(&folder.config, schema).unwrap();
    let encoder = Encoder::new(schema, &statistics, sides.tables()).unwrap();
    let inputs: BTreeSet<&str> = encoder.inputs().map(|input| input.name.as_str()).collect();
    let rows = RawRows::open_labelled(&folder.config, &paths, schema).unwrap();
    let count = rows.count().unwrap();
    let blocks = blocks(rows, limit).unwrap();
    assert_eq!(blocks.len(), batches.len(), "{names:?}");
    assert_eq!(count, blocks.iter().map(|block| block.rows as u64).sum::<u64>(), "{names:?}");
    let mut first = 0;
    for (block, (batch, _)) in blocks.iter().zip(&batches) {
        assert_eq!(block.first, first, "{names:?}");
        assert!(block.columns.keys().map(AsRef::as_ref).eq(inputs.iter().copied()), "{inputs:?}");
        first += block.rows as u64;
        let mut encoded = encoder.encode(block.rows, &block.columns).unwrap();
        encoded.labels = block.labels.iter().map(|label| label.clone().unwrap()).collect();
        let batch = Batch { weight: None, group: None, event_time: None, ..batch.clone() };
        assert_eq!(encoded, batch, "{names:?}\n{:?}", block.columns);
        let bits = |batch: &Batch| -> Vec<Vec<u32>> {
            batch.numeric.iter().map(|x| x.iter().map(|x| x.to_bits()).collect()).collect()
        };
        assert_eq!(bits(&encoded), bits(&batch), "{names:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn encoded_rows_are_the_batches_of_training(
        rows in prop::collection::vec(row(), 1..50),
        cut in 0usize..50,
        limit in 1usize..40,
        group in 1usize..30,
        dictionary in any::<bool>(),
    ) {
        let schema = schema(JOB);
        let mut rows = rows;
        // The statistics need a value in every column.
        rows[0].size = Some(3);
        rows[0].price = Some(-0.0);
        rows[0].shop = Some("s1".to_owned());
        let cut = cut.min(rows.len());
        for (name, settings) in FORMATS {
            let folder = Folder::with(settings);
            write_sides(&folder, dictionary);
            let names: Vec<String> =
                [("a", &rows[..cut]), ("b", &rows[cut..])].into_iter().filter(|(_, rows)| !rows.is_empty()).map(|(file, rows)| {
                    let name = format!("{file}.{name}");
                    write(&folder, &name, rows, group, dictionary);
                    name
                }).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            compare(&folder, &names, &schema, limit);
        }
    }

    #[test]
    fn encoded_sparse_vectors_are_the_batches_of_training(
        rows in prop::collection::vec((0..2u8, 0..9u32, prop::collection::vec(any::<u64>(), 0..5), prop::option::of(any::<i64>())), 1..30),
        limit in 1usize..40,
    ) {
        let folder = Folder::new();
        let plain = |(click, query, ids, _): &(u8, u32, Vec<u64>, Option<i64>)| {
            let ids: Vec<String> = ids.iter().map(|id| format!("{id}:1")).collect();
            format!("{} qid:{query} {} # more\n", if *click == 1 { "+1" } else { "-1" }, ids.join(" "))
        };
        folder.write("a.libsvm", "0 qid:1 7:1\n".to_owned() + &rows.iter().map(plain).collect::<String>());
        let ids = schema(
            "[features.ids]\nkind='ids'\ntype='u64'\ncolumn='features'\n[features.qid]\nkind='id'\n\
             [features.place]\nkind='numeric'\ncolumn='qid'\n[labels.label]",
        );
        compare(&folder, &["a.libsvm"], &ids, limit);

        let fields = |(click, _, ids, own): &(u8, u32, Vec<u64>, Option<i64>)| {
            let ids = ids.iter().map(|id| format!("1:{id}:1.0")).chain(own.map(|id| format!("0:{id}:1")));
            format!("{click} {}\n", ids.collect::<Vec<_>>().join(" "))
        };
        folder.write("a.libffm", "0 0:1:1 1:7:1\n".to_owned() + &rows.iter().map(fields).collect::<String>());
        let ids = schema(
            "[features.own]\nkind='id'\ncolumn='field_0'\n\
             [features.ids]\nkind='sequence'\nmax_len=2\ntype='u64'\ncolumn='field_1'\n[labels.label]",
        );
        compare(&folder, &["a.libffm"], &ids, limit);
    }
}

const SMALL: &str = "[features.user]\nkind='id'\n[features.big]\nkind='id'\ntype='u64'\n\
                     [features.word]\nkind='id'\ntype='string'\n[features.tags]\nkind='ids'\n\
                     [features.price]\nkind='numeric'\nmissing=0\n[labels.click]";

fn texts(texts: &[Option<&'static str>]) -> RawValues<'static> {
    let value =
        |text: &Option<&'static str>| text.map_or(RawValue::Missing, |t| RawValue::Text(t.into()));
    RawValues::Any(texts.iter().map(value).collect())
}

#[test]
fn values_have_the_type_that_their_features_declare() {
    let folder = Folder::with("null = ['?']");
    folder.write(
        "a.csv",
        "user,big,word,tags,price\n-1,18446744073709551615,\"a\nb\",1|?|-2,1.5\n+2, 7 , x,?,-0\n",
    );
    let block = block(&folder, &["a.csv"], &schema(SMALL));
    assert_eq!(block.rows, 2);
    let values = |name: &str| &block.columns[name].values;
    assert_eq!(values("user"), &RawValues::Ints(vec![-1, 2]));
    assert_eq!(values("big"), &RawValues::Uints(vec![u64::MAX, 7]));
    assert_eq!(values("word"), &texts(&[Some("a\nb"), Some(" x")]));
    assert_eq!(values("tags"), &RawValues::Ints(vec![1, -2]));
    assert_eq!(block.columns["tags"].lengths, Some(vec![2, 0]));
    assert_eq!(values("price"), &RawValues::Floats(vec![1.5, -0.0]));
    // The file has no label. A request does not need one.
    assert_eq!(block.labels, [None]);

    folder.write("b.csv", "user,big,word,tags,price\n?,,?,,\n-3,3,?,,2\n");
    let block = self::block(&folder, &["b.csv"], &schema(SMALL));
    let values = |name: &str| &block.columns[name].values;
    assert_eq!(values("user"), &RawValues::Any(vec![RawValue::Missing, RawValue::Int(-3)]));
    assert_eq!(values("big"), &RawValues::Any(vec![RawValue::Missing, RawValue::Uint(3)]));
    assert_eq!(values("word"), &texts(&[None, None]));
    assert_eq!(values("price"), &RawValues::Any(vec![RawValue::Missing, RawValue::Float(2.0)]));
}

#[test]
fn nothing_is_left_out() {
    let folder = Folder::with(
        "max_bad_rows = 5\nsample = 0.1\nnegatives = { keep = 0.1 }\nshuffle = true\nshuffle_window = 4",
    );
    let rows = (0..500).map(|row| format!("{row},1,w,,,0\n"));
    folder
        .write("a.csv", "user,big,word,tags,price,click\n".to_owned() + &rows.collect::<String>());
    let block = block(&folder, &["a.csv"], &schema(SMALL));
    assert_eq!(block.columns["user"].values, RawValues::Ints((0..500).collect()));
    let labels = LabelColumn { values: vec![0.0; 500], mask: None };
    assert_eq!(block.labels, [Some(labels)]);

    folder.write("b.csv", "user,big,word,tags,price\n1,1,,,\nx,1,,,\n");
    let said = error(&folder, &["b.csv"], &schema(SMALL));
    assert!(said.starts_with("column `user`, row 2 (byte 32): \"x\" is not a whole"), "{said}");
}

#[test]
fn labels_are_those_of_training_and_may_be_missing() {
    let folder = Folder::new();
    let schema = schema(
        "[features.user]\nkind='id'\n[labels.click]\n[labels.liked]\ncolumn='stars'\nat_least=4",
    );
    folder.write("a.csv", "user,click,stars\n1,1,4\n2,,3.5\n3,0,\n");
    let labels = block(&folder, &["a.csv"], &schema).labels;
    let label = |values: &[f32], mask: &[bool]| {
        Some(LabelColumn { values: values.to_vec(), mask: Some(mask.to_vec()) })
    };
    assert_eq!(labels[0], label(&[1.0, 0.0, 0.0], &[true, false, true]));
    assert_eq!(labels[1], label(&[1.0, 0.0, 0.0], &[true, true, false]));
    folder.write("b.csv", "user,stars\n1,4\n");
    let labels = block(&folder, &["a.csv", "b.csv"], &schema).labels;
    assert_eq!(labels[0], None);
    assert_eq!(labels[1], label(&[1.0, 0.0, 0.0, 1.0], &[true, true, false, true]));
    // Columns that are not requested are not decoded.
    folder.write("c.csv", "user,click,stars\n1,maybe,many\n");
    let rows = RawRows::open(&folder.config, &files(&folder, &["c.csv"]), &schema).unwrap();
    assert_eq!(blocks(rows, 9).unwrap()[0].labels, [None, None]);
}

#[test]
fn what_is_bad_is_named_by_file_row_and_column() {
    let folder = Folder::new();
    let job = schema(SMALL);
    let head = "user,big,word,tags,price\n1,1,,,\n2,2,,,\n";
    for (line, expected) in [
        (
            "3,-1,,,\n",
            "column `big`, row 3 (byte 39): \"-1\" is negative, but feature `big` is declared u64",
        ),
        (
            "9223372036854775808,1,,,\n",
            "column `user`, row 3 (byte 39): \"9223372036854775808\" does not fit",
        ),
        ("3,1,,4|x,\n", "column `tags`, row 3 (byte 39): \"4|x\" is not a whole number"),
        ("3,1,,,cheap\n", "column `price`, row 3 (byte 39): \"cheap\" is not a number"),
        ("3,1,,,inf\n", "column `price`, row 3 (byte 39): \"inf\" is not finite"),
        ("3,1,,\n", "row 3 (byte 39): 4 cell(s) where the header has 5"),
    ] {
        folder.write("a.csv", head.to_owned() + line);
        let said = error(&folder, &["a.csv"], &job);
        assert!(said.starts_with(expected) && said.ends_with(": a.csv"), "{said}");
    }
    folder.write("a.jsonl", "{\"user\":1}\n{\"user\":[1]}\n");
    let user = schema("[features.user]\nkind='id'\n[labels.click]");
    let said = error(&folder, &["a.jsonl"], &user);
    assert!(said.starts_with("column `user`, row 2 (byte 11): \"[1]\" is a list"), "{said}");

    let need = schema("[features.price]\nkind='numeric'\n[labels.click]");
    folder.write("n.csv", "price\n1\n\"\"\n");
    let said = error(&folder, &["n.csv"], &need);
    assert!(
        said.starts_with("column `price`, row 2 (byte 8): the value is missing; give feature"),
        "{said}"
    );
    let said = error(&folder, &["n.csv"], &user);
    assert!(said.starts_with("column `user` of feature `user` is missing"), "{said}");
    folder.write("e.csv", "price\n");
    assert!(error(&folder, &["e.csv"], &need).contains(" has no rows"));

    // No row follows an error.
    let mut rows = RawRows::open(&folder.config, &files(&folder, &["n.csv"]), &need).unwrap();
    assert!(rows.next_block(9).is_err());
    assert_eq!(rows.next_block(9).unwrap(), None);
}

#[test]
fn lists_with_weights_have_no_request() {
    let folder = Folder::new();
    let job = schema("[features.features]\nkind='ids'\n[labels.label]");
    folder.write("a.libsvm", "1 7:1 8:1\n0 7:1 8:0.5\n");
    let said = error(&folder, &["a.libsvm"], &job);
    let expected = "column `features`, row 2 (byte 10): \"7:1 8:0.5\" has weights other than 1, which a request for feature `features` cannot contain";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn inputs_of_one_name_are_one_value_or_refused() {
    let side = "[side.users]\npath='u.csv'\nkey='k'\n";
    let joined = "[features.age]\nkind='id'\nside='users'\nby='user'\n[labels.click]\n";
    let folder = Folder::new();
    folder.write("u.csv", "k,age\n7,30\n");
    folder.write("a.csv", "user,who\n07,x\n,\n");
    // The feature reads the column as a text, and the join reads it as a number.
    let text = schema(&format!("[features.user]\nkind='id'\ntype='string'\n{joined}{side}"));
    let block = block(&folder, &["a.csv"], &text);
    assert_eq!(block.columns["user"].values, texts(&[Some("07"), None]));
    let number = schema(&format!("[features.user]\nkind='numeric'\nmissing=1\n{joined}{side}"));
    let block = self::block(&folder, &["a.csv"], &number);
    let values = vec![RawValue::Int(7), RawValue::Missing];
    assert_eq!(block.columns["user"].values, RawValues::Any(values));
    for feature in ["kind='id'\ncolumn='who'\ntype='string'", "kind='ids'"] {
        let job = schema(&format!("[features.user]\n{feature}\n{joined}{side}"));
        let said = error(&folder, &["a.csv"], &job);
        let expected = "`features.user`: feature `user` and the join with side table `users` are one input of a request";
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn a_block_is_a_request_of_its_own() {
    // The returned values can be sent to another thread and can live longer than the reader.
    fn owned<T: Send + 'static>(_: &T) {}
    let folder = Folder::new();
    folder.write("a.csv", "user,big,word,tags,price\n1,1,,,\n2,2,,,\n3,3,,,\n");
    let mut rows =
        RawRows::open(&folder.config, &files(&folder, &["a.csv"]), &schema(SMALL)).unwrap();
    let block = rows.next_block(0).unwrap().unwrap();
    assert_eq!((block.first, block.rows), (0, 1));
    assert_eq!(rows.count().unwrap(), 3);
    let columns: RawColumns<'static> = rows.next_block(5).unwrap().unwrap().columns;
    owned(&rows);
    owned(&columns);
    assert_eq!(columns["user"].values, RawValues::Ints(vec![2, 3]));
}
