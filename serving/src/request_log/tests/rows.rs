//! Tests of the lines: a trainer makes the same keys and numbers of them as the server did.

use std::borrow::Cow;

use proptest::prelude::*;
use zillion_feature::{Batch, LabelKind, RawValue};
use zillion_reader::{DataConfig, MessageDecoder, MessageFormat, SideTables};

use super::*;
use crate::score::{LOGITS, PROBABILITIES};

/// Features of every kind. Two of them read one column.
const JOB: &str = "
[features.user]\nkind = 'id'\ntype = 'string'
[features.item]\nkind = 'id'
[features.item_again]\nkind = 'id'\ncolumn = 'item'\ntable = 'other'
[features.count]\nkind = 'id'\ntype = 'u64'\ncolumn = 'c \"n\"'
[features.tags]\nkind = 'ids'\ntype = 'string'
[features.seen]\nkind = 'sequence'\nmax_len = 3
[features.price]\nkind = 'numeric'\nmissing = 0.5
[features.hour]\nkind = 'bucketized'\nboundaries = [1.0, 2.5]
[labels.click]\n[labels.like]
[columns]\nevent_time = 'time'\nevent_time_unit = 'us'";

fn encoder_of(job: &str) -> Encoder {
    Encoder::new(&schema(job), &Statistics::default(), &[]).unwrap()
}

fn outputs() -> Vec<Output> {
    let output = |name: &str, task, by_default: bool| {
        let (name, predicts) = (name.to_owned(), by_default.then_some(LabelKind::Binary));
        Output { name, task, predicts, by_default, classes: Vec::new() }
    };
    vec![
        output(PROBABILITIES, 0, true),
        output(LOGITS, 0, false),
        output("probabilities/like", 1, true),
        output("logits/like", 1, false),
    ]
}

/// Writes the lines of a request, as `write` does.
fn write_lines(
    encoder: &Encoder,
    rows: usize,
    columns: &RawColumns<'_>,
    settings: &ModelLogSettings,
    limit: usize,
) -> Result<String, Unlogged> {
    let logits: Vec<Vec<f32>> = [0.1f32, -7.25e-20].map(|x| vec![x; rows]).into();
    let served = Served {
        model: "m",
        version: VersionId(3),
        encoder,
        rows,
        columns,
        outputs: &outputs(),
        logits: &logits,
        id: "r\"1\"",
        time: Duration::from_micros(1_700_000_000_000_001),
    };
    let written = lines::write(&served, "request", settings, limit)?;
    Ok(String::from_utf8(written).unwrap())
}

/// Decodes lines as `zillion online` does for impressions.
fn decode(job: &str, lines: &str) -> Batch {
    let impressions = Schema { labels: Vec::new(), ..schema(job) };
    let config = DataConfig::default();
    let sides = SideTables::load(&config, &impressions).unwrap();
    let format = MessageFormat::Json;
    let statistics = Statistics::default();
    let decoder = MessageDecoder::new(format, &config, &impressions, &sides, &statistics).unwrap();
    let decoded = decoder.decode(lines.lines().map(str::as_bytes)).unwrap();
    assert!(decoded.rejected.is_empty(), "{:?}: {lines}", decoded.rejected);
    decoded.batch
}

/// The keys of each row, and the bits of the numbers.
type Facts = (Vec<Vec<Vec<FeatureKey>>>, Vec<Vec<u32>>);

fn facts(batch: &Batch) -> Facts {
    let keys = batch.sparse.iter().map(|column| {
        let row = |row: usize| match &column.offsets {
            Some(ends) => column.keys[ends[row] as usize..ends[row + 1] as usize].to_vec(),
            None => vec![column.keys[row]],
        };
        (0..batch.rows).map(row).collect()
    });
    let bits = |values: &Vec<f32>| values.iter().map(|x| x.to_bits()).collect();
    (keys.collect(), batch.numeric.iter().map(bits).collect())
}

fn text() -> impl Strategy<Value = RawValue<'static>> {
    prop_oneof![".{0,8}", "[\u{0}-\u{20}\"\\\\|,é]{0,4}", "[0-9]{1,3}"]
        .prop_map(|text| RawValue::Text(Cow::Owned(text)))
}

fn id() -> impl Strategy<Value = RawValue<'static>> {
    prop_oneof![
        Just(RawValue::Missing),
        any::<i64>().prop_map(RawValue::Int),
        (0..9_000_000_000_000_000i64).prop_map(|x| RawValue::Float(x as f64)),
        Just(RawValue::Float(-0.0)),
        any::<bool>().prop_map(RawValue::Bool),
        "[0-9]{1,9}".prop_map(|text| RawValue::Text(Cow::Owned(text))),
    ]
}

fn number() -> impl Strategy<Value = RawValue<'static>> {
    prop_oneof![
        Just(RawValue::Missing),
        (-1e30..1e30f64).prop_map(RawValue::Float),
        any::<f32>()
            .prop_filter("finite", |x| x.is_finite())
            .prop_map(|x| RawValue::Float(f64::from(x))),
        any::<i64>().prop_map(RawValue::Int),
        Just(RawValue::Float(-0.0)),
        Just(RawValue::Text("1.25e3".into())),
        any::<bool>().prop_map(RawValue::Bool),
    ]
}

fn unsigned() -> impl Strategy<Value = RawValue<'static>> {
    prop_oneof![any::<u64>().prop_map(RawValue::Uint), (0..9i64).prop_map(RawValue::Int)]
}

fn text_id() -> impl Strategy<Value = RawValue<'static>> {
    prop_oneof![
        text(),
        any::<i64>().prop_map(RawValue::Int),
        any::<bool>().prop_map(RawValue::Bool)
    ]
}

/// A column of single values, which may be shared by all rows.
fn column(
    value: impl Strategy<Value = RawValue<'static>>,
    rows: usize,
) -> impl Strategy<Value = RawColumn<'static>> {
    (proptest::collection::vec(value, rows), any::<bool>()).prop_map(|(mut values, is_shared)| {
        values.truncate(if is_shared { 1 } else { values.len() });
        RawColumn { values: RawValues::Any(values), lengths: None, is_shared }
    })
}

/// A column of lists, which may be shared by all rows or have one value in each row.
fn lists(
    value: impl Strategy<Value = RawValue<'static>>,
    rows: usize,
) -> impl Strategy<Value = RawColumn<'static>> {
    let list = proptest::collection::vec(value, 0..5);
    (proptest::collection::vec(list, rows), 0..3).prop_map(|(mut rows, form)| {
        rows.truncate(if form == 1 { 1 } else { rows.len() });
        let (is_shared, is_single) = (form == 1, form == 2);
        if is_single {
            rows.iter_mut().for_each(|row| row.resize(1, RawValue::Missing));
        }
        let lengths = (!is_single).then(|| rows.iter().map(Vec::len).collect());
        RawColumn { values: RawValues::Any(rows.concat()), lengths, is_shared }
    })
}

prop_compose! {
    fn request()(rows in 1..5usize)(
        rows in Just(rows),
        columns in (
            column(text_id(), rows), column(id(), rows), column(unsigned(), rows),
            lists(text_id(), rows), lists(id(), rows), column(number(), rows),
            column(number(), rows),
        ),
    ) -> (usize, RawColumns<'static>) {
        let (user, item, count, tags, seen, price, hour) = columns;
        let named = [
            ("user", user), ("item", item), ("count", count), ("tags", tags), ("seen", seen),
            ("price", price), ("hour", hour),
        ];
        (rows, named.map(|(name, column)| (Cow::Borrowed(name), column)).into())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn lines_are_trained_as_they_were_scored((rows, columns) in request()) {
        let encoder = encoder_of(JOB);
        let scored = encoder.encode(rows, &columns).unwrap().expand();
        let usual = ModelLogSettings::default();
        let lines = write_lines(&encoder, rows, &columns, &usual, usize::MAX).unwrap();
        prop_assert_eq!(lines.lines().count(), rows);
        let trained = decode(JOB, &lines);
        prop_assert_eq!(facts(&trained), facts(&scored), "{}", lines);
        prop_assert_eq!(trained.event_time.unwrap(), vec![1_700_000_000_000_001; rows]);
    }

    #[test]
    fn lines_have_no_more_bytes_than_the_limit((rows, columns) in request(), limit in 0..600usize) {
        let encoder = encoder_of(JOB);
        let usual = ModelLogSettings::default();
        let whole = write_lines(&encoder, rows, &columns, &usual, usize::MAX).unwrap();
        match write_lines(&encoder, rows, &columns, &usual, limit) {
            Ok(lines) => prop_assert!(lines == whole && lines.len() <= limit),
            Err(reason) => {
                prop_assert_eq!(reason, Unlogged::NoRoom);
                prop_assert!(whole.len() > limit);
            }
        }
    }
}

fn one(name: &'static str, values: RawValues<'static>) -> (Cow<'static, str>, RawColumn<'static>) {
    (Cow::Borrowed(name), RawColumn { values, lengths: None, is_shared: false })
}

const SMALL: &str = "[features.user]\nkind = 'id'\ncolumn = 'user_id'\n[features.item]\nkind = 'id'\n\
                     [features.price]\nkind = 'numeric'\n[labels.click]\n\
                     [columns]\nevent_time = 'time'\nevent_time_unit = 's'\n";

fn small() -> RawColumns<'static> {
    RawColumns::from([
        one("user", RawValues::Ints(vec![7, 7])),
        one("item", RawValues::Uints(vec![1, u64::MAX >> 1])),
        one("price", RawValues::Floats(vec![0.1, 3.0])),
    ])
}

#[test]
fn a_line_has_the_columns_of_the_stream_and_the_answer() {
    let usual = ModelLogSettings::default();
    let lines = write_lines(&encoder_of(SMALL), 2, &small(), &usual, usize::MAX).unwrap();
    let first = lines.lines().next().unwrap();
    let wanted = r#"{"request":"r\"1\"","time":1700000000,"served_model":"m","served_version":3,"served_row":0,"user_id":7,"item":1,"price":0.1,"served_probability":0.5249792,"served_logit":0.1,"served_probability/like":0.5,"served_logit/like":-7.25e-20}"#;
    assert_eq!(first, wanted);
}

#[test]
fn columns_are_left_out_by_name() {
    let omit = |names: &[&str]| ModelLogSettings {
        omit: names.iter().map(|name| (*name).to_owned()).collect(),
        ..ModelLogSettings::default()
    };
    let write =
        |names: &[&str]| write_lines(&encoder_of(SMALL), 2, &small(), &omit(names), usize::MAX);
    let lines = write(&["user_id"]).unwrap();
    assert!(!lines.contains("user_id") && lines.contains("\"item\":1"), "{lines}");
    // A trainer sees a missing value.
    let missing = facts(&decode(&SMALL.replace("numeric'", "numeric'\nmissing = 0.0"), &lines));
    assert_eq!(missing.0[0][0], [FeatureKey::missing("user")]);
    for (names, said) in [
        (["usr_id"], "no input of the version has"),
        // The column and not the feature is named.
        (["user"], "no input of the version has"),
        (["price"], "needs a value in each row"),
        (["time"], "no input of the version has"),
    ] {
        let Err(Unlogged::Unfit(reason)) = write(&names) else { panic!("{names:?}") };
        assert!(reason.contains(said), "{names:?}: {reason}");
    }
}

#[test]
fn a_version_that_no_trainer_could_follow_is_refused() {
    for (job, said) in [
        (SMALL.replace("event_time_unit = 's'", ""), "no event time"),
        (
            SMALL.replace("event_time_unit", "weight = 'w'\nevent_time_unit"),
            "columns.weight = \"w\"",
        ),
        (SMALL.replace("event_time_unit", "group = 'g'\nevent_time_unit"), "columns.group = \"g\""),
        (SMALL.replace("[labels.click]", "[labels.served_row]"), "a column `served_row`"),
        (SMALL.replace("[labels.click]", "[labels.request]"), "a column `request`"),
    ] {
        let usual = ModelLogSettings::default();
        let written = write_lines(&encoder_of(&job), 2, &small(), &usual, usize::MAX);
        let Err(Unlogged::Unfit(reason)) = written else { panic!("{job}") };
        assert!(reason.contains(said), "{said}: {reason}");
    }
    // A group that an input has is no problem.
    let job = SMALL.replace("event_time_unit", "group = 'user_id'\nevent_time_unit");
    let usual = ModelLogSettings::default();
    write_lines(&encoder_of(&job), 2, &small(), &usual, usize::MAX).unwrap();
}

#[test]
fn two_values_of_one_column_are_refused() {
    let job = SMALL.replace("[labels", "[features.again]\nkind = 'id'\ncolumn = 'item'\n[labels");
    let usual = ModelLogSettings::default();
    let write = |again: Vec<u64>| {
        let mut columns = small();
        columns.extend([one("again", RawValues::Uints(again))]);
        write_lines(&encoder_of(&job), 2, &columns, &usual, usize::MAX)
    };
    write(vec![1, u64::MAX >> 1]).unwrap();
    let Err(Unlogged::Unfit(reason)) = write(vec![1, 2]) else { panic!("two values") };
    assert!(reason.contains("column `item`"), "{reason}");
}

#[test]
fn an_input_can_be_the_id_of_a_request() {
    let encoder = encoder_of(SMALL);
    let read = |columns: &RawColumns<'_>, name| inputs::read_id(&encoder, columns, 2, name);
    assert_eq!(read(&small(), "user"), Ok(Some("7".to_owned())));
    assert_eq!(read(&small(), "user_id"), Ok(Some("7".to_owned())));
    let refused = read(&small(), "item").unwrap_err();
    assert!(refused.contains("no common value of `item`"), "{refused}");
    let unknown = read(&small(), "session").unwrap_err();
    assert!(unknown.contains("no such input"), "{unknown}");
    let missing = vec![RawValue::Missing, RawValue::Text("".into())];
    let columns = RawColumns::from([one("user", RawValues::Any(missing))]);
    assert_eq!(read(&columns, "user"), Ok(None));
    // The column of the id may be that of the input.
    let settings = ModelLogSettings { id_input: Some("user".to_owned()), ..Default::default() };
    let job = SMALL.replace("user_id", "request");
    let lines = write_lines(&encoder_of(&job), 2, &small(), &settings, usize::MAX).unwrap();
    assert_eq!(lines.matches("\"request\":").count(), 2, "{lines}");
    assert!(lines.contains("\"request\":7"), "{lines}");
}

#[test]
fn a_long_line_is_refused_before_it_takes_memory() {
    let usual = ModelLogSettings::default();
    let job = SMALL.replace("column = 'user_id'", "column = 'user_id'\ntype = 'string'");
    // Each character has six bytes in JSON.
    let text = RawValue::Text("\u{1}".repeat(200_000).into());
    for is_shared in [true, false] {
        let mut columns = small();
        let values = RawValues::Any(vec![text.clone(); if is_shared { 1 } else { 2 }]);
        columns.insert("user".into(), RawColumn { values, lengths: None, is_shared });
        let written = write_lines(&encoder_of(&job), 2, &columns, &usual, usize::MAX);
        assert_eq!(written, Err(Unlogged::LongLine));
    }
}
