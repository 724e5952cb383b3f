//! Tests of Avro messages. They are written by an encoder of this file, which shares no code with
//! the decoder, and compared with Arrow messages of the same rows.

use proptest::prelude::*;
use zillion_reader::{
    AvroSchemas, DataConfig, DecodedMessages, MessageFormat, ReferencedSchema, Rejection,
    RejectionKind, SchemaLanguage, WriterSchema,
};

use super::arrow::{Frame, columns, message};
use super::{decode, decoder, job};
use crate::fixture::{Folder, schema};

/// The schema of the rows that [`row`] writes, in the order of its fields.
const SCHEMA: &str = r#"{"type": "record", "name": "Row", "namespace": "z", "fields": [
    {"name": "unread", "type": "long"},
    {"name": "user", "type": ["null", "long"], "default": null},
    {"name": "city", "type": ["null", "string"]},
    {"name": "more", "type": {"type": "map", "values": {"type": "record", "name": "M", "fields": [
        {"name": "nothing", "type": "null"}, {"name": "some", "type": "bytes"}]}}},
    {"name": "tags", "type": "string"},
    {"name": "past", "type": {"type": "array", "items": "long"}},
    {"name": "price", "type": ["double", "null"]},
    {"name": "height", "type": "double"},
    {"name": "click", "type": "boolean"},
    {"name": "watch", "type": ["null", "long"]},
    {"name": "w", "type": "float"},
    {"name": "session", "type": "int"},
    {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}"#;

/// The same schema as one of a later time: fields in another order, with more and renamed types.
const LATER: &str = r#"{"type": "record", "name": "Row", "fields": [
    {"name": "time", "type": "long"},
    {"name": "added", "type": {"type": "array", "items": "string"}},
    {"name": "user", "type": "long"},
    {"name": "city", "type": {"type": "enum", "name": "City", "symbols": ["c0", "c1", "c2"]}},
    {"name": "tags", "type": "string"},
    {"name": "past", "type": ["null", {"type": "array", "items": "long"}]},
    {"name": "price", "type": "double"},
    {"name": "height", "type": "double"},
    {"name": "click", "type": "boolean"},
    {"name": "watch", "type": "long"},
    {"name": "w", "type": "double"},
    {"name": "session", "type": "long"}]}"#;

/// An encoder of Avro by its specification.
#[derive(Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn long(&mut self, number: i64) -> &mut Self {
        let mut rest = (number as u64) << 1 ^ (number >> 63) as u64;
        while rest > 0x7f {
            self.0.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.0.push(rest as u8);
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.long(text.len() as i64);
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    fn double(&mut self, number: f64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn float(&mut self, number: f32) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.0.push(u8::from(flag));
        self
    }
}

/// Returns the record of a row with the values of [`columns`].
fn row(i: i64) -> Vec<u8> {
    let mut out = Encoder::default();
    out.long(i);
    if i % 11 > 0 {
        out.long(1).long(i)
    } else {
        out.long(0)
    };
    if i % 7 > 0 {
        out.long(1).text(&format!("c{}", i % 5))
    } else {
        out.long(0)
    };
    // A block of items with a negative number is followed by its size.
    match i % 3 {
        0 => out.long(0),
        1 => out.long(1).text("key").text("value").long(0),
        _ => out.long(-1).long(7).text("k").text("abcd").long(0),
    };
    out.text(&format!("t{}|u{}", i % 3, i % 4));
    if i % 4 > 0 {
        out.long(i % 4);
        for j in 0..i % 4 {
            out.long(i + j);
        }
    }
    out.long(0);
    if i % 3 > 0 {
        out.long(0).double(i as f64 / 4.0)
    } else {
        out.long(1)
    };
    out.double(i as f64 / 100.0).flag(i % 2 == 0);
    if i % 5 > 0 {
        out.long(1).long(i % 9)
    } else {
        out.long(0)
    };
    out.float(0.5).long(i / 3).long(1_700_000_000_000 + i);
    out.0
}

fn framed(id: u32, record: &[u8]) -> Vec<u8> {
    [&[0], &id.to_be_bytes()[..], record].concat()
}

fn confluent() -> MessageFormat {
    let schemas = [(7, SCHEMA.to_owned()), (300_000, LATER.to_owned())];
    MessageFormat::Avro(AvroSchemas::confluent(schemas).unwrap())
}

/// Decodes the rows of a range from Arrow, as what is wanted.
fn wanted(first: usize, rows: usize) -> DecodedMessages {
    let whole = message(columns(first, rows, 0), usize::MAX, Frame::Stream, None);
    decode(MessageFormat::Arrow, &job(), &[whole])
}

fn rejection(format: MessageFormat, message: impl AsRef<[u8]>) -> Rejection {
    super::rejection(format, &job(), message)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn avro_decodes_as_arrow_does(first in 0usize..200, rows in 1usize..80) {
        let range = first as i64..(first + rows) as i64;
        let messages: Vec<_> = range.map(|i| framed(7, &row(i))).collect();
        let decoded = decode(confluent(), &job(), &messages);
        prop_assert_eq!(&decoded.rejected, &[]);
        prop_assert_eq!(&decoded.rows, &vec![1; rows]);
        prop_assert_eq!(&decoded.batch, &wanted(first, rows).batch);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn damaged_avro_harms_no_other_message(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
        cut in prop::option::weighted(0.3, any::<prop::sample::Index>()),
        more in prop::collection::vec(any::<u8>(), 0..4),
        number in 0i64..100,
    ) {
        let good = framed(7, &row(5));
        let mut bad = framed(7, &row(number));
        let length = bad.len();
        for (at, bits) in flips {
            bad[at.index(length)] ^= bits;
        }
        if let Some(cut) = cut {
            bad.truncate(cut.index(length));
        }
        bad.extend(more);
        let decoded = decode(confluent(), &job(), &[&good, &bad, &good]);
        prop_assert_eq!((decoded.rows[0], decoded.rows[2]), (1, 1));
        prop_assert_eq!(decoded.batch.rows, 2 + decoded.rows[1]);
        prop_assert_eq!(decoded.rejected.len(), 1 - decoded.rows[1]);
        if decoded.rows[1] == 0 {
            let twice = decode(confluent(), &job(), &[&good, &good]);
            prop_assert_eq!(&decoded.batch, &twice.batch);
        }
    }

    #[test]
    fn bytes_are_decoded_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        for id in [7, 300_000] {
            let decoded = decode(confluent(), &job(), &[framed(id, &bytes)]);
            prop_assert_eq!(decoded.rows[0] + decoded.rejected.len(), 1);
        }
        rejection(confluent(), [&[1], &bytes[..]].concat());
    }
}

#[test]
fn schemas_may_change_from_message_to_message() {
    let later = |i: i64| {
        let mut out = Encoder::default();
        out.long(1_700_000_000_000 + i).long(1).text("new").long(0);
        out.long(i).long(i % 5).text(&format!("t{}|u{}", i % 3, i % 4));
        out.long(1);
        if i % 4 > 0 {
            out.long(i % 4);
        }
        for j in 0..i % 4 {
            out.long(i + j);
        }
        out.long(0).double(i as f64 / 4.0).double(i as f64 / 100.0).flag(i % 2 == 0);
        out.long(i % 9).double(0.5).long(i / 3);
        framed(300_000, &out.0)
    };
    let messages = [framed(7, &row(1)), later(2), later(11 * 3 * 5 * 7 + 1), framed(7, &row(4))];
    let decoded = decode(confluent(), &job(), &messages);
    // The city of row 1156 is `c1`, and all its values are there.
    assert_eq!((&decoded.rejected[..], decoded.batch.rows), (&[][..], 4));
    for (place, number) in [1, 2, 1156, 4].into_iter().enumerate() {
        let one = decode(confluent(), &job(), &[&messages[place]]);
        assert_eq!(one.batch, wanted(number, 1).batch, "row {number}");
    }
}

#[test]
fn avro_with_fingerprints_is_read() {
    // The fingerprint of the canonical form is computed bit by bit, as the specification says.
    let canonical = r#"{"name":"Row","type":"record","fields":[{"name":"user","type":"long"},{"name":"click","type":"long"}]}"#;
    let mut print = 0xc15d_213a_a4d7_a795u64;
    for byte in canonical.bytes() {
        let mut entry = (print ^ u64::from(byte)) & 0xff;
        for _ in 0..8 {
            entry = entry >> 1 ^ (0xc15d_213a_a4d7_a795 & 0u64.wrapping_sub(entry & 1));
        }
        print = print >> 8 ^ entry;
    }
    let text = r#"{"type": "record", "doc": "d", "fields": [
        {"type": "long", "name": "user"}, {"name": "click", "type": {"type": "long"}}],
        "name": "Row"}"#;
    let folder = Folder::new();
    std::fs::write(folder.path("row.avsc"), text).unwrap();
    let schemas = AvroSchemas::load_single_object([folder.path("row.avsc")]).unwrap();
    assert_eq!(schemas.texts().next().unwrap().0, print);
    let format = MessageFormat::Avro(schemas);
    let job = schema("[features.user]\nkind='id'\n[labels.click]");
    let message = |key: u64| [&[0xc3, 1], &key.to_le_bytes()[..], &[6, 2]].concat();
    let decoded = decode(format.clone(), &job, &[message(print)]);
    assert_eq!((decoded.batch.rows, decoded.rejected.len()), (1, 0));
    let reason = super::rejection(format.clone(), &job, message(5)).to_string();
    let known = format!(
        "the schema with fingerprint 0000000000000005 is unknown (known: with \
                         fingerprint {print:016x})"
    );
    assert!(reason.contains(&known), "{reason}");
    let reason = super::rejection(format, &job, [0xc3, 2]).to_string();
    assert!(reason.contains("it does not begin with C3 01"), "{reason}");
    let error = AvroSchemas::load_single_object([folder.path("none")]).unwrap_err().to_string();
    assert!(error.contains("read the schema"), "{error}");
}

#[test]
fn a_changed_column_rejects_with_its_name() {
    let schemas =
        |text: &str| MessageFormat::Avro(AvroSchemas::confluent([(1, text.to_owned())]).unwrap());
    let good = r#"{"type": "record", "name": "R", "fields": [
        {"name": "user", "type": "long"}, {"name": "click", "type": "int"}]}"#;
    let job = schema("[features.user]\nkind='id'\n[labels.click]");
    let message = framed(1, &[6, 2]);
    assert_eq!(decode(schemas(good), &job, &[&message]).batch.rows, 1);
    for (text, column, words) in [
        (good.replace("user", "other"), "user", "is missing"),
        (good.replace(r#""long""#, r#"{"type": "map", "values": "long"}"#), "user", "map"),
        (good.replace(r#""int""#, r#"["string", "int"]"#), "click", "union"),
    ] {
        let rejection = super::rejection(schemas(&text), &job, &message);
        assert_eq!(rejection.kind, RejectionKind::Columns, "{rejection}");
        assert_eq!(rejection.column.as_deref(), Some(column), "{rejection}");
        assert!(rejection.to_string().to_lowercase().contains(words), "{rejection}");
    }
    let rejection = super::rejection(schemas(good), &job, framed(2, &[6, 2]));
    assert_eq!(rejection.kind, RejectionKind::Columns);
    let text = rejection.to_string();
    assert!(text.contains("the schema with id 2 is unknown (known: with id 1)"), "{text}");
    // A bad value is rejected like one of a file, and the next message is not harmed.
    let null = good.replace(r#""int""#, r#"["null", "int"]"#);
    let decoded = decode(schemas(&null), &job, &[framed(1, &[6, 0]), framed(1, &[6, 2, 2])]);
    assert_eq!(decoded.rows, [0, 1]);
    let rejection = &decoded.rejected[0].rejection;
    assert_eq!((rejection.kind, rejection.row), (RejectionKind::Value, None));
    assert_eq!(rejection.column.as_deref(), Some("click"));
}

#[test]
fn schemas_are_added_when_they_are_seen() {
    let job = schema(
        "[features.user]\nkind='id'\n[features.city]\nkind='id'\ntype='string'\n[labels.click]",
    );
    let format = MessageFormat::Avro(AvroSchemas::registered());
    let mut decoder = decoder(format, &DataConfig::default(), &job);
    let message = framed(7, &[6, 2, 2]);
    assert_eq!(decoder.unknown_schema(&message), Some(7));
    assert_eq!(decoder.decode([&message[..]]).unwrap().rows, [0]);
    // The type of the city is in another schema.
    let city = r#"{"type": "enum", "name": "City", "namespace": "geo", "symbols": ["a", "b"]}"#;
    let text = r#"{"type": "record", "name": "R", "fields": [{"name": "user", "type": "long"},
        {"name": "city", "type": "geo.City"}, {"name": "click", "type": "int"}]}"#;
    let reference = ReferencedSchema { name: "geo.City".to_owned(), text: city.to_owned() };
    let mut written = WriterSchema::plain(SchemaLanguage::Avro, text);
    written.references.push(reference);
    decoder.add_schema(7, &written);
    assert_eq!(decoder.unknown_schema(&message), None);
    let decoded = decoder.decode([&message[..]]).unwrap();
    assert_eq!(decoded.rejected, []);
    assert_eq!(decoded.batch.sparse[1].keys, [zillion_feature::FeatureKey::from_text("b")]);
    // A schema without a column, and schemas that cannot be used.
    let removed = text.replace(r#"{"name": "user", "type": "long"},"#, "");
    for (schema, words) in [
        (WriterSchema { text: removed, ..written.clone() }, "column `user`"),
        (WriterSchema { references: Vec::new(), ..written }, "cannot be used"),
        (WriterSchema::plain(SchemaLanguage::Protobuf, ""), "it is one of Protobuf"),
    ] {
        decoder.add_schema(8, &schema);
        let rejected = decoder.decode([&framed(8, &[6, 2, 2])[..]]).unwrap().rejected.remove(0);
        let text = rejected.rejection.to_string();
        assert_eq!(rejected.rejection.kind, RejectionKind::Columns, "{text}");
        assert!(text.contains(words) && text.contains("with id 8"), "{text}");
    }
}

#[test]
fn what_is_no_whole_record_is_rejected() {
    for (message, words) in [
        (Vec::new(), "it does not begin with 00"),
        (vec![0, 0, 0, 0], "it does not begin with 00"),
        (framed(7, &[]), "not a readable record of Avro"),
        (framed(7, &[&row(1)[..], &[0]].concat()), "1 bytes are behind the record"),
    ] {
        let rejection = rejection(confluent(), &message);
        assert_eq!(rejection.kind, RejectionKind::Format);
        assert!(rejection.to_string().contains(words), "{rejection}");
    }
}

#[test]
fn schemas_whose_items_take_no_bytes_are_refused() {
    let refuse = |items: &str| {
        let text = format!(
            r#"{{"type": "record", "name": "R", "namespace": "n", "fields": [
                {{"name": "e", "type": {{"type": "record", "name": "E", "fields": []}}}},
                {{"name": "f", "type": {{"type": "fixed", "name": "F", "size": 0}}}},
                {{"name": "a", "type": ["null", {{"type": "array", "items": {items}}}]}}]}}"#
        );
        AvroSchemas::confluent([(1, text)]).map_err(|e| e.to_string())
    };
    let record = |of: &str| {
        let fields = format!(r#"[{{"name": "x", "type": "null"}}, {{"name": "y", "type": {of}}}]"#);
        format!(r#"{{"type": "record", "name": "I", "fields": {fields}}}"#)
    };
    let nested = r#"{"type": "null"}"#.to_owned();
    for items in
        [r#""null""#.to_owned(), nested, r#""E""#.into(), r#""n.F""#.into(), record(r#""E""#)]
    {
        let error = refuse(&items).unwrap_err();
        assert!(error.contains("whose items take no bytes"), "{items}: {error}");
    }
    for items in [r#""long""#.to_owned(), r#"["null"]"#.to_owned(), record(r#""int""#)] {
        refuse(&items).unwrap();
    }
    let list = r#"[{"type": "array", "items": "null"}]"#.to_owned();
    for (text, words) in [("5", "it is no record"), ("{", "it is no JSON"), (&list, "no record")] {
        let error = AvroSchemas::confluent([(1, text.to_owned())]).unwrap_err().to_string();
        assert!(error.contains("the schema of Avro with id 1") && error.contains(words), "{error}");
    }
    // A schema with an unknown type is refused when the decoder is made.
    let text = r#"{"type": "record", "name": "R", "fields": [{"name": "a", "type": "other"}]}"#;
    let schemas = AvroSchemas::confluent([(1, text.to_owned())]).unwrap();
    let sides = zillion_reader::SideTables::load(&DataConfig::default(), &job()).unwrap();
    let format = MessageFormat::Avro(schemas);
    let made = zillion_reader::MessageDecoder::new(
        format,
        &DataConfig::default(),
        &job(),
        &sides,
        &super::known(),
    );
    assert!(made.unwrap_err().to_string().contains("the schema of Avro with id 1"));
}

#[test]
fn one_decoder_serves_several_threads() {
    let decoder = decoder(confluent(), &DataConfig::default(), &job());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let decoder = &decoder;
            scope.spawn(move || {
                for first in 0..50 {
                    let first = first * 4 + thread;
                    let messages = [framed(7, &row(first as i64))];
                    let decoded = decoder.decode(messages.iter().map(Vec::as_slice)).unwrap();
                    assert_eq!(decoded.batch, wanted(first, 1).batch);
                }
            });
        }
    });
}
