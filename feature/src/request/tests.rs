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
