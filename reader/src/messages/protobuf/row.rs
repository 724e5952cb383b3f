//! The parser of a message, which stores the values of the fields that are read.

use zillion_feature::TimeUnit;

use super::plan::{ColumnPlan, Form, MessagePlan, Scalar};
use super::wire::{Damage, Tag, Wire, WireType, zigzag};

/// A value of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ProtoValue<'a> {
    Missing,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float(f64),
    Enum(i32),
    /// A string or bytes, which may not be UTF-8.
    Text(&'a [u8]),
}

/// The values of one message. Its memory is reused for the next message.
#[derive(Debug, Default)]
pub(super) struct ProtoRow<'a> {
    /// The value of each column that is no list.
    values: Vec<ProtoValue<'a>>,
    /// The values of each column that is a list.
    lists: Vec<Vec<ProtoValue<'a>>>,
}

/// The problem of a message that cannot be parsed.
#[derive(Debug)]
pub(super) enum RowProblem {
    Damaged(Damage),
    /// The column at this place has another wire type than its type in the schema.
    WireType {
        column: usize,
        found: u8,
    },
}

impl From<Damage> for RowProblem {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

impl<'a> ProtoRow<'a> {
    /// Parses a message. Of several values of a field that is not repeated, the last one counts, as
    /// in all readers of Protobuf.
    ///
    /// # Errors
    /// Returns the problem if the bytes do not follow the wire format, or if a field that is read
    /// has another wire type.
    #[inline]
    pub(super) fn read(&mut self, body: &'a [u8], plan: &MessagePlan) -> Result<(), RowProblem> {
        self.values.clear();
        self.values.extend_from_slice(&plan.defaults);
        self.lists.iter_mut().for_each(Vec::clear);
        self.lists.resize_with(self.lists.len().max(plan.columns.len()), Vec::new);
        let mut wire = Wire::new(body);
        while !wire.is_empty() {
            let tag = wire.tag()?;
            let Some(place) = plan.find(tag.number) else {
                wire.skip(tag)?;
                continue;
            };
            let column = &plan.columns[place];
            if tag.is(column.wire_type()) {
                let value = column.read(&mut wire)?;
                match column.is_list {
                    true => self.lists[place].push(value),
                    false => self.values[place] = value,
                }
            } else if column.is_packable() && tag.is(WireType::Bytes) {
                let mut packed = Wire::new(wire.bytes()?);
                while !packed.is_empty() {
                    self.lists[place].push(column.scalar.read(&mut packed)?);
                }
            } else {
                return Err(RowProblem::WireType { column: place, found: tag.wire_type });
            }
        }
        Ok(())
    }

    /// Returns the value of the column at a place.
    #[inline]
    pub(super) fn value(&self, place: usize) -> ProtoValue<'a> {
        self.values[place]
    }

    /// Returns the values of the repeated column at a place.
    #[inline]
    pub(super) fn list(&self, place: usize) -> &[ProtoValue<'a>] {
        &self.lists[place]
    }
}

impl ColumnPlan {
    #[inline]
    fn read<'a>(&self, wire: &mut Wire<'a>) -> Result<ProtoValue<'a>, Damage> {
        match self.form {
            Form::Plain => self.scalar.read(wire),
            Form::Wrapped => {
                let mut value = self.scalar.default_value();
                read_fields(wire.bytes()?, |tag, inner| {
                    let is_value = tag.number == 1 && tag.is(self.scalar.wire_type());
                    if is_value {
                        value = self.scalar.read(inner)?;
                    }
                    Ok(is_value)
                })?;
                Ok(value)
            }
            Form::Time(unit) => {
                let (mut seconds, mut nanos) = (0, 0);
                read_fields(wire.bytes()?, |tag, inner| {
                    let part = match tag.number {
                        1 => &mut seconds,
                        2 => &mut nanos,
                        _ => return Ok(false),
                    };
                    if tag.is(WireType::Varint) {
                        *part = inner.varint()? as i64;
                    }
                    Ok(tag.is(WireType::Varint))
                })?;
                Ok(ProtoValue::Int(to_unit(seconds, nanos, unit)))
            }
        }
    }
}

/// Calls `read` for each field of a nested message. The function tells whether it has read the
/// value. If not, the value is passed over.
fn read_fields<'a>(
    bytes: &'a [u8],
    mut read: impl FnMut(Tag, &mut Wire<'a>) -> Result<bool, Damage>,
) -> Result<(), Damage> {
    let mut wire = Wire::new(bytes);
    while !wire.is_empty() {
        let tag = wire.tag()?;
        if !read(tag, &mut wire)? {
            wire.skip(tag)?;
        }
    }
    Ok(())
}

/// Returns a time as a number of a unit. A time that does not fit becomes a number that is
/// plausible in no unit.
fn to_unit(seconds: i64, nanos: i64, unit: TimeUnit) -> i64 {
    let of_second: i64 = match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    };
    let part = nanos.div_euclid(1_000_000_000 / of_second);
    seconds.checked_mul(of_second).and_then(|time| time.checked_add(part)).unwrap_or(i64::MIN)
}

impl Scalar {
    /// Reads one value, which has the wire type of the scalar.
    #[inline]
    fn read<'a>(self, wire: &mut Wire<'a>) -> Result<ProtoValue<'a>, Damage> {
        Ok(match self {
            // Readers take the low bits of a number that is too long for its type.
            Self::Int32 => ProtoValue::Int(i64::from(wire.varint()? as i32)),
            Self::Int64 => ProtoValue::Int(wire.varint()? as i64),
            Self::UInt32 => ProtoValue::Int(i64::from(wire.varint()? as u32)),
            Self::UInt64 => unsigned(wire.varint()?),
            Self::SInt32 => ProtoValue::Int(zigzag(u64::from(wire.varint()? as u32))),
            Self::SInt64 => ProtoValue::Int(zigzag(wire.varint()?)),
            Self::Fixed32 => ProtoValue::Int(i64::from(u32::from_le_bytes(wire.fixed()?))),
            Self::Fixed64 => unsigned(u64::from_le_bytes(wire.fixed()?)),
            Self::SFixed32 => ProtoValue::Int(i64::from(i32::from_le_bytes(wire.fixed()?))),
            Self::SFixed64 => ProtoValue::Int(i64::from_le_bytes(wire.fixed()?)),
            Self::Float => ProtoValue::Float(f64::from(f32::from_le_bytes(wire.fixed()?))),
            Self::Double => ProtoValue::Float(f64::from_le_bytes(wire.fixed()?)),
            Self::Bool => ProtoValue::Bool(wire.varint()? != 0),
            Self::Enum => ProtoValue::Enum(wire.varint()? as i32),
            Self::String | Self::Bytes => ProtoValue::Text(wire.bytes()?),
        })
    }
}

#[inline]
fn unsigned<'a>(number: u64) -> ProtoValue<'a> {
    i64::try_from(number).map_or(ProtoValue::UInt(number), ProtoValue::Int)
}
