//! The ids whose rows are never evicted, given in the job or in a file with one id on each line.
//!
//! The file is read together with the job. A checkpoint or a version holds the ids, so it does not
//! need the file. A job whose file has changed is a different job.

use std::io::Read as _;
use std::path::Path;

use zillion_config::ConfigError;
use zillion_feature::{FeatureKind, RawType, Schema, TableId};
use zillion_reader::{DataConfig, ReaderError};
use zillion_rows::PinnedId;

use crate::error::Result;

/// The largest number of ids in a file. A file with more ids is refused.
const MOST_IDS: usize = 1_000_000;

/// The kinds of ids that the features of a table have.
#[derive(Clone, Copy, Debug, Default)]
struct Kinds {
    numbers: bool,
    texts: bool,
}

impl Kinds {
    fn of(schema: &Schema, table: TableId) -> Self {
        let mut kinds = Self::default();
        for feature in schema.features.iter().filter(|f| f.table() == Some(table)) {
            match feature.kind {
                FeatureKind::Id { raw, .. }
                | FeatureKind::Ids { raw, .. }
                | FeatureKind::Sequence { raw, .. } => match raw {
                    RawType::I64 | RawType::U64 => kinds.numbers = true,
                    RawType::String => kinds.texts = true,
                },
                // The id of a bucket is its number. A cross has no id that a person could write.
                FeatureKind::Bucketized { .. } => kinds.numbers = true,
                FeatureKind::Cross { .. }
                | FeatureKind::Numeric { .. }
                | FeatureKind::Vector { .. } => {}
            }
        }
        kinds
    }
}

/// Checks that pinned ids are of a kind that the table's features have. Other ids would have no
/// effect.
pub(super) fn check(schema: &Schema, table: usize, ids: &[PinnedId]) -> Result<()> {
    let kinds = Kinds::of(schema, TableId(table as u16));
    let name = &schema.tables[table];
    let problem = ids.iter().find_map(|id| match id {
        PinnedId::Number(id) if !kinds.numbers => Some(format!(
            "has the number {id}, but no feature of this table has ids that are numbers"
        )),
        PinnedId::Text(id) if !kinds.texts => Some(format!(
            "has the text `{id}`, but no feature of this table has ids that are texts"
        )),
        _ => None,
    });
    match problem {
        Some(problem) => {
            let message = format!("{problem}; remove the id, or change the feature's `type`");
            Err(ConfigError::at(&format!("tables.{name}.pinned"), message).into())
        }
        None => Ok(()),
    }
}

/// Reads the ids of a file with one id on each line. Empty lines are skipped.
pub(super) fn read(
    schema: &Schema,
    table: usize,
    data: &DataConfig,
    file: &Path,
) -> Result<Vec<PinnedId>> {
    let key = format!("tables.{}.pinned_file", schema.tables[table]);
    let refuse = |message: String| ConfigError::at(&key, message);
    let path = data.locate(file);
    let mut text = String::new();
    let read = data.read_bytes(&path).and_then(|mut bytes| {
        let failed = |source| ReaderError::Io { what: "read", source, path: path.clone() };
        bytes.read_to_string(&mut text).map_err(failed)
    });
    read.map_err(|e| refuse(format!("{e}; correct the path or its permissions")))?;
    let kinds = Kinds::of(schema, TableId(table as u16));
    let mut ids = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let as_number =
            || line.parse::<i64>().ok().or(line.parse::<u64>().ok().map(|id| id as i64));
        ids.push(match as_number().filter(|_| kinds.numbers) {
            Some(id) => PinnedId::Number(id),
            None if kinds.texts => PinnedId::Text(line.to_owned()),
            None => {
                let message = format!(
                    "line {} of `{}` is not a number, but the ids of this table are numbers; correct the line",
                    number + 1,
                    path.display()
                );
                return Err(refuse(message).into());
            }
        });
    }
    if ids.len() > MOST_IDS {
        let message = format!(
            "`{}` has {} ids, but every checkpoint holds all pinned ids; pin at most {MOST_IDS}",
            path.display(),
            ids.len()
        );
        return Err(refuse(message).into());
    }
    Ok(ids)
}
