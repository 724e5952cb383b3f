//! Requests in rows and columns, and what is refused of them, by name and row.

use proptest::prelude::*;
use zillion_feature::{RawValue, RawValues, Schema, Statistics};

use super::*;

/// Reads a body under the usual limits.
fn parse(form: Form, body: &[u8]) -> Result<Rows<'_>> {
    super::parse(form, body, &Limits::default())
}

fn predict(body: &str) -> Rows<'_> {
    parse(Form::Predict, body.as_bytes()).unwrap()
}

fn refused(form: Form, body: &str) -> String {
    parse(form, body.as_bytes()).unwrap_err().to_string()
}

#[test]
fn instances_become_columns() {
    let rows = predict(
        r#"{"signature_name": "serving_default",
        "instances": [{"user": 7, "tags": ["a", "b"], "n": null}, {"n": 1.5, "user": true, "tags": {"b64": "YQ=="}}]}"#,
    );
    assert_eq!((rows.rows, rows.is_columnar), (2, false));
    assert_eq!(rows.columns["tags"].lengths, Some(vec![2, 1]));
    let any = |values: Vec<RawValue<'static>>| RawValues::Any(values);
    assert_eq!(rows.columns["user"].values, any(vec![RawValue::Int(7), RawValue::Bool(true)]));
    assert_eq!(rows.columns["n"].values, any(vec![RawValue::Missing, RawValue::Float(1.5)]));
    assert_eq!(rows.bare_texts, [("tags".to_owned(), Some(1))]);

    let columnar = predict(r#"{"inputs": {"user": [7, true], "tags": [["a", "b"], ["a"]]}}"#);
    assert_eq!((columnar.rows, columnar.is_columnar), (2, true));
    assert_eq!(columnar.columns["tags"], rows.columns["tags"]);
    assert_eq!(columnar.bare_texts, []);
}

#[test]
fn a_context_is_shared_by_all_candidates() {
    let body = r#"{"context": {"user": 7, "seen": [1, 2]}, "candidates": [{"item": 1}, {"item": 2}], "top_k": 1}"#;
    let rows = parse(Form::Rank, body.as_bytes()).unwrap();
    assert_eq!((rows.rows, rows.top_k), (2, Some(1)));
    assert!(rows.columns["user"].is_shared && !rows.columns["item"].is_shared);
    assert_eq!(rows.columns["seen"].lengths, Some(vec![2]));
    let body = r#"{"context": {"user": "u"}, "examples": [{"item": 1}]}"#;
    let rows = parse(Form::Examples, body.as_bytes()).unwrap();
    assert_eq!(rows.columns["user"].lengths, None);
    assert_eq!(rows.bare_texts, [("user".to_owned(), None)]);
}

fn encoder(job: &str) -> Encoder {
    let schema = Schema::from_job(&job.parse::<toml::Table>().unwrap().into()).unwrap();
    Encoder::new(&schema, &Statistics::default(), &[]).unwrap()
}

#[test]
fn rows_without_names_belong_to_the_one_input() {
    let one = encoder("[features.word]\nkind = 'ids'\ntype = 'string'\n[labels.y]");
    let two = encoder("[features.a]\nkind = 'id'\n[features.b]\nkind = 'id'\n[labels.y]");
    for body in [r#"{"instances": [["a"], []]}"#, r#"{"inputs": [["a"], []]}"#] {
        let mut rows = predict(body);
        rows.fit(&one).unwrap();
        assert_eq!((rows.rows, &rows.columns["word"].lengths), (2, &Some(vec![1, 0])));
        let refused = predict(body).fit(&two).unwrap_err().to_string();
        assert!(refused.contains("several inputs (`a`, `b`)"), "{refused}");
    }
    assert!(refused(Form::Predict, r#"{"instances": [{"a": 1}, 1]}"#).contains("earlier rows are"));
    assert!(
        refused(Form::Predict, r#"{"instances": [1, {"a": 1}]}"#).contains("earlier rows are not")
    );
    assert!(refused(Form::Rank, r#"{"candidates": [1]}"#).contains("the row is not an object"));
    // What a file would have split cannot be split here.
    for body in [r#"{"instances": [["a"], "a|b"]}"#, r#"{"instances": [{"word": "a|b"}]}"#] {
        let text = predict(body).fit(&one).unwrap_err().to_string();
        assert!(
            text.contains("input `word`, row ") && text.ends_with("send a list of texts"),
            "{text}"
        );
    }
}

#[test]
fn errors_name_the_input_and_the_row() {
    let uneven = "not a predict request: line 1, column ";
    for (form, body, messages) in [
        (
            Form::Predict,
            r#"{"instances": [{"a": 1}, {"a": 1, "b": 2}]}"#,
            [uneven, ", input `b`, row 1 of `instances`: the row does not have the same inputs as"],
        ),
        (
            Form::Predict,
            r#"{"instances": [{"a": 1, "b": 2}, {"a": 1}]}"#,
            [uneven, ", input `b`, row 1 of `instances`: the row does not have the same inputs as"],
        ),
        (
            Form::Predict,
            r#"{"instances": [{"a": 1, "a": 2}]}"#,
            ["appears twice", "input `a`, row 0 of `instances`: "],
        ),
        (
            Form::Predict,
            r#"{"instances": [{"a": 1}, {"a": {"x": 1}}]}"#,
            ["an object", "input `a`, row 1 of `instances`: "],
        ),
        (
            Form::Predict,
            r#"{"instances": [{"a": [[1]]}]}"#,
            ["inside a list", "input `a`, row 0 of `instances`: "],
        ),
        (
            Form::Predict,
            r#"{"instances": [{"a": 1}, {"a": tru}]}"#,
            ["expected ident", "input `a`, row 1 of `instances`: "],
        ),
        (
            Form::Predict,
            r#"{"instances": [{"a": 1}, {"a" 1}]}"#,
            ["expected `:`", "row 1 of `instances`: "],
        ),
        (Form::Predict, r#"{"inputs": {"a": [1], "a": [1]}}"#, ["appears twice", "input `a`"]),
        (
            Form::Predict,
            r#"{"inputs": {"a": [1, {}]}}"#,
            ["an object", "input `a`, row 1 of `inputs`: "],
        ),
        (
            Form::Predict,
            r#"{"inputs": {"a": 1}}"#,
            ["a list with a value for each row", "input `a`"],
        ),
        (
            Form::Predict,
            r#"{"inputs": {"a": [1], "b": [1, 2]}}"#,
            ["the input has 2 rows, but input `a` has 1", "input `b`"],
        ),
        (Form::Predict, r#"{"inputs": {}}"#, ["no inputs", ""]),
        (
            Form::Predict,
            r#"{"instances": [], "inputs": {}}"#,
            ["either `instances` or `inputs`", ""],
        ),
        (Form::Predict, r#"{"instances": [], "instances": []}"#, ["`instances` appears twice", ""]),
        (Form::Predict, "{}", ["either `instances` or `inputs`", ""]),
        (Form::Predict, r#"{"instance": []}"#, ["did you mean `instances`?", "line 1"]),
        (
            Form::Predict,
            r#"{"signature_name": "x", "instances": []}"#,
            ["use `serving_default`", "`x`"],
        ),
        (Form::Predict, r#"{"instances": []} x"#, ["trailing characters", ""]),
        (
            Form::Rank,
            r#"{"context": {"a": 1}, "candidates": [{"a": 2}]}"#,
            ["both in `context` and in `candidates`", "input `a`"],
        ),
        (
            Form::Rank,
            r#"{"context": {"a": {}}, "candidates": []}"#,
            ["an object", "input `a`, `context`: "],
        ),
        (
            Form::Rank,
            r#"{"candidates": [{"a": 2}], "top_k": 1.5}"#,
            ["integer of at least 0", "1.5"],
        ),
        (Form::Rank, r#"{"context": {}}"#, ["a rank request has no `candidates`", ""]),
        (Form::Examples, r#"{"instances": [{"a": 1}]}"#, ["unknown key `instances`", "`examples`"]),
    ] {
        let refused = refused(form, body);
        assert!(messages.iter().all(|message| refused.contains(message)), "{body}\n{refused}");
    }
}

#[test]
fn a_reader_stops_at_the_limits() {
    let limits = Limits { rows: 20, values: 60, ..Limits::default() };
    // The end of each body is missing, so that a reader that goes on finds another error.
    for (form, head, piece, setting) in [
        (Form::Predict, r#"{"instances": ["#, r#"{"a": 1},"#, "serve.max_rows"),
        (Form::Predict, r#"{"instances": ["#, "{},", "serve.max_rows"),
        (Form::Predict, r#"{"instances": ["#, "1,", "serve.max_rows"),
        (Form::Predict, r#"{"instances": ["#, r#"{"a": [1, 2, 3, 4]},"#, "serve.max_values"),
        (Form::Predict, r#"{"instances": ["#, "[1, 2, 3, 4],", "serve.max_values"),
        (Form::Predict, r#"{"inputs": {"a": ["#, "[],", "serve.max_rows"),
        (Form::Predict, r#"{"inputs": ["#, "1,", "serve.max_rows"),
        (Form::Predict, r#"{"inputs": {"a": [["#, "1,", "serve.max_values"),
        (Form::Rank, r#"{"candidates": ["#, r#"{"a": 1},"#, "serve.max_rows"),
        (Form::Rank, r#"{"context": {"a": ["#, "1,", "serve.max_values"),
        (Form::Examples, r#"{"examples": ["#, r#"{"a": []},"#, "serve.max_rows"),
    ] {
        let body = format!("{head}{}", piece.repeat(100));
        let refused = super::parse(form, body.as_bytes(), &limits).unwrap_err();
        assert_eq!(refused.kind(), crate::Kind::TooLarge, "{body}");
        assert!(refused.to_string().contains(setting), "{body}: {refused}");
    }
    let full = format!(r#"{{"instances": [{}]}}"#, vec![r#"{"a": [1, 2, 3]}"#; 20].join(","));
    assert_eq!(super::parse(Form::Predict, full.as_bytes(), &limits).unwrap().rows, 20);
    let full = format!(r#"{{"inputs": {{"a": [{}]}}}}"#, vec!["[1, 2, 3]"; 20].join(","));
    assert_eq!(super::parse(Form::Predict, full.as_bytes(), &limits).unwrap().rows, 20);
}

#[test]
fn inputs_are_counted_and_have_short_names() {
    let row: Vec<String> =
        (0..=crate::tensor::MOST_INPUTS).map(|i| format!("\"{i}\": 1")).collect();
    let long = "x".repeat(3 << 20);
    for (fields, reason) in
        [(row.join(","), "more than 16384 inputs"), (format!("\"{long}\": 1"), "more than 1024")]
    {
        for body in [
            format!(r#"{{"instances": [{{{fields}}}]}}"#),
            format!(r#"{{"inputs": {{{}}}}}"#, fields.replace(": 1", ": [1]")),
            format!(r#"{{"context": {{{fields}}}, "candidates": []}}"#),
        ] {
            let form = if body.contains("context") { Form::Rank } else { Form::Predict };
            let refused = refused(form, &body);
            assert!(refused.contains(reason) && refused.len() < 500, "{refused}");
        }
    }
    for body in [
        format!(r#"{{"{long}": 1}}"#),
        format!(r#"{{"signature_name": "{long}", "instances": []}}"#),
    ] {
        let refused = refused(Form::Predict, &body);
        assert!(refused.len() < 500, "{}", &refused[..500]);
    }
}

/// Returns the columns of rows in the plain way, or `None` if the rows differ in their keys.
fn plainly(rows: &[Vec<(String, i64)>]) -> Option<BTreeMap<String, Vec<i64>>> {
    let mut columns: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        for (name, value) in row {
            let column = columns.entry(name.clone()).or_default();
            (column.len() == at).then(|| column.push(*value))?;
        }
        columns.values().all(|column| column.len() == at + 1).then_some(())?;
    }
    Some(columns)
}

proptest! {
    #[test]
    fn no_body_is_a_panic(
        body in prop::collection::vec(any::<u8>(), 0..200),
        inner in r#"[\[\]0-9,."a-c{}: -]{0,60}"#,
    ) {
        for form in [Form::Predict, Form::Examples, Form::Rank] {
            let _ = parse(form, &body);
            for shell in [r#"{"instances":[X]}"#, r#"{"inputs":{X}}"#, r#"{"inputs":[X]}"#,
                r#"{"context":{X},"candidates":[X]}"#, r#"{"context":{X},"examples":[X]}"#] {
                let _ = parse(form, shell.replace('X', &inner).as_bytes());
            }
        }
    }

    #[test]
    fn rows_are_columns_whatever_the_order_of_their_keys(
        rows in prop::collection::vec(prop::collection::vec(("[a-c]", any::<i64>()), 0..4), 0..4),
    ) {
        let row = |row: &Vec<(String, i64)>| {
            let fields: Vec<String> = row.iter().map(|(name, x)| format!("\"{name}\": {x}")).collect();
            format!("{{{}}}", fields.join(","))
        };
        let body = format!("{{\"instances\": [{}]}}", rows.iter().map(row).collect::<Vec<_>>().join(","));
        let read = parse(Form::Predict, body.as_bytes()).ok().map(|read| {
            let values = |column: RawColumn<'_>| match column.values {
                RawValues::Any(values) => values.iter().map(|value| match value {
                    RawValue::Int(x) => *x,
                    other => panic!("{other:?}"),
                }).collect(),
                other => panic!("{other:?}"),
            };
            let columns = read.columns.into_iter();
            columns.map(|(name, column)| (name.into_owned(), values(column))).collect()
        });
        prop_assert_eq!(read, plainly(&rows));
    }
}
