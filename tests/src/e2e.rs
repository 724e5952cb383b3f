//! End to end: the real binary on real files, one behaviour a module.

mod bad_input;
mod check;
mod command_line;
mod crash;
mod custom;
mod determinism;
mod exit_codes;
mod features;
mod formats;
mod frappe;
mod harness;
mod histories;
mod init;
mod inspect;
mod interrupt;
mod left_out;
mod life;
mod look_inside;
mod quickstart;
mod retrieval;
mod schedule;
mod table;
mod tasks;
mod tidy;
