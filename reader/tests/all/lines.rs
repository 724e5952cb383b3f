//! Tests of JSON lines and libsvm: the meaning of rows, and the messages about rows that cannot be
//! read.

use proptest::prelude::*;
use zillion_feature::{Cursor, FeatureKey, KeyColumn};

use crate::fixture::{Folder, PLAIN, read, schema};

fn id(id: u64) -> FeatureKey {
    FeatureKey::from_u64(id)
}

const JOB: &str = "[features.user]\nkind='id'\ntype='u64'\n[features.tags]\nkind='ids'\ntype='string'\n\
                   [features.price]\nkind='numeric'\nmissing=-1\n[labels.click]";

#[test]
fn json_values_mean_what_cells_mean() {
    let folder = Folder::with("null = ['-']");
    folder.write(
        "a.jsonl",
        "\n{\"user\": 18446744073709551615, \"tags\": [\"a\", null, \"\", 7], \"price\": 0.1, \"click\": true}\r\n\
         \t\n{\"tags\":\"a|-|7\",\"user\":\"9007199254740993\",\"price\":\"2.5\",\"click\":0}\n\
         {\"x\":[[1],{}],\"user\":null,\"click\":\"1\",\"price\":\"-\",\"us\\u0065r2\":1}\n\
         {\"\\u0075ser\":9007199254740993,\"tags\":true,\"click\":1.0,\"price\":-0}",
    );
    folder.write(
        "a.csv",
        "user,tags,price,click\n18446744073709551615,a|7,0.1,1\n9007199254740993,a|7,2.5,0\n\
         ,,,1\n9007199254740993,true,-0,1\n",
    );
    let job = schema(JOB);
    assert_eq!(folder.rows(&["a.jsonl"], &job), folder.rows(&["a.csv"], &job));
    assert_eq!(folder.rows(&["a.jsonl"], &job).len(), 4);
}

#[test]
fn bad_json_is_named_by_line_and_key() {
    let folder = Folder::new();
    let good = "{\"user\":1,\"tags\":[],\"price\":1,\"click\":0}\n";
    let job = schema(JOB);
    for (line, expected) in [
        (
            r#"{"user":1.5,"tags":[],"price":1,"click":0}"#,
            "column `user`, row 2 (byte 41): \"1.5\" is not a whole number; declare `type = \"string\"`",
        ),
        (r#"{"user":-3,"click":0}"#, "\"-3\" is negative"),
        (r#"{"user":18446744073709551616,"click":0}"#, "does not fit the declared 64-bit type"),
        (
            r#"{"user":[1],"click":0}"#,
            "\"[1]\" is a list or has a weight, but feature `user` reads one plain id",
        ),
        (r#"{"user":1,"tags":[1.5],"click":0}"#, "\"[1.5]\" is a number with a fraction"),
        (r#"{"user":1,"tags":[[1]],"click":0}"#, "is a list inside a list, which feature `tags`"),
        (
            r#"{"user":1,"tags":[{"id":7}],"click":0}"#,
            "\"[{..}]\" is a list with an object, which feature `tags` cannot read; write a list",
        ),
        (
            r#"{"user":1,"price":{"a":1},"click":0}"#,
            "\"{..}\" is an object, which feature `price` cannot read; write each part of the object",
        ),
        (r#"{"user":1,"price":"cheap","click":0}"#, "\"cheap\" is not a number"),
        (
            r#"{"user":1,"price":1,"click":2}"#,
            "column `click`, row 2 (byte 41): \"2\" is not 0 or 1",
        ),
        (r#"{"user":1,"price":1}"#, "column `click`, row 2 (byte 41): the value is missing"),
        (
            r#"{"user":1,"user":1,"click":0}"#,
            "row 2 (byte 41): the key \"user\" appears twice; write it once",
        ),
        (r#"{"user":NaN,"click":0}"#, "JSON has no NaN and no Infinity, write null"),
        (r#"{"user":1,"click":0"#, "it is cut off, or its object is written over several lines"),
        (r#"{"user":1,"click":0} x"#, "trailing characters (character 22 of the line)"),
        ("[1,2]", "write one object a line instead of an array"),
        ("7", "invalid type: integer `7`, expected an object"),
    ] {
        folder.write("a.jsonl", format!("{good}{line}\n{good}"));
        let error = folder.error(&["a.jsonl"], &job);
        assert!(error.contains(expected) && error.ends_with(": a.jsonl"), "{line}: {error}");
    }
    folder.write("a.jsonl", "{\n\"user\":1,\n\"click\":0\n}\n");
    let error = folder.error(&["a.jsonl"], &job);
    assert!(
        error.contains("row 1 (byte 0)") && error.contains("write each object on one line"),
        "{error}"
    );
    folder.write("a.jsonl", b"{\"user\":1,\"tags\":[\"\xff\"],\"price\":1,\"click\":0}\n");
    assert!(folder.error(&["a.jsonl"], &job).contains("unicode"));
    folder.write("a.jsonl", " \n\n");
    assert!(folder.error(&["a.jsonl"], &job).contains("is missing"));
}

#[test]
fn a_key_that_no_line_has_is_a_missing_column() {
    let folder = Folder::new();
    let job = schema(JOB);
    let line = "{\"user\":1,\"tag\":[],\"price\":1,\"click\":0}\n";
    folder.write("a.jsonl", line.repeat(1500));
    let error = folder.error(&["a.jsonl"], &job);
    assert!(error.starts_with("column `tags` of feature `tags` is missing; none of the first 1000 rows has it, did you mean `tag`?"), "{error}");
    assert!(error.contains("as null"), "{error}");
    // A column needs to occur only once in the first rows. Later rows may have it or not.
    folder.write(
        "a.jsonl",
        line.repeat(900) + "{\"user\":1,\"tags\":null,\"price\":1,\"click\":0}\n" + &line.repeat(9),
    );
    assert_eq!(folder.rows(&["a.jsonl"], &job).len(), 910);
}

const SPARSE: &str = "[features.features]\nkind='ids'\n[labels.label]\n";

#[test]
fn libsvm_rows_are_weighted_lists() {
    let folder = Folder::new();
    folder.write(
        "a.svm",
        "# exported\n+1 qid:7 3:0.5 12:-2 # first\n\n-1 qid:8\t9223372036854775807:1\r\n0 qid:8",
    );
    let job = schema(&format!("{SPARSE}[columns]\ngroup='qid'"));
    let batches =
        read(&folder.open(&["a.svm"], &job).unwrap(), PLAIN, Cursor::default(), 1).unwrap();
    let batch = &batches[0].0;
    assert_eq!(
        batch.sparse[0],
        KeyColumn {
            offsets: Some(vec![0, 2, 3, 3]),
            keys: vec![id(3), id(12), id(i64::MAX as u64)],
            weights: Some(vec![0.5, -2.0, 1.0]),
        }
    );
    assert_eq!(batch.labels[0].values, [1.0, 0.0, 0.0]);
    assert_eq!(batch.group, Some(vec![id(7).0, id(8).0, id(8).0]));
    // If all weights are 1, there are no weights, and the rows are equal to rows with lists of ids.
    folder.write("b.libfm", "1 0:1 5:1.0\n0 2:1\n");
    folder.write("b.csv", "label,features\n1,0|5\n0,2\n");
    let job = schema(SPARSE);
    let of = |name: &str| {
        read(&folder.open(&[name], &job).unwrap(), PLAIN, Cursor::default(), 1).unwrap()
    };
    assert_eq!(of("b.libfm"), of("b.csv"));
    // One list of files contains two formats.
    folder.write("c.svm", "0 5:2\n");
    let both = read(&folder.open(&["b.csv", "c.svm"], &job).unwrap(), PLAIN, Cursor::default(), 2)
        .unwrap();
    assert_eq!(both[0].0.sparse[0].weights, Some(vec![1.0, 1.0, 1.0, 2.0]));
}

#[test]
fn fields_of_libffm_are_columns() {
    let folder = Folder::new();
    folder.write("a.ffm", "1 0:3:1 2:9:0.25 2:10:0.75\n0 2:9:1\n");
    let job = schema(
        "[features.site]\nkind='id'\ncolumn='field_0'\n[features.words]\nkind='ids'\ncolumn='field_2'\n[labels.label]",
    );
    let batches =
        read(&folder.open(&["a.ffm"], &job).unwrap(), PLAIN, Cursor::default(), 1).unwrap();
    let batch = &batches[0].0;
    assert_eq!(batch.sparse[0].keys, [id(3), FeatureKey::missing("site")]);
    assert_eq!(batch.sparse[1].keys, [id(9), id(10), id(9)]);
    assert_eq!(batch.sparse[1].weights, Some(vec![0.25, 0.75, 1.0]));
    folder.write("a.ffm", "1 0:3:1 2:9:1\n1 0:3:0.5 2:9:1\n");
    assert!(
        folder
            .error(&["a.ffm"], &job)
            .contains("column `field_0`, row 2 (byte 14): \"3:0.5\" is a list or has a weight")
    );
    folder.write("a.ffm", "1 0:3:1 2:9:1\n1 7:1\n");
    assert!(folder.error(&["a.ffm"], &job).contains("has no field"));
    folder.write("a.ffm", "1 0:3:1 3:9:1\n");
    assert!(
        folder.error(&["a.ffm"], &job).contains("column `field_2` of feature `words` is missing")
    );
}

#[test]
fn bad_libsvm_is_named_by_line() {
    let folder = Folder::new();
    let job = schema(SPARSE);
    for (line, expected) in [
        ("1 3:x", "row 2 (byte 6): \"3:x\" is not an entry"),
        ("1 a:1", "\"a:1\" is not"),
        ("1 3:nan", "\"3:nan\" is not"),
        ("1 3", "\"3\" is not"),
        ("1 2:3:4", "has a field"),
        ("1 18446744073709551615:1", "does not fit the declared 64-bit type"),
        ("2 1:1", "column `label`, row 2 (byte 6): \"2\" is not 0 or 1"),
        ("1:1", "column `label`, row 2 (byte 6): the value is missing"),
    ] {
        folder.write("a.svm", format!("1 3:1\n{line}\n"));
        let error = folder.error(&["a.svm"], &job);
        assert!(error.contains(expected) && error.ends_with(": a.svm"), "{line}: {error}");
    }
    folder.write("a.svm", "1 3:1\n");
    let job = schema("[features.features]\nkind='numeric'\n[labels.label]");
    assert!(folder.error(&["a.svm"], &job).contains("declare `kind = \"ids\"`"));
    folder.write("a.svm", "# nothing\n\n");
    assert!(folder.error(&["a.svm"], &job).contains("is missing"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_lines_are_errors_and_nothing_else(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        json in any::<bool>(),
    ) {
        let (name, job, line) = match json {
            true => ("a.jsonl", JOB, "{\"user\":12,\"tags\":[\"a\\n\",\"b\"],\"price\":1.5e3,\"click\":false}\n"),
            false => ("a.svm", SPARSE, "-1 qid:3 17:0.25 99:1e-3 # c\n"),
        };
        let mut bytes = line.repeat(5).into_bytes();
        bytes.truncate(cut.index(bytes.len()) + 1);
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let folder = Folder::new();
        folder.write(name, bytes);
        if let Ok(dataset) = folder.open(&[name], &schema(job)) {
            let _ = read(&dataset, PLAIN, Cursor::default(), 1);
        }
    }

    #[test]
    fn json_reads_as_serde_json_does(numbers in prop::collection::vec((any::<i64>(), any::<f64>(), ".{0,8}"), 1..20)) {
        let line = |(i, x, text): &(i64, f64, String)| {
            serde_json::json!({"i": i, "x": x, "t": text}).to_string() + "\n"
        };
        let folder = Folder::new();
        folder.write("a.jsonl", numbers.iter().map(line).collect::<String>());
        let job = schema("[features.i]\nkind='id'\n[features.t]\nkind='id'\ntype='string'\n[labels.click]");
        let config = zillion_reader::Labels::Optional;
        let dataset = zillion_reader::Dataset::open_with(&folder.config, &[folder.path("a.jsonl")], &job, config).unwrap();
        let batches = read(&dataset, PLAIN, Cursor::default(), 1).unwrap();
        let keys = |c: usize| batches.iter().flat_map(|(b, _)| b.sparse[c].keys.clone()).collect::<Vec<_>>();
        let text = |t: &str| if t.is_empty() { FeatureKey::missing("t") } else { FeatureKey::from_text(t) };
        prop_assert_eq!(keys(0), numbers.iter().map(|n| FeatureKey::from_i64(n.0)).collect::<Vec<_>>());
        prop_assert_eq!(keys(1), numbers.iter().map(|n| text(&n.2)).collect::<Vec<_>>());
    }
}
