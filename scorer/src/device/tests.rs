//! Versions on the emulated device against scorers of processors, by bits.

mod hot;
mod memory;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tempfile::TempDir;
use zillion_device::Files;
use zillion_feature::{Batch, FeatureKey, LookupPlan, PlanScratch};
use zillion_nn::Params;
use zillion_nn::zoo::LOGITS;
use zillion_rows::layer::{Layer, LayerSource, LayerWriter, Unthrottled, part_count};
use zillion_rows::{InitializerSpec, OptimizerSpec, RowSource as _, SegmentSpec, TableSpec};

use super::ScoringDevice;
use super::engine::{DeviceEngine, DeviceScores, DeviceVersion};
use super::merged::Prepared;
use crate::error::{Error, Result};
use crate::programs::Programs;
use crate::testing::Example;

/// The rows of a layer: the key, and the first weight of its row or `None` for a tombstone.
type Rows = Vec<(u64, Option<f32>)>;

/// A model whose versions have layers of their own.
struct World {
    example: Example,
    folder: TempDir,
    layers: Vec<Layer>,
}

fn spec() -> TableSpec {
    let normal = InitializerSpec::Normal { mean: 0.0, std: 0.1 };
    let sgd = OptimizerSpec::Sgd { lr: 0.1 };
    TableSpec::new("item", vec![SegmentSpec::new("item".to_owned(), 4, normal, sgd)])
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { example: Example::new(), folder, layers: Vec::new() }
    }

    /// Writes and opens one more layer. Pushes ascend with the first weight.
    fn add_layer(&mut self, rows: Rows) {
        self.add_listed_layer(rows, 0);
    }

    /// Writes a layer that lists its hot keys. Pushes ascend with the first weight, and the last
    /// push of a key is the later the smaller its weight is.
    fn add_listed_layer(&mut self, rows: Rows, hot_keys: u32) {
        let mut rows: Vec<(FeatureKey, Option<f32>)> =
            rows.into_iter().map(|(id, x)| (FeatureKey::from_u64(id), x)).collect();
        rows.sort_unstable_by_key(|&(key, _)| key);
        let layout = TableSpec { hot_keys, ..spec() }.layout();
        let (files, mut pace) = (Files::new(), Unthrottled);
        let mut writer = LayerWriter::new(&files, self.folder.path(), &mut pace);
        writer.table(&layout, part_count(rows.len() as u64, 4)).unwrap();
        for (key, first) in rows {
            let Some(x) = first else {
                writer.push(key, None, 0).unwrap();
                continue;
            };
            let (weights, count) = ([x, -x, 0.5 * x, 1.0 + x], 1 + (x * 100.0) as u32);
            let last = 4_000_000_000 - 50_000 * count;
            writer.push_used(key, &weights, count, last).unwrap();
        }
        let manifest = writer.finish().unwrap();
        let layer = Layer::open(self.folder.path(), &manifest, &[layout]).unwrap();
        self.layers.push(layer);
    }

    fn source(&self, layers: usize) -> LayerSource {
        let workers = self.example.workers.clone();
        LayerSource::new(&[spec()], self.layers[..layers].to_vec(), workers).unwrap()
    }

    fn params(&self, seed: u64) -> Arc<Params> {
        Arc::new(Params::init(&self.example.graph.params, seed))
    }

    fn engine(&self, memory: u64, seed: u64) -> (Arc<ScoringDevice>, Arc<DeviceEngine>) {
        let device = ScoringDevice::open(&format!("emulated:{seed}"), Some(memory)).unwrap();
        let engine = self.engine_on(&device);
        (device, engine)
    }

    fn engine_on(&self, device: &Arc<ScoringDevice>) -> Arc<DeviceEngine> {
        let graph = self.example.graph.clone();
        let outputs = vec![graph.output(LOGITS).unwrap()];
        let programs = Programs::new(graph, outputs.clone(), Default::default());
        DeviceEngine::new(device.clone(), Arc::new(programs), outputs).unwrap()
    }

    fn batch(&self, first: u64, rows: usize) -> (Batch, LookupPlan) {
        let keys = (first..first + rows as u64).map(|id| FeatureKey::from_u64(id * 7 % 400));
        let mut batch = self.example.batch(rows);
        batch.sparse[0].keys = keys.collect();
        let scratch = &mut PlanScratch::default();
        let plan = LookupPlan::for_scoring(&batch, &self.example.schema, scratch);
        (batch, plan)
    }

    fn expected(
        &self,
        source: &LayerSource,
        params: &Params,
        of: &(Batch, LookupPlan),
    ) -> DeviceScores {
        let mut scorer = self.example.scorer();
        let scores = scorer.score(&of.0, &of.1, &mut source.clone(), params).unwrap();
        DeviceScores { outputs: vec![scores.outputs[0].to_vec()], missing: scores.missing }
    }
}

fn score(
    version: &Arc<DeviceVersion>,
    (batch, plan): &(Batch, LookupPlan),
) -> Result<DeviceScores> {
    version.score(Prepared::new(batch, plan, version.strides())?, None)
}

fn bits(scores: &DeviceScores) -> (Vec<u32>, u64) {
    (scores.outputs.iter().flatten().map(|x| x.to_bits()).collect(), scores.missing)
}

/// A base of 300 rows and six deltas, which change rows, remove some and add new ones.
fn world() -> World {
    let mut world = World::new();
    world.add_layer((0..300).map(|id| (id, Some(id as f32 / 100.0))).collect());
    for delta in 1..7u64 {
        let row = |at: u64| {
            let id = (at * 13 + delta * 31) % 380;
            (id, (!at.is_multiple_of(5)).then_some(delta as f32 + id as f32 / 300.0))
        };
        world.add_layer((0..25).map(row).collect());
    }
    world
}

#[test]
fn versions_of_one_to_seven_layers_have_the_scores_of_processors() {
    let world = world();
    for seed in 0..2 {
        let (device, engine) = world.engine(64 << 20, seed);
        let mut versions = Vec::new();
        // A rollback is a load of fewer layers.
        for layers in [1, 2, 4, 5, 7, 3, 1] {
            let (source, params) = (world.source(layers), world.params(layers as u64));
            let loaded = engine.load(params.clone(), source.clone(), &mut Unthrottled).unwrap();
            versions.push((Arc::new(loaded), source, params));
        }
        for round in 0..2 {
            for (number, (version, source, params)) in versions.iter().enumerate() {
                let batch = world.batch(number as u64 * 17 + round, 1 + 43 * number);
                let expected = world.expected(source, params, &batch);
                assert_eq!(bits(&score(version, &batch).unwrap()), bits(&expected), "{number}");
            }
        }
        let counts = device.statistics();
        assert_eq!((counts.batches, counts.requests), (14, 14));
        assert!(counts.hits > counts.keys / 2 && counts.hits < counts.keys, "{counts:?}");
        assert!(counts.resident_rows >= 300 && counts.used_bytes <= counts.budget_bytes);
        drop((versions, engine));
        assert_eq!((device.statistics().used_bytes, device.statistics().resident_rows), (0, 0));
    }
}

#[test]
fn an_empty_version_and_one_without_room_for_its_rows_read_all_rows_from_the_host() {
    let world = world();
    let (device, engine) = world.engine(64 << 20, 3);
    let empty = world.source(0);
    let version = engine.load(world.params(1), empty.clone(), &mut Unthrottled).unwrap();
    let batch = world.batch(3, 90);
    let expected = world.expected(&empty, &world.params(1), &batch);
    assert_eq!(bits(&score(&Arc::new(version), &batch).unwrap()), bits(&expected));
    assert_eq!(device.statistics().hits, 0);
    // Budgets from too little for the parameters to enough for all.
    let (mut refused, mut without, mut partly, mut whole) = (0, 0, 0, 0);
    for halves in 1..96 {
        let budget = halves << 9;
        let (device, engine) = world.engine(budget, halves);
        let (source, params) = (world.source(3), world.params(2));
        let version = match engine.load(params.clone(), source.clone(), &mut Unthrottled) {
            Ok(version) => Arc::new(version),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(&budget.to_string()) && text.contains("budget"), "{text}");
                refused += 1;
                continue;
            }
        };
        let statistics = device.statistics();
        without += statistics.versions_without_rows;
        partly += u64::from((1..300).contains(&statistics.resident_rows));
        whole += u64::from(statistics.resident_rows >= 300);
        match score(&version, &batch) {
            Ok(scores) => {
                assert_eq!(bits(&scores), bits(&world.expected(&source, &params, &batch)))
            }
            Err(error) => assert!(error.to_string().contains("budget"), "{error}"),
        }
        assert!(device.statistics().used_bytes <= budget);
    }
    assert!(
        refused > 0 && without > 0 && partly > 0 && whole > 0,
        "{refused} {without} {partly} {whole}"
    );
}

#[test]
fn requests_that_come_while_a_batch_runs_go_together_and_keep_their_versions() {
    let world = world();
    let (device, engine) = world.engine(64 << 20, 5);
    let versions: Vec<_> = [2usize, 6]
        .into_iter()
        .map(|layers| {
            let (source, params) = (world.source(layers), world.params(layers as u64));
            let version = engine.load(params.clone(), source.clone(), &mut Unthrottled).unwrap();
            (Arc::new(version), source, params)
        })
        .collect();
    const THREADS: usize = 8;
    const REQUESTS: usize = 25;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (world, versions) = (&world, &versions);
            scope.spawn(move || {
                for number in 0..REQUESTS {
                    let (version, source, params) = &versions[(thread / 2 + number) % 2];
                    let batch =
                        world.batch((thread * 50 + number) as u64, 1 + (thread + number) % 9);
                    let expected = world.expected(source, params, &batch);
                    assert_eq!(bits(&score(version, &batch).unwrap()), bits(&expected));
                }
            });
        }
    });
    let counts = device.statistics();
    assert_eq!(counts.requests, (THREADS * REQUESTS) as u64);
    assert!(counts.batches < counts.requests, "{counts:?}");
}

#[test]
fn a_late_request_leaves_the_list_and_others_go_on() {
    let world = world();
    let (_, engine) = world.engine(64 << 20, 6);
    let version = engine.load(world.params(1), world.source(2), &mut Unthrottled).unwrap();
    let version = Arc::new(version);
    let is_late = AtomicBool::new(true);
    let request =
        |of: &(Batch, LookupPlan)| Prepared::new(&of.0, &of.1, version.strides()).unwrap();
    let batch = world.batch(1, 5);
    let late = version.score(request(&batch), Some(&|| is_late.load(Ordering::Relaxed)));
    assert!(matches!(late, Err(Error::Late)), "{late:?}");
    // The request becomes late before the list is looked at.
    let checks = AtomicUsize::new(0);
    let becomes_late = || checks.fetch_add(1, Ordering::Relaxed) > 0;
    let late = version.score(request(&batch), Some(&becomes_late));
    assert!(matches!(late, Err(Error::Late)), "{late:?}");
    let expected = world.expected(&world.source(2), &world.params(1), &batch);
    assert_eq!(bits(&score(&version, &batch).unwrap()), bits(&expected));
}

#[test]
fn the_strides_of_requests_are_those_of_the_tables() {
    let world = world();
    let strides: Vec<usize> = world.source(1).tables().iter().map(|table| table.stride).collect();
    let (first, second) = (world.batch(1, 3), world.batch(9, 2));
    let of = |of: &(Batch, LookupPlan)| Prepared::new(&of.0, &of.1, &strides).unwrap();
    let mut both = of(&first);
    assert!(both.has_form_of(&of(&second)));
    both.append(&of(&second));
    assert_eq!((both.rows, both.values(), both.keys[0].len()), (5, 5, 5));
    let mut other = second.clone();
    other.0.sparse[0].offsets = Some(vec![0, 1, 2]);
    assert!(!both.has_form_of(&of(&other)));
}
