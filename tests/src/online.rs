//! Tests of `zillion online` on followed folders: what it learns, what it publishes, what it
//! repeats after a kill, and what it rejects.

mod ages;
mod bad_input;
mod commands;
mod guards;
mod kills;
mod metrics;
mod operator;
pub(crate) mod place;
mod poison;
mod quiet;
mod restarts;
mod schemas;
pub(crate) mod served;
mod way_back;
