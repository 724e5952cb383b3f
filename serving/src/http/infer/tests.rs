//! Requests and answers of the v2 protocol in JSON and with binary tensors.

use proptest::prelude::*;
use zillion_registry::VersionId;

use super::*;

/// Reads a body under the usual limits.
fn parse<'a>(body: &'a [u8], header_length: Option<&str>) -> Result<Inference<'a>> {
    super::parse(body, header_length, &Limits::default())
}

fn refused(body: &str) -> String {
    parse(body.as_bytes(), None).unwrap_err().to_string()
}

/// A request whose JSON is followed by bytes.
fn with_binary(json: &str, binary: &[u8]) -> (Vec<u8>, String) {
    ([json.as_bytes(), binary].concat(), json.len().to_string())
}

#[test]
fn an_id_is_short() {
    let of = |bytes: usize| {
        let tensor = r#"[{"name": "user", "shape": [1], "datatype": "INT64", "data": [7]}]"#;
        let body = format!(r#"{{"id": "{}", "inputs": {tensor}}}"#, "i".repeat(bytes));
        parse(body.as_bytes(), None).map(|inference| inference.rows)
    };
    assert_eq!(of(1024).unwrap(), 1);
    let refused = of(1025).unwrap_err();
    assert_eq!(refused.kind().http_status(), 413, "{refused}");
    assert!(refused.to_string().contains("the id of the request"), "{refused}");
}

#[test]
fn tensors_become_columns() {
    let body = br#"{"id": "42", "parameters": {"x": 1, "timeout": 1500}, "inputs": [
        {"name": "user", "shape": [2], "datatype": "INT64", "data": [7, -8]},
        {"name": "price", "shape": [2, 1], "datatype": "FP32", "data": [[0.1], [2]]},
        {"name": "tags", "shape": [3], "datatype": "BYTES", "data": ["a", "b", "c"]},
        {"name": "tags__lengths", "shape": [2], "datatype": "INT32", "data": [3, 0]},
        {"name": "pair", "shape": [2, 2], "datatype": "UINT8", "data": [1, 2, 3, 255]}],
        "outputs": [{"name": "logits"}]}"#;
    let inference = parse(body, None).unwrap();
    assert_eq!((inference.rows, inference.id.as_deref()), (2, Some("42")));
    assert_eq!(inference.outputs, ["logits"]);
    assert_eq!(inference.timeout, Some(Duration::from_micros(1500)));
    let lengths = |name: &str| inference.columns[name].lengths.clone();
    assert_eq!(lengths("user"), None);
    assert_eq!(lengths("price"), None);
    assert_eq!(lengths("tags"), Some(vec![3, 0]));
    assert_eq!(lengths("pair"), Some(vec![2, 2]));
    let RawValues::Any(users) = &inference.columns["user"].values else { panic!("any") };
    assert_eq!(users[..], [RawValue::Int(7), RawValue::Int(-8)]);
    let RawValues::Any(prices) = &inference.columns["price"].values else { panic!("any") };
    assert_eq!(prices[..], [RawValue::Float(f64::from(0.1f32)), RawValue::Float(2.0)]);
}

#[test]
fn binary_tensors_equal_json_tensors() {
    let json = r#"{"inputs": [
        {"name": "price", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
        {"name": "user", "shape": [2], "datatype": "INT64", "data": [7, 8]},
        {"name": "tags", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 11}}],
        "parameters": {"binary_data_output": true},
        "outputs": [{"name": "a"}, {"name": "b", "parameters": {"binary_data": false}}]}"#;
    let mut binary = [0.5f32.to_le_bytes(), 2f32.to_le_bytes()].concat();
    binary.extend(b"\x02\0\0\0ab\x01\0\0\0c");
    let (body, length) = with_binary(json, &binary);
    let inference = parse(&body, Some(&length)).unwrap();
    assert_eq!(inference.columns["price"].values, RawValues::Floats(vec![0.5, 2.0]));
    let text = |t: &'static str| RawValue::Text(t.into());
    assert_eq!(inference.columns["tags"].values, RawValues::Any(vec![text("ab"), text("c")]));
    assert_eq!(inference.binary, BinaryOutputs { named: vec![true, false], all: true });

    let with = |old: &str, new: &str| {
        let (body, length) = with_binary(&json.replace(old, new), &binary);
        parse(&body, Some(&length)).unwrap_err().to_string()
    };
    assert!(with("size\": 8", "size\": 7").contains("input `price`"));
    assert!(with("size\": 11", "size\": 12").contains(
        "input `tags`: `binary_data_size` is 12 bytes, but the body has only 11 bytes left"
    ));
    assert!(with("size\": 11", "size\": 10").contains("input `tags`"));
    assert!(
        with("size\": 11", "size\": -1").contains("input `tags`: parameter `binary_data_size`")
    );
    assert!(with("\"data\": [7, 8]", "\"parameters\": {}").contains("neither `data` nor"));
    assert!(
        with("\"data\": [7, 8]", "\"data\": [7, 8], \"parameters\": {\"binary_data_size\": 8}")
            .contains("input `user`: the input has both")
    );
    let without = parse(&body[..json.len()], None).unwrap_err().to_string();
    assert!(without.contains("Content-Length` is missing"), "{without}");
    let longer = [&body[..], b"x"].concat();
    let longer = parse(&longer, Some(&length)).unwrap_err().to_string();
    assert!(longer.contains("1 bytes follow the binary data"), "{longer}");
    for bad in ["", "-1", "+5", "x", "99999999999999999999999", "1000000"] {
        let refused = parse(&body, Some(bad)).unwrap_err().to_string();
        assert!(refused.contains("Inference-Header-Content-Length"), "{refused}");
    }
}

#[test]
fn answers_are_json_bytes_or_both() {
    let outputs = vec![("a".to_owned(), vec![0.25f32, 0.5]), ("b".to_owned(), vec![1.0, -0.0])];
    let answer = Answer::of(VersionId(3), outputs);
    let plain = reply("m", Some("7"), &answer, &BinaryOutputs::default()).unwrap();
    assert_eq!(plain.header_length, None);
    assert_eq!(
        String::from_utf8(plain.bytes).unwrap(),
        r#"{"model_name":"m","model_version":"3","id":"7","outputs":[{"name":"a","shape":[2],"datatype":"FP32","data":[0.25,0.5]},{"name":"b","shape":[2],"datatype":"FP32","data":[1.0,-0.0]}]}"#
    );
    let binary = BinaryOutputs { named: vec![false, true], all: false };
    let mixed = reply("m", None, &answer, &binary).unwrap();
    let (json, rest) = mixed.bytes.split_at(mixed.header_length.unwrap());
    assert!(json.ends_with(
        br#"{"name":"b","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}"#
    ));
    assert_eq!(rest, [1f32.to_le_bytes(), (-0f32).to_le_bytes()].concat());
}

#[test]
fn inconsistent_inputs_are_refused_by_name() {
    let one = |shape: &str, datatype: &str, data: &str| {
        refused(&format!(
            r#"{{"inputs": [{{"name": "x", "shape": {shape}, "datatype": "{datatype}", "data": {data}}}]}}"#
        ))
    };
    assert!(
        one("[3]", "INT64", "[1, 2]")
            .contains("input `x`: the shape [3] does not fit the 2 values")
    );
    assert!(one("[]", "INT64", "[1]").contains("must be [rows]"));
    assert!(one("[1]", "INT64", "1").contains("the data is not a list"));
    assert!(one("[1]", "INT99", "[1]").contains("datatype `INT99`"));
    assert!(one("[1]", "INT8", "[128]").contains("value 0 of the data is not of datatype INT8"));
    assert!(one("[1]", "UINT64", "[-1]").contains("not of datatype UINT64"));
    assert!(one("[1]", "INT64", "[1.5]").contains("not of datatype INT64"));
    assert!(one("[1]", "INT64", "[true]").contains("not of datatype INT64"));
    assert!(one("[1]", "BYTES", "[1]").contains("not of datatype BYTES"));
    assert!(one("[1]", "FP32", "[1e39]").contains("not of datatype FP32"));
    assert!(one("[1]", "FP16", "[1]").contains("send them as binary data"));
    assert!(one("[18446744073709551615, 3]", "INT64", "[1]").contains("too large for any data"));
    assert!(one("[2]", "INT64", r#"[1, {"a": 1}]"#).contains("value 1 of the data cannot be read"));
    assert!(refused("{}").contains("no `inputs`"));
    assert!(refused(r#"{"output": []}"#).contains("unknown field `output`"));
    assert!(refused("nonsense").contains("not a v2 inference request"));
    assert!(refused("").contains("not a v2 inference request"));
    let rows = r#"{"inputs": [{"name": "a", "shape": [1], "datatype": "INT64", "data": [1]},
        {"name": "b", "shape": [2], "datatype": "INT64", "data": [1, 2]}]}"#;
    assert!(refused(rows).contains("input `b`: the input has 2 rows, but input `a` has 1"));
    let twice = r#"{"inputs": [{"name": "a", "shape": [1], "datatype": "INT64", "data": [1]},
        {"name": "a", "shape": [1], "datatype": "INT64", "data": [1]}]}"#;
    assert!(refused(twice).contains("input `a`: the request has this input twice"));
    let orphan =
        r#"{"inputs": [{"name": "a__lengths", "shape": [1], "datatype": "INT64", "data": [1]}]}"#;
    assert!(refused(orphan).contains("the request has no `a`"));
    let classes =
        r#"{"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": 2}}]}"#;
    assert!(refused(classes).contains("output `y`: parameter `classification`"));
}

#[test]
fn values_count_before_they_are_read() {
    let limits = Limits { rows: 50, values: 100, ..Limits::default() };
    let read = |inputs: &[String]| {
        let body = format!(r#"{{"inputs": [{}]}}"#, inputs.join(","));
        super::parse(body.as_bytes(), None, &limits).map(|_| ()).map_err(|error| error.to_string())
    };
    let input = |name: &str, shape: &str, count: usize| {
        let data = vec!["1"; count].join(",");
        format!(r#"{{"name": "{name}", "shape": {shape}, "datatype": "INT64", "data": [{data}]}}"#)
    };
    assert_eq!(read(&[input("a", "[50]", 50), input("b", "[50]", 50)]), Ok(()));
    for (inputs, reason) in [
        (vec![input("a", "[50]", 50), input("b", "[17, 3]", 0)], "serve.max_values"),
        (vec![input("a", "[101]", 1)], "serve.max_values"),
        (vec![input("a", "[51]", 51)], "serve.max_rows"),
        (vec![input("a", "[51, 0]", 0)], "serve.max_rows"),
        (vec![input("a__lengths", "[51]", 51)], "serve.max_rows"),
        // The reader stops behind the second value.
        (
            vec![input("a", "[2]", 1 << 20)],
            "input `a`: the data has more values than its shape [2]",
        ),
    ] {
        let refused = read(&inputs).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
    let body = format!(r#"{{"inputs": [{}]}}"#, input("a", "[1000]", 1000));
    let parsed = super::parse(body.as_bytes(), None, &Limits::default()).unwrap();
    let RawValues::Any(values) = &parsed.columns["a"].values else { panic!("any") };
    assert_eq!((values.len(), values.capacity()), (1000, 1000));
}

#[test]
fn lists_of_tensors_end_and_errors_are_small() {
    let one = r#"{"name": "a"},"#.repeat(MOST_INPUTS + 1);
    let many = refused(&format!(r#"{{"outputs": [{}]}}"#, one.trim_end_matches(',')));
    assert!(many.contains("more than 16384 inputs or outputs"), "{many}");
    let long = "x".repeat(3 << 20);
    for body in [
        format!(
            r#"{{"inputs": [{{"name": "{long}", "shape": [1], "datatype": "INT64", "data": [1]}}]}}"#
        ),
        format!(
            r#"{{"inputs": [{{"name": "a", "shape": [1], "datatype": "{long}", "data": [1]}}]}}"#
        ),
        format!(r#"{{"outputs": [{{"name": "{long}", "parameters": {{"classification": 2}}}}]}}"#),
    ] {
        let refused = refused(&body);
        assert!(refused.len() < 500, "{}", &refused[..500]);
    }
}

proptest! {
    #[test]
    fn no_body_is_a_panic(
        body in prop::collection::vec(any::<u8>(), 0..200),
        length in prop_oneof![(0usize..220).prop_map(|n| n.to_string()), "[-+0-9a-f ]{0,24}"],
    ) {
        let _ = parse(&body, None);
        let _ = parse(&body, Some(&length));
    }

    #[test]
    fn a_body_is_cut_where_the_header_says(
        body in prop::collection::vec(any::<u8>(), 0..50),
        length in 0usize..80,
    ) {
        match split(&body, Some(&length.to_string())) {
            Ok((json, Some(binary))) => {
                prop_assert_eq!(json.len(), length);
                prop_assert_eq!(&[json, binary].concat(), &body);
            }
            Ok((_, None)) => prop_assert!(false, "there was a header"),
            Err(_) => prop_assert!(length > body.len()),
        }
        prop_assert_eq!(split(&body, None).unwrap(), (&body[..], None));
    }

    #[test]
    fn no_binary_data_is_a_panic(
        sizes in prop::collection::vec(0u64..20, 0..4),
        datatypes in prop::collection::vec("(INT64|FP32|FP16|BYTES|BOOL|INT8)", 4),
        shape in prop::collection::vec(0u64..6, 0..3),
        binary in prop::collection::vec(0u8..5, 0..60),
    ) {
        let inputs: Vec<String> = sizes.iter().enumerate().map(|(at, size)| format!(
            r#"{{"name":"x{at}","shape":{shape:?},"datatype":"{}","parameters":{{"binary_data_size":{size}}}}}"#,
            datatypes[at],
        )).collect();
        let (body, length) = with_binary(&format!(r#"{{"inputs":[{}]}}"#, inputs.join(",")), &binary);
        if let Ok(inference) = parse(&body, Some(&length)) {
            prop_assert_eq!(sizes.iter().sum::<u64>(), binary.len() as u64);
            prop_assert!(inference.columns.len() == sizes.len());
        }
    }

    #[test]
    fn no_json_is_a_panic(
        shape in prop::collection::vec(any::<i64>(), 0..4),
        datatype in "(INT64|FP32|BYTES|[A-Z0-9]{0,6})",
        data in r#"[\[\]0-9,."a-z{}:-]{0,40}"#,
        name in "[a-z_]{0,12}(__lengths)?",
    ) {
        let body = format!(
            r#"{{"inputs":[{{"name":"{name}","shape":{shape:?},"datatype":"{datatype}","data":{data}}}]}}"#
        );
        let _ = parse(body.as_bytes(), None);
    }
}
