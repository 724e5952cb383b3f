//! The targets of the crate `reader`: messages of a stream in Protobuf, their schemas, and compiled
//! descriptors.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use zillion_feature::{Schema, Statistics};
use zillion_reader::{
    DataConfig, MessageDecoder, MessageFormat, ProtobufSchemas, SchemaLanguage, SideTables,
    WriterSchema,
};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 3] = [&PROTOBUF_MESSAGES, &PROTOBUF_SCHEMAS, &PROTOBUF_DESCRIPTORS];

/// The job of the messages: each kind of column.
const JOB: &str = "[features.user]\nkind='id'\n[features.city]\nkind='id'\ntype='string'\n\
    [features.past]\nkind='ids'\ntype='i64'\n[features.price]\nkind='numeric'\nmissing=0\n\
    [features.hour]\nkind='id'\ncolumn='time'\nderive='hour'\n\
    [features.days]\nkind='numeric'\ncolumn='note'\nderive='days'\nmissing=0\n\
    [features.taste]\nkind='vector'\nsize=2\nmissing=0\n[labels.click]\n[columns]\nevent_time='time'\nevent_time_unit='ms'\n";

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
  string note = 7;
  repeated float taste = 8;
}
";

/// The id of the schema in the messages.
const ID: u32 = 1;

fn new_decoder() -> MessageDecoder {
    decoder_of(ProtobufSchemas::registered()).expect("the decoder has no schema yet")
}

/// Returns the decoder of messages with these schemas, or `None` if they do not fit the job.
fn decoder_of(schemas: ProtobufSchemas) -> Option<MessageDecoder> {
    let job: toml::Table = JOB.parse().expect("the job is TOML");
    let schema = Schema::from_job(&job.into()).expect("the job is valid");
    let config = DataConfig::default();
    let sides = SideTables::load(&config, &schema).expect("the job has no side tables");
    let format = MessageFormat::Protobuf(schemas);
    MessageDecoder::new(format, &config, &schema, &sides, &Statistics::default()).ok()
}

/// The body of a message with all fields.
fn sample_body() -> Vec<u8> {
    [
        &[0x08, 7, 0x10, 1, 0x1a, 3, 1, 2, 3, 0x18, 9][..],
        &[0x22, 9, 0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x28, 1],
        &[0x32, 6, 0x08, 0x80, 0xe2, 0xcf, 0xaa, 0x06, 0x7b, 0x08, 1, 0x7c],
    ]
    .concat()
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
        let body = sample_body();
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

/// The reader of a file with compiled descriptors. Its type reads a valid message afterwards.
pub const PROTOBUF_DESCRIPTORS: Target = Target {
    name: "protobuf_descriptors",
    read: |bytes| {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("row.descriptors");
        fs::write(&path, bytes).expect("a file can be written");
        let Ok(schemas) = ProtobufSchemas::load(&path, &[] as &[&Path], "Row") else {
            return false;
        };
        let body = sample_body();
        let decoded = decoder_of(schemas).map(|decoder| decoder.decode([&body[..]]));
        decoded.is_some_and(|decoded| decoded.is_ok_and(|decoded| decoded.rejected.is_empty()))
    },
    seeds: || {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("row.proto");
        fs::write(&path, SCHEMA).expect("a file can be written");
        let mut compiler = protox::Compiler::new([folder.path()]).expect("the folder is there");
        compiler.include_imports(true);
        compiler.open_file(&path).expect("the sample is a schema");
        vec![compiler.encode_file_descriptor_set()]
    },
};
