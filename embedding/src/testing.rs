//! The tools for tests and benchmarks: reference implementations, and parts of the engine that can
//! be used alone. Production code does not call them.

mod checkpoint_oracle;
#[cfg(test)]
pub(crate) mod fixtures;
mod index_alone;
mod live_rows;
mod optimizers;

pub use checkpoint_oracle::checkpoint_oracle;
pub use index_alone::IndexAlone;
pub use live_rows::LiveRows;
pub use optimizers::row_optimizers;
