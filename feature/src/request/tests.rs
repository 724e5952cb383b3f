//! Tests of requests with all kinds of inputs, and of refused requests.

use super::*;
use crate::batch::SharedColumns;
use crate::side::{SideColumn, SideIndex};
use crate::statistics::ColumnStatistics;

fn encoder() -> Encoder {
    let job = "
        [features.user]
        kind = 'id'
        column = 'user_id'
        [features.tags]
        kind = 'sequence'
        type = 'string'
        max_len = 2
        [features.price]
        kind = 'numeric'
        transform = 'standardise'
        missing = 2
        [features.age]
        kind = 'bucketized'
        boundaries = [10, 20]
        side = 'people'
        by = 'user_id'
        [features.pair]
        kind = 'cross'
        of = ['user', 'age']
        [side.people]
        path = 'people.csv'
        key = 'id'
        [labels.y]
    ";
    let schema = Schema::from_job(&job.parse::<toml::Table>().unwrap().into()).unwrap();
    let mut statistics = Statistics::default();
    let price = ColumnStatistics { mean: 2.0, std: 0.5, ..Default::default() };
    statistics.columns.insert("price".into(), price);
    let mut index = SideIndex::default();
    index.push(FeatureKey::from_i64(7)).unwrap();
    index.push(FeatureKey::from_i64(8)).unwrap();
    let columns = vec![(3, SideColumn::Numbers(vec![15.0, f64::NAN]))];
    let people = SideTable { index: Arc::new(index), columns };
    Encoder::new(&schema, &statistics, &[Arc::new(people)]).unwrap()
}

/// An encoder with features of times and a vector of two floats.
fn with_times() -> Encoder {
    let job = "
        [features.hour]
        kind = 'id'
        column = 'at'
        derive = 'hour'
        zone = '+01:00'
        time_unit = 'ms'
        [features.days]
        kind = 'numeric'
        column = 'at'
        derive = 'days'
        missing = 0
        time_unit = 'ms'
        [features.taste]
        kind = 'vector'
        size = 2
        missing = 0.5
        [features.need]
        kind = 'vector'
        size = 1
        [labels.y]
    ";
    let job: toml::Value = job.parse::<toml::Table>().unwrap().into();
    let schema = Schema::from_job(&job).unwrap();
    let printed: toml::Table = schema.to_job().into_iter().collect();
    assert_eq!(Schema::from_job(&printed.into()).unwrap(), schema);
    Encoder::new(&schema, &Statistics::default(), &[]).unwrap()
}

fn floats<'a>(values: Vec<f64>, lengths: Option<Vec<usize>>) -> RawColumn<'a> {
    RawColumn { values: RawValues::Floats(values), lengths, is_shared: false }
}

#[test]
fn times_and_vectors_are_encoded() {
    let encoder = with_times();
    let text = |t: &'static str| RawValue::Text(t.into());
    let at = any(vec![
        text("2023-11-14T22:13:20Z"),
        RawValue::Int(1_700_000_000_000),
        RawValue::Missing,
    ]);
    let mut request = RawColumns::from([
        ("at".into(), at),
        ("taste".into(), floats(vec![1.0, 2.0, 3.0, 4.0], Some(vec![2, 0, 2]))),
        ("need".into(), floats(vec![7.0, 8.0, 9.0], None)),
    ]);
    let batch = encoder.encode(3, &request).unwrap();
    let hour = FeatureKey::from_i64(23);
    assert_eq!(batch.sparse[0].keys, [hour, hour, FeatureKey::missing("hour")]);
    let day = (19_675.0 + 80_000.0 / 86_400.0) as f32;
    let wanted =
        [vec![day, day, 0.0], vec![1.0, 0.5, 3.0], vec![2.0, 0.5, 4.0], vec![7.0, 8.0, 9.0]];
    assert_eq!(batch.numeric, wanted);
    // A tensor without lengths has the size of the vector in each row.
    request.insert("taste".into(), floats(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], None));
    assert_eq!(encoder.encode(3, &request).unwrap().numeric[2], [2.0, 4.0, 6.0]);
    // One row stands for all rows.
    let shared = RawColumn { is_shared: true, ..floats(vec![1.0, 2.0], Some(vec![2])) };
    request.insert("taste".into(), shared);
    let batch = encoder.encode(3, &request).unwrap();
    assert_eq!((batch.shared.numeric(), &batch.numeric[1]), (&[1, 2][..], &vec![1.0]));
    let spec: Vec<InputSpec> = encoder.inputs().cloned().collect();
    assert_eq!(spec[0].kind, InputKind::Time);
    assert_eq!((spec[2].size, spec[2].is_list, spec[2].needs_value), (Some(2), true, false));
    let own = encoder.for_features(&["hour".to_owned()]);
    let request = RawColumns::from([("at".into(), any(vec![RawValue::Missing]))]);
    assert_eq!(own.encode(1, &request).unwrap().numeric, vec![vec![0.0]; 4]);
}

#[test]
fn wrong_times_and_vectors_are_named() {
    let encoder = with_times();
    let right = || {
        RawColumns::from([
            ("at".into(), any(vec![RawValue::Missing])),
            ("taste".into(), floats(vec![1.0, 2.0], Some(vec![2]))),
            ("need".into(), floats(vec![1.0], None)),
        ])
    };
    encoder.encode(1, &right()).unwrap();
    let cases: [(&str, RawColumn<'_>, &str); 8] = [
        ("at", any(vec![RawValue::Text("now".into())]), "not a time"),
        ("at", any(vec![RawValue::Text("01.02.2024".into())]), "order of day and month"),
        ("at", any(vec![RawValue::Int(1_700_000_000)]), "milliseconds since 1970"),
        ("taste", floats(vec![1.0], Some(vec![1])), "1 numbers, but the feature has size 2"),
        ("taste", floats(vec![1.0; 3], Some(vec![3])), "3 numbers"),
        ("taste", floats(vec![1.0, f64::NAN], Some(vec![2])), "not finite"),
        (
            "taste",
            RawColumn { lengths: Some(vec![2]), ..any(vec![RawValue::Int(1), RawValue::Missing]) },
            "a number of the vector is missing",
        ),
        ("need", any(vec![RawValue::Missing]), "the vector is missing"),
    ];
    for (name, column, reason) in cases {
        let mut request = right();
        request.insert(name.into(), column);
        let refused = encoder.encode(1, &request).unwrap_err();
        assert!(refused.reason.contains(reason), "{name}: {refused}");
        assert_eq!(refused.row, Some(0), "{refused}");
    }
}

proptest::proptest! {
    #[test]
    fn any_values_are_encoded_or_refused(
        texts in proptest::collection::vec("[0-9TZ:./ +-]{0,30}|\\PC{0,12}", 0..6),
        numbers in proptest::collection::vec(proptest::prelude::any::<f64>(), 0..8),
        lengths in proptest::option::of(proptest::collection::vec(0usize..4, 0..5)),
        rows in 0usize..4,
        is_shared in proptest::prelude::any::<bool>(),
    ) {
        let texts: Vec<RawValue<'_>> = texts.into_iter().map(|t| RawValue::Text(t.into())).collect();
        let request = RawColumns::from([
            ("at".into(), RawColumn { is_shared, ..any(texts) }),
            ("taste".into(), RawColumn { is_shared, ..floats(numbers.clone(), lengths.clone()) }),
            ("need".into(), floats(numbers, lengths)),
        ]);
        if let Ok(batch) = with_times().encode(rows, &request) {
            let batch = batch.expand();
            proptest::prop_assert!(batch.numeric.iter().all(|column| column.len() == rows));
            proptest::prop_assert!(batch.numeric.iter().flatten().all(|x| x.is_finite()));
        }
    }
}

fn any<'a>(values: Vec<RawValue<'a>>) -> RawColumn<'a> {
    RawColumn { values: RawValues::Any(values), lengths: None, is_shared: false }
}

fn columns<'a>() -> RawColumns<'a> {
    let text = |t: &'a str| RawValue::Text(t.into());
    let ints = RawValues::Ints(vec![7, 8, 9]);
    let tags = RawColumn {
        lengths: Some(vec![3, 0, 1]),
        ..any(vec![text("a"), text("b"), text("c"), text("d")])
    };
    RawColumns::from([
        ("user_id".into(), RawColumn { values: ints, lengths: None, is_shared: false }),
        ("tags".into(), tags),
        ("price".into(), any(vec![RawValue::Int(3), RawValue::Missing, text("2.5")])),
    ])
}

#[test]
fn every_kind_is_encoded_as_in_training() {
    let encoder = encoder();
    let names: Vec<_> = encoder.inputs().map(|i| (i.name.as_str(), i.column.as_str())).collect();
    let expected =
        [("user", "user_id"), ("tags", "tags"), ("price", "price"), ("user_id", "user_id")];
    assert_eq!(names, expected);
    let batch = encoder.encode(3, &columns()).unwrap();
    let id = FeatureKey::from_u64;
    let text = FeatureKey::from_text;
    assert_eq!(batch.sparse[0], KeyColumn::single(vec![id(7), id(8), id(9)]));
    let tags = KeyColumn::ragged(vec![0, 2, 2, 3], vec![text("b"), text("c"), text("d")]);
    assert_eq!(batch.sparse[1], tags);
    assert_eq!(batch.numeric, [[2.0, 0.0, 1.0]]);
    let absent = FeatureKey::missing("age");
    assert_eq!(batch.sparse[2], KeyColumn::single(vec![id(1), absent, absent]));
    assert_eq!(batch.side_missing, [1]);
    let pair = crate::cross_key([id(7), id(1)]);
    assert_eq!(batch.sparse[3].keys[0], pair);
}

#[test]
fn a_shared_column_is_one_row_for_all() {
    let encoder = encoder();
    let mut given = columns();
    let user = RawColumn { values: RawValues::Ints(vec![8]), lengths: None, is_shared: true };
    given.insert("user_id".into(), user);
    let tags = any(vec![RawValue::Text("x".into()), RawValue::Text("y".into())]);
    let tags = RawColumn { lengths: Some(vec![2]), is_shared: true, ..tags };
    given.insert("tags".into(), tags);
    let shared = encoder.encode(3, &given).unwrap();
    // The cross of two shared columns and the column of the side table are shared too.
    assert_eq!(shared.shared, SharedColumns::new(0..4, []));
    assert_eq!(shared.sparse[1], KeyColumn::ragged(vec![0, 2], shared.sparse[1].keys.clone()));
    assert!([0, 2, 3].iter().all(|&column| shared.sparse[column].keys.len() == 1));
    assert_eq!(shared.numeric[0].len(), 3);
    assert_eq!(shared.side_missing, [0]);
    let user = RawValues::Ints(vec![8; 3]);
    given.insert("user_id".into(), RawColumn { values: user, lengths: None, is_shared: false });
    let repeated = ["x", "y"].repeat(3).into_iter().map(|t| RawValue::Text(t.into())).collect();
    given.insert("tags".into(), RawColumn { lengths: Some(vec![2; 3]), ..any(repeated) });
    assert_eq!(shared.expand(), encoder.encode(3, &given).unwrap());
    assert_eq!(
        encoder
            .encode(
                0,
                &RawColumns::from([
                    (
                        "user_id".into(),
                        RawColumn {
                            values: RawValues::Ints(vec![]),
                            lengths: None,
                            is_shared: false
                        }
                    ),
                    ("tags".into(), RawColumn { lengths: Some(vec![]), ..any(vec![]) }),
                    ("price".into(), any(vec![])),
                ])
            )
            .unwrap()
            .rows,
        0
    );
}

#[test]
fn a_shared_price_and_an_unknown_shared_user_are_those_of_every_row() {
    let encoder = encoder();
    let mut given = columns();
    let one = |values| RawColumn { values, lengths: None, is_shared: true };
    given.insert("price".into(), one(RawValues::Floats(vec![3.0])));
    let shared = encoder.encode(3, &given).unwrap();
    assert_eq!(shared.shared, SharedColumns::new([], [0]));
    let price =
        RawColumn { values: RawValues::Floats(vec![3.0; 3]), lengths: None, is_shared: false };
    given.insert("price".into(), price);
    assert_eq!(shared.expand(), encoder.encode(3, &given).unwrap());
    // User 1 is not in the side table. In a request with one row, no column is shared.
    given.insert("user_id".into(), one(RawValues::Ints(vec![1])));
    assert_eq!(encoder.encode(3, &given).unwrap().side_missing, [3]);
    let single = RawColumns::from([
        ("user_id".into(), one(RawValues::Ints(vec![1]))),
        ("tags".into(), RawColumn { lengths: Some(vec![0]), ..any(vec![]) }),
        ("price".into(), one(RawValues::Floats(vec![3.0]))),
    ]);
    let batch = encoder.encode(1, &single).unwrap();
    assert!(batch.shared.is_empty());
    assert_eq!((batch.side_missing[0], batch.sparse[0].keys.len()), (1, 1));
}

#[test]
fn what_does_not_fit_is_refused_by_name_and_row() {
    let encoder = encoder();
    let refused = |name: &'static str, column: Option<RawColumn<'static>>| {
        let mut given = columns();
        match column {
            Some(column) => given.insert(name.into(), column),
            None => given.remove(name),
        };
        encoder.encode(3, &given).unwrap_err().to_string()
    };
    let int = RawValue::Int;
    let cases = [
        (
            "prise",
            Some(any(vec![])),
            "input `prise`: the model has no input of this name; did you mean `price`?",
        ),
        (
            "price",
            None,
            "input `price`: it is not in the request; send it, with `null` for a missing value",
        ),
        (
            "price",
            Some(any(vec![int(1)])),
            "input `price`: 1 values for 3 rows; give one value for each row",
        ),
        (
            "price",
            Some(any(vec![int(1), RawValue::Float(f64::NAN), int(2)])),
            "input `price`, row 1: the value is not finite; give `null` for a missing value",
        ),
        (
            "price",
            Some(any(vec![int(1), int(1), RawValue::Text("x".into())])),
            "input `price`, row 2: the value is text, but the feature is a number; send a number",
        ),
        (
            "user_id",
            Some(any(vec![int(1), RawValue::Float(1.5), int(2)])),
            "input `user`, row 1: the value is not a whole number; send a whole number or its digits",
        ),
        (
            "user_id",
            Some(any(vec![int(1), RawValue::Uint(u64::MAX), int(2)])),
            "input `user`, row 1: the value does not fit the 64-bit type of the feature; send an id of the training data",
        ),
        (
            "tags",
            Some(RawColumn { lengths: Some(vec![1, usize::MAX, 1]), ..any(vec![int(1), int(2)]) }),
            "input `tags`: the sum of the lengths is not 2, the number of values; correct the lengths",
        ),
        (
            "price",
            Some(RawColumn { lengths: Some(vec![1, 2, 0]), ..any(vec![int(1), int(1), int(2)]) }),
            "input `price`: some rows have a list; give one value for each row",
        ),
    ];
    for (name, column, message) in cases {
        let refused = refused(name, column);
        assert_eq!(refused, message);
    }
}

#[test]
fn a_long_name_is_cut_in_the_error() {
    let mut given = columns();
    given.insert("ä".repeat(3 << 20).into(), any(vec![]));
    let error = encoder().encode(3, &given).unwrap_err();
    assert_eq!(error.input, "ä".repeat(100));
    assert!(error.to_string().chars().count() < 200);
}

/// Returns the key of a value, or the error message for a request with this value.
fn key_of(raw: RawType, value: &RawValue<'_>) -> Result<Option<FeatureKey>, &'static str> {
    Ok(value.id(raw)?)
}

#[test]
fn ids_agree_between_types() {
    let forms =
        [RawValue::Int(42), RawValue::Uint(42), RawValue::Float(42.0), RawValue::Text("42".into())];
    for form in &forms {
        for raw in [RawType::I64, RawType::U64] {
            assert_eq!(key_of(raw, form), Ok(Some(FeatureKey::from_u64(42))), "{form:?}");
        }
    }
    assert_eq!(key_of(RawType::String, &forms[0]), key_of(RawType::String, &forms[3]));
    assert!(key_of(RawType::U64, &RawValue::Int(-1)).unwrap_err().contains("negative"));
    assert_eq!(key_of(RawType::I64, &RawValue::Int(-1)), Ok(Some(FeatureKey::from_i64(-1))));
    assert!(key_of(RawType::String, &RawValue::Float(0.5)).is_err());
}

#[test]
fn truth_and_empty_text_are_what_they_are_in_files() {
    let key = |raw, value| key_of(raw, &value);
    let text = |t: &'static str| RawValue::Text(t.into());
    assert_eq!(key(RawType::String, RawValue::Bool(true)), key(RawType::String, text("true")));
    assert_eq!(key(RawType::I64, RawValue::Bool(true)), key(RawType::I64, RawValue::Int(1)));
    assert_eq!(RawValue::Bool(false).number(), Ok(Some(0.0)));
    for raw in [RawType::String, RawType::I64, RawType::U64] {
        assert_eq!(key(raw, text("")), Ok(None));
    }
    assert_eq!(text("").number(), Ok(None));
    assert_eq!(key(RawType::U64, text(" -0 ")), key(RawType::U64, RawValue::Int(0)));
    assert!(key(RawType::U64, text("-1")).unwrap_err().contains("negative"));
}

#[test]
fn inputs_say_what_they_take() {
    let encoder = encoder();
    let needs: Vec<bool> = encoder.inputs().map(|input| input.needs_value).collect();
    assert_eq!(needs, [false; 4], "each has a key or a number for what is missing");
    assert!(encoder.takes_number("price", 1e38) && !encoder.takes_number("price", 3e38));
    assert!(!encoder.takes_number("price", f64::NAN) && encoder.takes_number("user", 1e300));
}
