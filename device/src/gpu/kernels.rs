//! The table of kernels and the sources of their units.
//!
//! A kernel has one parameter: a structure with the fields of its twin in `device/kernels`. An
//! address is a `u64`, and 0 is no address. The size of each structure is checked on both sides:
//! here, and by a `static_assert` beside the twin. A test compares both with each other.

/// Defines structures that a kernel reads.
macro_rules! parameters {
    ($($(#[$doc:meta])* $name:ident ($bytes:literal) { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
            pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* }
            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

mod clip;
mod fields;
mod geometry;
mod in_batch;
mod index;
mod kinds;
mod operations;
mod parameters;
mod ranges;
mod table;

pub use clip::*;
pub use fields::*;
pub use geometry::Geometry;
pub use in_batch::*;
pub use index::*;
pub use operations::*;
pub use parameters::*;
pub use ranges::*;
pub use table::*;

use super::conformance::twins;
use super::launch::{Kernel, ParamKind, Unit};

/// The headers that the units include: the name in the `#include`, and the text.
pub const HEADERS: &[(&str, &str)] = &[
    ("zillion.cuh", include_str!("../../kernels/zillion.cuh")),
    ("math.cuh", include_str!("../../kernels/math.cuh")),
    ("half.cuh", include_str!("../../kernels/half.cuh")),
    ("rules.cuh", include_str!("../../kernels/rules.cuh")),
];

/// Defines the units with their kernels. Each kernel has one parameter, a structure.
macro_rules! units {
    ($($unit:ident { $($kernel:ident = $name:ident($parameters:ty);)* })*) => {
        /// The units, each of which is compiled by itself.
        pub const UNITS: &[Unit] = &[$(Unit {
            name: stringify!($unit),
            source: include_str!(concat!("../../kernels/", stringify!($unit), ".cu")),
        }),*];

        $($(
            #[doc = concat!("The kernel `", stringify!($name), "` of `", stringify!($unit), ".cu`.")]
            pub static $kernel: Kernel = Kernel {
                name: stringify!($name),
                unit: stringify!($unit),
                params: &[ParamKind::Value(size_of::<$parameters>())],
            };
        )*)*

        /// All kernels of all units.
        pub static KERNELS: &[&Kernel] = &[$($(&$kernel),*),*];
    };
}

units! {
    chain {
        CHAIN = chain(Chain);
        DROPOUT = dropout(Dropout);
        COPY_COLUMNS = copy_columns(CopyColumns);
        NARROW = narrow(Narrow);
        PADDED_ROWS = padded_rows(PaddedRows);
        CLEAR_PADDING = clear_padding(ClearPadding);
    }
    clip {
        ROW_SQUARES = row_squares(RowSquares);
        ORDERED_SUMS = ordered_sums(OrderedSums);
        CLIP = clip(Clip);
    }
    conformance {
        CONFORMANCE_FILL = conformance_fill(twins::Fill);
        CONFORMANCE_MIX = conformance_mix(twins::Mix);
        CONFORMANCE_REVERSE = conformance_reverse(twins::Reverse);
        CONFORMANCE_NOTHING = conformance_nothing(twins::Nothing);
        CONFORMANCE_COPY = conformance_copy(twins::Copy16);
    }
    gather {
        GATHER = gather(Gather);
        GATHER_LISTS = gather_lists(Gather);
        GATHER_HALVES = gather_halves(GatherHalves);
        FIELD_LOOKUP = field_lookup(FieldLookup);
        LIST_FACTORS = list_factors(Factors);
    }
    in_batch {
        IN_BATCH_LSE = in_batch_lse(InBatch);
        IN_BATCH_SHARES = in_batch_shares(InBatch);
    }
    index {
        INDEX_INSERT = index_insert(IndexInsert);
        INDEX_FIND = index_find(IndexFind);
        COPY_FOUND = copy_found(CopyFound);
        PUT_ROWS = put_rows(PutRows);
    }
    interaction {
        FM_INTERACTION = fm_interaction(Interaction);
        FM_INTERACTION_GRAD = fm_interaction_grad(Interaction);
        DOT_INTERACTION = dot_interaction(Interaction);
        DOT_INTERACTION_GRAD = dot_interaction_grad(Interaction);
    }
    loss {
        LOSS_TILES = loss_tiles(Loss);
        LOSS_SUM = loss_sum(Loss);
        LOSS_GRAD = loss_grad(Loss);
        ASSEMBLE = assemble(Assemble);
    }
    math {
        MATH_VALUES = math_values(MathValues);
        MATH_CHECKSUMS = math_checksums(MathChecksums);
    }
    norm {
        BATCH_NORM_FACTORS = batch_norm_factors(BatchNorm);
        BATCH_NORM = batch_norm(BatchNorm);
        BATCH_NORM_RUNNING = batch_norm_running(Running);
        ROW_NORM = row_norm(RowNorm);
    }
    optimizer {
        CHOOSE_RULES = choose_rules(ChooseRules);
        DENSE_UPDATE = dense_update(DenseUpdate);
        DENSE_SQUARES = dense_squares(DenseUpdate);
        LAMB_SQUARES = lamb_squares(DenseUpdate);
        LAMB_WEIGHTS = lamb_weights(DenseUpdate);
        DENSE_AVERAGE = dense_average(DenseUpdate);
    }
    product {
        PRODUCT_64X80 = product_64x80(Product);
        PRODUCT_128X80 = product_128x80(Product);
        OUTER_80X80 = outer_80x80(Outer);
        ROW_DOT = row_dot(RowDot);
        TRANSPOSE = transpose(Transpose);
        COPY_WEIGHTS = copy_weights(CopyWeights);
    }
    reduce {
        SUM_COLUMNS = sum_columns(SumColumns);
        COLUMN_SUMS = column_sums(ColumnSums);
        COMBINE_LANES = combine_lanes(CombineLanes);
        RANGE_SUMS = range_sums(RangeSums);
        HEAD_GRADIENT = head_gradient(HeadGradient);
        TILE_STATISTICS = tile_statistics(TileStatistics);
        MERGE_STATISTICS = merge_statistics(MergeStatistics);
    }
    rows {
        ROW_UPDATE_1 = row_update_1(RowUpdate);
        ROW_UPDATE_4 = row_update_4(RowUpdate);
        ROW_UPDATE_8 = row_update_8(RowUpdate);
        ROW_UPDATE_16 = row_update_16(RowUpdate);
        ROW_UPDATE_32 = row_update_32(RowUpdate);
        ROW_UPDATE_LONG_1 = row_update_long_1(RowUpdate);
        ROW_UPDATE_LONG_4 = row_update_long_4(RowUpdate);
        ROW_UPDATE_LONG_8 = row_update_long_8(RowUpdate);
        ROW_UPDATE_LONG_16 = row_update_long_16(RowUpdate);
        ROW_UPDATE_LONG_32 = row_update_long_32(RowUpdate);
        ROW_SUMS = row_sums(RowUpdate);
        ROW_RULES = row_rules(RowUpdate);
    }
    segment {
        SEGMENT = segment(Segment);
    }
    table {
        TABLE_RULES = table_rules(TableRules);
        MARK_ROWS = mark_rows(MarkRows);
        INITIAL_ROWS = initial_rows(InitialRows);
        PULL_ROWS = pull_rows(PullRows);
        GROW_ROWS = grow_rows(GrowRows);
    }
}
