//! The table of kernels and the sources of their units.

use super::launch::{Kernel, Unit};

/// The headers that the units include: the name in the `#include`, and the text.
pub const HEADERS: &[(&str, &str)] = &[];

/// The units, each of which is compiled by itself.
pub const UNITS: &[Unit] = &[];

/// All kernels.
pub const KERNELS: &[&Kernel] = &[];
