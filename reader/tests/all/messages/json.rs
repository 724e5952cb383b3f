//! Tests of JSON messages. They are compared with JSON lines.

use proptest::prelude::*;
use zillion_feature::{Cursor, FeatureKey};
use zillion_reader::{BatchOrder, MessageFormat, RejectionKind};

use super::{decode, decoder, job, known, rejection};
use crate::fixture::{Folder, read, schema};

/// A line with all keys, so that a file with it has all columns.
const WHOLE: &str = "{\"user\":1,\"city\":\"x\",\"tags\":[\"a\"],\"past\":[1,2,3],\"price\":2,\
    \"height\":1,\"click\":1,\"watch\":4,\"w\":1,\"session\":\"s\",\"time\":1700000000000}";

const KEYS: [&str; 12] = [
    "user", "city", "tags", "past", "price", "height", "click", "watch", "w", "session", "time",
    "other",
];

/// Returns values of a key. Most of them fit the key, and others are refused.
fn value(key: usize) -> impl Strategy<Value = String> {
    let good = match key {
        0 => prop_oneof!["[0-9]{1,15}", Just("null".to_owned()), Just("true".to_owned())].boxed(),
        1 | 9 => prop_oneof!["\"[a-cä\\\\n ]{0,4}\"", "[0-9]{1,3}"]
            .prop_map(|text| text.replace('\\', "\\\\"))
            .boxed(),
        2 => prop_oneof!["\"[ab|]{0,5}\"", Just("[\"\\u0041\",null,\"b\",7]".to_owned())].boxed(),
        3 => prop_oneof!["\\[[1-9](,[1-9]){0,4}\\]", Just("[]".to_owned()), "[1-9]"].boxed(),
        4 | 5 | 8 => prop_oneof!["[0-9]\\.[0-9]", "\"[0-9]{1,2}\"", "[1-9]e[0-2]"].boxed(),
        6 => prop_oneof!["[01]", Just("\"TRUE\"".to_owned()), Just("false".to_owned())].boxed(),
        7 => "[0-9]".boxed(),
        10 => "17000000[0-9]{5}".boxed(),
        _ => prop_oneof![Just("{\"a\":[{}]}".to_owned()), Just("[[1],2]".to_owned())].boxed(),
    };
    let bad = prop_oneof![
        Just("{}".to_owned()),
        Just("[1,[2]]".to_owned()),
        Just("-5".to_owned()),
        Just("1.5".to_owned()),
        Just("1e999".to_owned()),
        Just("99999999999999999999".to_owned()),
        Just("null".to_owned()),
        Just("\"x\"".to_owned()),
        Just("NaN".to_owned()),
        Just("tru".to_owned()),
    ];
    prop_oneof![60 => good, 1 => bad]
}

fn line() -> impl Strategy<Value = String> {
    let pairs: Vec<_> = (0..KEYS.len())
        .map(|key| (prop::option::weighted(0.98, value(key)), 0u32..1000).boxed())
        .collect();
    let object = (pairs, 0u8..60, any::<prop::sample::Index>()).prop_map(|(pairs, fault, cut)| {
        let mut pairs: Vec<(u32, String)> = pairs
            .into_iter()
            .zip(KEYS)
            .filter_map(|((value, place), key)| Some((place, format!("\"{key}\": {}", value?))))
            .collect();
        pairs.sort();
        let mut pairs: Vec<String> = pairs.into_iter().map(|(_, pair)| pair).collect();
        if fault == 0 {
            pairs.push("\"user\":1".to_owned());
        }
        let mut line = format!("{{{}}}", pairs.join(","));
        match fault {
            1 => line.push('}'),
            2 => line = format!("[{line}]"),
            3 => line.truncate(line.floor_char_boundary(cut.index(line.len()))),
            4 => line.push_str(" \r"),
            5 => line = "\t ".to_owned(),
            _ => {}
        }
        line
    });
    prop_oneof![30 => object, 1 => Just(String::new())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn messages_decode_as_lines_of_a_file_do(lines in prop::collection::vec(line(), 0..40)) {
        let lines: Vec<&str> = [WHOLE].into_iter().chain(lines.iter().map(String::as_str)).collect();
        let folder = Folder::with("max_bad_rows = 1000\nrejects = 'r'\nnull = ['x']");
        folder.write("a.jsonl", lines.join("\n"));
        let job = job();
        let dataset = folder.open(&["a.jsonl"], &job).unwrap().with_statistics(known());
        let order = BatchOrder { seed: 0, shuffle: false, batch_rows: 1 << 20, drop_last: false };
        let batches = read(&dataset, order, Cursor::default(), 1).unwrap();

        let decoder = decoder(MessageFormat::Json, &folder.config, &job);
        let decoded = decoder.decode(lines.iter().map(|line| line.as_bytes())).unwrap();
        match batches.as_slice() {
            [] => prop_assert_eq!(decoded.batch.rows, 0),
            [(batch, _)] => prop_assert_eq!(&decoded.batch, batch),
            more => prop_assert!(false, "{} batches", more.len()),
        }
        // A line without a row has no number in a file.
        let places: Vec<usize> =
            (0..lines.len()).filter(|&i| !lines[i].trim().is_empty()).collect();
        let wanted: Vec<(usize, Option<String>, String)> = dataset
            .rejects()
            .into_iter()
            .map(|reject| (places[reject.row as usize - 1], reject.column, reject.reason))
            .collect();
        let found: Vec<(usize, Option<String>, String)> = decoded
            .rejected
            .iter()
            .map(|r| (r.index, r.rejection.column.clone(), r.rejection.reason.clone()))
            .collect();
        prop_assert_eq!(&found, &wanted);
        let is_row = |i: &usize| !found.iter().any(|(index, ..)| index == i);
        let mut rows = vec![0; lines.len()];
        places.into_iter().filter(is_row).for_each(|i| rows[i] = 1);
        prop_assert_eq!(decoded.rows, rows);
    }

    #[test]
    fn line_breaks_between_values_change_nothing(lines in prop::collection::vec(line(), 1..20)) {
        let spread: Vec<String> =
            lines.iter().map(|line| line.replace(',', "\r\n,\n").replace(": ", "\n:\n")).collect();
        let (plain, spread) =
            (decode(MessageFormat::Json, &job(), &lines), decode(MessageFormat::Json, &job(), &spread));
        prop_assert_eq!(plain.batch, spread.batch);
        prop_assert_eq!(plain.rows, spread.rows);
    }

    #[test]
    fn bytes_are_decoded_or_rejected(
        messages in prop::collection::vec(prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(b"{}[]\":,1\\u\n".to_vec())], 0..40), 0..20),
    ) {
        let decoded = decode(MessageFormat::Json, &job(), &messages);
        let accepted = decoded.rows.iter().sum::<usize>();
        prop_assert_eq!(decoded.rows.len(), messages.len());
        prop_assert_eq!(decoded.batch.rows, accepted);
        let blank = messages.iter().filter(|m| m.trim_ascii_start().is_empty()).count();
        prop_assert_eq!(accepted + blank + decoded.rejected.len(), messages.len());
    }
}

#[test]
fn an_object_may_have_several_lines() {
    let job = schema("[features.user]\nkind='id'\n[labels.click]");
    let decoded = decode(
        MessageFormat::Json,
        &job,
        &["{\n  \"user\": 7,\n  \"click\": 1\n}\n", "\u{feff}{\"user\":8,\"click\":0}", " \n"],
    );
    let keys = [7, 8].map(FeatureKey::from_u64);
    assert_eq!((decoded.batch.sparse[0].keys.as_slice(), decoded.batch.rows), (&keys[..], 2));
    assert_eq!((decoded.rows.as_slice(), decoded.rejected.len()), (&[1, 1, 0][..], 0));
}

#[test]
fn a_rejection_names_the_problem_and_its_place() {
    let job = schema("[features.user]\nkind='id'\n[labels.click]");
    let of = |message: &str| rejection(MessageFormat::Json, &job, message);
    for (message, kind, reason) in [
        ("{\"user\":1}", RejectionKind::Value, "column `click`: the value is missing, but label"),
        ("{\"user\":{},\"click\":1}", RejectionKind::Value, "column `user`: \"{..}\" is an object"),
        ("{\"user\":1,\"click\":2}", RejectionKind::Value, "column `click`: \"2\" is not 0 or 1"),
        ("{\"user\":1,", RejectionKind::Format, "EOF while parsing a value (character 10 of"),
        ("{\n\"user\":\n1,", RejectionKind::Format, "(line 3, character 2 of the message); it is"),
        ("{\"user\":1,\"click\":1}{}", RejectionKind::Format, "trailing characters"),
        ("{\"user\":1,\n\"user\":1}", RejectionKind::Format, "the key \"user\" appears twice"),
        ("[1]", RejectionKind::Format, "write one object a line instead of an array"),
        ("{\"user\":NaN,\"click\":1}", RejectionKind::Format, "write null"),
    ] {
        let rejection = of(message);
        let text = rejection.to_string();
        assert!(rejection.kind == kind && text.contains(reason), "{message}: {rejection:?}");
    }
    let twice = decode(MessageFormat::Json, &job, &["{", "{\"user\":1,\"click\":1}", "}"]);
    let rejected: Vec<usize> = twice.rejected.iter().map(|r| r.index).collect();
    assert_eq!((rejected, twice.batch.rows), (vec![0, 2], 1));
}
