//! A registry of schemas: the schemas of messages that begin with the id of their schema.
//!
//! A schema is asked for when its id is seen for the first time. It is stored in the folder of the
//! run, and the decision `schema` records its id and its hash. So a replay needs no registry, and a
//! registry that gives another schema for an id later changes nothing.

mod answer;
mod client;
mod settings;
mod stored;
#[cfg(test)]
mod tests;

pub use self::client::{FoundSchema, SchemaRegistry};
pub use self::settings::RegistrySettings;
pub use self::stored::{StoredReference, StoredSchema};
