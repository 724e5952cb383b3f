//! The decoding of messages with one message of Protobuf each.
//!
//! Columns are the fields of the message, found by their names. A small parser of the wire format
//! reads only the fields that are columns of the job, and passes over all others. It allocates no
//! memory for a message. Dynamic messages of `prost-reflect` were rejected: they build a tree of
//! all fields for each message.
//!
//! # Bounds
//! Each value of a repeated field takes a byte of the message at least, so that a message costs at
//! most 32 bytes for each of its bytes, besides the columns. Nested messages are not opened, apart
//! from times and wrappers, which have one level.

mod cell;
mod plan;
mod row;
mod schemas;
mod wire;

use std::collections::BTreeMap;

use protox::prost_reflect::MessageDescriptor;

use self::cell::ProtoCell;
use self::plan::MessagePlan;
use self::row::{ProtoRow, RowProblem};
pub use self::schemas::ProtobufSchemas;
use self::schemas::{SchemaFile, Source, refuse};
use self::wire::{Wire, zigzag};
use super::rejected::{AppendMessage, Failure, Rejection, RejectionKind};
use super::writer_schema::WriterSchema;
use crate::block::Column;
use crate::config::DataConfig;
use crate::error::Result;
use crate::field::Field;
use crate::format::TextFormat;
use crate::text::{Cell as _, Problem, TextSettings, bad_value, push};

/// The largest depth of a type in the types of its file.
const DEEPEST: u64 = 64;

/// The plans by which Protobuf messages are decoded.
#[derive(Debug)]
pub(super) struct ProtobufMessages {
    settings: TextSettings,
    plans: Plans,
}

#[derive(Debug)]
enum Plans {
    /// All messages have one type.
    One(MessagePlan),
    /// The types of each schema. A schema that cannot be used has the reason instead.
    ById(BTreeMap<u32, std::result::Result<Types, Rejection>>),
}

/// The plans for the types of a file, by their places: the place in the file, the place in this
/// type, and so on. A type that lacks a column has the reason instead.
type Types = BTreeMap<Vec<u32>, std::result::Result<MessagePlan, Rejection>>;

/// A decoder of Protobuf messages. The memory of the parsed row is used for all messages.
pub(super) struct ProtobufState<'d, 'a> {
    protobuf: &'d ProtobufMessages,
    row: ProtoRow<'a>,
    /// The bytes before the last message, which name its type, and its plan.
    last: Option<(&'a [u8], &'d MessagePlan)>,
}

impl ProtobufMessages {
    /// Makes the plans of all types.
    ///
    /// # Errors
    /// Returns an error if the one type of all messages lacks a column, or if a column has another
    /// type.
    pub(super) fn new(
        schemas: &ProtobufSchemas,
        config: &DataConfig,
        fields: &[Field],
    ) -> Result<Self> {
        let plans = match &*schemas.source {
            Source::Plain { file, message } => {
                let found = file.pool().map_err(refuse)?.get_message_by_name(message);
                let found =
                    found.ok_or_else(|| refuse(format!("it has no message `{message}`")))?;
                let plan = MessagePlan::new(&found, fields);
                Plans::One(plan.map_err(|e| refuse(format!("message `{message}`: {e}")))?)
            }
            Source::Confluent(files) => {
                let plan = |(id, file): (&u32, &SchemaFile)| (*id, plan_types(*id, file, fields));
                Plans::ById(files.iter().map(plan).collect())
            }
        };
        Ok(Self { settings: TextSettings::new(config, TextFormat::Json), plans })
    }

    /// Returns the id of the schema of a message, if the message names one that is not known.
    #[inline]
    pub(super) fn unknown_schema(&self, message: &[u8]) -> Option<u32> {
        let Plans::ById(known) = &self.plans else { return None };
        parse_id(message).map(|(id, _)| id).filter(|id| !known.contains_key(id))
    }

    /// Adds a schema. If it cannot be used, its messages are rejected with the reason.
    pub(super) fn add_schema(&mut self, id: u32, schema: &WriterSchema, fields: &[Field]) {
        let Plans::ById(known) = &mut self.plans else { return };
        let types = SchemaFile::compile(schema)
            .map_err(|problem| refuse_schema(id, &problem))
            .and_then(|file| plan_types(id, &file, fields));
        known.insert(id, types);
    }
}

/// Makes the plans for all types of a file.
fn plan_types(
    id: u32,
    file: &SchemaFile,
    fields: &[Field],
) -> std::result::Result<Types, Rejection> {
    let pool = file.pool().map_err(|problem| refuse_schema(id, &problem))?;
    let mut types = Types::new();
    let mut open: Vec<(Vec<u32>, MessageDescriptor)> = Vec::new();
    if let Some(main) = pool.get_file_by_name(file.main()) {
        open.extend((0..).zip(main.messages()).map(|(place, message)| (vec![place], message)));
    }
    while let Some((place, message)) = open.pop() {
        for (number, child) in (0..).zip(message.child_messages()) {
            open.push(([&place[..], &[number]].concat(), child));
        }
        let plan = MessagePlan::new(&message, fields).map_err(|rejection| Rejection {
            reason: format!(
                "{} (message `{}` of the schema with id {id})",
                rejection.reason,
                message.full_name()
            ),
            ..rejection
        });
        types.insert(place, plan);
    }
    Ok(types)
}

fn refuse_schema(id: u32, problem: &str) -> Rejection {
    Rejection::of_schema(format!("the schema with id {id} cannot be used: {problem}"))
}

/// Divides a message into the id of its schema and the rest.
#[inline]
pub(super) fn parse_id(message: &[u8]) -> Option<(u32, &[u8])> {
    let (id, rest) = message.strip_prefix(&[0])?.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*id), rest))
}

impl<'d, 'a> ProtobufState<'d, 'a> {
    pub(super) fn new(protobuf: &'d ProtobufMessages) -> Self {
        Self { protobuf, row: ProtoRow::default(), last: None }
    }

    /// Returns the plan for a message, and the message without what is before it.
    #[inline]
    fn find(
        &mut self,
        message: &'a [u8],
    ) -> std::result::Result<(&'d MessagePlan, &'a [u8]), Failure> {
        let protobuf = self.protobuf;
        let known = match &protobuf.plans {
            Plans::One(plan) => return Ok((plan, message)),
            Plans::ById(known) => known,
        };
        if let Some((head, plan)) = self.last
            && let Some(body) = message.strip_prefix(head)
        {
            return Ok((plan, body));
        }
        let (id, rest) = parse_id(message)
            .ok_or_else(|| damaged("it does not begin with 00 and an id of 4 bytes"))?;
        let types = known.get(&id).ok_or_else(|| unknown_schema(id, known.keys()))?;
        let types = types.as_ref().map_err(|reason| Failure::Rejected(reason.clone()))?;
        let (place, body) = parse_place(rest).map_err(damaged)?;
        let plan = types.get(&place).ok_or_else(|| {
            damaged(&format!("the schema with id {id} has no message at {place:?}"))
        })?;
        let plan = plan.as_ref().map_err(|reason| Failure::Rejected(reason.clone()))?;
        self.last = Some((&message[..message.len() - body.len()], plan));
        Ok((plan, body))
    }
}

/// Reads the place of a type in its file: the number of its steps, and each step.
fn parse_place(bytes: &[u8]) -> std::result::Result<(Vec<u32>, &[u8]), &'static str> {
    let mut wire = Wire::new(bytes);
    let mut number = || u64::try_from(zigzag(wire.varint()?)).map_err(|_| "a step is negative");
    let place = match number()? {
        0 => vec![0],
        steps if steps > DEEPEST => return Err("the type is nested too deeply"),
        steps => {
            let step =
                |_| number().and_then(|n| u32::try_from(n).map_err(|_| "a step is too large"));
            (0..steps).map(step).collect::<std::result::Result<_, _>>()?
        }
    };
    Ok((place, wire.rest()))
}

impl<'a> AppendMessage<'a> for ProtobufState<'_, 'a> {
    #[inline]
    fn append(
        &mut self,
        message: &'a [u8],
        columns: &mut [Column],
        fields: &[Field],
    ) -> std::result::Result<usize, Failure> {
        let (plan, body) = self.find(message)?;
        self.row.read(body, plan).map_err(|problem| row_failure(&problem, plan))?;
        for (index, (column, field)) in columns.iter_mut().zip(fields).enumerate() {
            let place = plan.column_of[index];
            let cell = ProtoCell {
                value: self.row.value(place),
                list: self.row.list(place),
                column: &plan.columns[place],
                settings: &self.protobuf.settings,
            };
            if let Err(refusal) = push(column, &field.role, &cell) {
                return Err(value_failure(
                    bad_value(index, fields, refusal, &cell.format()),
                    fields,
                ));
            }
        }
        Ok(1)
    }
}

#[cold]
fn row_failure(problem: &RowProblem, plan: &MessagePlan) -> Failure {
    match problem {
        RowProblem::Damaged(reason) => damaged(reason),
        RowProblem::WireType { column, found } => {
            let column = &plan.columns[*column];
            Failure::Rejected(Rejection {
                kind: RejectionKind::Format,
                row: None,
                column: Some(column.name.clone()),
                reason: format!(
                    "the field has wire type {found}, but its type {:?} has wire type {}; write it \
                     with the schema that the stream has",
                    column.scalar,
                    column.wire_type() as u8
                ),
            })
        }
    }
}

#[cold]
fn value_failure(problem: Problem, fields: &[Field]) -> Failure {
    match problem {
        Problem::Value { field, refusal, explanation } if refusal.is_about_one_row() => {
            Failure::Rejected(Rejection::of_value(&fields[field], None, explanation))
        }
        _ => Failure::TooManyIds,
    }
}

#[cold]
fn unknown_schema<'k>(id: u32, known: impl Iterator<Item = &'k u32>) -> Failure {
    Failure::Rejected(super::rejected::unknown_schema(
        format!("with id {id}"),
        known.map(|id| format!("with id {id}")),
    ))
}

/// Returns the failure for a message that is not a readable message of Protobuf.
#[cold]
fn damaged(reason: &str) -> Failure {
    Failure::Rejected(Rejection::of_format(format!(
        "not a readable message of Protobuf ({reason}); write one message by its schema"
    )))
}
