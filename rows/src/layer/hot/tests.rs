//! Tests of the lists of hot keys: their order, their files, and their merges.

use std::path::Path;

use zillion_device::Files;
use zillion_feature::random::mix64;

use super::*;
use crate::layer::{
    Layer, LayerManifest, LayerWriter, Unthrottled, difference, merge_layers, pack_layer,
    verify_layer,
};
use crate::{InitializerSpec, OptimizerSpec, SegmentSpec, TableLayout, TableSpec};

/// A row: its key, its count and the time of its last push.
type Row = (u64, u32, u32);

fn layouts(most: u32) -> Vec<TableLayout> {
    let table = |name: &str, most: u32| {
        let initializer = InitializerSpec::Constant { value: 0.5 };
        let segment = SegmentSpec::new("v", 2, initializer, OptimizerSpec::Sgd { lr: 0.1 });
        TableSpec { hot_keys: most, ..TableSpec::new(name, vec![segment]) }.layout()
    };
    vec![table("cold", 0), table("ids", most)]
}

/// Returns rows with different uses, in key order.
fn rows(seed: u64, count: u64) -> Vec<Row> {
    let row = |at: u64| {
        let x = mix64(seed << 32 | at);
        (mix64(at), (x % 5000) as u32 + 1, ((x >> 32) % 100_000) as u32)
    };
    let mut rows: Vec<Row> = (0..count).map(row).collect();
    rows.sort_unstable();
    rows
}

fn write(folder: &Path, layouts: &[TableLayout], rows: &[Row]) -> LayerManifest {
    let (files, mut pace) = (Files::new(), Unthrottled);
    let mut writer = LayerWriter::new(&files, folder, &mut pace);
    for layout in layouts {
        writer.table_of_rows(layout, rows.len() as u64, 0).unwrap();
        for &(key, count, last) in rows {
            let weights = [count as f32, last as f32];
            writer.push_used(FeatureKey(key), &weights, count, last).unwrap();
        }
    }
    writer.finish().unwrap()
}

fn listed(layer: &Layer) -> Vec<Row> {
    let list = layer.hot(1).unwrap();
    list.keys().iter().map(|hot| (hot.key.0, hot.count, hot.last)).collect()
}

/// Returns the hottest of some rows by sorting all of them.
fn hottest(rows: &[Row], most: usize) -> Vec<Row> {
    let mut rows = rows.to_vec();
    let place =
        |&(key, count, last): &Row| HotKey { key: FeatureKey(key), count, last }.place(10_000);
    rows.sort_by_key(place);
    rows.truncate(most);
    rows
}

#[test]
fn counts_halve_with_each_half_life() {
    let of = |count, last| HotKey { key: FeatureKey(0), count, last }.priority(100);
    assert_eq!(of(8, 500), of(1, 800));
    assert!(of(9, 500) > of(1, 800) && of(8, 500) > of(1, 799) && of(8, 499) < of(1, 800));
    assert!(of(u32::MAX, 0) > of(1 << 31, 0) && of(0, 5) == of(1, 5));
    let list = HotTable { keys: Vec::new(), half_life: 100, newest: 850 };
    let decayed = |count, last| list.decayed_count(HotKey { key: FeatureKey(0), count, last });
    assert_eq!((decayed(8, 850), decayed(8, 751), decayed(8, 750)), (8, 8, 4));
    assert_eq!((decayed(8, 500), decayed(u32::MAX, 0), decayed(7, 900)), (1, u32::MAX >> 8, 7));
}

#[test]
fn a_layer_lists_its_hottest_keys() {
    let folder = tempfile::tempdir().unwrap();
    for (most, count) in [(1, 10), (10, 3), (100, 5000), (3000, 5000)] {
        let (layouts, rows) = (layouts(most), rows(1, count));
        let manifest = write(folder.path(), &layouts, &rows);
        let layer = Layer::open(folder.path(), &manifest, &layouts).unwrap();
        assert_eq!(listed(&layer), hottest(&rows, most as usize));
        assert!(layer.hot(0).is_none() && layer.hot(2).is_none());
        verify_layer(folder.path(), &manifest, &layouts, &mut Unthrottled).unwrap();
        // The file is packed with the others.
        assert!(
            pack_layer(folder.path(), &manifest).unwrap().unwrap().0.bytes
                > 16 * u64::from(most.min(count as u32))
        );
    }
    let without = write(folder.path(), &layouts(0), &rows(1, 10));
    assert!(without.hot.is_empty());
    let empty = write(folder.path(), &layouts(5), &[]);
    assert!(empty.hot.is_empty());
}

#[test]
fn lists_of_layers_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let layouts = layouts(5000);
    let (old, mut new) = (rows(1, 1000), rows(2, 1500));
    // Some keys of the base do not change.
    new.retain(|(key, ..)| key % 3 != 0);
    let open = |rows: &[Row]| {
        let manifest = write(folder.path(), &layouts, rows);
        Layer::open(folder.path(), &manifest, &layouts).unwrap()
    };
    let (base, delta) = (open(&old), open(&new));
    let files = Files::new();
    let both = [&base, &delta];
    let merged =
        merge_layers(&files, folder.path(), &layouts, &both, true, &mut Unthrottled).unwrap();
    verify_layer(folder.path(), &merged, &layouts, &mut Unthrottled).unwrap();
    let merged = Layer::open(folder.path(), &merged, &layouts).unwrap();
    let mut all: std::collections::BTreeMap<u64, Row> =
        old.iter().map(|&row| (row.0, row)).collect();
    all.extend(new.iter().map(|&row| (row.0, row)));
    let all: Vec<Row> = all.into_values().collect();
    assert_eq!(listed(&merged), hottest(&all, 5000));
    // The difference to the base lists the changed keys.
    let (old, pace) = ([&base], &mut Unthrottled);
    let changes = difference(&files, folder.path(), &layouts, &old, &merged, pace).unwrap();
    let changes = Layer::open(folder.path(), &changes, &layouts).unwrap();
    assert_eq!(listed(&changes), hottest(&new, 5000));
}

#[test]
fn a_list_that_does_not_fit_its_layer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    // A list with more keys than the layer has.
    let larger = write(folder.path(), &layouts(200), &rows(3, 90));
    let layouts = layouts(50);
    let mut rows = rows(3, 40);
    let manifest = write(folder.path(), &layouts, &rows);
    let problem = |hot: &LayerManifest| {
        let mut changed = manifest.clone();
        changed.hot.clone_from(&hot.hot);
        let verified = verify_layer(folder.path(), &changed, &layouts, &mut Unthrottled);
        verified.unwrap_err().to_string()
    };
    rows[7].1 += 1;
    let other = write(folder.path(), &layouts, &rows);
    assert!(problem(&other).contains("hot key"), "{}", problem(&other));
    assert!(problem(&larger).contains("more keys"), "{}", problem(&larger));
    // A directory is no list.
    let wrong = LayerManifest { hot: vec![manifest.directory.clone()], ..manifest.clone() };
    assert!(problem(&wrong).contains("not a `hot`"), "{}", problem(&wrong));
    // The lists of all writers together have no more keys than the layer.
    let again = LayerManifest { hot: vec![manifest.hot[0].clone(); 3], ..manifest.clone() };
    assert!(problem(&again).contains("more keys"), "{}", problem(&again));
    for text in ["", "1", "1,2,3", "1,x", "1,-1", "1,99999999999", "0,1,"] {
        assert_eq!(read_half_lives(text, 2), None, "{text}");
    }
    assert_eq!(read_half_lives("0,10000", 2), Some(vec![0, 10_000]));
}
