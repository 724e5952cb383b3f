//! Tests that compare forecasts of limits and spilling with real tables.

use std::num::NonZeroUsize;

use zillion_device::{Files, Workers};
use zillion_embedding::{
    Rates, SpillHome, TableSet, Update, forecast_spill, rows_within_shared_limit,
};
use zillion_feature::{FeatureKey, RowBuffer, Step, TableId};
use zillion_rows::conformance::plan_of;
use zillion_rows::{ByteSize, Eviction, InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

fn spec(name: &str) -> TableSpec {
    let segment = SegmentSpec::new(
        "v",
        16,
        InitializerSpec::Constant { value: 0.5 },
        OptimizerSpec::Sgd { lr: 0.1 },
    );
    TableSpec { seed: 11, ..TableSpec::new(name, vec![segment]) }
}

fn shards(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

/// Pushes `keys` different keys, a thousand in each step.
fn fill(set: &mut TableSet, keys: u64) {
    let workers = Workers::new(NonZeroUsize::MIN).unwrap();
    let tables = set.specs().count();
    for (t, first) in (1..).zip((0..keys).step_by(1000)) {
        let keys: Vec<_> = (first..(first + 1000).min(keys)).map(FeatureKey::from_u64).collect();
        let plan = plan_of(&vec![keys; tables]);
        let mut rows = RowBuffer::default();
        set.pull(&workers, &plan, false, &mut rows).unwrap();
        let update = Update { step: Step(t), rates: Rates::default(), scale: 1.0 };
        set.push(&workers, &plan, &rows, update).unwrap();
    }
}

#[test]
fn a_forecast_of_spilling_is_what_comes() {
    let (rows, shards_count, memory) = (20_000, 2, 512 << 10);
    let forecast = forecast_spill(&spec("ids"), rows, memory, shards_count).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let home = SpillHome::open(&Files::new(), folder.path()).unwrap();
    let mut set = TableSet::new(vec![spec("ids")], shards(shards_count)).unwrap();
    set.spill(TableId(0), memory, &home).unwrap();
    fill(&mut set, rows);
    let told = &set.statistics()[0];
    let spill = told.spill.unwrap();
    assert_eq!(spill.budget_rows, forecast.budget_rows);
    assert!(spill.hot_rows <= forecast.hot_rows && spill.cold_rows > 0);
    assert!(spill.hot_rows * 2 > forecast.hot_rows, "{spill:?} {forecast:?}");
    let real = told.total_bytes() - spill.buffer_bytes;
    // The index is mapped in pieces, and the forecast is for the worst moment of its growth.
    let ratio = real as f64 / forecast.memory as f64;
    assert!((0.5..1.5).contains(&ratio), "{real} {forecast:?}");
    // The forecast does not include the chunk that is being filled and the last segment.
    let room = forecast.file_bytes + shards_count as u64 * 2 * 16 * (16 << 10);
    assert!(spill.disk_bytes <= room, "{} {forecast:?}", spill.disk_bytes);
    // A table that fits stays in memory.
    let roomy = forecast_spill(&spec("ids"), 100, 64 << 20, shards_count).unwrap();
    assert_eq!((roomy.hot_rows, roomy.file_bytes), (100, 0));
    assert_eq!(roomy.memory, spec("ids").memory(100, shards_count));
}

#[test]
fn what_cannot_spill_is_refused_as_it_would_be() {
    let tight = forecast_spill(&spec("ids"), 10, 8 << 10, 8).unwrap_err().to_string();
    assert!(tight.contains("run.spill.ids") && tight.contains("too few for a row"), "{tight}");
    let dense = TableSpec { dense: true, ..spec("ids") };
    assert!(forecast_spill(&dense, 10, 1 << 30, 8).is_err());
}

#[test]
fn a_forecast_of_shares_is_what_comes() {
    let evicting = |name| TableSpec { eviction: Eviction::Lru, ..spec(name) };
    let specs = vec![evicting("a"), evicting("b")];
    let limit = ByteSize(24 << 20);
    let rows = rows_within_shared_limit(&specs, limit, &[150_000, 1_000]).unwrap();
    assert_eq!(rows[1], 1_000, "who needs little gets it");
    assert!(rows[0] < 150_000, "{rows:?}");
    assert_eq!(
        rows_within_shared_limit(&specs, ByteSize(1 << 34), &[150_000, 1_000]).unwrap(),
        [150_000, 1_000]
    );
    // A table that is alone under the limit gets the forecast number of rows, except for the room
    // that is made in advance.
    let rows = rows_within_shared_limit(&specs[..1], limit, &[400_000]).unwrap();
    let mut set = TableSet::new(specs[..1].to_vec(), shards(4)).unwrap();
    set.limit_bytes(Some(limit)).unwrap();
    fill(&mut set, 150_000);
    let real = set.statistics()[0].rows;
    assert!(real <= rows[0] && real * 4 >= rows[0] * 3, "{real} of {rows:?}");
    // A dense table keeps its vocabulary under a shared limit.
    let dense = TableSpec { dense: true, ..spec("fixed") };
    let rows = rows_within_shared_limit(&[dense, evicting("a")], limit, &[200_000, 100_000]);
    let rows = rows.unwrap();
    assert!(rows[0] == 200_000 && rows[1] < 100_000, "{rows:?}");
    assert!(rows_within_shared_limit(&specs, ByteSize(1000), &[1, 1]).is_err());
    assert!(rows_within_shared_limit(&specs, limit, &[1]).is_err());
}
