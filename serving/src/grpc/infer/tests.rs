//! Requests as clients send them, and as nobody should.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::proto::inference::{InferTensorContents, ModelInferRequest};
use crate::tensor::LENGTHS;

/// Reads a message that a generated encoder has written.
fn parse(request: &ModelInferRequest) -> Result<(usize, RawColumns<'static>)> {
    let parsed = super::parse(request.encode_to_vec().leak(), &Limits::default(), None)?;
    assert_eq!(parsed.outputs.len(), request.outputs.len());
    Ok((parsed.rows, parsed.columns))
}

fn input(
    name: &str,
    datatype: &str,
    shape: &[i64],
    contents: InferTensorContents,
) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        contents: Some(contents),
        ..InferInputTensor::default()
    }
}

fn request(inputs: Vec<InferInputTensor>, raw: Vec<&'static [u8]>) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "m".to_owned(),
        inputs,
        raw_input_contents: raw.into_iter().map(Bytes::from_static).collect(),
        ..ModelInferRequest::default()
    }
}

fn refused(request: &ModelInferRequest) -> String {
    parse(request).unwrap_err().to_string()
}

fn whole(values: &[i64]) -> InferTensorContents {
    InferTensorContents { int64_contents: values.to_vec(), ..Default::default() }
}

#[test]
fn an_id_is_short() {
    let of = |bytes: usize| {
        let one = input("user", "INT64", &[1], whole(&[7]));
        parse(&ModelInferRequest { id: "i".repeat(bytes), ..request(vec![one], vec![]) })
    };
    assert_eq!(of(1024).unwrap().0, 1);
    let refused = of(1025).unwrap_err().to_string();
    assert!(refused.contains("the id of the request"), "{refused}");
}

#[test]
fn typed_and_raw_values_give_equal_columns() {
    let none = InferTensorContents::default;
    let typed = request(
        vec![
            input("user", "INT64", &[2], whole(&[7, -8])),
            input(
                "small",
                "INT8",
                &[2],
                InferTensorContents { int_contents: vec![-1, 2], ..none() },
            ),
            input(
                "price",
                "FP32",
                &[2, 1],
                InferTensorContents { fp32_contents: vec![0.5, f32::NAN], ..none() },
            ),
            input(
                "tags",
                "BYTES",
                &[1],
                InferTensorContents { bytes_contents: vec![Bytes::from_static(b"ab")], ..none() },
            ),
            input("tags__lengths", "INT64", &[2], whole(&[1, 0])),
        ],
        Vec::new(),
    );
    let shapes = typed.inputs.iter().cloned().map(|mut input| {
        input.contents = None;
        input
    });
    let raw = request(
        shapes.collect(),
        vec![
            b"\x07\0\0\0\0\0\0\0\xf8\xff\xff\xff\xff\xff\xff\xff",
            b"\xff\x02",
            b"\0\0\0\x3f\0\0\xc0\x7f",
            b"\x02\0\0\0ab",
            b"\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ],
    );
    let (rows, columns) = parse(&typed).unwrap();
    assert_eq!(parse(&raw).unwrap(), (rows, columns.clone()));
    assert_eq!((rows, columns.len()), (2, 4));
    assert_eq!(columns["tags"].lengths, Some(vec![1, 0]));
    let numbers = vec![RawValue::Float(0.5), RawValue::Missing];
    assert_eq!(columns["price"].values, RawValues::Any(numbers));
}

#[test]
fn inconsistent_inputs_are_refused_by_name() {
    let one = |datatype: &str, shape: &[i64], contents| {
        refused(&request(vec![input("x", datatype, shape, contents)], Vec::new()))
    };
    assert!(
        one("INT64", &[3], whole(&[1]))
            .contains("input `x`: the shape [3] does not fit the 1 values")
    );
    assert!(
        one("INT64", &[-1], whole(&[1])).contains("input `x`: the shape [-1] has a negative size")
    );
    assert!(one("INT32", &[1], whole(&[1])).contains(
        "input `x`: values of datatype INT32 are in a wrong list; send them in `int_contents`"
    ));
    assert!(
        one("FP16", &[1], whole(&[1]))
            .contains("input `x`: `contents` has no list for FP16; send `raw_input_contents`")
    );
    assert!(one("INT65", &[1], whole(&[1])).contains("unknown datatype `INT65`; use one of BOOL"));
    let wide = InferTensorContents { int_contents: vec![300], ..Default::default() };
    assert!(one("INT8", &[1], wide).contains("value 0 of the data is not of datatype INT8"));
    let text = InferTensorContents {
        bytes_contents: vec![Bytes::from_static(b"\xff")],
        ..Default::default()
    };
    assert!(one("BYTES", &[1], text).contains("input `x`: value 0 of the data is not UTF-8 text"));
    assert!(one("INT64", &[1], InferTensorContents::default()).contains("the 0 values"));

    let twice = vec![input("x", "INT64", &[1], whole(&[1])); 2];
    assert!(
        refused(&request(twice, Vec::new()))
            .contains("input `x`: the request has this input twice")
    );
    let both = vec![input("x", "INT64", &[1], whole(&[1]))];
    assert!(refused(&request(both, vec![b"12345678"])).contains("`contents` and in `raw_input"));
    let few = vec![input("x", "INT8", &[1], InferTensorContents::default()); 2];
    assert!(refused(&request(few, vec![b"1"])).contains("1 entries for 2 inputs"));
    assert!(refused(&request(Vec::new(), Vec::new())).contains("no `inputs`"));
}

#[test]
fn unsupported_parameters_are_refused() {
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let whole_input = || vec![input("x", "INT64", &[1], whole(&[1]))];
    let mut sequence = request(whole_input(), Vec::new());
    sequence.parameters.insert("sequence_id".to_owned(), parameter(ParameterChoice::Int64Param(7)));
    assert!(refused(&sequence).contains("keep no state"));
    sequence.parameters.insert("sequence_id".to_owned(), parameter(ParameterChoice::Int64Param(0)));
    assert!(parse(&sequence).is_ok());
    let region = || parameter(ParameterChoice::StringParam("r".to_owned()));
    let mut shared = request(whole_input(), Vec::new());
    shared.inputs[0].parameters.insert("shared_memory_region".to_owned(), region());
    assert!(refused(&shared).contains("shared memory is not supported"));
    let mut classes = request(whole_input(), Vec::new());
    let parameters = BTreeMap::from([("classification".to_owned(), region())]);
    classes.outputs.push(InferRequestedOutputTensor { name: "p".to_owned(), parameters });
    assert!(refused(&classes).contains("an output has scores and no classes"));
}

#[test]
fn the_head_names_the_model_and_the_time_limit() {
    let mut asked = request(vec![input("x", "INT64", &[1], whole(&[1]))], Vec::new());
    let target = |asked: &ModelInferRequest| Infer.target(&asked.encode_to_vec().into());
    let wanted = Target { model: "m".to_owned(), selector: Selector::Default, time: None };
    assert_eq!(target(&asked).unwrap(), wanted);
    asked.model_version = "12".to_owned();
    let micros = |n| InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(n)) };
    asked.parameters.insert("timeout".to_owned(), micros(1500));
    let found = target(&asked).unwrap();
    assert_eq!(found.selector, Selector::Version(zillion_registry::VersionId(12)));
    assert_eq!(found.time, Some(Duration::from_micros(1500)));
    asked.parameters.insert("timeout".to_owned(), micros(-1));
    assert!(target(&asked).unwrap_err().to_string().contains("parameter `timeout`"));
    asked.model_version = "newest".to_owned();
    assert!(target(&asked).unwrap_err().to_string().contains("version `newest`"));
    let garbage = Infer.target(&Bytes::from_static(b"\x0a\xff"));
    assert!(garbage.unwrap_err().to_string().contains("not a ModelInferRequest"));
}

#[test]
fn the_row_of_a_shared_input_is_that_of_all_rows() {
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let of = |choice| {
        let mut user = input("user", "INT64", &[1], whole(&[7]));
        user.parameters.insert("shared".to_owned(), parameter(choice));
        request(vec![user, input("item", "INT64", &[3], whole(&[1, 2, 3]))], Vec::new())
    };
    let (rows, columns) = parse(&of(ParameterChoice::BoolParam(true))).unwrap();
    assert_eq!((rows, columns["user"].is_shared, columns["item"].is_shared), (3, true, false));
    let plain = refused(&of(ParameterChoice::BoolParam(false)));
    assert!(plain.contains("the input has 1 rows"), "{plain}");
    let text = refused(&of(ParameterChoice::StringParam("yes".to_owned())));
    assert!(text.contains("input `user`: the parameter `shared` is neither true"), "{text}");
}

/// Encodes an entry of a map of parameters without its value.
fn entry(name: &str, tag: u32, into: &mut Vec<u8>) {
    let mut entry = Vec::new();
    prost::encoding::string::encode(1, &name.to_owned(), &mut entry);
    prost::encoding::bytes::encode(tag, &entry, into);
}

#[test]
fn parameters_are_few_and_have_short_names() {
    for (place, tag) in [("request", 0), ("input", 5), ("output", 6)] {
        let message = |parameters: usize, name: &str| {
            let mut inner = Vec::new();
            let own_tag = if place == "output" { 2 } else { 4 };
            (0..parameters).for_each(|_| entry(name, own_tag, &mut inner));
            let mut message = Vec::new();
            match tag {
                0 => message = inner,
                tag => prost::encoding::bytes::encode(tag, &inner, &mut message),
            }
            super::parse(&message, &Limits::default(), None).unwrap_err().to_string()
        };
        assert!(!message(64, "x").contains("parameters"), "{place}");
        let many = message(65, "x");
        assert!(many.contains("more than 64 parameters"), "{place}: {many}");
        let long = message(1, &"x".repeat(1025));
        assert!(long.contains("a name in the message"), "{place}: {long}");
    }
    let mut head = Vec::new();
    (0..65).for_each(|_| entry("x", 4, &mut head));
    let many = Infer.target(&head.into()).unwrap_err().to_string();
    assert!(many.contains("more than 64 parameters"), "{many}");
}

#[test]
fn values_count_before_they_take_memory() {
    let limits = Limits { values: 100, rows: 50, ..Limits::default() };
    let read = |inputs: Vec<InferInputTensor>, raw: Vec<&'static [u8]>| {
        let message = request(inputs, raw).encode_to_vec();
        super::parse(&message, &limits, None).map(|_| ()).map_err(|error| error.to_string())
    };
    let texts = |rows: i64, count: usize| {
        let bytes_contents = vec![Bytes::new(); count];
        input("t", "BYTES", &[rows], InferTensorContents { bytes_contents, ..Default::default() })
    };
    let many = read(vec![texts(101, 101)], Vec::new()).unwrap_err();
    assert!(many.contains("serve.max_values"), "{many}");
    let wrong = read(vec![texts(10, 1 << 16)], Vec::new()).unwrap_err();
    assert!(wrong.contains("does not fit the 65536 values"), "{wrong}");
    let rows = read(vec![texts(51, 51)], Vec::new()).unwrap_err();
    assert!(rows.contains("serve.max_rows"), "{rows}");
    let half = |name: &str| input(name, "INT8", &[30, 2], InferTensorContents::default());
    let both = read(vec![half("a"), half("b")], vec![&[0; 60], &[0; 60]]).unwrap_err();
    assert!(both.contains("serve.max_values"), "{both}");
    assert_eq!(read(vec![half("a")], vec![&[0; 60]]), Ok(()));
    let deep = input("x", "INT64", &[1; 33], whole(&[1]));
    let deep = read(vec![deep], Vec::new()).unwrap_err();
    assert!(deep.contains("more than 32 dimensions"), "{deep}");
}

proptest! {
    #[test]
    fn no_message_is_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        let _ = Infer.target(&bytes);
        let _ = super::parse(&bytes, &Limits::default(), None);
    }

    #[test]
    fn values_come_back_packed_or_one_by_one(
        ints in prop::collection::vec(any::<i64>(), 0..20),
        small in prop::collection::vec(any::<i32>(), 0..20),
        numbers in prop::collection::vec(any::<f32>(), 0..20),
        texts in prop::collection::vec(".{0,12}", 0..20),
        split in 0usize..20,
    ) {
        let none = InferTensorContents::default;
        let bytes = texts.iter().map(|text| Bytes::from(text.clone())).collect();
        let mut inputs = Vec::new();
        for (name, datatype, rows, contents) in [
            ("a", "INT64", ints.len(), whole(&ints)),
            ("b", "INT32", small.len(), InferTensorContents { int_contents: small.clone(), ..none() }),
            ("c", "FP32", numbers.len(), InferTensorContents { fp32_contents: numbers.clone(), ..none() }),
            ("d", "BYTES", texts.len(), InferTensorContents { bytes_contents: bytes, ..none() }),
        ] {
            let lengths = format!("{name}{LENGTHS}");
            inputs.push(input(name, datatype, &[rows as i64], contents));
            inputs.push(input(&lengths, "INT64", &[1], whole(&[rows as i64])));
        }
        let (_, columns) = parse(&request(inputs, Vec::new())).unwrap();
        prop_assert_eq!(&columns["a"].values, &RawValues::Ints(ints.clone()));
        let small = small.iter().map(|&x| x.into()).collect();
        prop_assert_eq!(&columns["b"].values, &RawValues::Ints(small));
        let numbers = numbers.iter().map(|&x| x.into()).collect();
        prop_assert_eq!(&columns["c"].values, &tensor::floats(numbers));
        let texts = texts.into_iter().map(|text| RawValue::Text(text.into())).collect();
        prop_assert_eq!(&columns["d"].values, &RawValues::Any(texts));

        // The same integers, of which some are packed and each of the others has a field.
        let (packed, single) = ints.split_at(split.min(ints.len()));
        let mut contents = whole(packed).encode_to_vec();
        for &x in single {
            prost::encoding::int64::encode(3, &x, &mut contents);
        }
        let mut message = input("a", "INT64", &[ints.len() as i64], whole(&[]));
        message.contents = None;
        let mut message = message.encode_to_vec();
        prost::encoding::bytes::encode(5, &contents, &mut message);
        let mut all = Vec::new();
        prost::encoding::bytes::encode(5, &message, &mut all);
        let parsed = super::parse(&all, &Limits::default(), None).unwrap();
        prop_assert_eq!(&parsed.columns["a"].values, &RawValues::Ints(ints));
    }

    #[test]
    fn no_tensor_is_a_panic(
        shape in prop::collection::vec(prop_oneof![-1i64..4, any::<i64>()], 0..4),
        datatype in "(INT64|INT8|UINT8|FP32|BYTES|BOOL|[A-Z0-9]{0,6})",
        values in prop::collection::vec(any::<i64>(), 0..5),
        small in prop::collection::vec(any::<i32>(), 0..5),
        raw in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..3),
        name in "[a-z]{0,3}(__lengths)?",
    ) {
        let contents = InferTensorContents { int64_contents: values, int_contents: small, ..Default::default() };
        let mut asked = request(vec![input(&name, &datatype, &shape, contents)], Vec::new());
        let _ = parse(&asked);
        asked.raw_input_contents = raw.into_iter().map(Bytes::from).collect();
        let _ = parse(&asked);
    }
}
