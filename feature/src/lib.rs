//! The meaning of a row: the schema, the keys, the columns of batches, and the lookup plans.
//!
//! All other crates exchange these types, which are pure data. This crate reads no files, owns no
//! tables and starts no threads. Other crates implement the reader (which makes batches from
//! files), the tables and the models.
//!
//! ```
//! use zillion_feature::{Batch, FeatureKey, KeyColumn, LookupPlan, PlanScratch, Schema};
//!
//! let job: toml::Value = toml::from_str::<toml::Table>(r#"
//!     [features.user]
//!     kind = "id"
//!     [features.genres]
//!     kind = "ids"
//!     type = "string"
//!     pooling = "mean"
//!     [labels.click]
//! "#).unwrap().into();
//! let schema = Schema::from_job(&job).unwrap();
//! let mut batch = Batch::empty(&schema);
//! batch.rows = 2;
//! batch.sparse[0] = KeyColumn::single(vec![FeatureKey::from_i64(7), FeatureKey::from_i64(7)]);
//! let genres = ["a", "b"].map(FeatureKey::from_text).to_vec();
//! batch.sparse[1] = KeyColumn::ragged(vec![0, 2, 2], genres);
//! let plan = LookupPlan::build(&batch, &schema, &mut PlanScratch::default());
//! assert_eq!(plan.tables[0].keys.len(), 1);        // user 7, looked up once
//! assert_eq!(plan.columns[0].inverse, [0, 0]);
//! ```

mod batch;
mod cross;
mod cursor;
mod error;
mod key;
mod label_value;
mod moment;
mod plan;
pub mod random;
pub mod raw_value;
mod request;
mod rows;
mod schema;
mod seeded;
mod shard;
mod side;
mod statistics;
mod transform;

pub use batch::{Batch, KeyColumn, LabelColumn, SharedColumns};
pub use cross::{Crosses, cross_key};
pub use cursor::Cursor;
pub use error::{PlanError, RequestError, SchemaError};
pub use key::{FeatureKey, HASH_ID, KeyHasher, MixedHasher, SLOTS, Step, TableId};
pub use label_value::{LabelValue, LabelValues, OneOrMore};
pub use moment::{DateOrder, Moment, TimePart, TimeRule, Zone, parse_moment};
pub use plan::{ColumnPlan, LookupPlan, Occurrences, PlanScratch, TablePlan};
pub use raw_value::RawValue;
pub use request::{Encoder, InputKind, InputSpec, RawColumn, RawColumns, RawValues};
pub use rows::{RowBuffer, TableRows, Use};
pub use schema::{
    Buckets, Classes, FeatureKind, FeatureSpec, LabelKind, LabelSpec, NumericTransform, Pooling,
    RawType, Schema, SideRef, SideSpec, TimeUnit,
};
pub use shard::ShardMap;
pub use side::{Attribute, SideColumn, SideIndex, SideTable};
pub use statistics::{ColumnStatistics, Statistics};
pub use transform::{Bucketizer, NumericMap};
