//! Tests of the file of items: what was written is read, and damaged files are refused.

use zillion_rows::layer::Unthrottled;

use super::*;

fn texts() -> ItemIds {
    let mut ids = ItemIds::new(RawType::String);
    for text in ["é", "a b", "c"] {
        assert!(ids.push(&RawValue::Text(text.into())));
    }
    ids
}

fn vectors(ids: ItemIds) -> ItemVectors {
    let floats = (0..2 * ids.len()).map(|i| i as f32 - 1.5).collect();
    ItemVectors::new(ids, floats, 2, 5.0, vec!["user".to_owned()], &mut Unthrottled).unwrap()
}

#[test]
fn a_file_reads_as_it_was_written() {
    for ids in [ItemIds::Ints(vec![-3, 7, 0]), ItemIds::Uints(vec![u64::MAX, 1, 2]), texts()] {
        let all = vectors(ids);
        let bytes = all.to_bytes().unwrap();
        let read = ItemVectors::from_bytes(&bytes, &mut Unthrottled).unwrap();
        assert_eq!((read.ids(), read.vectors()), (all.ids(), all.vectors()));
        assert_eq!((read.dim(), read.scale(), read.len()), (2, 5.0, 3));
        assert_eq!(read.user_features(), ["user"]);
        for at in 0..3 {
            assert_eq!(read.find(&read.ids().get(at)).unwrap(), Some(at as u32));
        }
    }
    assert_eq!(vectors(texts()).find(&RawValue::Text("b".into())).unwrap(), None);
    assert!(vectors(ItemIds::Ints(vec![1])).find(&RawValue::Text("b".into())).is_err());
}

#[test]
fn wrong_items_are_refused_by_name() {
    let user = || vec!["user".to_owned()];
    let of = |ids, floats: &[f32], dim, scale| {
        ItemVectors::new(ids, floats.to_vec(), dim, scale, user(), &mut Unthrottled)
            .unwrap_err()
            .to_string()
    };
    let ints = |ids: &[i64]| ItemIds::Ints(ids.to_vec());
    for (error, expected) in [
        (of(ints(&[4, 5, 4]), &[0.0; 3], 1, 1.0), "the id 4 occurs twice"),
        (of(ints(&[4, 9]), &[0.0, f32::NAN], 1, 1.0), "item 9 has a float that is not finite"),
        (of(ints(&[4, 9]), &[0.0; 3], 1, 1.0), "3 floats are no vectors of 1 floats"),
        (of(ints(&[4]), &[], 0, 1.0), "0 floats are no vectors"),
        (of(ints(&[4]), &[1.0], 1, f32::INFINITY), "which is not finite"),
    ] {
        assert!(error.contains(expected), "{error}");
    }
    let mut ids = ItemIds::new(RawType::U64);
    assert!(!ids.push(&RawValue::Int(-1)) && !ids.push(&RawValue::Missing));
    assert!(ids.push(&RawValue::Int(1)) && ids.push(&RawValue::Uint(2)) && ids.len() == 2);
}

#[test]
fn a_damaged_file_is_refused_without_a_panic() {
    for ids in [ItemIds::Ints(vec![-3, 7, 0]), texts()] {
        let whole = vectors(ids).to_bytes().unwrap();
        let mut refused = 0;
        for at in 0..whole.len() {
            assert!(ItemVectors::from_bytes(&whole[..at], &mut Unthrottled).is_err());
            for value in [0x00, 0x7f, 0xff, whole[at] ^ 1, whole[at] ^ 0x80] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let read = ItemVectors::from_bytes(&bytes, &mut Unthrottled);
                refused += usize::from(read.is_err());
            }
        }
        assert!(refused > 300, "{refused}");
        let mut longer = whole.clone();
        longer.push(0);
        assert!(ItemVectors::from_bytes(&longer, &mut Unthrottled).is_err());
    }
}
