//! The plan by which messages of one type are decoded: the fields that are read, and the columns
//! that they become.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field as ArrowField, Fields, Schema, TimeUnit as ArrowUnit};
use protox::prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use zillion_feature::TimeUnit;

use super::row::ProtoValue;
use super::wire::WireType;
use crate::field::{Field, Role};
use crate::messages::batch::BatchPlan;
use crate::messages::rejected::Rejection;

/// The field numbers below this one are found by their place in a list.
const DENSE: u32 = 1024;
/// The place that stands for a field that no column reads.
const UNREAD: u16 = u16::MAX;

/// The plan by which messages of one type are decoded.
#[derive(Debug)]
pub(super) struct MessagePlan {
    /// The columns that are read. A column that several fields of the job read is here once.
    pub(super) columns: Vec<ColumnPlan>,
    /// For each field of the job, the place of its column.
    pub(super) column_of: Vec<usize>,
    /// The values of the columns in a message without fields.
    pub(super) defaults: Vec<ProtoValue<'static>>,
    /// For each low number of a field, the place of its column or [`UNREAD`].
    dense: Vec<u16>,
    /// The places of the columns whose fields have higher numbers.
    sparse: HashMap<u32, usize>,
}

/// One field of a message that is read.
#[derive(Debug)]
pub(super) struct ColumnPlan {
    pub(super) name: String,
    pub(super) scalar: Scalar,
    pub(super) form: Form,
    /// Whether the field is repeated.
    pub(super) is_list: bool,
    /// The names of the values of an enum, sorted by their numbers.
    names: Vec<(i32, String)>,
}

/// The scalar types of Protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Bool,
    Int32,
    Int64,
    UInt32,
    UInt64,
    SInt32,
    SInt64,
    Fixed32,
    Fixed64,
    SFixed32,
    SFixed64,
    Float,
    Double,
    Enum,
    String,
    Bytes,
}

/// The form of a value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The value itself, without a message around it.
    Plain,
    /// A message of `google/protobuf/wrappers.proto` around the value.
    Wrapped,
    /// A message `google.protobuf.Timestamp`, which becomes a number of this unit.
    Time(TimeUnit),
}

impl MessagePlan {
    /// Makes the plan by which the fields of a job are read from messages of a type.
    ///
    /// # Errors
    /// Returns a rejection if a column is missing or has another type.
    pub(super) fn new(message: &MessageDescriptor, fields: &[Field]) -> Result<Self, Rejection> {
        let (mut members, mut types) = (Vec::new(), Vec::new());
        for member in message.fields() {
            let column = ColumnPlan::new(&member, time_unit(fields, member.name()));
            types.push(ArrowField::new(member.name(), arrow_type(&member, column.as_ref()), true));
            members.push((member, column));
        }
        let found = BatchPlan::new(&Schema::new(types), fields)?;
        let mut plan = Self {
            columns: Vec::new(),
            column_of: Vec::new(),
            defaults: Vec::new(),
            dense: Vec::new(),
            sparse: HashMap::new(),
        };
        let mut places = vec![None; members.len()];
        for (index, field) in fields.iter().enumerate() {
            let member = found.column_of(index);
            let place = match places[member] {
                Some(place) => place,
                None => {
                    let (descriptor, column) = &mut members[member];
                    // The check of the types has accepted only columns of scalars.
                    let Some(column) = column.take() else {
                        return Err(Rejection::of_schema(format!(
                            "column `{}` is a message; name another column",
                            field.column
                        )));
                    };
                    plan.add(descriptor, column)
                }
            };
            places[member] = Some(place);
            plan.column_of.push(place);
        }
        Ok(plan)
    }

    fn add(&mut self, field: &FieldDescriptor, column: ColumnPlan) -> usize {
        let (place, number) = (self.columns.len(), field.number());
        self.defaults.push(match field.supports_presence() || column.is_list {
            true => ProtoValue::Missing,
            false => column.scalar.default_value(),
        });
        self.columns.push(column);
        match u16::try_from(place) {
            Ok(small) if number < DENSE && small < UNREAD => {
                let length = self.dense.len().max(number as usize + 1);
                self.dense.resize(length, UNREAD);
                self.dense[number as usize] = small;
            }
            _ => drop(self.sparse.insert(number, place)),
        }
        place
    }

    /// Returns the place of the column that reads the field with this number.
    #[inline]
    pub(super) fn find(&self, number: u32) -> Option<usize> {
        match self.dense.get(number as usize) {
            Some(&place) if place != UNREAD => Some(usize::from(place)),
            _ if self.sparse.is_empty() => None,
            _ => self.sparse.get(&number).copied(),
        }
    }
}

impl ColumnPlan {
    /// Returns the plan for a field, or `None` if the field is a message that is no value.
    fn new(field: &FieldDescriptor, unit: Option<TimeUnit>) -> Option<Self> {
        if field.is_map() || field.is_group() {
            return None;
        }
        let kind = field.kind();
        let (kind, form) = match &kind {
            Kind::Message(message) => match message.full_name() {
                "google.protobuf.Timestamp" => {
                    (Kind::Int64, Form::Time(unit.unwrap_or(TimeUnit::Millisecond)))
                }
                name if is_wrapper(name) => (message.get_field(1)?.kind(), Form::Wrapped),
                _ => return None,
            },
            _ => (kind, Form::Plain),
        };
        let names = kind.as_enum().map(names_of).unwrap_or_default();
        let (name, is_list) = (field.name().to_owned(), field.is_list());
        Some(Self { name, scalar: Scalar::of(&kind)?, form, is_list, names })
    }

    /// Returns the wire type of one value.
    #[inline]
    pub(super) fn wire_type(&self) -> WireType {
        match self.form {
            Form::Plain => self.scalar.wire_type(),
            Form::Wrapped | Form::Time(_) => WireType::Bytes,
        }
    }

    /// Returns whether several values may lie in one field.
    #[inline]
    pub(super) fn is_packable(&self) -> bool {
        self.is_list && self.wire_type() != WireType::Bytes
    }

    /// Returns the name of a value of the enum, or `None` if the schema does not have the value.
    pub(super) fn name_of(&self, number: i32) -> Option<&str> {
        let place = self.names.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        Some(&self.names[place].1)
    }
}

impl Scalar {
    fn of(kind: &Kind) -> Option<Self> {
        Some(match kind {
            Kind::Bool => Self::Bool,
            Kind::Int32 => Self::Int32,
            Kind::Int64 => Self::Int64,
            Kind::Uint32 => Self::UInt32,
            Kind::Uint64 => Self::UInt64,
            Kind::Sint32 => Self::SInt32,
            Kind::Sint64 => Self::SInt64,
            Kind::Fixed32 => Self::Fixed32,
            Kind::Fixed64 => Self::Fixed64,
            Kind::Sfixed32 => Self::SFixed32,
            Kind::Sfixed64 => Self::SFixed64,
            Kind::Float => Self::Float,
            Kind::Double => Self::Double,
            Kind::Enum(_) => Self::Enum,
            Kind::String => Self::String,
            Kind::Bytes => Self::Bytes,
            Kind::Message(_) => return None,
        })
    }

    #[inline]
    pub(super) fn wire_type(self) -> WireType {
        match self {
            Self::Fixed32 | Self::SFixed32 | Self::Float => WireType::Fixed32,
            Self::Fixed64 | Self::SFixed64 | Self::Double => WireType::Fixed64,
            Self::String | Self::Bytes => WireType::Bytes,
            _ => WireType::Varint,
        }
    }

    /// Returns the value of a field that is not on the wire and has no presence.
    pub(super) fn default_value(self) -> ProtoValue<'static> {
        match self {
            Self::Bool => ProtoValue::Bool(false),
            Self::Float | Self::Double => ProtoValue::Float(0.0),
            Self::Enum => ProtoValue::Enum(0),
            Self::String | Self::Bytes => ProtoValue::Text(b""),
            _ => ProtoValue::Int(0),
        }
    }

    fn arrow_type(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int32 | Self::SInt32 | Self::SFixed32 => DataType::Int32,
            Self::Int64 | Self::SInt64 | Self::SFixed64 => DataType::Int64,
            Self::UInt32 | Self::Fixed32 => DataType::UInt32,
            Self::UInt64 | Self::Fixed64 => DataType::UInt64,
            Self::Float => DataType::Float32,
            Self::Double => DataType::Float64,
            Self::Enum | Self::String => DataType::Utf8,
            Self::Bytes => DataType::Binary,
        }
    }
}

/// Returns the type of Arrow that has the same values as a field, by which the field is checked
/// against its uses.
fn arrow_type(field: &FieldDescriptor, column: Option<&ColumnPlan>) -> DataType {
    let value = match column {
        Some(column) => match column.form {
            Form::Time(unit) => DataType::Timestamp(arrow_unit(unit), None),
            Form::Plain | Form::Wrapped => column.scalar.arrow_type(),
        },
        None => DataType::Struct(Fields::empty()),
    };
    match field.is_list() {
        true => DataType::List(Arc::new(ArrowField::new("item", value, true))),
        false => value,
    }
}

/// Returns the unit of the event times that a column has, if it has event times in a unit.
fn time_unit(fields: &[Field], column: &str) -> Option<TimeUnit> {
    fields.iter().filter(|field| field.column == column).find_map(|field| match field.role {
        Role::EventTime { unit, .. } => unit,
        _ => None,
    })
}

fn arrow_unit(unit: TimeUnit) -> ArrowUnit {
    match unit {
        TimeUnit::Second => ArrowUnit::Second,
        TimeUnit::Millisecond => ArrowUnit::Millisecond,
        TimeUnit::Microsecond => ArrowUnit::Microsecond,
        TimeUnit::Nanosecond => ArrowUnit::Nanosecond,
    }
}

fn is_wrapper(name: &str) -> bool {
    let name = name.strip_prefix("google.protobuf.").and_then(|name| name.strip_suffix("Value"));
    let types =
        ["Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes"];
    name.is_some_and(|name| types.contains(&name))
}

/// Returns the names of the values of an enum. Of several names for a number, the first one in the
/// schema counts.
fn names_of(values: &EnumDescriptor) -> Vec<(i32, String)> {
    let mut names: Vec<_> = values.values().map(|v| (v.number(), v.name().to_owned())).collect();
    names.sort_by_key(|(number, _)| *number);
    names.dedup_by_key(|(number, _)| *number);
    names
}
