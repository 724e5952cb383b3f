//! The table of kernels and the sources of their units.

mod geometry;
mod parameters;

pub use geometry::Geometry;
pub use parameters::*;

use super::conformance::twins;
use super::launch::{Kernel, ParamKind, Unit};

/// The headers that the units include: the name in the `#include`, and the text.
pub const HEADERS: &[(&str, &str)] = &[
    ("zillion.cuh", include_str!("../../kernels/zillion.cuh")),
    ("math.cuh", include_str!("../../kernels/math.cuh")),
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

        /// All kernels.
        pub static KERNELS: &[&Kernel] = &[$($(&$kernel),*),*];
    };
}

units! {
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
        LIST_FACTORS = list_factors(Factors);
    }
    math {
        MATH_VALUES = math_values(MathValues);
        MATH_CHECKSUMS = math_checksums(MathChecksums);
    }
    product {
        PRODUCT_64X80 = product_64x80(Product);
        PRODUCT_128X80 = product_128x80(Product);
        OUTER_80X80 = outer_80x80(Outer);
        ROW_DOT = row_dot(RowDot);
        TRANSPOSE = transpose(Transpose);
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
}
