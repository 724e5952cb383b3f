//! The checks on the emulated device.
