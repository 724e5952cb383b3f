//! The types of a tensor's elements, under the names of the Open Inference Protocol.

use zillion_feature::RawValue;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datatype {
    /// A truth value in one byte, 0 or 1.
    Bool,
    /// A signed integer of 1 byte.
    Int8,
    /// A signed integer of 2 bytes.
    Int16,
    /// A signed integer of 4 bytes.
    Int32,
    /// A signed integer of 8 bytes.
    Int64,
    /// An unsigned integer of 1 byte.
    Uint8,
    /// An unsigned integer of 2 bytes.
    Uint16,
    /// An unsigned integer of 4 bytes.
    Uint32,
    /// An unsigned integer of 8 bytes.
    Uint64,
    /// A floating-point number of 2 bytes (IEEE 754).
    Fp16,
    /// The upper 2 bytes of an `Fp32`.
    Bf16,
    /// A floating-point number of 4 bytes (IEEE 754).
    Fp32,
    /// A floating-point number of 8 bytes (IEEE 754).
    Fp64,
    /// A text of any length.
    Bytes,
}

/// A type with its name, its width in bytes, and the least and the greatest value of an integer
/// type.
type Facts = (Datatype, &'static str, Option<usize>, Option<(i64, u64)>);

/// The facts about each type, in the order of their declaration.
const TYPES: [Facts; 14] = [
    (Datatype::Bool, "BOOL", Some(1), Some((0, 1))),
    (Datatype::Int8, "INT8", Some(1), Some((i8::MIN as i64, i8::MAX as u64))),
    (Datatype::Int16, "INT16", Some(2), Some((i16::MIN as i64, i16::MAX as u64))),
    (Datatype::Int32, "INT32", Some(4), Some((i32::MIN as i64, i32::MAX as u64))),
    (Datatype::Int64, "INT64", Some(8), Some((i64::MIN, i64::MAX as u64))),
    (Datatype::Uint8, "UINT8", Some(1), Some((0, u8::MAX as u64))),
    (Datatype::Uint16, "UINT16", Some(2), Some((0, u16::MAX as u64))),
    (Datatype::Uint32, "UINT32", Some(4), Some((0, u32::MAX as u64))),
    (Datatype::Uint64, "UINT64", Some(8), Some((0, u64::MAX))),
    (Datatype::Fp16, "FP16", Some(2), None),
    (Datatype::Bf16, "BF16", Some(2), None),
    (Datatype::Fp32, "FP32", Some(4), None),
    (Datatype::Fp64, "FP64", Some(8), None),
    (Datatype::Bytes, "BYTES", None, None),
];

impl Datatype {
    /// Returns all types, in the order of the protocol.
    pub fn all() -> impl Iterator<Item = Self> {
        TYPES.iter().map(|&(datatype, ..)| datatype)
    }

    /// Returns the type of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().find(|datatype| datatype.name() == name)
    }

    /// Returns the protocol's name of the type.
    pub fn name(self) -> &'static str {
        TYPES[self as usize].1
    }

    /// Returns the number of bytes of an element, or `None` for texts, whose lengths differ.
    pub(crate) fn width(self) -> Option<usize> {
        TYPES[self as usize].2
    }

    /// Returns whether elements may have a fraction.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Fp16 | Self::Bf16 | Self::Fp32 | Self::Fp64)
    }

    /// Returns the least and the greatest value of an integer type, and `None` for other types.
    pub(crate) fn range(self) -> Option<(i64, u64)> {
        TYPES[self as usize].3
    }

    /// Returns whether a value of a text format may be an element of this type.
    pub(crate) fn takes(self, value: &RawValue<'_>) -> bool {
        let Some((low, high)) = self.range() else {
            return match value {
                RawValue::Missing => true,
                RawValue::Text(_) => self == Self::Bytes,
                RawValue::Bool(_) => false,
                _ => self.is_float(),
            };
        };
        match value {
            RawValue::Missing => true,
            RawValue::Int(x) => {
                *x >= low && u64::try_from(*x).is_ok_and(|x| x <= high) || (low..0).contains(x)
            }
            RawValue::Uint(x) => *x <= high,
            RawValue::Bool(_) => self == Self::Bool,
            RawValue::Float(_) | RawValue::Text(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for datatype in Datatype::all() {
            assert_eq!(Datatype::parse(datatype.name()), Some(datatype));
            assert_eq!(format!("{datatype:?}").to_uppercase(), datatype.name());
        }
        assert_eq!(Datatype::parse("int64"), None);
        assert_eq!(Datatype::parse("FP8"), None);
    }

    #[test]
    fn integer_types_take_values_in_their_range() {
        for (datatype, takes, refuses) in [
            (Datatype::Int8, [-128i64, 127], [-129, 128]),
            (Datatype::Uint16, [0, 65_535], [-1, 65_536]),
            (Datatype::Bool, [0, 1], [-1, 2]),
        ] {
            assert!(takes.iter().all(|&x| datatype.takes(&RawValue::Int(x))), "{datatype:?}");
            assert!(!refuses.iter().any(|&x| datatype.takes(&RawValue::Int(x))), "{datatype:?}");
            assert!(!datatype.takes(&RawValue::Float(1.0)) && datatype.takes(&RawValue::Missing));
        }
        assert!(Datatype::Int64.takes(&RawValue::Int(i64::MIN)));
        assert!(!Datatype::Int64.takes(&RawValue::Uint(u64::MAX)));
        assert!(Datatype::Uint64.takes(&RawValue::Uint(u64::MAX)));
        assert!(
            Datatype::Fp16.takes(&RawValue::Int(3)) && !Datatype::Bytes.takes(&RawValue::Int(3))
        );
    }
}
