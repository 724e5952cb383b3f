//! Tests of parts that leave out zeros: they read as other parts do, take less space, and cannot
//! lie.

use std::path::Path;

use zillion_device::Files;
use zillion_feature::FeatureKey;
use zillion_feature::random::mix64;

use super::*;
use crate::layer::block::Open;
use crate::layer::testing::{change_part, verify};
use crate::layer::{
    Found, Layer, LayerManifest, LayerWriter, Unthrottled, merge_layers, verify_layer,
};
use crate::layout::{SegmentLayout, TableLayout};

const ROWS: u64 = 3000;

fn layout(published: RowType) -> TableLayout {
    let segment = |name: &str, offset, dim| SegmentLayout { name: name.into(), offset, dim };
    let segments = vec![segment("vector", 0, 16), segment("linear", 16, 1)];
    TableLayout { name: "ids".into(), stride: 20, segments, narrow: None, published, hot: None }
}

/// Returns a row of which about `zeros` tenths are zero. Some weights are `-0.0`.
fn row(key: u64, zeros: u64) -> Vec<f32> {
    let weight = |i: u64| match mix64(key * 31 + i) {
        random if random % 10 < zeros => 0.0,
        random if random % 97 == 0 => -0.0,
        random => (random % 2001) as f32 / 1000.0 - 1.0005,
    };
    (0..17).map(weight).collect()
}

fn write(folder: &Path, row_type: RowType, zeros: u64) -> LayerManifest {
    let (files, mut pace) = (Files::new(), Unthrottled);
    let mut writer = LayerWriter::new(&files, folder, &mut pace);
    writer.table(&layout(row_type), 2).unwrap();
    for key in 0..ROWS {
        let row = row(key, zeros);
        writer.push(FeatureKey(key << 52), Some(&row[..]).filter(|_| key % 50 != 7), 1).unwrap();
    }
    writer.finish().unwrap()
}

fn open(folder: &Path, manifest: &LayerManifest, row_type: RowType) -> Layer {
    verify_layer(folder, manifest, &[layout(row_type)], &mut Unthrottled).unwrap();
    Layer::open(folder, manifest, &[layout(row_type)]).unwrap()
}

/// Looks a key up as scoring does. Returns `None` if the layer does not have the key, and a list or
/// `None` inside for a row or a tombstone.
fn look_up(layer: &Layer, key: FeatureKey) -> Option<Option<Vec<f32>>> {
    let (mut open, mut seen) = (Open::all(1), None);
    layer.tables[0].lookup(&[key], &mut open, |_, found| {
        seen = Some(found.map(|weights| weights.to_floats().into_owned()));
    });
    seen
}

#[test]
fn rows_without_zeros_read_bit_for_bit() {
    for row_type in RowType::ALL {
        for zeros in [0, 3, 5, 8, 9, 10] {
            let folder = tempfile::tempdir().unwrap();
            let manifest = write(folder.path(), row_type, zeros);
            let layer = open(folder.path(), &manifest, row_type);
            let records = layer.with_records(&mut Unthrottled).unwrap();
            let mut found = 0;
            for key in 0..ROWS {
                let (wide, mut wanted) = (FeatureKey(key << 52), row(key, zeros));
                row_type.round(&layout(row_type), &mut wanted);
                let bits = |row: &[f32]| row.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
                let recorded = look_up(&records, wide).unwrap();
                match layer.find(0, wide).unwrap() {
                    Found::Row(row) => {
                        // The sign of a zero has no meaning in the type int8.
                        let is_int8 = row_type == RowType::Int8;
                        let plain = |row: &[f32]| row.iter().map(|w| w + 0.0).collect::<Vec<_>>();
                        let wanted = if is_int8 { plain(&wanted) } else { wanted };
                        assert_eq!(bits(&row.weights), bits(&wanted), "{row_type:?} {zeros}");
                        assert_eq!(bits(&recorded.unwrap()), bits(&wanted), "{row_type:?} {zeros}");
                        found += 1;
                    }
                    Found::Tombstone => assert!(recorded.is_none() && key % 50 == 7),
                }
            }
            assert_eq!(found, ROWS - ROWS / 50);
            let merged = merge_layers(
                &Files::new(),
                folder.path(),
                &[layout(row_type)],
                &[&layer],
                false,
                &mut Unthrottled,
            );
            let merged = open(folder.path(), &merged.unwrap(), row_type);
            assert!(merged.iter(0).eq(layer.iter(0)), "{row_type:?} {zeros}");
        }
    }
}

#[test]
fn zeros_take_no_bytes_and_are_counted() {
    // The shares of zeros, in tenths, from which a part of each type leaves them out.
    for (row_type, least) in
        [(RowType::F32, 3), (RowType::F16, 4), (RowType::Bf16, 4), (RowType::Int8, 7)]
    {
        let whole = {
            let folder = tempfile::tempdir().unwrap();
            let manifest = write(folder.path(), row_type, 0);
            assert_eq!(manifest.sparsity(), None);
            manifest.files().map(|file| file.bytes).sum::<u64>()
        };
        for zeros in 1..=10 {
            let folder = tempfile::tempdir().unwrap();
            let manifest = write(folder.path(), row_type, zeros);
            let Some(sparsity) = manifest.sparsity() else {
                assert!(zeros < least, "{row_type:?} {zeros}");
                continue;
            };
            assert!(zeros >= least, "{row_type:?} {zeros}");
            // Tombstones have zeros too.
            let share = zeros as f64 / 10.0 * 0.98 + 0.02;
            assert!((sparsity.share() - share).abs() < 0.01, "{row_type:?} {zeros}: {sparsity}");
            assert_eq!(sparsity.weights, ROWS * 17);
            // The columns of files are aligned, and schemas have other lengths.
            assert!(sparsity.whole_bytes.abs_diff(whole) < 4096, "{sparsity}, whole {whole}");
            let saved = whole - whole / LEAST_SAVING / 2;
            assert!(sparsity.bytes < saved, "{row_type:?} {zeros}: {sparsity}");
        }
    }
}

#[test]
fn removals_alone_keep_the_form_of_a_part() {
    let (folder, files, mut pace) = (tempfile::tempdir().unwrap(), Files::new(), Unthrottled);
    let mut writer = LayerWriter::new(&files, folder.path(), &mut pace);
    writer.table(&layout(RowType::F32), 1).unwrap();
    for key in 0..ROWS {
        let row = row(key, 0);
        writer.push(FeatureKey(key), Some(&row[..]).filter(|_| key % 10 == 0), 1).unwrap();
    }
    assert_eq!(writer.finish().unwrap().sparsity(), None);
}

/// Verifies the layer after a change of a file, whose new hash the manifest gets. Returns the
/// error.
fn verify_changed(
    folder: &Path,
    manifest: &LayerManifest,
    row_type: RowType,
    change: impl Fn(&mut Vec<u8>),
) -> String {
    let changed = change_part(folder, manifest, change);
    let layouts = [layout(row_type)];
    // A server that trusts the hash reads wrong rows, and never outside of the file.
    if let Ok(layer) = Layer::open(folder, &changed, &layouts) {
        layer.iter(0).for_each(drop);
        let records = layer.with_records(&mut Unthrottled).unwrap();
        let keys = (0..ROWS).map(|key| FeatureKey(key << 52));
        keys.for_each(|key| drop(look_up(&records, key)));
    }
    verify(folder, &changed, layout(row_type))
}

/// Returns the position of a column in the file, whose first bytes are `first`.
fn position(bytes: &[u8], first: &[u8]) -> usize {
    bytes.windows(first.len()).position(|window| window == first).unwrap()
}

#[test]
fn masks_and_positions_that_lie_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = write(folder.path(), RowType::F32, 5);
    let masks: Vec<[u8; 3]> = (0..3u64)
        .map(|key| {
            let stored = row(key, 5).iter().map(|w| w.to_bits() != 0).collect::<Vec<_>>();
            let byte = |at: usize| {
                let eight = stored.iter().skip(at * 8).take(8).enumerate();
                eight.fold(0u8, |byte, (bit, &is_stored)| byte | u8::from(is_stored) << bit)
            };
            [byte(0), byte(1), byte(2)]
        })
        .collect();
    let offset =
        |row: usize| -> u32 { masks[..row].iter().flatten().map(|byte| byte.count_ones()).sum() };
    let offsets: Vec<u8> = (0..3).flat_map(|row| offset(row).to_le_bytes()).collect();
    let verify = |change: &dyn Fn(&mut Vec<u8>)| {
        verify_changed(folder.path(), &manifest, RowType::F32, change)
    };
    assert_eq!(verify(&|_| {}), "");
    let at_mask = |bytes: &[u8]| position(bytes, masks.as_flattened());
    let said = verify(&|bytes| {
        let at = at_mask(bytes);
        bytes[at] ^= 1;
    });
    assert!(said.contains("row 1: the numbers begin at"), "{said}");
    let said = verify(&|bytes| {
        let at = at_mask(bytes);
        bytes[at + 2] |= 0x80;
    });
    assert!(said.contains("row 0: the mask names a weight beyond the row's 17"), "{said}");
    for bad in [u32::MAX, 1 << 20, 0] {
        let said = verify(&|bytes| {
            let at = position(bytes, &offsets) + 4;
            bytes[at..at + 4].copy_from_slice(&bad.to_le_bytes());
        });
        assert!(said.contains("row 1: the numbers begin at"), "{bad}: {said}");
    }
    let first = row(0, 5).into_iter().find(|w| w.to_bits() != 0).unwrap();
    let second = row(0, 5).into_iter().filter(|w| w.to_bits() != 0).nth(1).unwrap();
    let numbers = [first.to_le_bytes(), second.to_le_bytes()].concat();
    for (bad, words) in [(0.0f32, "row 0: a stored weight is zero"), (f32::NAN, "infinite or NaN")]
    {
        let said = verify(&|bytes| {
            let at = position(bytes, &numbers);
            bytes[at..at + 4].copy_from_slice(&bad.to_le_bytes());
        });
        assert!(said.contains(words), "{bad}: {said}");
    }
}

#[test]
fn a_manifest_that_lies_about_zeros_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for row_type in RowType::ALL {
        let manifest = write(folder.path(), row_type, 9);
        let stored = manifest.tables[0].parts[0].stored.unwrap();
        let open = |stored: Option<u64>| {
            let mut lying = manifest.clone();
            lying.tables[0].parts[0].stored = stored;
            let layouts = [layout(row_type)];
            let refused = verify_layer(folder.path(), &lying, &layouts, &mut Unthrottled);
            refused.unwrap_err().to_string()
        };
        assert!(open(None).contains("format"), "{row_type:?}");
        for wrong in [stored - 1, stored + 1, 0, u64::MAX] {
            let said = open(Some(wrong));
            assert!(said.contains("`weights` has"), "{row_type:?}: {said}");
        }
        let whole = write(folder.path(), row_type, 0);
        let mut lying = whole.clone();
        lying.tables[0].parts[0].stored = Some(5);
        let refused = Layer::open(folder.path(), &lying, &[layout(row_type)]);
        assert!(refused.unwrap_err().to_string().contains("format"), "{row_type:?}");
    }
}
