//! The random tables of a history. They cover every rule, number type, admission and eviction, with
//! and without limits.

use zillion_embedding::testing::row_optimizers;
use zillion_rows::{
    Admission, Bounds, ByteSize, ClipSpec, Dtype, Eviction, InitializerSpec, OptimizerSpec,
    PinnedId, SegmentSpec, TableSpec, Unknown, UseStatistics,
};

use crate::chance::Chance;
use crate::model;

/// The number of pinned ids, in tables with pinned ids.
pub(crate) const PINNED: u64 = 3;

/// Returns the tables of one history: the table that the model covers, dense tables, some tables
/// that may spill, and some tables that evict.
pub(crate) fn tables(chance: &mut Chance) -> Vec<TableSpec> {
    let mut specs = vec![model::spec(chance.pick(&Dtype::ALL))];
    let more = chance.within(3, 6);
    for number in 0..more {
        let mut spec = table(chance, &format!("table{number}"));
        match number {
            0 => {
                let scope = OptimizerSpec::Momentum {
                    lr: 0.05,
                    momentum: 0.9,
                    nesterov: true,
                    scope: None,
                };
                spec.dense = true;
                spec.segments[0].optimizer = chance.pick(&[OptimizerSpec::adam(0.01), scope]);
                spec.segments[0].l2 = chance.pick(&[0.0, 0.05]);
            }
            // The first dynamic table may spill, the second evicts.
            1 => life(chance, &mut spec, false),
            2 => life(chance, &mut spec, true),
            _ => {
                let evicts = chance.one_in(2);
                life(chance, &mut spec, evicts);
            }
        }
        spec.validate().unwrap_or_else(|e| panic!("{e}: {spec:?}"));
        specs.push(spec);
    }
    specs
}

fn table(chance: &mut Chance, name: &str) -> TableSpec {
    let segments = chance.within(1, 2);
    TableSpec {
        unknown: chance.pick(&[Unknown::Seeded, Unknown::Zero]),
        dtype: chance.pick(&Dtype::ALL),
        seed: chance.bits(),
        ..TableSpec::new(name, (0..segments).map(|i| segment(chance, &format!("s{i}"))).collect())
    }
}

fn segment(chance: &mut Chance, name: &str) -> SegmentSpec {
    let initializers = [
        InitializerSpec::Normal { mean: 0.0, std: 0.1 },
        InitializerSpec::Uniform { low: -0.2, high: 0.1 },
        InitializerSpec::Constant { value: 0.0 },
    ];
    let clip = ClipSpec { norm: Some(0.7), value: Some(0.5) };
    SegmentSpec {
        l2: chance.pick(&[0.0, 0.0, 0.01]),
        clip: chance.one_in(4).then_some(clip),
        bounds: chance.one_in(4).then_some(Bounds { low: -0.25, high: 0.2 }),
        ..SegmentSpec::new(
            name,
            chance.pick(&[1, 8, 16, 40]),
            chance.pick(&initializers),
            chance.pick(&row_optimizers()),
        )
    }
}

/// Chooses the admission, eviction, statistics and limits of a dynamic table.
fn life(chance: &mut Chance, spec: &mut TableSpec, evicts: bool) {
    let at_least = chance.within(2, 5) as u32;
    let keys = chance.pick(&[2_000, 20_000]);
    spec.admission = chance.pick(&[
        Admission::All,
        Admission::All,
        Admission::Count { at_least },
        Admission::Bloom { at_least, keys, error: 0.01 },
        Admission::Probability { p: 0.4 },
    ]);
    if evicts {
        spec.eviction = eviction(chance);
        if chance.one_in(3) {
            spec.pinned = (0..PINNED).map(|id| PinnedId::Number(id as i64)).collect();
        }
    }
    let is_score = matches!(spec.eviction, Eviction::Score { .. });
    if is_score || chance.one_in(4) {
        let decay = chance.pick(&[0.5, 0.98, 1.0]);
        spec.statistics = Some(UseStatistics::by_steps(decay, chance.within(1, 9) as u32));
    }
    match chance.below(3) {
        0 => spec.max_rows = Some(chance.pick(&[1, 40, 700, 3_000])),
        1 => spec.max_bytes = Some(ByteSize(chance.within(6, 12) << 20)),
        _ => {}
    }
    if spec.eviction_needs_limit() && spec.max_rows.is_none() && spec.max_bytes.is_none() {
        spec.max_rows = Some(chance.pick(&[40, 2_000]));
    }
}

fn eviction(chance: &mut Chance) -> Eviction {
    let (below, every) = chance.pick(&[(None, None), (Some(0.3), None), (Some(0.5), Some(8))]);
    let kinds = [
        Eviction::Unseen { steps: chance.within(1, 9) },
        Eviction::Lru,
        Eviction::Lfu { half_life: chance.within(1, 40).into(), below, every },
        Eviction::Score { show_weight: 1.0, click_weight: 2.0, below, every },
        Eviction::L2 { below, every },
    ];
    chance.pick(&kinds)
}
