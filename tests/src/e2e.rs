//! End to end: the real binary on real files, one behaviour a module.

mod bad_input;
mod command_line;
mod crash;
mod determinism;
mod formats;
mod frappe;
mod harness;
mod interrupt;
mod schedule;
mod tidy;
