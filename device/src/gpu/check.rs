//! Checks of the kernels against the processor, bit for bit.
