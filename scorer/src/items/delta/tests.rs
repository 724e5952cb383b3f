//! Tests of differences: what is applied is what was published, and all else is refused.

use zillion_feature::RawValue;
use zillion_feature::random::mix64;
use zillion_rows::layer::Unthrottled;

use super::*;

const DIM: usize = 3;

/// Makes items with these ids, whose vectors follow from the id and the generation.
fn items(texts: bool, ids: &[i64], generation: impl Fn(i64) -> u64) -> ItemVectors {
    let mut of = ItemIds::new(if texts { RawType::String } else { RawType::I64 });
    for id in ids {
        assert!(of.push(&match texts {
            true => RawValue::Text(format!("item {id}").into()),
            false => RawValue::Int(*id),
        }));
    }
    let mut vectors = Vec::new();
    for &id in ids {
        let seed = id as u64 * 31 + generation(id) * 1009;
        vectors.extend((0..DIM as u64).map(|at| (mix64(seed + at) % 100) as f32 / 7.0));
    }
    let user = vec!["user".to_owned()];
    ItemVectors::new(of, vectors, DIM, 2.0, user, &mut Unthrottled).unwrap()
}

fn hash(items: &ItemVectors) -> String {
    items.hash(&mut Unthrottled).unwrap()
}

fn between(earlier: &ItemVectors, now: &ItemVectors) -> Option<ItemDelta> {
    ItemDelta::between(earlier, &hash(earlier), now, &hash(now))
}

/// Asserts that the difference between two lists gives the second one, and returns its file.
fn check(earlier: &ItemVectors, now: &ItemVectors) -> Vec<u8> {
    let bytes = between(earlier, now).unwrap().to_bytes().unwrap();
    let read = ItemDelta::from_bytes(&bytes, &mut Unthrottled).unwrap();
    assert_eq!((read.parent(), read.whole()), (&*hash(earlier), &*hash(now)));
    let new = read.apply(earlier, &mut Unthrottled).unwrap();
    assert_eq!(new.to_bytes().unwrap(), now.to_bytes().unwrap());
    for at in 0..now.len() {
        assert_eq!(new.find(&now.ids().get(at)).unwrap(), Some(at as u32));
    }
    bytes
}

#[test]
fn a_hash_is_that_of_the_file() {
    for texts in [false, true] {
        let items = items(texts, &[5, 1, 9], |_| 0);
        let bytes = items.to_bytes().unwrap();
        assert_eq!(hash(&items), blake3::hash(&bytes).to_hex().to_string());
    }
}

#[test]
fn a_difference_gives_the_new_items() {
    for texts in [false, true] {
        let earlier = items(texts, &[1, 2, 3, 4, 5, 6], |_| 0);
        let lists: [&[i64]; 7] = [
            &[1, 2, 3, 4, 5, 6],
            &[2, 3, 5],
            &[9, 1, 2, 3, 8, 4, 5, 6, 7],
            &[7, 8],
            &[],
            &[3, 10, 11, 6, 12],
            &[6],
        ];
        for list in lists {
            check(&earlier, &items(texts, list, |_| 0));
            check(&earlier, &items(texts, list, |id| u64::from(id % 2 == 0)));
            check(&items(texts, list, |_| 0), &earlier);
        }
        // Another order is no difference.
        assert_eq!(between(&earlier, &items(texts, &[2, 1, 3], |_| 0)), None);
        assert_eq!(between(&earlier, &items(!texts, &[1, 2], |_| 0)), None);
    }
}

#[test]
fn a_long_list_of_random_changes_is_the_new_list() {
    let mut list: Vec<i64> = (0..10_000).collect();
    let mut earlier = items(false, &list, |_| 0);
    for round in 1..6u64 {
        let draw = |id: i64| mix64(id as u64 ^ (round << 32)) % 100;
        list.retain(|&id| draw(id) != 0);
        for number in 0..50 {
            let at = mix64(round * 100 + number) as usize % list.len();
            list.insert(at, 1_000_000 + (round * 100 + number) as i64);
        }
        let now = items(false, &list, |id| if draw(id) < 5 { round } else { 0 });
        let bytes = check(&earlier, &now);
        assert!(bytes.len() < now.to_bytes().unwrap().len() / 4, "{}", bytes.len());
        earlier = now;
    }
}

#[test]
fn a_difference_to_other_items_is_refused() {
    let (earlier, now) = (items(false, &[1, 2, 3], |_| 0), items(false, &[1, 3, 4], |_| 0));
    let delta = between(&earlier, &now).unwrap();
    for (other, expected) in [
        (items(false, &[1, 2], |_| 0), "does not fit"),
        (items(false, &[1, 2, 3, 4], |_| 0), "does not fit"),
        (items(true, &[1, 2, 3], |_| 0), "does not fit"),
        (items(false, &[1, 2, 3], |_| 1), "gives other items"),
        (items(false, &[3, 2, 1], |_| 0), "gives other items"),
    ] {
        let said = delta.apply(&other, &mut Unthrottled).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
    // The same id twice is refused as in a whole file.
    let said = delta.apply(&items(false, &[1, 2, 4], |_| 0), &mut Unthrottled).unwrap_err();
    assert!(said.to_string().contains("the id 4 occurs twice"), "{said}");
}

#[test]
fn a_damaged_difference_is_refused_without_a_panic() {
    for texts in [false, true] {
        let earlier = items(texts, &[1, 2, 3, 4, 5], |_| 0);
        let now = items(texts, &[1, 7, 3, 4, 8], |id| u64::from(id == 3));
        let whole = between(&earlier, &now).unwrap().to_bytes().unwrap();
        // The hash of the parent is looked for in the chain, and not by the difference itself.
        let parent = format!("\"parent\":\"{}\"", hash(&earlier));
        let parent = whole.windows(parent.len()).position(|part| part == parent.as_bytes());
        let parent = parent.unwrap()..parent.unwrap() + 80;
        let apply = |bytes: &[u8]| {
            let delta = ItemDelta::from_bytes(bytes, &mut Unthrottled)?;
            delta.apply(&earlier, &mut Unthrottled)
        };
        for at in 0..whole.len() {
            assert!(apply(&whole[..at]).is_err());
            for value in [0x00, 0x7f, 0xff, whole[at] ^ 1, whole[at] ^ 0x80] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let is_refused =
                    value == whole[at] || parent.contains(&at) || apply(&bytes).is_err();
                assert!(is_refused, "{at} {value}");
            }
        }
        let longer = [&whole[..], &[0]].concat();
        assert!(apply(&longer).is_err());
    }
}
