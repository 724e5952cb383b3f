//! The random tables of a history: every rule, number type, admission and form of a table whose
//! rows can be on a device.

use zillion_embedding::testing::row_optimizers;
use zillion_rows::{
    Admission, Bounds, ClipSpec, Dtype, EventSpan, Eviction, InitializerSpec, OptimizerSpec, Scope,
    SegmentSpec, Span, TableSpec, Unknown, UseStatistics,
};

use crate::chance::Chance;

/// Returns the tables of one history. At least one table has whole-table rules.
pub(crate) fn tables(chance: &mut Chance) -> Vec<TableSpec> {
    let count = chance.within(2, 5);
    let specs = (0..count).map(|number| table(chance, number, &format!("table{number}")));
    let specs: Vec<TableSpec> = specs.collect();
    for spec in &specs {
        spec.validate().unwrap_or_else(|e| panic!("{e}: {spec:?}"));
    }
    specs
}

fn table(chance: &mut Chance, number: u64, name: &str) -> TableSpec {
    let segments = chance.within(1, 3);
    let segments = (0..segments).map(|i| segment(chance, &format!("s{i}"))).collect();
    let mut spec = TableSpec {
        unknown: chance.pick(&[Unknown::Seeded, Unknown::Zero]),
        dtype: chance.pick(&Dtype::ALL),
        seed: chance.bits(),
        ..TableSpec::new(name, segments)
    };
    if number == 0 || chance.one_in(3) {
        spec.dense = true;
        if number == 0 {
            let scope = Some(Scope::Table);
            let momentum =
                OptimizerSpec::Momentum { lr: 0.05, momentum: 0.9, nesterov: true, scope };
            spec.segments[0].optimizer = chance.pick(&[OptimizerSpec::adam(0.01), momentum]);
        } else if chance.one_in(2) {
            touch(&mut spec);
        }
        return spec;
    }
    let at_least = chance.within(2, 5) as u32;
    spec.admission = chance.pick(&[
        Admission::All,
        Admission::All,
        Admission::Count { at_least },
        Admission::Bloom { at_least, keys: 2_000, error: 0.2 },
        Admission::Probability { p: 0.4 },
    ]);
    let counts = !matches!(spec.admission, Admission::All | Admission::Probability { .. });
    if counts && chance.one_in(2) {
        spec.admission_window = EventSpan::from_seconds(chance.within(20, 400));
    }
    if spec.admission_window.is_none() && chance.one_in(2) {
        let decay = chance.pick(&[0.5, 0.98, 1.0]);
        spec.statistics = Some(UseStatistics::by_steps(decay, chance.within(1, 9) as u32));
    }
    spec
}

/// Makes all rules of a table with a fixed vocabulary rules of touched rows.
fn touch(spec: &mut TableSpec) {
    for segment in &mut spec.segments {
        segment.l2_scope = (segment.l2 != 0.0).then_some(Scope::Touched);
        segment.optimizer = match segment.optimizer {
            OptimizerSpec::Momentum { .. } | OptimizerSpec::Adam { .. } => {
                OptimizerSpec::Sgd { lr: 0.1 }
            }
            other => other,
        };
    }
}

/// Lets the host evict rows of a table that is not in key order, now and then, on schedule or at a
/// limit.
pub(crate) fn let_evict(chance: &mut Chance, spec: &mut TableSpec) {
    if spec.dense || chance.one_in(2) {
        return;
    }
    let steps = chance.within(3, 60);
    let half_life = Span::Steps(chance.within(2, 30));
    let (below, every) = (Some(chance.pick(&[0.2, 0.9])), Some(chance.within(2, 20)));
    let span = EventSpan::from_seconds(chance.within(100, 900)).unwrap();
    spec.eviction = match spec.admission_window {
        Some(_) => Eviction::UnseenFor { span },
        None => {
            chance.pick(&[Eviction::Unseen { steps }, Eviction::Lfu { half_life, below, every }])
        }
    };
    if chance.one_in(2) {
        spec.max_rows = Some(chance.pick(&[3, 40, 700]));
        let (below, every) = (None, None);
        let at_limit = [Eviction::Never, Eviction::Lru, Eviction::Lfu { half_life, below, every }];
        // A window of admission is a span of event time, and so is its eviction.
        if spec.admission_window.is_none() {
            let other = chance.pick(&at_limit);
            spec.eviction = chance.pick(&[spec.eviction, other]);
        }
    }
    spec.validate().unwrap_or_else(|e| panic!("{e}: {spec:?}"));
}

/// Lets a table that is not in key order refuse new keys at a limit, now and then.
pub(crate) fn let_refuse(chance: &mut Chance, spec: &mut TableSpec) {
    if !spec.dense && chance.one_in(4) {
        spec.max_rows = Some(chance.pick(&[3, 40, 700]));
        spec.validate().unwrap_or_else(|e| panic!("{e}: {spec:?}"));
    }
}

fn segment(chance: &mut Chance, name: &str) -> SegmentSpec {
    let initializers = [
        InitializerSpec::Normal { mean: 0.0, std: 0.1 },
        InitializerSpec::TruncatedNormal { mean: 0.05, std: 0.2 },
        InitializerSpec::Uniform { low: -0.2, high: 0.1 },
        InitializerSpec::Constant { value: 0.0 },
        InitializerSpec::Constant { value: -0.0 },
    ];
    let clips = [
        ClipSpec { norm: Some(0.7), value: Some(0.5) },
        ClipSpec { norm: None, value: Some(0.2) },
        ClipSpec { norm: Some(0.3), value: None },
    ];
    SegmentSpec {
        l2: chance.pick(&[0.0, 0.0, 0.01]),
        clip: chance.one_in(3).then(|| chance.pick(&clips)),
        bounds: chance.one_in(4).then_some(Bounds { low: -0.25, high: 0.2 }),
        ..SegmentSpec::new(
            name,
            chance.pick(&[1, 3, 8, 16, 21]),
            chance.pick(&initializers),
            chance.pick(&row_optimizers()),
        )
    }
}
