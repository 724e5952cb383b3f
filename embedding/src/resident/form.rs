//! The form of a table's rows on a device: a row has its weights first, in the type of the table,
//! and its optimizer state behind them.

use zillion_device::gpu::kernels::{InitialSegment, RowRule, SquareSegment, TableRules};
use zillion_feature::random::text_seed;
use zillion_rows::{Dtype, InitializerSpec};

use crate::shape::{TableShape, TableStep};

/// The sizes of a row on a device, and the settings of its segments.
#[derive(Debug)]
pub(super) struct RowForm {
    /// The distance of two rows in words of 32 bits.
    pub(super) stride: usize,
    /// The number of weights.
    pub(super) width: usize,
    /// The first word of the optimizer state.
    pub(super) state: usize,
    /// The number of words of optimizer state.
    pub(super) state_width: usize,
    pub(super) dtype: u32,
    /// The distance of two pulled rows and of two gradients in floats.
    pub(super) pulled_stride: usize,
    pub(super) initial: Vec<InitialSegment>,
    pub(super) squares: Vec<SquareSegment>,
    /// Whether a regulariser needs the weights for the norm of gradients.
    pub(super) has_l2: bool,
}

impl RowForm {
    pub(super) fn new(shape: &TableShape) -> Self {
        let width = shape.width;
        let dtype = match shape.spec.dtype {
            Dtype::F32 => TableRules::F32,
            Dtype::F16 => TableRules::F16,
            Dtype::Bf16 => TableRules::BF16,
        };
        let state = if shape.spec.dtype.is_f32() { width } else { width.div_ceil(2) };
        let segments = shape.segments.iter().map(|segment| SquareSegment {
            begin: segment.weights.start as u32,
            end: segment.weights.end as u32,
            l2: segment.l2,
            l2_is_whole: u32::from(segment.l2_is_whole),
            ..SquareSegment::default()
        });
        Self {
            stride: (state + shape.state_width).next_multiple_of(4),
            width,
            state,
            state_width: shape.state_width,
            dtype,
            pulled_stride: shape.stride(),
            initial: initial_segments(shape, state),
            squares: segments.collect(),
            has_l2: shape.segments.iter().any(|segment| segment.l2 != 0.0),
        }
    }

    /// Returns the number of bytes of a row.
    pub(super) fn row_bytes(&self) -> usize {
        self.stride * size_of::<u32>()
    }

    /// Returns the rules of a step.
    pub(super) fn rules(&self, shape: &TableShape, step: &TableStep) -> Vec<RowRule> {
        let segments = shape.segments.iter().zip(&step.kernels);
        let rule = segments.map(|(segment, kernel)| {
            let swept = if segment.is_swept { RowRule::SWEPT } else { 0 };
            let whole = if segment.l2_is_whole { RowRule::L2_WHOLE } else { 0 };
            RowRule {
                begin: segment.weights.start as u32,
                end: segment.weights.end as u32,
                state: (self.state + segment.state.start) as u32,
                l2: segment.l2,
                flags: swept | whole,
                ..kernel.on_device()
            }
        });
        rule.collect()
    }

    /// Returns the number of floats of shared memory of a warp that applies rules.
    pub(super) fn scratch(&self) -> u32 {
        TableRules::scratch(self.dtype, self.width as u32)
    }
}

/// Returns how the segments of a new row begin.
fn initial_segments(shape: &TableShape, state: usize) -> Vec<InitialSegment> {
    let spec = &shape.spec;
    let segments = spec.segments.iter().zip(&shape.segments);
    let segment = segments.map(|(segment, place)| {
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
            begin: place.weights.start as u32,
            end: place.weights.end as u32,
            a,
            b,
            low: bounds.map_or(f32::NEG_INFINITY, |bounds| bounds.low),
            high: bounds.map_or(f32::INFINITY, |bounds| bounds.high),
            state: (state + place.state.start) as u32,
            state_end: (state + place.state.end) as u32,
            state_value: segment.optimizer.initial_state(),
        }
    });
    segment.collect()
}
