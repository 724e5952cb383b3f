//! The settings of a table in the form that the kernels need: the places in a row, the rules of a
//! step and the initial numbers.

use zillion_device::gpu::kernels::{InitialSegment, NarrowPart, RowRule, TableRules};
use zillion_feature::random::text_seed;
use zillion_rows::{Dtype, InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

pub(super) fn dtype(spec: &TableSpec) -> u32 {
    match spec.dtype {
        Dtype::F32 => TableRules::F32,
        Dtype::F16 => TableRules::F16,
        Dtype::Bf16 => TableRules::BF16,
    }
}

pub(super) fn width(spec: &TableSpec) -> usize {
    spec.segments.iter().map(|segment| segment.dim).sum()
}

/// Returns the first float of the state in a row of the device.
pub(super) fn state(spec: &TableSpec) -> usize {
    if spec.dtype.is_f32() { width(spec) } else { width(spec).div_ceil(2) }
}

pub(super) fn stride(spec: &TableSpec) -> usize {
    (state(spec) + spec.state_width()).next_multiple_of(4)
}

/// Returns the first weight and the first float of the state of each segment.
pub(super) fn places(spec: &TableSpec) -> Vec<(usize, usize)> {
    let (mut weight, mut at) = (0, state(spec));
    let place = |segment: &SegmentSpec| {
        let place = (weight, at);
        weight += segment.dim;
        at += segment.optimizer.state_len(segment.dim);
        place
    };
    spec.segments.iter().map(place).collect()
}

/// Returns the numbers of an optimizer in a step.
pub(super) fn scalars(optimizer: &OptimizerSpec, step: u64) -> RowRule {
    let decimal = |x: f32| x.to_string().parse::<f64>().expect("a number");
    let flag = |set: bool| if set { 1.0 } else { 0.0 };
    let base = RowRule { lr: optimizer.lr(), ..RowRule::default() };
    match *optimizer {
        OptimizerSpec::Sgd { .. } => RowRule { kind: RowRule::SGD, ..base },
        OptimizerSpec::Momentum { momentum, nesterov, .. } => {
            RowRule { kind: RowRule::MOMENTUM, a: momentum, b: flag(nesterov), ..base }
        }
        OptimizerSpec::Adagrad { eps, .. } => RowRule { kind: RowRule::ADAGRAD, eps, ..base },
        OptimizerSpec::RowwiseAdagrad { eps, .. } => {
            RowRule { kind: RowRule::ROWWISE_ADAGRAD, eps, ..base }
        }
        OptimizerSpec::Adam { lr, beta1, beta2, eps, .. } => {
            let ([lr, beta1, beta2], t) = ([lr, beta1, beta2].map(decimal), step as f64);
            RowRule {
                kind: RowRule::ADAM,
                lr: (lr / (1.0 - beta1.powf(t))) as f32,
                eps,
                a: beta2 as f32,
                b: (1.0 - beta1) as f32,
                c: (1.0 - beta2) as f32,
                d: (1.0 - beta2.powf(t)).sqrt() as f32,
                ..base
            }
        }
        OptimizerSpec::Ftrl { lr, beta, l1, l2, l21 } => RowRule {
            kind: if l21 == 0.0 { RowRule::FTRL } else { RowRule::GROUP_FTRL },
            a: (1.0 / decimal(lr)) as f32,
            b: beta,
            c: l1,
            d: l2,
            l21,
            ..base
        },
    }
}

/// Returns the rules of the rows of `spec`, which are full or narrow rows of `full`.
pub(super) fn rules(spec: &TableSpec, full: &TableSpec, step: u64) -> Vec<RowRule> {
    let full_places = places(full);
    let rule = |(segment, &(begin, state)): (&SegmentSpec, &(usize, usize))| {
        let wide = full.segments.iter().position(|wide| wide.name == segment.name).expect("same");
        let clip =
            segment.clip.map(|c| (c.norm.unwrap_or(f32::INFINITY), c.value.unwrap_or(f32::MAX)));
        let (clip_norm, clip_value) = clip.unwrap_or((f32::INFINITY, f32::INFINITY));
        let bounds = segment.bounds.map(|bounds| spec.dtype.inward(bounds));
        let swept = if full.moves_whole_table(segment) { RowRule::SWEPT } else { 0 };
        let whole = if full.l2_is_whole(segment) { RowRule::L2_WHOLE } else { 0 };
        RowRule {
            begin: begin as u32,
            end: (begin + segment.dim) as u32,
            state: state as u32,
            l2: segment.l2,
            guarded: u32::from(segment.clip.is_some() || segment.bounds.is_some()),
            clip_norm,
            clip_value,
            low: bounds.map_or(f32::NEG_INFINITY, |b| b.low),
            high: bounds.map_or(f32::INFINITY, |b| b.high),
            shift: (full_places[wide].0 - begin) as u32,
            flags: swept | whole,
            ..scalars(&segment.optimizer, step)
        }
    };
    spec.segments.iter().zip(&places(spec)).map(rule).collect()
}

/// Returns how the rows of a table begin.
pub(super) fn initial(spec: &TableSpec) -> Vec<InitialSegment> {
    let segment = |(segment, &(begin, state)): (&SegmentSpec, &(usize, usize))| {
        let (kind, a, b) = match segment.initializer {
            InitializerSpec::Constant { value } => (InitialSegment::CONSTANT, value, 0.0),
            InitializerSpec::Uniform { low, high } => (InitialSegment::UNIFORM, low, high),
            InitializerSpec::Normal { mean, std } => (InitialSegment::NORMAL, mean, std),
            InitializerSpec::TruncatedNormal { mean, std } => {
                (InitialSegment::TRUNCATED, mean, std)
            }
        };
        let bounds = segment.bounds.map(|bounds| spec.dtype.inward(bounds));
        InitialSegment {
            seed: text_seed(spec.seed, &segment.name),
            kind,
            begin: begin as u32,
            end: (begin + segment.dim) as u32,
            a,
            b,
            low: bounds.map_or(f32::NEG_INFINITY, |b| b.low),
            high: bounds.map_or(f32::INFINITY, |b| b.high),
            state: state as u32,
            state_end: (state + segment.optimizer.state_len(segment.dim)) as u32,
            state_value: segment.optimizer.initial_state(),
        }
    };
    spec.segments.iter().zip(&places(spec)).map(segment).collect()
}

/// Returns the parts of the state of narrow rows, counted in floats from the start of a row.
pub(super) fn state_parts(spec: &TableSpec, small: &TableSpec) -> Vec<NarrowPart> {
    let full_places = places(spec);
    let mut parts = Vec::new();
    for (segment, &(_, from)) in small.segments.iter().zip(&places(small)) {
        let of = spec.segments.iter().position(|wide| wide.name == segment.name).expect("same");
        let (wide, to) = (&spec.segments[of], full_places[of].1);
        let whole = wide.optimizer.state_len(wide.dim);
        let own = segment.optimizer.state_len(segment.dim);
        // A state of one number for each row, or the same dimension.
        let (kinds, from_step, to_step) =
            if whole == own { (1, own, whole) } else { (whole / wide.dim, segment.dim, wide.dim) };
        for kind in 0..kinds {
            let (from, to) = (from + kind * from_step, to + kind * to_step);
            let n = from_step as u32;
            parts.push(NarrowPart { from: from as u32, to: to as u32, n, unused: 0 });
        }
    }
    parts
}
