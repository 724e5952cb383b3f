//! Tests that compare layers with a model. They write, merge and look up maps of rows.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use zillion_device::{Files, Workers};
use zillion_feature::{FeatureKey, RowBuffer};

use super::*;
use crate::conformance;
use crate::error::{Error, Result};
use crate::layout::TableLayout;
use crate::row_type::RowType;
use crate::source::RowSource as _;
use crate::spec::TableSpec;
use crate::{InitializerSpec, OptimizerSpec, SegmentSpec, Unknown};

/// The entries of a table by key: the floats of a row, or `None` for a tombstone.
type Model = BTreeMap<u64, Option<Vec<f32>>>;

fn spec(name: &str, dims: &[usize], unknown: Unknown) -> TableSpec {
    let segment = |(i, &dim): (usize, &usize)| {
        SegmentSpec::new(
            format!("s{i}"),
            dim,
            InitializerSpec::Normal { mean: 0.0, std: 0.1 },
            OptimizerSpec::Sgd { lr: 0.1 },
        )
    };
    TableSpec {
        unknown,
        seed: 7,
        ..TableSpec::new(name, dims.iter().enumerate().map(segment).collect())
    }
}

fn specs() -> Vec<TableSpec> {
    specs_of(RowType::F32)
}

fn specs_of(published: RowType) -> Vec<TableSpec> {
    let specs = [spec("a", &[4, 1], Unknown::Seeded), spec("b", &[3], Unknown::Zero)];
    specs.into_iter().map(|spec| TableSpec { published, ..spec }).collect()
}

fn layouts() -> Vec<TableLayout> {
    layouts_of(RowType::F32)
}

fn layouts_of(published: RowType) -> Vec<TableLayout> {
    specs_of(published).iter().map(TableSpec::layout).collect()
}

fn row_types() -> impl Strategy<Value = RowType> {
    prop::sample::select(&RowType::ALL[..])
}

fn row(key: u64, salt: u64, width: usize) -> Vec<f32> {
    (0..width as u64).map(|i| ((key ^ (salt * 31 + i)) % 1000) as f32 / 10.0).collect()
}

fn write(folder: &Path, models: &[Model; 2], parts: Option<usize>) -> Result<LayerManifest> {
    write_of(RowType::F32, folder, models, parts)
}

fn write_of(
    row_type: RowType,
    folder: &Path,
    models: &[Model; 2],
    parts: Option<usize>,
) -> Result<LayerManifest> {
    let (files, mut throttle) = (Files::new(), Unthrottled);
    let mut writer = LayerWriter::new(&files, folder, &mut throttle);
    for (model, layout) in models.iter().zip(layouts_of(row_type)) {
        let wanted = part_count(model.len() as u64, layout.width());
        writer.table(&layout, parts.filter(|_| !model.is_empty()).unwrap_or(wanted))?;
        for (&key, row) in model {
            writer.push(FeatureKey(key), row.as_deref(), key as u32)?;
        }
    }
    writer.finish()
}

fn source(layers: Vec<Layer>) -> LayerSource {
    source_of(RowType::F32, layers)
}

fn source_of(row_type: RowType, layers: Vec<Layer>) -> LayerSource {
    let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
    LayerSource::new(&specs_of(row_type), layers, workers).unwrap()
}

/// Returns the rows as a layer of this type has them.
fn rounded(row_type: RowType, models: &[Model; 2]) -> [Model; 2] {
    let mut models = models.clone();
    for (model, layout) in models.iter_mut().zip(layouts_of(row_type)) {
        model.values_mut().flatten().for_each(|row| row_type.round(&layout, row));
    }
    models
}

/// Returns the state of the tables after all layers. `layers` are given oldest first, and a newer
/// entry of a key replaces an older one.
fn stacked(layers: &[[Model; 2]]) -> [Model; 2] {
    let mut sum = [Model::new(), Model::new()];
    for layer in layers {
        for (sum, layer) in sum.iter_mut().zip(layer) {
            sum.extend(layer.iter().map(|(&key, row)| (key, row.clone())));
        }
    }
    sum
}

fn check(source: &mut LayerSource, expected: &[Model; 2]) {
    let rows: conformance::ExpectedRows = expected
        .iter()
        .map(|model| {
            let rows = model.iter().filter_map(|(&k, row)| Some((FeatureKey(k), row.clone()?)));
            rows.collect()
        })
        .collect();
    let gone = |model: &Model| {
        let gone = model.iter().filter(|(_, row)| row.is_none()).map(|(&k, _)| FeatureKey(k));
        let near = model.keys().map(|&k| FeatureKey(k ^ 1)).filter(|k| !model.contains_key(&k.0));
        gone.chain(near).chain([FeatureKey(u64::MAX - 5)]).collect::<Vec<_>>()
    };
    let absent: Vec<Vec<FeatureKey>> = expected.iter().map(gone).collect();
    let defaults = source.clone();
    let default =
        |table: zillion_feature::TableId, key| defaults.default_row(table.index(), key).unwrap();
    conformance::check(source, &rows, &absent, &default).unwrap();

    // In a plan for scoring, keys occur several times.
    let once: Vec<Vec<FeatureKey>> = rows
        .iter()
        .zip(&absent)
        .map(|(rows, absent)| rows.keys().chain(absent).copied().collect())
        .collect();
    let mut plan = conformance::plan_of(&once);
    let (mut first, mut again) = (RowBuffer::default(), RowBuffer::default());
    let report = source.lookup(&plan, &mut first).unwrap();
    for table in &mut plan.tables {
        table.keys = table.keys.repeat(3);
    }
    assert_eq!(source.lookup(&plan, &mut again).unwrap(), report);
    for (first, again) in first.tables.iter().zip(&again.tables) {
        assert_eq!(first.values.repeat(3), again.values);
    }
}

fn models() -> impl Strategy<Value = [Model; 2]> {
    (models_without_zeros(), 0u64..10).prop_map(|(mut models, zeros)| {
        // A share of the weights is zero, so that some parts leave zeros out.
        for (&key, row) in models.iter_mut().flatten() {
            let is_zero = |&(at, _): &(u64, &mut f32)| (key ^ at).wrapping_mul(7) % 10 < zeros;
            let weights = (0..).zip(row.iter_mut().flatten());
            weights.filter(is_zero).for_each(|(_, weight)| *weight = 0.0);
        }
        models
    })
}

fn models_without_zeros() -> impl Strategy<Value = [Model; 2]> {
    let keys = || prop_oneof![any::<u64>(), (0u64..16).prop_map(|k| k << 60), Just(u64::MAX)];
    let model = move |width: usize, salt: u64| {
        prop::collection::vec((keys(), 0u8..4), 0..60).prop_map(move |keys| {
            let row = |(key, alive)| (key, (alive > 0).then(|| row(key, salt, width)));
            keys.into_iter().map(row).collect::<Model>()
        })
    };
    (model(5, 1), model(3, 2)).prop_map(|(a, b)| [a, b])
}

proptest! {
    #[test]
    fn layers_read_as_their_sum_and_so_does_their_merge(
        row_type in row_types(),
        layers in prop::collection::vec(models(), 1..=MAX_OPEN_LAYERS),
        parts in prop_oneof![Just(None), (0u32..6).prop_map(|p| Some(1usize << p))],
        cut in 0usize..4,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let opened: Vec<Layer> = layers
            .iter()
            .map(|models| {
                let manifest = write_of(row_type, folder.path(), models, parts).unwrap();
                let layouts = layouts_of(row_type);
                verify_layer(folder.path(), &manifest, &layouts, &mut Unthrottled).unwrap();
                Layer::open(folder.path(), &manifest, &layouts).unwrap()
            })
            .collect();
        // Rows that were rounded do not change in merges.
        let expected = rounded(row_type, &stacked(&layers));
        let source = |layers| source_of(row_type, layers);
        check(&mut source(opened.clone()), &expected);

        // Records in memory read as the mapped rows, for all layers or for some of them.
        for kept in [0, 1] {
            let with_records = |(at, layer): (usize, &Layer)| match at % 2 < kept {
                true => layer.clone(),
                false => layer.with_records(&mut Unthrottled).unwrap(),
            };
            let records = opened.iter().enumerate().map(with_records).collect();
            check(&mut source(records), &expected);
        }

        // The newest layers are merged as a delta, and the other layers stay.
        let cut = cut.min(opened.len() - 1);
        let merge = |layers: &[Layer], is_base| {
            let layers: Vec<&Layer> = layers.iter().collect();
            let layouts = layouts_of(row_type);
            let manifest = merge_layers(
                &Files::new(), folder.path(), &layouts, &layers, is_base, &mut Unthrottled,
            ).unwrap();
            verify_layer(folder.path(), &manifest, &layouts, &mut Unthrottled).unwrap();
            Layer::open(folder.path(), &manifest, &layouts).unwrap()
        };
        let merged = merge(&opened[cut..], false);
        let both = [&opened[..cut], &[merged]].concat();
        check(&mut source(both), &expected);

        // All layers are merged as a base, so no tombstone is left.
        let base = merge(&opened, true);
        prop_assert!((0..2).all(|t| base.iter(t).all(|(_, found)| found != Found::Tombstone)));
        check(&mut source(vec![base]), &expected);
    }

    /// Checks that a difference, applied to the old state, gives the new state. Also checks that
    /// the difference has no entry for a key that did not change.
    #[test]
    fn a_difference_leads_from_one_state_to_the_other(
        row_type in row_types(), old in prop::collection::vec(models(), 0..4), new in models(), kept in 0u64..4,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let layouts = layouts_of(row_type);
        let open = |models: &[Model; 2]| {
            let manifest = write_of(row_type, folder.path(), models, None).unwrap();
            Layer::open(folder.path(), &manifest, &layouts).unwrap()
        };
        let before = rounded(row_type, &stacked(&old));
        let mut now = rounded(row_type, &new);
        for (now, before) in now.iter_mut().zip(&before) {
            now.retain(|_, row| row.is_some());
            // Some rows do not change.
            let stays = |key: u64| key % 4 < kept;
            now.extend(before.iter().filter(|(k, row)| row.is_some() && stays(**k)).map(|(&k, row)| (k, row.clone())));
        }
        let opened: Vec<Layer> = old.iter().map(open).collect();
        let opened: Vec<&Layer> = opened.iter().collect();
        let manifest = difference(
            &Files::new(), folder.path(), &layouts, &opened, &open(&now), &mut Unthrottled,
        ).unwrap();
        verify_layer(folder.path(), &manifest, &layouts, &mut Unthrottled).unwrap();
        let delta = Layer::open(folder.path(), &manifest, &layouts).unwrap();
        for table in 0..2 {
            let row = |key: u64, model: &Model| model.get(&key).cloned().flatten();
            let keys = before[table].keys().chain(now[table].keys()).copied();
            let expected: Model = keys
                .filter(|&key| row(key, &before[table]) != row(key, &now[table]))
                .map(|key| (key, row(key, &now[table])))
                .collect();
            let found: Model = delta
                .iter(table)
                .map(|(key, found)| match found {
                    Found::Row(row) => (key.0, Some(row.weights.to_vec())),
                    Found::Tombstone => (key.0, None),
                })
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_same_rows_are_the_same_files(models in models()) {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (a, b) = (write(one.path(), &models, None), write(two.path(), &models, None));
        prop_assert_eq!(a.unwrap(), b.unwrap());
    }

    /// Checks that opening and reading a damaged file gives an error or a wrong row, and never a
    /// fault.
    #[test]
    fn damage_is_refused_by_name_and_never_a_fault(
        row_type in row_types(), models in models(), which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(),
        change in 1u8..=255, cut in prop::bool::ANY,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let manifest = write_of(row_type, folder.path(), &models, None).unwrap();
        let layouts = layouts_of(row_type);
        let files: Vec<&LayerFile> = manifest.files().collect();
        let file = files[which.index(files.len())];
        let path = folder.path().join(file.name());
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at.max(1)) } else { bytes[at] ^= change }
        std::fs::write(&path, &bytes).unwrap();
        let refused = verify_layer(folder.path(), &manifest, &layouts, &mut Unthrottled);
        match refused {
            Err(Error::Part { path: named, .. }) => prop_assert_eq!(named, path),
            other => prop_assert!(false, "{:?}", other),
        }
        if let Ok(layer) = Layer::open(folder.path(), &manifest, &layouts) {
            for (table, model) in models.iter().enumerate() {
                let found = model.keys().filter_map(|&key| layer.find(table, FeatureKey(key)));
                prop_assert!(found.count() <= model.len());
                layer.iter(table).for_each(drop);
            }
        }
    }
}

#[test]
fn a_large_table_is_cut_and_found_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (files, mut throttle) = (Files::new(), Unthrottled);
    let mut keys: Vec<u64> = (0..200_000).map(|i| FeatureKey::from_u64(i).0).collect();
    keys.sort_unstable();
    let layouts = layouts();
    let mut writer = LayerWriter::new(&files, folder.path(), &mut throttle);
    writer.table(&layouts[0], 8).unwrap();
    for &key in &keys {
        writer.push(FeatureKey(key), Some(&row(key, 3, 5)), 9).unwrap();
    }
    writer.table(&layouts[1], 0).unwrap();
    let manifest = writer.finish().unwrap();
    assert_eq!((manifest.tables[0].parts.len(), manifest.rows()), (8, 200_000));
    verify_layer(folder.path(), &manifest, &layouts, &mut Unthrottled).unwrap();
    let layer = Layer::open(folder.path(), &manifest, &layouts).unwrap();
    for &key in &keys {
        let wanted = row(key, 3, 5);
        let found = layer.find(0, FeatureKey(key));
        assert_eq!(found, Some(Found::Row(LayerRow { weights: (&wanted).into(), count: 9 })));
        assert_eq!(layer.find(1, FeatureKey(key)), None);
    }
    // A lookup through the plan on several threads gives the same rows.
    let workers = Arc::new(Workers::new(NonZeroUsize::new(3).unwrap()).unwrap());
    let mut source = LayerSource::new(&specs(), vec![layer], workers).unwrap();
    let expected = [keys.iter().map(|&k| (k, Some(row(k, 3, 5)))).collect(), Model::new()];
    check(&mut source, &expected);
}

#[test]
fn keys_that_share_one_entry_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let model: Model = (0..5000).map(|i| ((7 << 52) | (i * 2), Some(row(i, 3, 5)))).collect();
    let models = [model, Model::new()];
    let manifest = write(folder.path(), &models, None).unwrap();
    verify_layer(folder.path(), &manifest, &layouts(), &mut Unthrottled).unwrap();
    let layer = Layer::open(folder.path(), &manifest, &layouts()).unwrap();
    check(&mut source(vec![layer]), &models);
}

#[test]
fn rows_differ_in_any_bit_and_in_their_count() {
    let (folder, files) = (tempfile::tempdir().unwrap(), Files::new());
    let layouts = &layouts()[..1];
    let open = |manifest: &LayerManifest| Layer::open(folder.path(), manifest, layouts).unwrap();
    let layer = |rows: [(f32, u32); 3]| {
        let mut throttle = Unthrottled;
        let mut writer = LayerWriter::new(&files, folder.path(), &mut throttle);
        writer.table(&layouts[0], 1).unwrap();
        for (key, (weight, count)) in (1..).zip(rows) {
            writer.push(FeatureKey(key), Some(&[weight; 5]), count).unwrap();
        }
        open(&writer.finish().unwrap())
    };
    let (old, new) =
        (layer([(0.0, 1), (1.0, 1), (2.0, 1)]), layer([(-0.0, 1), (1.0, 2), (2.0, 1)]));
    let mut pauses = Pauses(0);
    let delta = difference(&files, folder.path(), layouts, &[&old], &new, &mut pauses).unwrap();
    let keys: Vec<u64> = open(&delta).iter(0).map(|(key, _)| key.0).collect();
    assert_eq!((keys, pauses.0 > 0), (vec![1, 2], true));
}

struct Pauses(usize);

impl Throttle for Pauses {
    fn piece(&mut self) {
        self.0 += 1;
    }
}

#[test]
fn a_writer_refuses_what_would_not_be_found() {
    let folder = tempfile::tempdir().unwrap();
    let (files, mut throttle) = (Files::new(), Unthrottled);
    let layouts = layouts();
    let mut writer = LayerWriter::new(&files, folder.path(), &mut throttle);
    let message = |result: Result<()>| result.unwrap_err().to_string();
    assert!(message(writer.push(FeatureKey(1), None, 0)).contains("before its table"));
    writer.table(&layouts[0], 1).unwrap();
    writer.push(FeatureKey(5), Some(&[0.0; 5]), 1).unwrap();
    let not_above = message(writer.push(FeatureKey(5), Some(&[0.0; 5]), 1));
    assert!(not_above.contains("not greater") && not_above.starts_with("table `a`"), "{not_above}");
    assert!(
        message(writer.push(FeatureKey(6), Some(&[0.0; 4]), 1)).contains("4 floats instead of 5")
    );
    writer.table(&layouts[1], 0).unwrap();
    assert!(message(writer.push(FeatureKey(6), Some(&[0.0; 3]), 1)).contains("begun as empty"));
}
