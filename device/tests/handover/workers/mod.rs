//! A replacement for `src/workers.rs` with the same modules. It leaves out their tests, which run
//! on real threads.

#[path = "../../../src/workers/join.rs"]
mod join;
#[path = "../../../src/workers/phase.rs"]
mod phase;
#[path = "../../../src/workers/pool.rs"]
mod pool;
#[path = "../../../src/workers/record.rs"]
mod record;
#[path = "../../../src/workers/slices.rs"]
mod slices;
#[path = "../../../src/workers/task.rs"]
mod task;

pub use pool::Workers;
