//! The errors of schemas and of requests.

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
