//! Tests of the schemas of Protobuf messages: files, ids of a registry, and changes of columns.

use zillion_reader::{
    DataConfig, MessageDecoder, MessageFormat, ProtobufSchemas, ReferencedSchema, RejectionKind,
    SchemaLanguage, SideTables, WriterSchema,
};

use super::{decode, decoder, pool, rejection};
use crate::fixture::{Folder, schema};

const JOB: &str = "[features.user]\nkind='id'\n[labels.click]";

const ROW: &str = "syntax = 'proto3'; package shop; message First { int64 user = 1; bool click = 2;
    message Inner { bool click = 1; int64 user = 2; } } message Second { bool click = 1; }";

/// The fields `user` 6 and `click` true of the type `shop.First`.
const BODY: [u8; 4] = [0x08, 6, 0x10, 1];

fn no_folders() -> [&'static str; 0] {
    []
}

fn framed(id: u32, place: &[u8], body: &[u8]) -> Vec<u8> {
    [&[0], &id.to_be_bytes()[..], place, body].concat()
}

fn protobuf(text: &str) -> WriterSchema {
    WriterSchema::plain(SchemaLanguage::Protobuf, text)
}

/// Returns a decoder of messages with the ids of schemas, of which it knows some.
fn registered(schemas: &[(u32, WriterSchema)]) -> MessageDecoder {
    let format = MessageFormat::Protobuf(ProtobufSchemas::registered());
    let mut decoder = decoder(format, &DataConfig::default(), &schema(JOB));
    schemas.iter().for_each(|(id, schema)| decoder.add_schema(*id, schema));
    decoder
}

/// Decodes one message, and returns the number of its rows or the reason for its rejection.
fn decode_one(decoder: &MessageDecoder, message: &[u8]) -> Result<usize, (RejectionKind, String)> {
    let mut decoded = decoder.decode([message]).unwrap();
    match decoded.rejected.pop() {
        Some(rejected) => Err((rejected.rejection.kind, rejected.rejection.to_string())),
        None => Ok(decoded.batch.rows),
    }
}

#[test]
fn descriptors_come_from_a_text_or_from_a_set() {
    let folder = Folder::new();
    folder.write("row.proto", "syntax = 'proto3'; import 'types.proto'; message Row { int64 user = 1; bool click = 2; City city = 3; }");
    std::fs::create_dir(folder.path("more")).unwrap();
    folder.write("more/types.proto", "syntax = 'proto3'; enum City { A = 0; }");
    let load = |file: &str, includes: &[&str], message: &str| {
        let includes: Vec<_> = includes.iter().map(|name| folder.path(name)).collect();
        ProtobufSchemas::load(&folder.path(file), &includes, message).map_err(|e| e.to_string())
    };
    let error = load("row.proto", &[], "Row").unwrap_err();
    assert!(error.contains("import 'types.proto' not found"), "{error}");
    let text = load("row.proto", &["", "more"], "Row").unwrap();
    assert_eq!(decode(MessageFormat::Protobuf(text), &schema(JOB), &[BODY]).batch.rows, 1);

    let mut compiler = protox::Compiler::new([folder.path(""), folder.path("more")]).unwrap();
    compiler.include_imports(true).open_file("row.proto").unwrap();
    folder.write("row.desc", compiler.encode_file_descriptor_set());
    let set = load("row.desc", &[], "Row").unwrap();
    assert_eq!(decode(MessageFormat::Protobuf(set), &schema(JOB), &[BODY]).batch.rows, 1);

    // A set without the imports of its file, a wrong name, a wrong file, no file.
    let mut compiler = protox::Compiler::new([folder.path(""), folder.path("more")]).unwrap();
    folder
        .write("alone.desc", compiler.open_file("row.proto").unwrap().encode_file_descriptor_set());
    folder.write("wrong.proto", "syntax = 'proto3'; message Row { int64 user = }");
    folder.write("wrong.desc", [0xff; 20]);
    // A set of one file with the name `a` and the syntax `new`.
    folder.write("syntax.desc", b"\x0a\x08\x0a\x01a\x62\x03new");
    for (file, message, words) in [
        ("alone.desc", "Row", "that includes all imports"),
        ("row.desc", "shop.Row", "has no message `shop.Row` (known: Row)"),
        ("wrong.proto", "Row", "wrong.proto:1:47"),
        ("wrong.desc", "Row", "not a readable `FileDescriptorSet`"),
        ("syntax.desc", "Row", "`a` has the syntax `new`"),
        ("none.desc", "Row", "read the schema"),
        ("none.proto", "Row", "none.proto"),
    ] {
        let error = load(file, &[], message).unwrap_err();
        assert!(error.contains(words), "{file}: {error}");
    }
}

#[test]
fn columns_that_do_not_fit_are_found_at_the_start() {
    for (text, words) in [
        (
            "int64 users = 1; bool click = 2;",
            "column `user`: the column of feature `user` is missing",
        ),
        (
            "map<string, int64> user = 1; bool click = 2;",
            "column `user`: the column is a column of structs",
        ),
        ("M user = 1; bool click = 2;", "column `user`: the column is a column of structs"),
        ("string user = 1; bool click = 2;", "column `user`: the column is a column of strings"),
        ("int64 user = 1; bytes click = 2;", "column `click`"),
        ("repeated int64 user = 1; bool click = 2;", "declare `kind = \"ids\"`"),
        ("int64 user = 1; string click = 2;", "column `click`"),
    ] {
        let folder = Folder::new();
        folder.write("row.proto", format!("syntax = 'proto3'; message M {{ {text} }}"));
        let schemas = ProtobufSchemas::load(&folder.path("row.proto"), &no_folders(), "M").unwrap();
        let (config, schema) = (DataConfig::default(), schema(JOB));
        let sides = SideTables::load(&config, &schema).unwrap();
        let format = MessageFormat::Protobuf(schemas);
        let error = MessageDecoder::new(format, &config, &schema, &sides, &super::super::known());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("message `M`"), "{error}");
    }
}

#[test]
fn a_message_names_its_schema_and_its_type() {
    let decoder = registered(&[(7, protobuf(ROW)), (8, protobuf(ROW))]);
    // The place of the first type is one byte in short.
    for place in [&[0][..], &[2, 0]] {
        assert_eq!(decode_one(&decoder, &framed(7, place, &BODY)), Ok(1), "{place:?}");
    }
    assert_eq!(decode_one(&decoder, &framed(7, &[4, 0, 0], &[0x10, 6, 0x08, 1])), Ok(1));
    let messages = [framed(7, &[0], &BODY), framed(8, &[0], &BODY), framed(7, &[4, 0, 0], &[])];
    let decoded = decoder.decode(messages.iter().map(Vec::as_slice)).unwrap();
    assert_eq!((decoded.batch.rows, decoded.rejected.len()), (3, 0));
    for (message, kind, words) in [
        (
            framed(7, &[2, 2], &[]),
            RejectionKind::Columns,
            "column `user`: the column of feature `user` is missing",
        ),
        (
            framed(7, &[2, 2], &[]),
            RejectionKind::Columns,
            "message `shop.Second` of the schema with id 7",
        ),
        (
            framed(7, &[2, 4], &[]),
            RejectionKind::Format,
            "the schema with id 7 has no message at [2]",
        ),
        (framed(7, &[2, 1], &[]), RejectionKind::Format, "a step is negative"),
        (framed(7, &[0xfe, 0xff, 3], &[]), RejectionKind::Format, "nested too deeply"),
        (framed(7, &[], &[]), RejectionKind::Format, "a value is cut off"),
        (vec![1, 0, 0, 0, 7], RejectionKind::Format, "it does not begin with 00 and an id"),
        (vec![0, 0, 0], RejectionKind::Format, "it does not begin with 00 and an id"),
        (
            framed(9, &[0], &BODY),
            RejectionKind::Columns,
            "the schema with id 9 is unknown (known: with id 7, with id 8)",
        ),
    ] {
        let (found, reason) = decode_one(&decoder, &message).unwrap_err();
        assert!(found == kind && reason.contains(words), "{found:?}: {reason}");
    }
}

#[test]
fn schemas_are_added_when_they_are_seen() {
    let mut decoder = registered(&[]);
    let message = framed(7, &[0], &BODY);
    assert_eq!(decoder.unknown_schema(&message), Some(7));
    assert_eq!(decoder.unknown_schema(&[9, 9]), None);
    assert!(decode_one(&decoder, &message).is_err());
    decoder.add_schema(7, &protobuf(ROW));
    assert_eq!(decoder.unknown_schema(&message), None);
    assert_eq!(decode_one(&decoder, &message), Ok(1));
    // A later schema adds a column, another one removes one.
    let later = ROW.replace("bool click = 2;", "bool click = 2; string more = 3;");
    decoder.add_schema(8, &protobuf(&later));
    let message = framed(8, &[0], &[&BODY[..], &[0x1a, 1, b'x']].concat());
    assert_eq!(decode_one(&decoder, &message), Ok(1));
    let removed = ROW.replace("int64 user = 1;", "");
    let wrong = [
        (protobuf(&removed), "column `user`"),
        (protobuf("message {"), "the schema with id 9 cannot be used"),
        (protobuf("syntax = 'proto3'; import 'x.proto';"), "import 'x.proto' not found"),
        (WriterSchema::plain(SchemaLanguage::Avro, "{}"), "it is one of Avro"),
    ];
    for (schema, words) in wrong {
        decoder.add_schema(9, &schema);
        let (kind, reason) = decode_one(&decoder, &framed(9, &[0], &[])).unwrap_err();
        assert_eq!(kind, RejectionKind::Columns, "{reason}");
        assert!(reason.contains(words) && reason.contains("id 9"), "{reason}");
    }
}

#[test]
fn a_schema_may_refer_to_other_files() {
    let text = "syntax = 'proto3'; import 'a/base.proto'; import 'google/protobuf/wrappers.proto';
        message Row { google.protobuf.Int64Value user = 1; a.Kind kind = 3; bool click = 2; }";
    let reference =
        |name: &str, text: &str| ReferencedSchema { name: name.into(), text: text.into() };
    let schema = WriterSchema {
        references: vec![
            reference(
                "a/base.proto",
                "syntax = 'proto3'; package a; import 'b.proto'; enum Kind { NONE = 0; }",
            ),
            reference("b.proto", "syntax = 'proto3';"),
        ],
        ..protobuf(text)
    };
    let decoder = registered(&[(1, schema)]);
    let message = framed(1, &[0], &[0x0a, 2, 0x08, 6, 0x10, 1]);
    assert_eq!(decode_one(&decoder, &message), Ok(1));
}

#[test]
fn files_may_have_ids() {
    let folder = Folder::new();
    folder.write("row.proto", ROW);
    let files = [(7, folder.path("row.proto"))];
    let schemas = ProtobufSchemas::load_confluent(files, &no_folders()).unwrap();
    let format = MessageFormat::Protobuf(schemas);
    let message = framed(7, &[0], &BODY);
    assert_eq!(decode(format.clone(), &schema(JOB), &[&message]).batch.rows, 1);
    let reason = rejection(format, &schema(JOB), framed(8, &[0], &BODY));
    assert_eq!(reason.kind, RejectionKind::Columns);
    assert_eq!(pool(ROW).all_messages().count(), 3);
}
