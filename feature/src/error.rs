//! The errors of schemas, of requests and of plans.

use zillion_config::ConfigError;

/// The reason why a schema cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// An error about a key of the job file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A feature whose transform needs statistics, although none were given.
    #[error(
        "feature `{feature}` has no statistics, which training collects before its first step; {hint}"
    )]
    MissingStatistics {
        /// The name of the feature.
        feature: String,
        /// The remedy for the caller.
        hint: &'static str,
    },
    /// A wrong number of side tables.
    #[error(
        "the schema joins {want} side table(s), but {have} were given; give one for each `[side]` section, in the same order"
    )]
    SideTables {
        /// The number of side tables that were given.
        have: usize,
        /// The number of side tables in the schema.
        want: usize,
    },
    /// A side table that does not have a column that a feature reads, or in which this column has
    /// another kind.
    #[error(
        "feature `{feature}` has no values of its kind in its side table; load the side tables of the same schema"
    )]
    SideColumn {
        /// The name of the feature.
        feature: String,
    },
}

/// The reason why a request cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("input `{input}`{}: {reason}", .row.map_or(String::new(), |row| format!(", row {row}")))]
pub struct RequestError {
    /// The name of the input.
    pub input: String,
    /// The row, counted from 0, or `None` if the problem does not concern a single row.
    pub row: Option<usize>,
    /// The problem and the remedy.
    pub reason: String,
}

/// The reason why keys that come from outside cannot be a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A key whose slot is below the slot of the key before it, or whose slot has been left before.
    #[error(
        "plan of table {table}: key {index} ({key:#018x}) is not in the order of slots; sort the \
         keys by slot"
    )]
    Order {
        /// The number of the table.
        table: u16,
        /// The position of the key in the plan, counted from 0.
        index: usize,
        /// The bits of the key.
        key: u64,
    },
    /// A key that the plan has twice.
    #[error("plan of table {table}: key {key:#018x} occurs twice; send each key once")]
    Repeated {
        /// The number of the table.
        table: u16,
        /// The bits of the key.
        key: u64,
    },
    /// A wrong number of counts.
    #[error(
        "plan of table {table}: {keys} keys have {counts} numbers of occurrences; send one number \
         for each key"
    )]
    Counts {
        /// The number of the table.
        table: u16,
        /// The number of keys.
        keys: usize,
        /// The number of counts.
        counts: usize,
    },
    /// A key that occurs nowhere in the batch.
    #[error(
        "plan of table {table}: key {key:#018x} has 0 occurrences; send only keys that occur in \
         the batch"
    )]
    NoOccurrence {
        /// The number of the table.
        table: u16,
        /// The bits of the key.
        key: u64,
    },
    /// More keys or occurrences than a plan can number.
    #[error(
        "plan of table {table}: the keys or their occurrences do not fit into 32 bits; send \
         smaller batches"
    )]
    TooMany {
        /// The number of the table.
        table: u16,
    },
    /// Two plans of the same table.
    #[error("plan of a batch: table {table} is named twice; send one list of keys for each table")]
    SameTable {
        /// The number of the table.
        table: u16,
    },
}
