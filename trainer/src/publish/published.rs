//! The outcome of a publication.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use zillion_feature::Schema;
use zillion_registry::{Model, PointerMove, VersionId, VersionManifest};
use zillion_store::StoreSums;

use super::compactor::CompactionCounts;

/// The outcome of a publication.
#[derive(Clone, Debug)]
pub struct Published {
    /// The version that was published.
    pub version: Arc<VersionManifest>,
    /// The move of the pointer, if it was moved.
    pub moved: Option<PointerMove>,
    /// Whether the version existed before this call. A step is published only once.
    pub was_there: bool,
    /// The counts of operations on the store since the publisher was opened.
    pub store: StoreSums,
    /// The difference from the inputs of the newest version before, or `None` if the inputs are the
    /// same.
    pub inputs: Option<InputChange>,
    /// The number of deltas in the chain of the version. It is `None` if the publisher did not need
    /// to read the chain.
    pub deltas: Option<u64>,
    /// The counts of merges to new bases since the publisher was opened.
    pub compactions: CompactionCounts,
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, moved, was_there, .. } = self;
        let layer = &version.layer;
        let gone = layer.tombstones();
        write!(f, "version {} of {}: ", version.version, version.model)?;
        match &version.parent {
            None => write!(f, "a base of {} rows", layer.rows())?,
            Some(parent) => {
                write!(f, "{} rows changed since version {}", layer.rows() - gone, parent.version)?;
                if gone > 0 {
                    write!(f, ", {gone} removed")?;
                }
            }
        }
        if *was_there {
            write!(f, ", published before")?;
        }
        if let Some(sparsity) = layer.sparsity() {
            write!(f, "; {sparsity}")?;
        }
        match moved {
            Some(PointerMove { from: Some(from), to, .. }) if *from > to.version => {
                write!(f, "; the pointer moves back from {from} to {}", to.version)?;
            }
            Some(_) => write!(f, "; the pointer stands on it")?,
            None => {}
        }
        self.inputs.as_ref().map_or(Ok(()), |inputs| write!(f, "; warning: {inputs}"))
    }
}

/// The inputs of requests that a version has and the newest version before does not, and the other
/// way round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputChange {
    /// The newest version before.
    pub before: VersionId,
    /// The inputs that only the new version has. Requests without them are refused from now on.
    pub added: Vec<String>,
    /// The inputs that only the version before has. Requests with them are refused from now on.
    pub removed: Vec<String>,
}

impl InputChange {
    /// Compares the inputs of a version with those of the newest version before. A version before
    /// that cannot be read is not compared, because its inputs change nothing of the publication.
    pub(super) fn since(
        model: &Model,
        newest: Option<VersionId>,
        version: &VersionManifest,
        schema: &Schema,
    ) -> Option<Self> {
        let is_parent = |newest| version.parent.as_ref().is_some_and(|p| p.version == newest);
        let newest = newest.filter(|&newest| newest != version.version && !is_parent(newest))?;
        let before = model.version(newest).ok()?;
        if before.frame.schema_hash == version.frame.schema_hash {
            return None;
        }
        let old = Schema::from_job(&before.frame.schema).ok()?;
        Self::find(newest, &old, schema)
    }

    /// Compares the inputs of a schema with those of the version before. Returns `None` if they are
    /// the same.
    fn find(before: VersionId, old: &Schema, new: &Schema) -> Option<Self> {
        let (old, new) = (input_names(old), input_names(new));
        let only = |a: &BTreeSet<String>, b| a.difference(b).cloned().collect::<Vec<_>>();
        let (added, removed) = (only(&new, &old), only(&old, &new));
        let is_same = added.is_empty() && removed.is_empty();
        (!is_same).then_some(Self { before, added, removed })
    }
}

/// Returns the names of the inputs that a request for a model with this schema gives.
fn input_names(schema: &Schema) -> BTreeSet<String> {
    let features = schema.features.iter().filter(|feature| !feature.is_cross());
    let names = features.map(|feature| match &feature.side {
        Some(side) => side.by.clone(),
        None => feature.name.clone(),
    });
    names.collect()
}

impl fmt::Display for InputChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[String]| {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            names.join(", ")
        };
        write!(f, "the inputs differ from those of version {}:", self.before)?;
        if !self.added.is_empty() {
            write!(f, " {} added", list(&self.added))?;
        }
        if !self.removed.is_empty() {
            let and = if self.added.is_empty() { "" } else { "," };
            write!(f, "{and} {} removed", list(&self.removed))?;
        }
        write!(f, "; requests as before may be refused")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(features: &str) -> Schema {
        let text = format!("{features}\n[labels.click]\n[tables.'*']\ndim = 2\n");
        let value: toml::Table = toml::from_str(&text).unwrap();
        Schema::from_job(&value.into()).unwrap()
    }

    #[test]
    fn changed_inputs_are_named() {
        let one = schema("[features.user]\nkind = 'id'\n[features.watched]\nkind = 'ids'");
        let two = schema("[features.user]\nkind = 'id'\n[features.hour]\nkind = 'id'");
        assert_eq!(InputChange::find(VersionId(2), &one, &one), None);
        let both = InputChange::find(VersionId(2), &one, &two).unwrap().to_string();
        assert!(both.contains("of version 2: `hour` added, `watched` removed; "), "{both}");
        let less = schema("[features.user]\nkind = 'id'");
        let removed = InputChange::find(VersionId(2), &one, &less).unwrap().to_string();
        assert!(removed.contains("version 2: `watched` removed; requests"), "{removed}");
    }
}
