//! The targets of the crate `reader`: messages of a stream in Protobuf, and their schemas.

use std::sync::LazyLock;

use zillion_feature::{Schema, Statistics};
use zillion_reader::{
    DataConfig, MessageDecoder, MessageFormat, ProtobufSchemas, SchemaLanguage, SideTables,
    WriterSchema,
};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 2] = [&PROTOBUF_MESSAGES, &PROTOBUF_SCHEMAS];

/// The job of the messages: each kind of column.
const JOB: &str = "[features.user]\nkind='id'\n[features.city]\nkind='id'\ntype='string'\n\
    [features.past]\nkind='ids'\ntype='i64'\n[features.price]\nkind='numeric'\nmissing=0\n\
    [labels.click]\n[columns]\nevent_time='time'\nevent_time_unit='ms'\n";

/// The schema of the messages.
const SCHEMA: &str = "syntax = 'proto3';
import 'google/protobuf/timestamp.proto';
import 'google/protobuf/wrappers.proto';
enum City { NONE = 0; FIRST = 1; }
message Row {
  optional int64 user = 1;
  City city = 2;
  repeated sint64 past = 3;
  google.protobuf.DoubleValue price = 4;
  bool click = 5;
  google.protobuf.Timestamp time = 6;
}
";

/// The id of the schema in the messages.
const ID: u32 = 1;

fn new_decoder() -> MessageDecoder {
    let job: toml::Table = JOB.parse().expect("the job is TOML");
    let schema = Schema::from_job(&job.into()).expect("the job is valid");
    let config = DataConfig::default();
    let sides = SideTables::load(&config, &schema).expect("the job has no side tables");
    let format = MessageFormat::Protobuf(ProtobufSchemas::registered());
    MessageDecoder::new(format, &config, &schema, &sides, &Statistics::default())
        .expect("the decoder has no schema yet")
}

/// The reader of messages. A message begins with the id of its schema.
pub const PROTOBUF_MESSAGES: Target = Target {
    name: "protobuf_messages",
    read: |bytes| {
        static DECODER: LazyLock<MessageDecoder> = LazyLock::new(|| {
            let mut decoder = new_decoder();
            decoder.add_schema(ID, &WriterSchema::plain(SchemaLanguage::Protobuf, SCHEMA));
            decoder
        });
        DECODER.decode([bytes]).is_ok_and(|decoded| decoded.rejected.is_empty())
    },
    seeds: || {
        let body = [
            &[0x08, 7, 0x10, 1, 0x1a, 3, 1, 2, 3, 0x18, 9][..],
            &[0x22, 9, 0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x28, 1],
            &[0x32, 6, 0x08, 0x80, 0xe2, 0xcf, 0xaa, 0x06, 0x7b, 0x08, 1, 0x7c],
        ]
        .concat();
        [&[0][..], &[2, 0]].map(|place| [&[0, 0, 0, 0, 1], place, &body].concat()).into()
    },
};

/// The reader of schemas from a registry.
pub const PROTOBUF_SCHEMAS: Target = Target {
    name: "protobuf_schemas",
    read: |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let mut decoder = new_decoder();
        decoder.add_schema(ID, &WriterSchema::plain(SchemaLanguage::Protobuf, text));
        let time = [0x32, 6, 0x08, 0x80, 0xe2, 0xcf, 0xaa, 0x06];
        let message = [&[0, 0, 0, 0, 1, 0][..], &time].concat();
        decoder.decode([&message[..]]).is_ok_and(|decoded| decoded.rejected.is_empty())
    },
    seeds: || vec![SCHEMA.as_bytes().to_vec()],
};
