//! Tests of Protobuf messages. They are written by `prost-reflect`, which shares no code with the
//! decoder, and compared with Arrow messages of the same rows.

mod rules;
mod schemas;

use std::sync::LazyLock;

use proptest::prelude::*;
use protox::prost_reflect::prost::Message as _;
use protox::prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};
use zillion_reader::{DecodedMessages, MessageFormat, ProtobufSchemas, RejectionKind};

use super::arrow::{Frame, columns, message};
use super::{decode, decoder, job, rejection};
use crate::fixture::Folder;

/// The type of the rows that [`row`] writes.
const SCHEMA: &str = r#"syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other { string x = 1; map<string, string> more = 2; Other inner = 3; }
message Row {
  int64 unread = 1;
  optional int64 user = 2;
  optional string city = 3;
  Other nested = 4;
  string tags = 5;
  repeated int64 past = 6;
  google.protobuf.DoubleValue price = 7;
  double height = 8;
  bool click = 9;
  optional sint32 watch = 10;
  float w = 2000;
  fixed32 session = 12;
  google.protobuf.Timestamp time = 13;
  repeated Other others = 14;
}
"#;

/// Returns the format of the rows that [`row`] writes.
fn row_format() -> MessageFormat {
    static FORMAT: LazyLock<MessageFormat> = LazyLock::new(|| plain(SCHEMA, "shop.Row"));
    FORMAT.clone()
}

fn descriptor() -> MessageDescriptor {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| pool(SCHEMA));
    POOL.get_message_by_name("shop.Row").unwrap()
}

/// Compiles a text to its descriptors.
fn pool(text: &str) -> DescriptorPool {
    let folder = Folder::new();
    folder.write("row.proto", text);
    let mut compiler = protox::Compiler::new([folder.path("")]).unwrap();
    compiler.include_imports(true).open_file("row.proto").unwrap();
    compiler.descriptor_pool()
}

/// Returns the format of messages of one type of a text.
fn plain(text: &str, message: &str) -> MessageFormat {
    let folder = Folder::new();
    folder.write("row.proto", text);
    let none: [&str; 0] = [];
    let schemas = ProtobufSchemas::load(&folder.path("row.proto"), &none, message).unwrap();
    MessageFormat::Protobuf(schemas)
}

fn set(message: &mut DynamicMessage, name: &str, value: Value) {
    message.set_field_by_name(name, value);
}

/// Returns the message of a row with the values of [`columns`].
fn row(descriptor: &MessageDescriptor, i: i64) -> Vec<u8> {
    let mut row = DynamicMessage::new(descriptor.clone());
    let inner = |name: &str| {
        let field = descriptor.get_field_by_name(name).unwrap();
        DynamicMessage::new(field.kind().as_message().unwrap().clone())
    };
    set(&mut row, "unread", Value::I64(i));
    if i % 11 > 0 {
        set(&mut row, "user", Value::I64(i));
    }
    if i % 7 > 0 {
        set(&mut row, "city", Value::String(format!("c{}", i % 5)));
    }
    let mut other = inner("nested");
    set(&mut other, "x", Value::String("abc".repeat(i as usize % 3)));
    set(&mut row, "others", Value::List(vec![Value::Message(other.clone()); i as usize % 3]));
    set(&mut row, "nested", Value::Message(other));
    set(&mut row, "tags", Value::String(format!("t{}|u{}", i % 3, i % 4)));
    set(&mut row, "past", Value::List((0..i % 4).map(|j| Value::I64(i + j)).collect()));
    if i % 3 > 0 {
        let mut price = inner("price");
        set(&mut price, "value", Value::F64(i as f64 / 4.0));
        set(&mut row, "price", Value::Message(price));
    }
    set(&mut row, "height", Value::F64(i as f64 / 100.0));
    set(&mut row, "click", Value::Bool(i % 2 == 0));
    if i % 5 > 0 {
        set(&mut row, "watch", Value::I32((i % 9) as i32));
    }
    set(&mut row, "w", Value::F32(0.5));
    set(&mut row, "session", Value::U32(i as u32 / 3));
    let mut time = inner("time");
    set(&mut time, "seconds", Value::I64(1_700_000_000 + i / 1000));
    set(&mut time, "nanos", Value::I32((i % 1000) as i32 * 1_000_000));
    set(&mut row, "time", Value::Message(time));
    row.encode_to_vec()
}

fn rows(range: std::ops::Range<i64>) -> Vec<Vec<u8>> {
    let descriptor = descriptor();
    range.map(|i| row(&descriptor, i)).collect()
}

/// Decodes the rows of a range from Arrow, as what is wanted.
fn wanted(first: usize, rows: usize) -> DecodedMessages {
    let whole = message(columns(first, rows, 0), usize::MAX, Frame::Stream, None);
    decode(MessageFormat::Arrow, &job(), &[whole])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn protobuf_decodes_as_arrow_does(first in 0usize..2000, count in 1usize..80) {
        let messages = rows(first as i64..(first + count) as i64);
        let decoded = decode(row_format(), &job(), &messages);
        prop_assert_eq!(&decoded.rejected, &[]);
        prop_assert_eq!(&decoded.rows, &vec![1; count]);
        prop_assert_eq!(&decoded.batch, &wanted(first, count).batch);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn damaged_protobuf_harms_no_other_message(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
        cut in prop::option::weighted(0.3, any::<prop::sample::Index>()),
        more in prop::collection::vec(any::<u8>(), 0..4),
        number in 0i64..100,
    ) {
        let [good, mut bad] = [rows(5..6), rows(number..number + 1)].map(|mut rows| rows.remove(0));
        let length = bad.len();
        for (at, bits) in flips {
            bad[at.index(length)] ^= bits;
        }
        if let Some(cut) = cut {
            bad.truncate(cut.index(length));
        }
        bad.extend(more);
        let format = row_format();
        let decoded = decode(format.clone(), &job(), &[&good, &bad, &good]);
        prop_assert_eq!((decoded.rows[0], decoded.rows[2]), (1, 1));
        prop_assert_eq!(decoded.batch.rows, 2 + decoded.rows[1]);
        prop_assert_eq!(decoded.rejected.len(), 1 - decoded.rows[1]);
        if decoded.rows[1] == 0 {
            let twice = decode(format, &job(), &[&good, &good]);
            prop_assert_eq!(&decoded.batch, &twice.batch);
            // One damaged message says nothing about the columns of all later ones.
            prop_assert_ne!(decoded.rejected[0].rejection.kind, RejectionKind::Columns);
        }
    }

    #[test]
    fn bytes_are_decoded_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let decoded = decode(row_format(), &job(), &[&bytes]);
        prop_assert_eq!(decoded.rows[0] + decoded.rejected.len(), 1);
    }
}
