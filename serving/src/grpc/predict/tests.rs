//! Requests as TensorFlow's clients send them, and as nobody should.

use proptest::prelude::*;
use zillion_feature::RawValue;

use super::*;

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
        // One value stands for all.
        (whole(&[3], &[9]), ints(&[9, 9, 9])),
        (
            TensorProto { string_val: vec!["a".into()], ..of(DataType::DtString) },
            RawValues::Any(vec![text("a"), text("a")]),
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
        refused(whole(&[i64::MAX, i64::MAX], &[1]))
            .contains("raise the setting `serve.max_values`")
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
    assert!(refused(text).contains("belong in `string_val`"));
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

proptest! {
    #[test]
    fn no_message_is_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        let _ = Predict.target(&bytes);
        if let Ok(request) = PredictRequest::decode(bytes) {
            let _ = parse(&request, &Limits::default());
        }
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
