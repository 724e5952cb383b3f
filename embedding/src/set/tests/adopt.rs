//! Tests of adoption, in which the rows of one set's layer become the initial rows of another set.

use zillion_device::Files;
use zillion_feature::TableId;

use crate::set::tests::changes::live;
use crate::testing::fixtures::*;
use crate::{Adopted, Error, TableSet};
use zillion_rows::layer::{Layer, LayerSource, Unthrottled};
use zillion_rows::{Bounds, Dtype, OptimizerSpec, TableSpec};

const ADAGRAD: OptimizerSpec =
    OptimizerSpec::Adagrad { lr: 0.1, initial_accumulator: 0.5, eps: 1e-6 };

fn spec(segments: &[(&str, usize)]) -> TableSpec {
    let segments = segments.iter().map(|&(name, dim)| segment(name, dim, ADAGRAD, 0.0)).collect();
    table("ids", false, segments)
}

/// Returns a set after some training, and its rows as a version.
fn learned(folder: &std::path::Path, spec: TableSpec) -> (TableSet, LayerSource) {
    let workers = workers(2);
    let mut set = TableSet::new(vec![spec.clone()], shards(3)).unwrap();
    (1..=4).for_each(|step| _ = clipped_step(&mut set, &workers, step, 90));
    let manifest = set.write_base(&workers, &Files::new(), folder, &mut Unthrottled).unwrap();
    let layer = Layer::open(folder, &manifest, set.layouts()).unwrap();
    let source = LayerSource::new(&[spec], vec![layer], std::sync::Arc::new(workers)).unwrap();
    (set, source)
}

fn adopt(set: &mut TableSet, from: &TableSpec, source: &LayerSource) -> crate::Result<Adopted> {
    set.adopt(TableId(0), &from.layout(), &mut source.whole_rows_of(0))
}

#[test]
fn weights_and_counts_come_along_and_segments_go_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let old = spec(&[("vector", 5), ("linear", 1)]);
    let (whole, source) = learned(folder.path(), old.clone());
    let before = live(&whole, 0);
    for number in [1, 2, 5] {
        let mut same = TableSet::new(vec![old.clone()], shards(number)).unwrap();
        let adopted = adopt(&mut same, &old, &source).unwrap();
        assert_eq!(adopted, Adopted { rows: before.len() as u64, unknown: 0 });
        assert_eq!(live(&same, 0), before, "{number} shards");
    }
    // The segments have another order, and one is new: it begins as in any new row.
    let new = spec(&[("linear", 1), ("extra", 2), ("vector", 5)]);
    let mut set = TableSet::new(vec![new.clone()], shards(2)).unwrap();
    adopt(&mut set, &old, &source).unwrap();
    let mut fresh = TableSet::new(vec![new], shards(2)).unwrap();
    let (workers, plan) = (workers(1), step_plan(1, 1, 90, 60));
    let (mut rows, mut initial) = (Default::default(), Default::default());
    set.pull(&workers, &plan, true, &mut rows).unwrap();
    fresh.pull(&workers, &plan, false, &mut initial).unwrap();
    for (i, key) in plan.tables[0].keys.iter().enumerate() {
        let (row, initial) = (rows.tables[0].row(i), initial.tables[0].row(i));
        let (weights, count) = &before[&key.0];
        let old: Vec<f32> = weights.iter().map(|&bits| f32::from_bits(bits)).collect();
        assert_eq!((&row[3..8], row[0]), (&old[..5], old[5]));
        assert_eq!(row[1..3], initial[1..3]);
        assert_eq!(rows.tables[0].counts.as_ref().unwrap()[i], *count);
    }
    // The optimizers start from their initial state, and the rows learn.
    clipped_step(&mut set, &workers, 1, 90);
    assert_ne!(live(&set, 0), live(&fresh, 0));
}

#[test]
fn types_bounds_vocabularies_and_limits_are_the_new_tables() {
    let folder = tempfile::tempdir().unwrap();
    let old = spec(&[("vector", 4)]);
    let (whole, source) = learned(folder.path(), old.clone());
    let rows = live(&whole, 0);
    let mut bounded = spec(&[("vector", 4)]);
    bounded.segments[0].bounds = Some(Bounds { low: -0.01, high: 0.01 });
    bounded.dtype = Dtype::Bf16;
    let mut set = TableSet::new(vec![bounded], shards(2)).unwrap();
    adopt(&mut set, &old, &source).unwrap();
    for (bits, _) in live(&set, 0).values() {
        assert!(bits.iter().all(|&b| f32::from_bits(b).abs() <= 0.010_1 && b & 0xffff == 0));
    }
    let workers = workers(1);
    let dense = TableSpec { dense: true, ..spec(&[("vector", 4)]) };
    let mut set = TableSet::new(vec![dense], shards(2)).unwrap();
    set.prefill(&workers, TableId(0), &sorted_keys(0..30)).unwrap();
    let adopted = adopt(&mut set, &old, &source).unwrap();
    assert_eq!(adopted.rows + adopted.unknown, rows.len() as u64);
    assert!(adopted.rows > 0 && adopted.unknown > 0 && set.rows(TableId(0)) == 30);

    let small = TableSpec { max_rows: Some(3), ..spec(&[("vector", 4)]) };
    let mut set = TableSet::new(vec![small], shards(2)).unwrap();
    assert!(matches!(adopt(&mut set, &old, &source), Err(Error::TooManyRows { cap: 3, .. })));
    for other in [spec(&[("vector", 8)]), spec(&[("linear", 1)])] {
        let mut set = TableSet::new(vec![other], shards(2)).unwrap();
        let error = adopt(&mut set, &old, &source).unwrap_err().to_string();
        assert!(error.contains("`ids`"), "{error}");
        assert_eq!(set.rows(TableId(0)), 0);
    }
}

#[test]
fn rows_that_were_narrow_come_along_as_they_were_served() {
    let folder = tempfile::tempdir().unwrap();
    let mut growing = spec(&[("vector", 4), ("linear", 6)]);
    growing.grow = Some(zillion_rows::Growth { at: 3, from: None });
    let (_, source) = learned(folder.path(), growing.clone());
    let narrow = source.rows_of(0).filter(|(_, row)| row.weights.len() == 6).count();
    assert!(narrow > 0 && narrow < source.rows_of(0).count(), "{narrow} rows are narrow");
    let workers = workers(1);
    for own in [growing.clone(), spec(&[("vector", 4)]), spec(&[("linear", 6), ("vector", 4)])] {
        let mut set = TableSet::new(vec![own.clone()], shards(2)).unwrap();
        adopt(&mut set, &growing, &source).unwrap();
        let keys: Vec<_> = source.whole_rows_of(0).map(|(key, _)| key).collect();
        let mut rows = Default::default();
        let plan = zillion_rows::conformance::plan_of(std::slice::from_ref(&keys));
        set.pull(&workers, &plan, true, &mut rows).unwrap();
        let (theirs, layout) = (growing.layout(), own.layout());
        for (key, whole) in source.whole_rows_of(0) {
            let at = plan.tables[0].keys.iter().position(|k| *k == key).unwrap();
            for segment in &layout.segments {
                let from = theirs.segment(&segment.name).unwrap();
                assert_eq!(
                    rows.tables[0].row(at)[segment.offset..segment.offset + segment.dim],
                    whole.weights[from.offset..from.offset + from.dim],
                );
            }
            assert_eq!(rows.tables[0].counts.as_ref().unwrap()[at], whole.count);
        }
    }
}
