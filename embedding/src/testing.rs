//! What only tests and benchmarks use: oracles, and parts of the engine on their own. No production
//! code calls it.

mod checkpoint_oracle;
mod index_alone;
mod live_rows;

pub use checkpoint_oracle::checkpoint_oracle;
pub use index_alone::IndexAlone;
pub use live_rows::LiveRows;
