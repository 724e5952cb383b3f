//! Tests of the rules by which fields become values: presence, repeated fields, enums, wire types.

use protox::prost_reflect::prost::Message as _;
use protox::prost_reflect::{DynamicMessage, Value};
use zillion_feature::FeatureKey;
use zillion_reader::{DecodedMessages, RejectionKind};

use super::{decode, plain, pool, rejection, set};
use crate::fixture::schema;

/// Returns the bytes of a field with a number of variable length.
fn varint(number: u8, value: u8) -> [u8; 2] {
    [number << 3, value]
}

/// Returns the bytes of a field with a length.
fn bytes(number: u8, value: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, value.len() as u8], value].concat()
}

fn ids(decoded: &DecodedMessages, column: usize, row: usize) -> Vec<FeatureKey> {
    decoded.batch.sparse[column].row(row).to_vec()
}

#[test]
fn a_field_without_presence_has_its_default_value() {
    let text = "syntax = 'proto3'; message M { int64 id = 1; optional int64 maybe = 2;
        double price = 3; oneof one { int64 either = 4; bool or = 5; } string city = 6; bool click = 7; }";
    let job = schema(
        "[features.id]\nkind='id'\n[features.maybe]\nkind='id'\n[features.either]\nkind='id'\n\
         [features.price]\nkind='numeric'\n[features.city]\nkind='id'\ntype='string'\n[labels.click]",
    );
    let given = [&varint(2, 0)[..], &varint(4, 0)].concat();
    let decoded = decode(plain(text, "M"), &job, &[&[][..], &given]);
    assert_eq!((&decoded.rejected[..], decoded.batch.rows), (&[][..], 2));
    let missing = |name: &str| vec![FeatureKey::missing(name)];
    let zero = vec![FeatureKey::from_i64(0)];
    // Absent: the default value, and a missing value for fields with presence.
    assert_eq!(ids(&decoded, 0, 0), zero);
    assert_eq!(ids(&decoded, 1, 0), missing("maybe"));
    assert_eq!(ids(&decoded, 2, 0), missing("either"));
    assert_eq!((ids(&decoded, 1, 1), ids(&decoded, 2, 1)), (zero.clone(), zero));
    // An empty text stands for a missing value, as in every format.
    assert_eq!(ids(&decoded, 3, 0), missing("city"));
    assert_eq!(decoded.batch.numeric[0], [0.0, 0.0]);
    assert_eq!(decoded.batch.labels[0].values, [0.0, 0.0]);
}

#[test]
fn absent_fields_of_proto2_are_missing() {
    let text = "syntax = 'proto2'; message M { optional int64 id = 1 [default = 7];
        required bool click = 2; optional double price = 3; }";
    let job = schema(
        "[features.id]\nkind='id'\n[features.price]\nkind='numeric'\nmissing=5\n[labels.click]",
    );
    let decoded = decode(plain(text, "M"), &job, &[varint(2, 1)]);
    assert_eq!(ids(&decoded, 0, 0), [FeatureKey::missing("id")]);
    assert_eq!(decoded.batch.numeric[0], [5.0]);
    let reason = rejection(plain(text, "M"), &job, varint(1, 1));
    assert_eq!((reason.kind, reason.column.as_deref()), (RejectionKind::Value, Some("click")));
}

#[test]
fn repeated_fields_are_packed_or_not_and_the_last_single_value_counts() {
    let text = "syntax = 'proto3'; message M { repeated int32 a = 1; repeated sint64 b = 2 [packed = false];
        repeated string c = 3; repeated float d = 4; int32 click = 5; }";
    let job = schema(
        "[features.a]\nkind='ids'\ntype='i64'\n[features.b]\nkind='ids'\ntype='i64'\n\
         [features.c]\nkind='ids'\ntype='string'\n[labels.click]",
    );
    let message = [
        &varint(5, 0)[..],
        &varint(1, 1),
        &bytes(1, &[2, 3, 0x80, 1]),
        &varint(2, 1),
        &bytes(3, b"x"),
        &bytes(2, &[2, 3]),
        &bytes(1, &[]),
        &bytes(3, b""),
        &varint(1, 4),
        &bytes(3, b"y|z"),
        &varint(5, 1),
    ]
    .concat();
    let decoded = decode(plain(text, "M"), &job, &[message]);
    assert_eq!(decoded.rejected, []);
    let numbers =
        |numbers: &[i64]| numbers.iter().map(|&n| FeatureKey::from_i64(n)).collect::<Vec<_>>();
    assert_eq!(ids(&decoded, 0, 0), numbers(&[1, 2, 3, 128, 4]));
    assert_eq!(ids(&decoded, 1, 0), numbers(&[-1, 1, -2]));
    // An empty text is no id, and a separator inside of an item has no meaning.
    assert_eq!(ids(&decoded, 2, 0), [FeatureKey::from_text("x"), FeatureKey::from_text("y|z")]);
    assert_eq!(decoded.batch.labels[0].values, [1.0]);
}

#[test]
fn unknown_fields_are_passed_over() {
    let text = "syntax = 'proto3'; message M { int64 id = 1; bool click = 2; }";
    let job = schema("[features.id]\nkind='id'\n[labels.click]");
    // A group, a fixed number of each length, a text, and a number that is not in the schema.
    let unknown = [
        &[0x1b, 0x08, 1, 0x1c, 0x25, 1, 2, 3, 4, 0x29, 1, 2, 3, 4, 5, 6, 7, 8][..],
        &bytes(6, b"abc"),
        &varint(7, 1),
        &[0xf8, 0xff, 0xff, 0xff, 0x0f, 1],
    ]
    .concat();
    let message = [&varint(1, 9)[..], &unknown, &varint(2, 1)].concat();
    let decoded = decode(plain(text, "M"), &job, &[message]);
    assert_eq!(
        (&decoded.rejected[..], ids(&decoded, 0, 0)),
        (&[][..], vec![FeatureKey::from_i64(9)])
    );
}

#[test]
fn enums_are_the_names_of_their_values() {
    let text = "syntax = 'proto3'; enum Kind { NONE = 0; CLICK = 1; } message M { Kind kind = 1;
        repeated Kind kinds = 2; bool click = 3; }";
    let features =
        "[features.kind]\nkind='id'\ntype='string'\n[features.kinds]\nkind='ids'\ntype='string'";
    let job = schema(&format!("{features}\n[labels.click]"));
    let all = [&varint(1, 1)[..], &bytes(2, &[1, 0, 77])].concat();
    let decoded = decode(plain(text, "M"), &job, &[&all[..], &[]]);
    let names = |names: &[&str]| names.iter().map(|n| FeatureKey::from_text(n)).collect::<Vec<_>>();
    assert_eq!(ids(&decoded, 0, 0), names(&["CLICK"]));
    assert_eq!(ids(&decoded, 0, 1), names(&["NONE"]));
    assert_eq!(ids(&decoded, 1, 0), names(&["CLICK", "NONE", "77"]));
}

#[test]
fn every_scalar_has_the_value_that_its_writer_gave() {
    let kinds = [
        ("int32", Value::I32(i32::MIN), i64::from(i32::MIN)),
        ("int64", Value::I64(i64::MIN), i64::MIN),
        ("sint32", Value::I32(-3), -3),
        ("sint64", Value::I64(i64::MIN), i64::MIN),
        ("sfixed32", Value::I32(-7), -7),
        ("sfixed64", Value::I64(-(1 << 40)), -(1 << 40)),
        ("uint32", Value::U32(u32::MAX), i64::from(u32::MAX)),
        ("uint64", Value::U64(1 << 62), 1 << 62),
        ("fixed32", Value::U32(u32::MAX), i64::from(u32::MAX)),
        ("fixed64", Value::U64(5), 5),
        ("bool", Value::Bool(true), 1),
    ];
    let job =
        schema("[features.x]\nkind='id'\ntype='i64'\n[features.n]\nkind='numeric'\n[labels.click]");
    for (kind, value, wanted) in kinds {
        for wrapper in [false, true] {
            let name = match (wrapper, kind) {
                (false, _) => kind.to_owned(),
                (true, "bool" | "int32" | "int64") => {
                    format!("google.protobuf.{}{}Value", kind[..1].to_uppercase(), &kind[1..])
                }
                (true, "uint32" | "uint64") => format!("google.protobuf.UInt{}Value", &kind[4..]),
                _ => continue,
            };
            let text = format!(
                "syntax = 'proto3'; import 'google/protobuf/wrappers.proto'; message M {{ {name} x = 1; \
                 double n = 2; bool click = 3; }}"
            );
            let descriptor = pool(&text).get_message_by_name("M").unwrap();
            let mut message = DynamicMessage::new(descriptor.clone());
            let mut inner = value.clone();
            if wrapper {
                let field = descriptor.get_field_by_name("x").unwrap();
                let mut outer = DynamicMessage::new(field.kind().as_message().unwrap().clone());
                set(&mut outer, "value", inner);
                inner = Value::Message(outer);
            }
            set(&mut message, "x", inner);
            set(&mut message, "n", Value::F64(-0.5));
            let decoded = decode(plain(&text, "M"), &job, &[message.encode_to_vec(), Vec::new()]);
            assert_eq!(decoded.rejected, [], "{name}");
            assert_eq!(ids(&decoded, 0, 0), [FeatureKey::from_i64(wanted)], "{name}");
            let absent = if wrapper { FeatureKey::missing("x") } else { FeatureKey::from_i64(0) };
            assert_eq!(ids(&decoded, 0, 1), [absent], "{name}");
            assert_eq!(decoded.batch.numeric[0], [-0.5, 0.0]);
        }
    }
    // A number that its declared type cannot hold is refused like one in a file.
    let job = schema("[features.x]\nkind='id'\ntype='u64'\n[labels.click]");
    let text = "syntax = 'proto3'; message M { sint64 x = 1; bool click = 2; }";
    let reason = rejection(plain(text, "M"), &job, varint(1, 1));
    assert_eq!((reason.kind, reason.column.as_deref()), (RejectionKind::Value, Some("x")));
    assert!(reason.to_string().contains("is negative"), "{reason}");
}

#[test]
fn bad_messages_have_a_reason() {
    let text = "syntax = 'proto3'; message M { string city = 1; int64 id = 2; bool click = 3; }";
    let job = schema(
        "[features.city]\nkind='id'\ntype='string'\n[features.id]\nkind='id'\n[labels.click]",
    );
    for (message, column, words) in [
        (
            bytes(2, &[1]),
            Some("id"),
            "the field has wire type 2, but its type Int64 has wire type 0",
        ),
        (varint(1, 1).to_vec(), Some("city"), "has wire type 0"),
        (vec![0x0a], None, "a value is cut off"),
        (vec![0x0a, 5, b'x'], None, "a value is cut off"),
        (vec![0x4c], None, "a group ends that has not begun"),
        (vec![0x00, 1], None, "a field has a number outside of"),
    ] {
        let reason = rejection(plain(text, "M"), &job, &message);
        assert_eq!(
            (reason.kind, reason.column.as_deref()),
            (RejectionKind::Format, column),
            "{reason}"
        );
        assert!(reason.to_string().contains(words), "{reason}");
    }
    let reason = rejection(plain(text, "M"), &job, bytes(1, &[0xff]));
    assert_eq!((reason.kind, reason.column.as_deref()), (RejectionKind::Value, Some("city")));
    assert!(reason.to_string().contains("is not UTF-8"), "{reason}");
}

#[test]
fn a_time_is_a_number_of_the_unit_of_the_job() {
    let text = "syntax = 'proto3'; import 'google/protobuf/timestamp.proto'; message M {
        google.protobuf.Timestamp time = 1; bool click = 2; int64 user = 3; }";
    let nanos = [0x10, 0x80, 0xe8, 0x92, 0x26];
    let second = [&[0x08, 0x80, 0xe2, 0xcf, 0xaa, 0x06][..], &nanos].concat();
    for (unit, time) in
        [("s", 1_700_000_000), ("ms", 1_700_000_000_080), ("ns", 1_700_000_000_080_000_000)]
    {
        let job = schema(&format!(
            "[features.user]\nkind='id'\n[labels.click]\n[columns]\nevent_time='time'\nevent_time_unit='{unit}'"
        ));
        let decoded = decode(plain(text, "M"), &job, &[bytes(1, &second)]);
        assert_eq!(decoded.batch.event_time, Some(vec![time]), "{:?}", decoded.rejected);
        let absent = rejection(plain(text, "M"), &job, []);
        assert!(absent.to_string().contains("the value is missing"), "{absent}");
        let large = bytes(1, &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        let large = rejection(plain(text, "M"), &job, large);
        assert_eq!(large.column.as_deref(), Some("time"), "{large}");
    }
}
