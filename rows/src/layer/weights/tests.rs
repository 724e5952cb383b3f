//! Tests of the number types of weights: the sizes of files, and numbers that no writer writes.

use std::path::Path;

use zillion_device::Files;
use zillion_feature::FeatureKey;

use super::*;
use crate::layer::testing::{change_part, verify};
use crate::layer::{Layer, LayerManifest, LayerWriter, Unthrottled};
use crate::layout::{SegmentLayout, TableLayout};

fn layout(published: RowType) -> TableLayout {
    let segment = |name: &str, offset, dim| SegmentLayout { name: name.into(), offset, dim };
    let segments = vec![segment("vector", 0, 16), segment("linear", 16, 1)];
    TableLayout { name: "ids".into(), stride: 20, segments, narrow: None, published, hot: None }
}

fn write(folder: &Path, row_type: RowType) -> LayerManifest {
    let (files, mut pace) = (Files::new(), Unthrottled);
    let mut writer = LayerWriter::new(&files, folder, &mut pace);
    writer.table(&layout(row_type), 1).unwrap();
    for key in 0..1000u64 {
        let row: Vec<f32> = (0..17).map(|i| ((key * 17 + i) % 101) as f32 / 50.0).collect();
        writer.push(FeatureKey(key << 50), Some(&row), 1).unwrap();
    }
    writer.finish().unwrap()
}

/// Returns the problem of a layer of which a part was changed.
fn verify_changed(
    folder: &Path,
    manifest: &LayerManifest,
    row_type: RowType,
    change: impl Fn(&mut Vec<u8>),
) -> String {
    verify(folder, &change_part(folder, manifest, change), layout(row_type))
}

/// Replaces the first bytes that equal `from`.
fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
}

#[test]
fn smaller_types_make_smaller_files() {
    let bytes = RowType::ALL.map(|row_type| {
        let folder = tempfile::tempdir().unwrap();
        let manifest = write(folder.path(), row_type);
        manifest.tables[0].parts[0].file.bytes
    });
    let saved = |row: usize| (68 - row as u64) * 1000;
    for (found, wanted) in bytes.iter().zip([68, 34, 34, 25]) {
        assert!(found.abs_diff(bytes[0] - saved(wanted)) < 2048, "{bytes:?}");
    }
}

#[test]
fn numbers_that_no_writer_wrote_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = write(folder.path(), RowType::Int8);
    // The scales of the first row: 16 and 1 weights up to 16/50.
    let scale = scale_of(&(0..16).map(|i| i as f32 / 50.0).collect::<Vec<_>>());
    for bad in [f32::NAN, f32::INFINITY, -scale, f32::MAX] {
        let change = |bytes: &mut Vec<u8>| {
            replace(bytes, &scale.to_le_bytes(), &bad.to_le_bytes());
        };
        let said = verify_changed(folder.path(), &manifest, RowType::Int8, change);
        assert!(said.contains("row 0: the scale of a segment"), "{bad}: {said}");
    }
    let change = |bytes: &mut Vec<u8>| replace(bytes, &[119, 127], &[128, 127]);
    let said = verify_changed(folder.path(), &manifest, RowType::Int8, change);
    assert!(said.contains("-128"), "{said}");
    // The largest weight of a writer's segment is 127 steps.
    let manifest = write(folder.path(), RowType::Int8);
    let change = |bytes: &mut Vec<u8>| replace(bytes, &[119, 127], &[119, 126]);
    let said = verify_changed(folder.path(), &manifest, RowType::Int8, change);
    assert!(said.contains("row 0: the largest weight") && said.contains("126"), "{said}");
    let change = |bytes: &mut Vec<u8>| replace(bytes, &scale.to_le_bytes(), &[0; 4]);
    let said = verify_changed(folder.path(), &manifest, RowType::Int8, change);
    assert!(said.contains("with the scale 0 is 127 instead of 0"), "{said}");
    for (row_type, bits) in [(RowType::F16, 0x7c00u16), (RowType::Bf16, 0xff80)] {
        let manifest = write(folder.path(), row_type);
        let half = |x: f32| match row_type {
            RowType::F16 => F16::nearest(x).to_le_bytes(),
            _ => Bf16::nearest(x).to_le_bytes(),
        };
        let change = |bytes: &mut Vec<u8>| {
            replace(bytes, &[half(1.98), half(2.0)].concat(), &bits.to_le_bytes());
        };
        let said = verify_changed(folder.path(), &manifest, row_type, change);
        assert!(said.contains("infinite or NaN"), "{row_type:?}: {said}");
    }
}

#[test]
fn a_layer_of_another_type_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for row_type in RowType::ALL {
        let manifest = write(folder.path(), row_type);
        for other in RowType::ALL.into_iter().filter(|&other| other != row_type) {
            let open = |manifest: &LayerManifest| {
                let opened = Layer::open(folder.path(), manifest, &[layout(other)]);
                opened.unwrap_err().to_string()
            };
            let said = open(&manifest);
            assert!(said.contains(row_type.name()) && said.contains(other.name()), "{said}");
            // A manifest that lies about the type does not fit its files.
            let mut lying = manifest.clone();
            lying.tables[0].row_type = other;
            let said = open(&lying);
            assert!(said.contains("format") || said.contains("the columns"), "{said}");
        }
    }
}

#[test]
fn int8_refuses_rows_that_are_not_finite() {
    let (folder, files) = (tempfile::tempdir().unwrap(), Files::new());
    let mut pace = Unthrottled;
    let mut writer = LayerWriter::new(&files, folder.path(), &mut pace);
    writer.table(&layout(RowType::Int8), 1).unwrap();
    let mut row = [0.0; 17];
    row[9] = f32::NAN;
    let said = writer.push(FeatureKey(5), Some(&row), 1).unwrap_err().to_string();
    assert!(said.contains("`ids`") && said.contains("infinite or NaN"), "{said}");
}

#[test]
fn weights_beyond_f16_are_counted() {
    for (row_type, counted) in [(RowType::F16, 2), (RowType::Bf16, 0), (RowType::Int8, 0)] {
        let (folder, files) = (tempfile::tempdir().unwrap(), Files::new());
        let mut pace = Unthrottled;
        let mut writer = LayerWriter::new(&files, folder.path(), &mut pace);
        writer.table(&layout(row_type), 1).unwrap();
        let mut row = [1.0; 17];
        (row[3], row[5], row[7]) = (65_504.0, 65_505.0, -1e30);
        writer.push(FeatureKey(5), Some(&row), 1).unwrap();
        let manifest = writer.finish().unwrap();
        assert_eq!(manifest.tables[0].clamped, counted, "{row_type:?}");
        assert_eq!(verify(folder.path(), &manifest, layout(row_type)), "");
        let listed = serde_json::to_string(&manifest).unwrap();
        assert_eq!(listed.contains("clamped"), counted > 0);
        let mut lying = manifest;
        lying.tables[0].clamped = 18;
        let said = verify(folder.path(), &lying, layout(row_type));
        assert!(said.contains("18 weights beyond"), "{said}");
    }
}
