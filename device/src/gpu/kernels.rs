//! The table of kernels and the sources of their units.

use super::conformance::twins;
use super::launch::{Kernel, Unit};

/// The headers that the units include: the name in the `#include`, and the text.
pub const HEADERS: &[(&str, &str)] =
    &[("zillion.cuh", include_str!("../../kernels/zillion.cuh"))];

/// The units, each of which is compiled by itself.
pub const UNITS: &[Unit] = &[twins::UNIT];

/// All kernels.
pub const KERNELS: &[&Kernel] =
    &[&twins::FILL, &twins::MIX, &twins::REVERSE, &twins::NOTHING, &twins::COPY];
