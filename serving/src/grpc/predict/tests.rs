//! Requests as TensorFlow's clients send them, and as nobody should.

use proptest::prelude::*;
use zillion_feature::RawValue;

use super::*;
use crate::proto::tensorflow::serving::PredictRequest;

/// Reads a message that a generated encoder has written.
fn parse(request: &PredictRequest, limits: &Limits) -> Result<(usize, RawColumns<'static>)> {
    let parsed = super::parse(request.encode_to_vec().leak(), limits, None)?;
    assert_eq!(parsed.outputs, request.output_filter);
    Ok((parsed.rows, parsed.columns))
}

fn shape_of(dims: &[i64]) -> Option<TensorShapeProto> {
    let dim = dims.iter().map(|&size| Dim { size, name: String::new() }).collect();
    Some(TensorShapeProto { dim, unknown_rank: false })
}

fn whole(dims: &[i64], values: &[i64]) -> TensorProto {
    TensorProto {
        dtype: DataType::DtInt64.into(),
        tensor_shape: shape_of(dims),
        int64_val: values.to_vec(),
        ..TensorProto::default()
    }
}

fn request(inputs: Vec<(&str, TensorProto)>) -> PredictRequest {
    let inputs = inputs.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
    PredictRequest { inputs, ..PredictRequest::default() }
}

fn values(tensor: TensorProto) -> Result<RawValues<'static>> {
    let request = request(vec![("x", tensor)]);
    let (_, columns) = parse(&request, &Limits::default())?;
    Ok(match &columns["x"].values {
        RawValues::Ints(values) => RawValues::Ints(values.clone()),
        RawValues::Uints(values) => RawValues::Uints(values.clone()),
        RawValues::Floats(values) => RawValues::Floats(values.clone()),
        RawValues::Any(values) => RawValues::Any(
            values
                .iter()
                .map(|value| match value {
                    RawValue::Text(text) => RawValue::Text(text.to_string().into()),
                    RawValue::Float(x) => RawValue::Float(*x),
                    RawValue::Bool(flag) => RawValue::Bool(*flag),
                    _ => RawValue::Missing,
                })
                .collect(),
        ),
    })
}

fn refused(tensor: TensorProto) -> String {
    values(tensor).unwrap_err().to_string()
}

#[test]
fn values_come_in_the_typed_list_or_as_content() {
    let of = |dtype: DataType| TensorProto {
        dtype: dtype.into(),
        tensor_shape: shape_of(&[2]),
        ..TensorProto::default()
    };
    let ints = |values: &[i64]| RawValues::Ints(values.to_vec());
    let numbers = |values: &[f64]| RawValues::Floats(values.to_vec());
    let text = |text: &str| RawValue::Text(text.to_owned().into());
    for (tensor, wanted) in [
        (whole(&[2], &[7, -8]), ints(&[7, -8])),
        (
            TensorProto {
                tensor_content: vec![1, 0, 0, 0, 2, 0, 0, 0].into(),
                ..of(DataType::DtInt32)
            },
            ints(&[1, 2]),
        ),
        (TensorProto { int_val: vec![255, 0], ..of(DataType::DtUint8) }, ints(&[255, 0])),
        (
            TensorProto { bool_val: vec![true, false], ..of(DataType::DtBool) },
            RawValues::Any(vec![RawValue::Bool(true), RawValue::Bool(false)]),
        ),
        (
            TensorProto { uint64_val: vec![u64::MAX, 1], ..of(DataType::DtUint64) },
            RawValues::Uints(vec![u64::MAX, 1]),
        ),
        (
            TensorProto { half_val: vec![0x3c00, 0xc100], ..of(DataType::DtHalf) },
            numbers(&[1.0, -2.5]),
        ),
        (
            TensorProto { half_val: vec![0x3f80, 0xc020], ..of(DataType::DtBfloat16) },
            numbers(&[1.0, -2.5]),
        ),
        (TensorProto { float_val: vec![0.5, 2.0], ..of(DataType::DtFloat) }, numbers(&[0.5, 2.0])),
        (
            TensorProto { double_val: vec![0.1, f64::NAN], ..of(DataType::DtDouble) },
            RawValues::Any(vec![RawValue::Float(0.1), RawValue::Missing]),
        ),
        (
            TensorProto { string_val: vec!["a".into(), "".into()], ..of(DataType::DtString) },
            RawValues::Any(vec![text("a"), text("")]),
        ),
        // One value stands for all, and is kept once.
        (whole(&[3], &[9]), ints(&[9])),
        (whole(&[1, 3], &[9]), ints(&[9, 9, 9])),
        (
            TensorProto { string_val: vec!["a".into()], ..of(DataType::DtString) },
            RawValues::Any(vec![text("a")]),
        ),
    ] {
        assert_eq!(values(tensor.clone()).unwrap(), wanted, "{tensor:?}");
    }
}

#[test]
fn unfit_tensors_are_refused_by_name() {
    assert!(
        refused(whole(&[3], &[1, 2]))
            .contains("input `x`: the shape [3] does not fit the 2 values")
    );
    assert!(refused(whole(&[-1], &[1])).contains("input `x`: the shape has a negative size"));
    assert!(refused(whole(&[1 << 40], &[1])).contains("raise the setting `serve.max_values`"));
    assert!(
        refused(whole(&[i64::MAX, i64::MAX], &[1])).contains(
            "input `x`: the shape [9223372036854775807, 9223372036854775807] is too large"
        )
    );
    assert!(refused(whole(&[], &[1])).contains("must be [rows]"));
    let unknown = TensorShapeProto { unknown_rank: true, ..TensorShapeProto::default() };
    let unknown = TensorProto { tensor_shape: Some(unknown), ..whole(&[], &[1]) };
    assert!(refused(unknown).contains("input `x`: the rank of the tensor is unknown"));
    let complex = TensorProto { dtype: DataType::DtComplex64.into(), ..whole(&[1], &[1]) };
    assert!(
        refused(complex).contains("input `x`: a feature cannot be a tensor of dtype DT_COMPLEX64")
    );
    let nothing = TensorProto { dtype: 999, ..whole(&[1], &[1]) };
    assert!(refused(nothing).contains("dtype 999"));
    let text = TensorProto {
        dtype: DataType::DtString.into(),
        tensor_content: "ab".into(),
        ..whole(&[1], &[])
    };
    assert!(refused(text).contains("send them in `string_val`"));
    let streamed = PredictRequest {
        predict_streamed_options: Some(Default::default()),
        ..request(vec![("x", whole(&[1], &[1]))])
    };
    let refused = parse(&streamed, &Limits::default()).unwrap_err().to_string();
    assert!(refused.contains("predict_streamed_options"), "{refused}");
}

#[test]
fn versions_are_numbers_or_labels() {
    let of = |version_choice| {
        let spec = ModelSpec { name: "m".to_owned(), version_choice, ..ModelSpec::default() };
        let request = PredictRequest { model_spec: Some(spec), ..PredictRequest::default() };
        Predict
            .target(&request.encode_to_vec().into())
            .map(|target| (target.model, target.selector))
    };
    let m = || "m".to_owned();
    assert_eq!(of(None).unwrap(), (m(), Selector::Default));
    let number = |value| Some(VersionChoice::Version(Int64Value { value }));
    assert_eq!(of(number(7)).unwrap(), (m(), Selector::Version(VersionId(7))));
    assert!(of(number(-7)).unwrap_err().to_string().contains("version -7"));
    let label = Some(VersionChoice::VersionLabel("canary".to_owned()));
    assert_eq!(of(label).unwrap(), (m(), Selector::Label("canary".to_owned())));
    let signature = ModelSpec { signature_name: "other".to_owned(), ..ModelSpec::default() };
    assert!(
        check_signature(&signature).unwrap_err().to_string().contains("unknown signature `other`")
    );
}

/// Returns the bytes of memory that columns take.
fn bytes_of(columns: &RawColumns<'_>) -> usize {
    let of = |column: &zillion_feature::RawColumn<'_>| {
        let values = match &column.values {
            RawValues::Ints(values) => values.capacity() * size_of::<i64>(),
            RawValues::Uints(values) => values.capacity() * size_of::<u64>(),
            RawValues::Floats(values) => values.capacity() * size_of::<f64>(),
            RawValues::Any(values) => values.capacity() * size_of::<RawValue<'_>>(),
        };
        let lengths = column.lengths.as_ref().map_or(0, Vec::capacity);
        values + lengths * size_of::<usize>()
    };
    columns.values().map(of).sum()
}

/// Returns a message with `inputs` inputs. Each input has the shape `dims` and a single text, which
/// stands for all of its elements.
fn constants(inputs: usize, dims: &[i64]) -> Vec<u8> {
    let tensor = TensorProto {
        dtype: DataType::DtString.into(),
        tensor_shape: shape_of(dims),
        string_val: vec!["a".into()],
        ..TensorProto::default()
    };
    let inputs = (0..inputs).map(|at| (format!("x{at:02}"), tensor.clone())).collect();
    PredictRequest { inputs, ..PredictRequest::default() }.encode_to_vec()
}

#[test]
fn a_small_message_takes_little_memory() {
    let limits = Limits::default();
    let rows = limits.rows as i64;
    let message = constants(40, &[rows]);
    assert!(message.len() < 1024);
    let parsed = super::parse(&message, &limits, None).unwrap();
    assert_eq!((parsed.rows, parsed.columns.len()), (limits.rows, 40));
    assert!(bytes_of(&parsed.columns) <= 8 * message.len(), "{}", bytes_of(&parsed.columns));
    for (inputs, dims, refusal) in [
        (40, &[limits.values as i64][..], "serve.max_values"),
        (2, &[rows, 200], "serve.max_values"),
        (1, &[rows + 1], "serve.max_rows"),
        (1, &[rows + 1, 0], "serve.max_rows"),
        (40, &[1, 1 << 15], "one value stands for a list"),
    ] {
        let refused = super::parse(&constants(inputs, dims), &limits, None).unwrap_err();
        assert!(refused.to_string().contains(refusal), "{dims:?}: {refused}");
    }
    let widest = constants(40, &[1, 1 << 14]);
    let widest = bytes_of(&super::parse(&widest, &limits, None).unwrap().columns);
    assert!(widest < 16 << 20, "{widest}");
}

#[test]
fn unknown_inputs_are_refused_before_their_values() {
    use zillion_feature::{Schema, Statistics};
    let job = "[features.user]\nkind = 'id'\n[labels.y]".parse::<toml::Table>().unwrap();
    let schema = Schema::from_job(&job.into()).unwrap();
    let encoder = Encoder::new(&schema, &Statistics::default(), &[]).unwrap();
    // The values alone would be too many.
    let message = constants(1, &[1 << 40]);
    let refused = super::parse(&message, &Limits::default(), Some(&encoder)).unwrap_err();
    assert!(refused.to_string().contains("the model has no input of this name"), "{refused}");
    let user = request(vec![("user", whole(&[2], &[7]))]).encode_to_vec();
    assert_eq!(super::parse(&user, &Limits::default(), Some(&encoder)).unwrap().rows, 2);
}

#[test]
fn shapes_and_entries_are_small() {
    let dims = TensorProto { tensor_shape: shape_of(&[1; 33]), ..whole(&[1], &[1]) };
    assert!(refused(dims).contains("more than 32 dimensions"));
    let long = request(vec![("x", whole(&[1], &[1])), (&"n".repeat(1025), whole(&[1], &[1]))]);
    let long = parse(&long, &Limits::default()).unwrap_err().to_string();
    assert!(long.contains("a name in the message"), "{long}");
    let mut twice = request(vec![("x", whole(&[1], &[1]))]).encode_to_vec();
    twice.extend(twice.clone());
    let twice = super::parse(&twice, &Limits::default(), None).unwrap_err().to_string();
    assert!(twice.contains("input `x`: the request has this input twice"), "{twice}");
}

#[test]
fn a_description_in_many_pieces_is_short_all_the_same() {
    let piece = |bytes: usize| {
        let spec = ModelSpec { name: "m".repeat(bytes), ..ModelSpec::default() };
        PredictRequest { model_spec: Some(spec), ..PredictRequest::default() }.encode_to_vec()
    };
    let target = |pieces: usize, bytes| Predict.target(&piece(bytes).repeat(pieces).into());
    assert_eq!(target(2, 1000).unwrap().model.len(), 1000);
    for (pieces, bytes) in [(1, 5000), (5, 1000), (16_000, 1000)] {
        let refused = target(pieces, bytes).unwrap_err();
        assert!(matches!(refused, ServeError::TooLarge { limit: 4096, .. }), "{refused}");
    }
}

proptest! {
    #[test]
    fn no_message_is_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        let _ = Predict.target(&bytes);
        let _ = super::parse(&bytes, &Limits::default(), None);
    }

    #[test]
    fn no_tensor_is_a_panic(
        dims in prop::collection::vec(prop_oneof![-1i64..4, any::<i64>()], 0..4),
        dtype in 0i32..40,
        whole_values in prop::collection::vec(any::<i64>(), 0..4),
        small in prop::collection::vec(any::<i32>(), 0..4),
        content in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let tensor = TensorProto {
            dtype,
            int_val: small.clone(),
            half_val: small,
            tensor_content: content.into(),
            ..whole(&dims, &whole_values)
        };
        let limits = Limits { values: 1000, ..Limits::default() };
        let _ = parse(&request(vec![("x", tensor)]), &limits);
    }
}
