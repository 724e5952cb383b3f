//! The raw form of tensors: little-endian elements in sequence. A text is its length in four
//! bytes, followed by its UTF-8. Triton's binary extension of HTTP and `raw_input_contents` of
//! gRPC have this form.
//!
//! Bytes may lie at any address, so that elements are copied and never cast.

use std::borrow::Cow;

use zillion_feature::{RawValue, RawValues};

use super::Datatype;

/// Reads this number of elements of a datatype. NaN is a missing value, because bytes have no
/// other way to express it.
///
/// # Errors
/// Returns the reason if the bytes are not so many elements of this type. The caller adds the
/// name of the input.
pub fn decode(datatype: Datatype, elements: usize, bytes: &[u8]) -> Result<RawValues<'_>, String> {
    if let Some(width) = datatype.width()
        && elements.checked_mul(width) != Some(bytes.len())
    {
        return Err(format!(
            "the raw data has {} bytes, but {elements} elements of {} need {width} bytes each; \
             correct the shape or the data",
            bytes.len(),
            datatype.name()
        ));
    }
    Ok(match datatype {
        Datatype::Bool => {
            if let Some(at) = bytes.iter().position(|&byte| byte > 1) {
                let value = bytes[at];
                return Err(format!(
                    "value {at} of the raw data is {value}, but BOOL is 0 or 1; send 0 or 1"
                ));
            }
            RawValues::Any(bytes.iter().map(|&x| RawValue::Bool(x == 1)).collect())
        }
        Datatype::Int8 => RawValues::Ints(numbers(bytes, i8::from_le_bytes)),
        Datatype::Int16 => RawValues::Ints(numbers(bytes, i16::from_le_bytes)),
        Datatype::Int32 => RawValues::Ints(numbers(bytes, i32::from_le_bytes)),
        Datatype::Int64 => RawValues::Ints(numbers(bytes, i64::from_le_bytes)),
        Datatype::Uint8 => RawValues::Uints(numbers(bytes, u8::from_le_bytes)),
        Datatype::Uint16 => RawValues::Uints(numbers(bytes, u16::from_le_bytes)),
        Datatype::Uint32 => RawValues::Uints(numbers(bytes, u32::from_le_bytes)),
        Datatype::Uint64 => RawValues::Uints(numbers(bytes, u64::from_le_bytes)),
        Datatype::Fp32 => floats(numbers(bytes, f32::from_le_bytes)),
        Datatype::Fp64 => floats(numbers(bytes, f64::from_le_bytes)),
        Datatype::Fp16 | Datatype::Bf16 => {
            floats(numbers(bytes, |x| from_half(datatype, u16::from_le_bytes(x))))
        }
        Datatype::Bytes => RawValues::Any(texts(elements, bytes)?),
    })
}

/// Returns scores as the bytes of an `FP32` tensor.
pub fn encode_scores(scores: &[f32]) -> Vec<u8> {
    scores.iter().flat_map(|score| score.to_le_bytes()).collect()
}

/// Returns values as bytes: integers of 8 bytes, numbers as `FP64` if one has a fraction or is
/// missing, texts as `BYTES`. Returns `None` if no type holds all of them: text beside numbers or a
/// missing value, negative integers beside integers beyond `i64`, or integers beyond 2⁵³ beside
/// fractions.
pub fn encode(values: &RawValues<'_>) -> Option<(Datatype, Vec<u8>)> {
    Some(match values {
        RawValues::Ints(values) => {
            (Datatype::Int64, values.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        RawValues::Uints(values) => {
            (Datatype::Uint64, values.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        RawValues::Floats(values) => {
            (Datatype::Fp64, values.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        RawValues::Any(values) => {
            let all = |bytes: Option<Vec<[u8; 8]>>| bytes.map(|bytes| bytes.concat());
            if let Some(bytes) = all(values.iter().map(as_i64).collect()) {
                (Datatype::Int64, bytes)
            } else if let Some(bytes) = all(values.iter().map(as_u64).collect()) {
                (Datatype::Uint64, bytes)
            } else if let Some(bytes) = all(values.iter().map(as_f64).collect()) {
                (Datatype::Fp64, bytes)
            } else {
                (Datatype::Bytes, as_texts(values)?)
            }
        }
    })
}

fn as_i64(value: &RawValue<'_>) -> Option<[u8; 8]> {
    match value {
        RawValue::Int(x) => Some(x.to_le_bytes()),
        RawValue::Uint(x) => i64::try_from(*x).ok().map(i64::to_le_bytes),
        _ => None,
    }
}

fn as_u64(value: &RawValue<'_>) -> Option<[u8; 8]> {
    match value {
        RawValue::Int(x) => u64::try_from(*x).ok().map(u64::to_le_bytes),
        RawValue::Uint(x) => Some(x.to_le_bytes()),
        _ => None,
    }
}

fn as_f64(value: &RawValue<'_>) -> Option<[u8; 8]> {
    const EXACT: u64 = 1 << f64::MANTISSA_DIGITS;
    let number = match value {
        RawValue::Int(x) => (x.unsigned_abs() <= EXACT).then_some(*x as f64)?,
        RawValue::Uint(x) => (*x <= EXACT).then_some(*x as f64)?,
        RawValue::Float(x) => *x,
        RawValue::Missing => f64::NAN,
        RawValue::Bool(_) | RawValue::Text(_) => return None,
    };
    Some(number.to_le_bytes())
}

fn as_texts(values: &[RawValue<'_>]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for value in values {
        let RawValue::Text(text) = value else { return None };
        bytes.extend(u32::try_from(text.len()).ok()?.to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    Some(bytes)
}

/// Reads numbers of `N` bytes each. The caller has checked that no bytes remain.
fn numbers<const N: usize, T, U: From<T>>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<U> {
    bytes.as_chunks::<N>().0.iter().map(|&bytes| read(bytes).into()).collect()
}

/// Returns numbers, with NaN as a missing value.
pub(crate) fn floats(values: Vec<f64>) -> RawValues<'static> {
    if !values.iter().any(|x| x.is_nan()) {
        return RawValues::Floats(values);
    }
    let value = |x: f64| if x.is_nan() { RawValue::Missing } else { RawValue::Float(x) };
    RawValues::Any(values.into_iter().map(value).collect())
}

fn texts(elements: usize, mut bytes: &[u8]) -> Result<Vec<RawValue<'_>>, String> {
    // Each text has at least four bytes, so that the number of texts is checked before it is
    // believed.
    if elements.checked_mul(4).is_none_or(|least| least > bytes.len()) {
        return Err(format!(
            "the raw data has {} bytes, but the lengths of {elements} texts alone need 4 bytes \
             each; correct the shape or the data",
            bytes.len()
        ));
    }
    let mut values = Vec::with_capacity(elements);
    for at in 0..elements {
        let cut = || {
            format!(
                "the raw data ends inside text {at} of {elements} (counted from 0); send whole \
                 texts"
            )
        };
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (text, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
        values.push(RawValue::Text(Cow::Borrowed(utf8(text, at)?)));
        bytes = rest;
    }
    match bytes.len() {
        0 => Ok(values),
        more => Err(format!(
            "the raw data has {more} bytes after its {elements} texts; correct the shape or the \
             data"
        )),
    }
}

/// Reads a text. Ids are UTF-8 here, as they are in training data.
pub(crate) fn utf8(bytes: &[u8], at: usize) -> Result<&str, String> {
    std::str::from_utf8(bytes)
        .map_err(|_| format!("value {at} of the data is not UTF-8 text; send UTF-8"))
}

/// Returns the number that the bits of an `FP16` or `BF16` element represent.
pub(crate) fn from_half(datatype: Datatype, bits: u16) -> f32 {
    match datatype {
        Datatype::Bf16 => f32::from_bits(u32::from(bits) << 16),
        _ => half(bits),
    }
}

/// Returns the value of the bits of a half-precision number, which `f32` represents exactly.
fn half(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(datatype: Datatype, elements: usize, bytes: &[u8]) -> String {
        decode(datatype, elements, bytes).unwrap_err()
    }

    #[test]
    fn each_type_is_read() {
        let ints = |values: &[i64]| RawValues::Ints(values.to_vec());
        let uints = |values: &[u64]| RawValues::Uints(values.to_vec());
        let numbers = |values: &[f64]| RawValues::Floats(values.to_vec());
        for (datatype, bytes, wanted) in [
            (
                Datatype::Bool,
                vec![1, 0],
                RawValues::Any(vec![RawValue::Bool(true), RawValue::Bool(false)]),
            ),
            (Datatype::Int8, vec![255, 127], ints(&[-1, 127])),
            (Datatype::Int16, vec![254, 255, 1, 0], ints(&[-2, 1])),
            (Datatype::Int32, vec![0, 0, 0, 128, 2, 0, 0, 0], ints(&[i32::MIN.into(), 2])),
            (Datatype::Uint8, vec![255, 0], uints(&[255, 0])),
            (Datatype::Uint16, vec![255, 255, 1, 0], uints(&[65_535, 1])),
            (Datatype::Uint32, vec![255; 8], uints(&[u32::MAX.into(); 2])),
            (Datatype::Uint64, vec![255; 16], uints(&[u64::MAX; 2])),
            (Datatype::Fp16, vec![0, 0x3c, 0, 0xc1], numbers(&[1.0, -2.5])),
            (Datatype::Bf16, vec![0x80, 0x3f, 0x20, 0xc0], numbers(&[1.0, -2.5])),
            (Datatype::Fp32, [0.5f32, -1.0].map(f32::to_le_bytes).concat(), numbers(&[0.5, -1.0])),
            (Datatype::Fp64, [0.1f64, -1.0].map(f64::to_le_bytes).concat(), numbers(&[0.1, -1.0])),
        ] {
            assert_eq!(decode(datatype, 2, &bytes).as_ref(), Ok(&wanted), "{datatype:?}");
            let short = refused(datatype, 3, &bytes);
            assert!(short.contains("elements of"), "{short}");
        }
        let texts = decode(Datatype::Bytes, 2, b"\x02\0\0\0ab\0\0\0\0").unwrap();
        let text = |t: &'static str| RawValue::Text(t.into());
        assert_eq!(texts, RawValues::Any(vec![text("ab"), text("")]));
        let nan = f32::NAN.to_le_bytes();
        let missing = decode(Datatype::Fp32, 1, &nan).unwrap();
        assert_eq!(missing, RawValues::Any(vec![RawValue::Missing]));
    }

    #[test]
    fn unfit_bytes_are_refused_with_a_reason() {
        assert!(refused(Datatype::Bool, 1, &[2]).contains("BOOL is 0 or 1"));
        assert!(refused(Datatype::Bytes, 2, b"\x02\0\0\0ab\0\0\0").contains("inside text 1 of 2"));
        assert!(refused(Datatype::Bytes, 1, b"\xff\xff\xff\xffab").contains("inside text 0"));
        assert!(refused(Datatype::Bytes, 1, b"\x01\0\0\0ab").contains("has 1 bytes after"));
        assert!(refused(Datatype::Bytes, 1, b"\x01\0\0\0\xff").contains("not UTF-8"));
        assert!(refused(Datatype::Bytes, usize::MAX, b"").contains("texts alone"));
        assert!(refused(Datatype::Fp64, usize::MAX, b"12345678").contains("8 bytes each"));
    }

    #[test]
    fn values_get_the_type_that_loses_nothing() {
        let of = |values: &[RawValue<'static>]| {
            encode(&RawValues::Any(values.to_vec())).map(|(datatype, _)| datatype)
        };
        let (missing, text) = (RawValue::Missing, RawValue::Text("a".into()));
        let (low, high) = (RawValue::Int(-1), RawValue::Uint(u64::MAX));
        let big = RawValue::Int((1 << 53) + 1);
        assert_eq!(of(&[low.clone(), RawValue::Uint(7)]), Some(Datatype::Int64));
        assert_eq!(of(&[RawValue::Int(1), high.clone()]), Some(Datatype::Uint64));
        assert_eq!(of(&[low.clone(), missing.clone()]), Some(Datatype::Fp64));
        assert_eq!(of(&[text.clone(), text.clone()]), Some(Datatype::Bytes));
        for mixed in
            [[low, high], [big, missing.clone()], [text.clone(), missing], [text, RawValue::Int(1)]]
        {
            assert_eq!(of(&mixed), None, "{mixed:?}");
        }
    }

    #[test]
    fn halves_are_exact() {
        for (bits, wanted) in [
            (0x0001u16, 2f32.powi(-24)),
            (0x03ff, 1023.0 * 2f32.powi(-24)),
            (0x0400, 2f32.powi(-14)),
            (0x3555, 0.333_251_95),
            (0x7bff, 65_504.0),
            (0xfc00, f32::NEG_INFINITY),
            (0x8000, -0.0),
        ] {
            assert_eq!(half(bits).to_bits(), wanted.to_bits(), "{bits:#x}");
        }
        assert!(half(0x7e00).is_nan());
    }

    fn any_values() -> impl Strategy<Value = RawValues<'static>> {
        let text = ".{0,12}".prop_map(|text| RawValue::Text(Cow::Owned(text)));
        prop_oneof![
            prop::collection::vec(any::<i64>(), 0..20).prop_map(RawValues::Ints),
            prop::collection::vec(any::<u64>(), 0..20).prop_map(RawValues::Uints),
            prop::collection::vec(-1e300..1e300, 0..20).prop_map(RawValues::Floats),
            prop::collection::vec(text, 1..20).prop_map(RawValues::Any),
        ]
    }

    proptest! {
        #[test]
        fn written_tensors_are_read_back(values in any_values()) {
            let (datatype, bytes) = encode(&values).unwrap();
            prop_assert_eq!(decode(datatype, values.len(), &bytes), Ok(values));
        }

        #[test]
        fn scores_keep_their_bits(bits in prop::collection::vec(any::<u32>(), 0..20)) {
            let scores: Vec<f32> = bits.iter().map(|&x| f32::from_bits(x)).collect();
            let bytes = encode_scores(&scores);
            let again: Vec<u32> = numbers(&bytes, u32::from_le_bytes);
            prop_assert_eq!(again, bits);
        }

        #[test]
        fn no_bytes_are_a_panic(
            datatype in prop::sample::select(Datatype::all().collect::<Vec<_>>()),
            elements in prop_oneof![0usize..40, any::<usize>()],
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            lengths in prop::collection::vec(0u8..3, 0..12),
        ) {
            if let Ok(values) = decode(datatype, elements, &bytes) {
                prop_assert_eq!(values.len(), elements);
            }
            // These lengths may be right.
            let texts: Vec<u8> = lengths.iter().flat_map(|&n| [n, 0, 0, 0, b'x', b'y']).collect();
            let _ = decode(Datatype::Bytes, lengths.len(), &texts);
        }
    }
}
