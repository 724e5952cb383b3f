//! Tests of the errors for bad input. Each error names the file, the place and a remedy.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, StringArray, UInt64Array,
    types::Int64Type,
};
use zillion_feature::{Cursor, FeatureKey, Schema};
use zillion_reader::text::Encoding;
use zillion_reader::{DataConfig, Dataset};

use crate::fixture::{Folder, PLAIN, data_config, read, schema};

fn job() -> Schema {
    schema(
        r#"
        [features.user]
        kind = "id"
        [features.age]
        kind = "numeric"
        [labels.label]
        "#,
    )
}

fn ints(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn floats(values: &[f64]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

fn csv(text: &str) -> String {
    let folder = Folder::new();
    folder.write("a.csv", text);
    folder.error(&["a.csv"], &job())
}

fn parquet(columns: Vec<(&str, ArrayRef)>) -> String {
    let folder = Folder::new();
    folder.write_parquet("a.parquet", columns, 2);
    folder.error(&["a.parquet"], &job())
}

#[test]
fn a_missing_column_names_the_nearest() {
    assert_eq!(
        csv("usr,age,label\n1,2,0\n"),
        "column `user` of feature `user` is missing; did you mean `usr`?: a.csv"
    );
    assert_eq!(
        csv("a,age,b\n1,2,0\n"),
        "column `user` of feature `user` is missing; the columns are `a`, `age`, `b`: a.csv"
    );
    assert_eq!(
        parquet(vec![("user", ints(&[1])), ("age", ints(&[1])), ("lable", ints(&[1]))]),
        "column `label` of label `label` is missing; did you mean `lable`?: a.parquet"
    );
}

#[test]
fn a_column_twice_in_a_header_is_refused_if_it_is_needed() {
    assert_eq!(
        csv("user,age,user,label\n1,2,1,0\n"),
        "column `user` appears 2 times in the header; rename the other columns: a.csv"
    );
    let folder = Folder::new();
    folder.write("a.csv", "x,user,age,x,label\n1,2,3,4,0\n");
    assert_eq!(folder.rows(&["a.csv"], &job()).len(), 1);
}

#[test]
fn a_different_header_in_the_second_file_names_both_files() {
    let folder = Folder::new();
    folder.write("a.csv", "user,age,label\n1,2,0\n");
    folder.write("b.csv", "user,years,label\n1,2,0\n");
    folder.write("c.csv", "label,extra,age,user\n1,9,2,7\n");
    let error = folder.error(&["a.csv", "b.csv"], &job());
    assert!(error.starts_with("column `age` of feature `age` is missing; "), "{error}");
    assert!(error.contains("The columns differ from those of a.csv"), "{error}");
    assert!(error.ends_with(": b.csv"), "{error}");
    // Another order of the columns and additional columns are allowed.
    assert_eq!(folder.rows(&["a.csv", "c.csv"], &job()).len(), 2);
}

#[test]
fn types_that_do_not_fit_are_refused_before_any_row() {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let list: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(1)])]));
    assert_eq!(
        parquet(vec![("user", text.clone()), ("age", ints(&[1])), ("label", ints(&[1]))]),
        "column `user` is a column of strings, but feature `user` needs whole numbers (its `type` is i64); declare `type = \"string\"`, or write the column as integers: a.parquet"
    );
    for (value, problem) in [
        (1.5, "\"1.5\" is not a whole number"),
        (f64::NAN, "\"NaN\" is not a whole number"),
        (1e16, "\"10000000000000000\" is a floating-point number that may have been rounded"),
    ] {
        let error =
            parquet(vec![("user", floats(&[value])), ("age", ints(&[1])), ("label", ints(&[1]))]);
        assert!(error.contains(problem), "{error}");
    }
    assert_eq!(
        parquet(vec![("user", list), ("age", ints(&[1])), ("label", ints(&[1]))]),
        "column `user` is a column of lists of Int64, but feature `user` needs whole numbers (its `type` is i64); declare `kind = \"ids\"` for a list: a.parquet"
    );
    let error = parquet(vec![("user", ints(&[1])), ("age", text.clone()), ("label", ints(&[1]))]);
    assert!(error.contains("but feature `age` needs numbers; declare `kind = \"id\"`"), "{error}");
    let error = parquet(vec![("user", ints(&[1])), ("age", ints(&[1])), ("label", text)]);
    assert!(error.contains("but label `label` needs 0 or 1"), "{error}");
    let folder = Folder::new();
    folder.write_parquet("a.parquet", vec![("user", ints(&[1])), ("label", ints(&[1]))], 9);
    let strings = schema("[features.user]\nkind='id'\ntype='string'\n[labels.label]");
    let error = folder.error(&["a.parquet"], &strings);
    assert!(error.contains("declare `type = \"i64\"` or `type = \"u64\"`"), "{error}");
}

#[test]
fn empty_and_rowless_files_are_refused() {
    assert_eq!(csv(""), "a.csv is empty; remove it from the list, or write it again");
    assert_eq!(csv("\n\r\n"), "a.csv is empty; remove it from the list, or write it again");
    assert_eq!(
        csv("user,age,label\n\n"),
        "a.csv has no rows, only a header or metadata (1 file(s) read); give a file with rows"
    );
    let error = parquet(vec![("user", ints(&[])), ("age", ints(&[])), ("label", ints(&[]))]);
    assert!(error.contains(" has no rows, only a header"), "{error}");
    let folder = Folder::new();
    folder.write("a.parquet", "");
    assert!(folder.error(&["a.parquet"], &job()).starts_with("a.parquet is empty"));
    folder.write_gzip("a.csv.gz", b"");
    assert!(folder.error(&["a.csv.gz"], &job()).starts_with("a.csv.gz is empty"));
    // Distributed writers may leave a file without rows among others. This is not an error.
    folder.write("b.csv", "user,age,label\n");
    folder.write("c.csv", "user,age,label\n1,2,0\n");
    assert_eq!(folder.rows(&["b.csv", "c.csv"], &job()).len(), 1);
}

#[test]
fn truncated_files_are_refused() {
    let folder = Folder::new();
    let columns = vec![("user", ints(&[1, 2])), ("age", ints(&[1, 2])), ("label", ints(&[1, 0]))];
    folder.write_parquet("a.parquet", columns, 9);
    let bytes = std::fs::read(folder.path("a.parquet")).unwrap();
    folder.write("b.parquet", &bytes[..bytes.len() - 20]);
    let error = folder.error(&["b.parquet"], &job());
    assert!(error.starts_with("b.parquet: not a readable Parquet file ("), "{error}");
    assert!(
        error.ends_with("write or copy the file again, because it is probably incomplete"),
        "{error}"
    );

    let text = "user,age,label\n".to_owned() + &"1,2,0\n".repeat(50_000);
    folder.write_gzip("a.csv.gz", text.as_bytes());
    folder.write_zstd("a.csv.zst", text.as_bytes());
    for name in ["a.csv.gz", "a.csv.zst"] {
        let bytes = std::fs::read(folder.path(name)).unwrap();
        let cut = format!("cut.{name}");
        folder.write(&cut, &bytes[..bytes.len() - 9]);
        let error = folder.error(&[&cut], &job());
        assert!(error.starts_with("cannot read ("), "{error}");
        assert!(error.ends_with(&cut), "{error}");
        folder.write(&cut, "user,age,label\n1,2,0\n");
        let error = folder.error(&[&cut], &job());
        assert!(error.ends_with(&cut), "{error}");
    }
}

#[test]
fn ids_that_do_not_parse_name_file_row_column_and_text() {
    assert_eq!(
        csv("user,age,label\n1,2,0\nx7,2,0\n"),
        "column `user`, row 2 (byte 21): \"x7\" is not a whole number; declare `type = \"string\"` for feature `user` if its ids are text, or add this text to `data.null` if it stands for a missing value: a.csv"
    );
    let error = csv(&format!("user,age,label\n{},2,0\n", "y".repeat(100)));
    assert!(error.contains(&format!("\"{}..\" is not", "y".repeat(48))), "{error}");
    let error = csv("user,age,label\n99999999999999999999,2,0\n");
    assert!(error.contains("does not fit the declared 64-bit type of feature `user`"), "{error}");
    for text in ["4.5", "4.00", "4,0"] {
        let error = csv(&format!("user,age,label\n\"{text}\",2,0\n"));
        assert!(error.contains(&format!("\"{text}\" is not a whole number")), "{error}");
    }
}

#[test]
fn u64_ids_are_not_negative_and_i64_ids_fit() {
    let unsigned = schema("[features.user]\nkind='id'\ntype='u64'\n[labels.label]");
    let signed = schema("[features.user]\nkind='ids'\n[labels.label]");
    let folder = Folder::new();
    folder.write("a.csv", "user,label\n-3,1\n");
    assert_eq!(
        folder.error(&["a.csv"], &unsigned),
        "column `user`, row 1 (byte 11): \"-3\" is negative, but feature `user` is declared u64; declare `type = \"i64\"`: a.csv"
    );
    folder.write_parquet(
        "a.parquet",
        vec![("user", ints(&[1, 2, 3, -3])), ("label", ints(&[0; 4]))],
        3,
    );
    assert_eq!(
        folder.error(&["a.parquet"], &unsigned),
        "column `user`, row 4 (row group 1): \"-3\" is negative, but feature `user` is declared u64; declare `type = \"i64\"`: a.parquet"
    );
    let large: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX]));
    folder.write_parquet("b.parquet", vec![("user", large), ("label", ints(&[0]))], 3);
    let error = folder.error(&["b.parquet"], &signed);
    assert!(error.contains("\"18446744073709551615\" does not fit"), "{error}");
    let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
        Some(vec![Some(4), Some(-5)]),
    ]));
    let lists = schema("[features.user]\nkind='ids'\ntype='u64'\n[labels.label]");
    folder.write_parquet("c.parquet", vec![("user", list), ("label", ints(&[0; 4]))], 9);
    let error = folder.error(&["c.parquet"], &lists);
    assert!(error.starts_with("column `user`, row 4 (row group 0): \"-5\" is negative"), "{error}");
}

#[test]
fn nan_and_infinity_are_refused_in_numeric_columns() {
    assert_eq!(
        csv("user,age,label\n1,2,0\n1,nan,0\n"),
        "column `age`, row 2 (byte 21): \"nan\" is not finite; clean the data, or write it as a missing value and give feature `age` a `missing = <number>`: a.csv"
    );
    assert!(csv("user,age,label\n1,-inf,0\n").contains("\"-inf\" is not finite"));
    assert!(csv("user,age,label\n1,1e999,0\n").contains("\"1e999\" is not finite"));
    assert!(csv("user,age,label\n1,1e39,0\n").contains("\"1e39\" is too large for 32-bit floats"));
    for (bad, text) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf")] {
        let columns = vec![
            ("user", ints(&[1, 2, 3])),
            ("age", floats(&[1.0, 2.0, bad])),
            ("label", ints(&[0; 3])),
        ];
        let error = parquet(columns);
        let start = format!("column `age`, row 3 (row group 1): \"{text}\" is not finite; ");
        assert!(error.starts_with(&start) && error.ends_with(": a.parquet"), "{error}");
    }
}

#[test]
fn numbers_that_do_not_parse_or_are_missing_are_refused() {
    let error = csv("user,age,label\n1,old,0\n");
    assert!(error.contains("\"old\" is not a number, which feature `age` needs"), "{error}");
    let remedy =
        "the value is missing; give feature `age` a `missing = <number>` or clean the data";
    assert_eq!(
        csv("user,age,label\n1,,0\n"),
        format!("column `age`, row 1 (byte 15): {remedy}: a.csv")
    );
    let age: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    let columns = vec![("user", ints(&[1, 2])), ("age", age), ("label", ints(&[1, 0]))];
    assert_eq!(parquet(columns), format!("column `age`, row 2 (row group 0): {remedy}: a.parquet"));
}

#[test]
fn labels_are_zero_or_one() {
    let remedy = "is not 0 or 1, which label `label` needs; give it `positive = \"<value>\"`, `at_least = <number>` or `kind = \"number\"`";
    assert_eq!(
        csv("user,age,label\n1,2,1\n1,2,2\n"),
        format!("column `label`, row 2 (byte 21): \"2\" {remedy}: a.csv")
    );
    assert!(csv("user,age,label\n1,2,yes\n").contains(&format!("\"yes\" {remedy}")));
    assert!(
        csv("user,age,label\n1,2,\n")
            .contains("the value is missing, but label `label` needs one in every row")
    );
    for (label, text) in
        [(floats(&[0.5]), "0.5"), (ints(&[-1]), "-1"), (floats(&[f64::NAN]), "NaN")]
    {
        let error = parquet(vec![("user", ints(&[1])), ("age", ints(&[1])), ("label", label)]);
        assert_eq!(
            error,
            format!("column `label`, row 1 (row group 0): \"{text}\" {remedy}: a.parquet")
        );
    }
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
    let folder = Folder::new();
    folder.write_parquet(
        "a.parquet",
        vec![("user", ints(&[1, 2])), ("age", ints(&[1, 2])), ("label", flags)],
        9,
    );
    assert_eq!(folder.rows(&["a.parquet"], &job()).len(), 2);
}

#[test]
fn weights_are_finite_and_not_negative() {
    let job = schema("[features.user]\nkind='id'\n[labels.label]\n[columns]\nweight='w'");
    let folder = Folder::new();
    for text in ["-1", "nan", "inf", "heavy"] {
        folder.write("a.csv", format!("user,label,w\n1,0,0.5\n1,0,{text}\n"));
        assert_eq!(
            folder.error(&["a.csv"], &job),
            format!(
                "column `w`, row 2 (byte 21): \"{text}\" is not a weight; write weights as finite numbers that are not negative: a.csv"
            )
        );
    }
    folder.write("a.csv", "user,label,w\n1,0,\n");
    assert!(
        folder
            .error(&["a.csv"], &job)
            .contains("the value is missing, but `columns.weight` needs one")
    );
}

#[test]
fn ragged_records_and_open_quotes_are_refused() {
    assert_eq!(
        csv("user,age,label\n1,2,0\n1,2\n"),
        "row 2 (byte 21): 2 cell(s) where the header has 3; check the delimiter and the quotes of this row: a.csv"
    );
    let error = csv("user,age,label\n1,2,0\n1,\"2,0\n1,2,0\n");
    assert_eq!(
        error,
        "row 2 (byte 21): a quote is opened and never closed; close it, or set `data.quote = \"\"` if quotes mean nothing here: a.csv"
    );
    let long = format!("user,age,label\n1,2,0\n1,\"{}", "x,y\n".repeat(5 << 20));
    let error = csv(&long);
    assert!(error.contains("does not end within 16 MiB; close its quotes"), "{error}");
    assert!(csv("\"user,age").contains("a quote is opened and never closed"));
}

#[test]
fn other_encodings_are_recognised() {
    let folder = Folder::new();
    let utf16: Vec<u8> =
        "\u{feff}user,age,label\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    folder.write("a.csv", utf16);
    let error = folder.error(&["a.csv"], &job());
    assert!(error.starts_with("a.csv is UTF-16, not UTF-8; set `data.encoding`"), "{error}");
    let strings = schema("[features.user]\nkind='id'\ntype='string'\n[labels.label]");
    folder.write("b.csv", b"user,label\nM\xfcller,0\n");
    let error = folder.error(&["b.csv"], &strings);
    assert!(error.contains("is not UTF-8; set `data.encoding`"), "{error}");
    folder.write("c.csv", b"us\xe9r,label\nM,0\n");
    assert!(folder.error(&["c.csv"], &strings).starts_with("c.csv is in an unknown encoding"));
    // With the right setting, both are read.
    let config = |name: &str| DataConfig {
        encoding: Encoding::try_from(name.to_owned()).unwrap(),
        ..DataConfig::default()
    };
    let keys = |name: &str, file: &str, schema: &Schema| {
        let dataset = Dataset::open(&config(name), &[folder.path(file)], schema).unwrap();
        read(&dataset, PLAIN, Cursor::default(), 9).unwrap().remove(0).0.sparse[0].keys.clone()
    };
    assert_eq!(keys("latin-1", "b.csv", &strings), [FeatureKey::from_text("Müller")]);
    let utf16 = "\u{feff}user,label\nMüller,0\n日本,1\n".encode_utf16();
    folder.write("d.csv", utf16.flat_map(u16::to_be_bytes).collect::<Vec<u8>>());
    let wanted = [FeatureKey::from_text("Müller"), FeatureKey::from_text("日本")];
    assert_eq!(keys("utf-16be", "d.csv", &strings), wanted);
    // Half a character at the end of a file is an error.
    folder.write("e.csv", b"user,label\nM,0\nN,1\n\x93");
    let dataset = Dataset::open(&config("shift_jis"), &[folder.path("e.csv")], &strings);
    let error = match dataset {
        Ok(dataset) => read(&dataset, PLAIN, Cursor::default(), 9).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(error.contains("not shift_jis; correct `data.encoding`"), "{error}");
}

#[test]
fn a_list_of_files_that_is_none_is_refused() {
    let folder = Folder::new();
    assert_eq!(folder.error(&[], &job()), "`data`: no files are given; name at least one");
    assert!(
        folder.error(&["nowhere.csv"], &job()).starts_with("cannot open the file (No such file")
    );
    folder.write("notes.md", "x");
    let error = folder.error(&["notes.md"], &job());
    assert!(error.contains(" has an unknown ending; set `data.format`"), "{error}");
    let error = folder.config.files(&"*.parquet".into()).unwrap_err().to_string();
    assert!(error.starts_with("`*.parquet` matches no file (looked for "), "{error}");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for (settings, message) in [
        ("delimeter = ','", "unknown key `data.delimeter`; did you mean `delimiter`?"),
        (
            "delimiter = '::'",
            "`data.delimiter`: expected one ASCII character that does not end a line, found \"::\"",
        ),
        (
            "quote = \"\\n\"",
            "`data.quote`: expected one ASCII character that does not end a line, found \"\\n\"",
        ),
        (
            "format = 'orc'",
            "unknown value \"orc\" for `data.format`; expected one of `arrow`, `auto`, `csv`, `jsonl`, `libsvm`, `parquet`, `tsv`",
        ),
        (
            "header = false",
            "`data.header`: files without a header need column names; set header = [\"label\", \
             \"user\", ..]",
        ),
        ("header = []", "`data.header`: the list of column names is empty; name the columns"),
        (
            "train = 3",
            "`data.train`: must be a path or a list of paths, found integer `3`; correct the value",
        ),
        ("shuffle_window = 0", "`data.shuffle_window`: must be at least 1 and less than 2^31 rows"),
    ] {
        assert_eq!(data_config(settings).unwrap_err(), message, "{settings}");
    }
    let config = data_config(
        "train = 'a.csv'\nheader = ['x', 'y']\ndelimiter = \"\\t\"\nquote = ''\nnull = ['-']",
    )
    .unwrap();
    let printed = toml::to_string(&config).unwrap();
    assert_eq!(data_config(&printed).unwrap(), config, "{printed}");
}

#[test]
fn a_quote_that_is_the_delimiter_is_refused() {
    let folder = Folder::with("delimiter = ';'\nquote = ';'");
    folder.write("a.csv", "user;age;label\n1;2;0\n");
    assert_eq!(
        folder.error(&["a.csv"], &job()),
        "`data.quote`: the quote and the delimiter are the same character; choose different \
         characters"
    );
}

#[test]
fn of_several_bad_values_the_first_row_is_reported_for_every_number_of_threads() {
    let columns = 12;
    let job = schema(
        &((0..columns).map(|i| format!("[features.f{i}]\nkind='numeric'\n")).collect::<String>()
            + "[labels.label]"),
    );
    let folder = Folder::new();
    let rows = 40_000;
    let names: Vec<String> = (0..columns).map(|i| format!("f{i}")).collect();
    let mut data: Vec<(&str, ArrayRef)> = Vec::new();
    for (i, name) in names.iter().enumerate() {
        // The last column has the first bad row of the file.
        let mut values = vec![1.0; rows];
        values[30_000 - i] = f64::NAN;
        data.push((name, floats(&values)));
    }
    data.push(("label", ints(&vec![0; rows])));
    folder.write_parquet("a.parquet", data, rows);
    let dataset = folder.open(&["a.parquet"], &job).unwrap();
    for threads in [1, 2, 5] {
        let error = read(&dataset, PLAIN, Cursor::default(), threads).unwrap_err().to_string();
        assert!(error.starts_with("column `f11`, row 29990 (row group 0): \"NaN\""), "{error}");
    }
}
