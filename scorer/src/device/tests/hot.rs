//! The rows of a base that come to the device, and the rows that are read before a version answers.

use super::*;
use crate::device::hot::choose;
use crate::warm::warm;

/// A base of 300 rows, which lists the 50 keys with the largest decayed counts: those that were
/// pushed last, because counts halve quickly here. A delta lists one of its two rows.
fn listed() -> World {
    let mut world = World::new();
    world.add_listed_layer((0..300).map(|id| (id, Some(id as f32 / 100.0))).collect(), 50);
    world.add_listed_layer(vec![(3, Some(2.0)), (5, Some(0.5)), (7, None)], 1);
    world
}

fn keys(ids: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut keys: Vec<u64> = ids.into_iter().map(|id| FeatureKey::from_u64(id).0).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn listed_keys_come_to_the_device_first() {
    let world = listed();
    let chosen = |room: u64| {
        let layouts = [spec().layout()];
        let mut chosen =
            choose(&world.layers[0], &layouts, room, &mut Unthrottled).tables.remove(0);
        chosen.sort_unstable();
        chosen.into_iter().map(|key| key.0).collect::<Vec<_>>()
    };
    let row = 4 * 4 + 21;
    let fixed = crate::device::layers::bytes_of_keys(0);
    // Without the list, the rows with the most pushes would come, which are the last ones.
    assert_eq!(chosen(fixed + 50 * row), keys(0..50));
    let (listed, others): (Vec<u64>, Vec<u64>) =
        chosen(fixed + 60 * row).into_iter().partition(|key| keys(0..50).contains(key));
    assert_eq!(listed, keys(0..50));
    // The others are of the class with the most pushes, which is not divided by pushes.
    assert!(others.len() == 10 && others.iter().all(|key| keys(280..300).contains(key)));
    assert_eq!(chosen(fixed + 300 * row), keys(0..300));
    assert_eq!(chosen(0), keys([]));
    let first = chosen(fixed + row);
    assert!(first.len() == 1 && keys(0..50).contains(&first[0]));
}

#[test]
fn rows_of_hot_keys_are_read_once() {
    let world = listed();
    let source = world.source(2);
    assert_eq!(warm(&source, &[], &mut Unthrottled).unwrap(), 51);
    // The base is already loaded.
    assert_eq!(warm(&source, &world.layers[..1], &mut Unthrottled).unwrap(), 1);
    assert_eq!(warm(&source, &world.layers, &mut Unthrottled).unwrap(), 0);
    assert_eq!(warm(&world.source(0), &[], &mut Unthrottled).unwrap(), 0);
}

#[test]
fn versions_with_listed_keys_have_the_scores_of_processors() {
    let mut world = World::new();
    world.add_listed_layer((0..3000).map(|id| (id, Some(id as f32 / 100.0))).collect(), 50);
    world.add_listed_layer(vec![(3, Some(2.0)), (5, Some(0.5)), (7, None)], 1);
    // The base does not fit.
    let (device, engine) = world.engine(192 << 10, 12);
    let (source, params) = (world.source(2), world.params(3));
    let version = engine.load(params.clone(), source.clone(), &mut Unthrottled).unwrap();
    let (version, batch) = (Arc::new(version), world.batch(1, 40));
    let expected = world.expected(&source, &params, &batch);
    assert_eq!(bits(&score(&version, &batch).unwrap()), bits(&expected));
    let counts = device.statistics();
    assert!((50..3000).contains(&counts.resident_rows) && counts.hits > 0, "{counts:?}");
}
