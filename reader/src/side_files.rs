//! The reading of the files of a side table, with the same decoders as for the data.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{FeatureKey, Schema, SideColumn, SideIndex, SideSpec, SideTable};

use crate::arrays::TextRules;
use crate::block::{Piece, lists, values};
use crate::config::{DataConfig, Header, Paths};
use crate::error::{ReaderError, Result};
use crate::field::{self, Field, Role, Slot};
use crate::format::{Format, format_of};
use crate::order::Order;
use crate::reading::Reading;
use crate::side_lookup::{Rule, SideLookup};
use crate::side_tables::SideTables;
use crate::source::DataFile;
use crate::text::OtherColumns;
use crate::windows::Windows;

/// The number of rows that are decoded at a time.
const WINDOW: usize = 65_536;

impl SideTables {
    /// Reads the side tables of a schema. Their paths are relative to the root folder of the data.
    /// The settings of `[data]` for text files (delimiter, quotes, missing values, lists) also
    /// apply to side tables, except for the header.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, if a key is missing, if two rows have the same
    /// key, or if a row lacks the value of a numeric feature for which the job sets no `missing`.
    pub fn load(config: &DataConfig, schema: &Schema) -> Result<Self> {
        let tables =
            (0..schema.sides.len()).map(|side| load_table(config, schema, side).map(Arc::new));
        Ok(Self::new(tables.collect::<Result<_>>()?))
    }
}

/// Reads one side table of a schema.
fn load_table(config: &DataConfig, schema: &Schema, side: usize) -> Result<SideTable> {
    let spec = &schema.sides[side];
    let mut fields = vec![key_field(spec, Role::Id { raw: spec.raw, missing: no_key(spec) })];
    let mut features = Vec::new();
    for (position, feature) in schema.features.iter().enumerate() {
        if feature.side.as_ref().is_some_and(|s| s.side == side) {
            fields.push(Field {
                used_by: format!("feature `{}`", feature.name),
                column: feature.column.clone(),
                role: field::role_in_side_table(feature),
                slot: Slot::Pass,
            });
            features.push(position);
        }
    }
    let mut index = SideIndex::default();
    let mut pieces = Vec::new();
    // The number of the first row of each file.
    let mut starts: Vec<(u32, PathBuf)> = Vec::new();
    for path in config.files(&Paths::from(spec.path.as_str()))? {
        let file = SideFile { config, spec, path: &path };
        let read = file.read(fields.clone())?;
        starts.push((index.len(), path.clone()));
        for piece in &read {
            for &key in piece.values(0) {
                if key == no_key(spec) {
                    return Err(file.refuse(key, String::new()));
                }
                if let Err(first) = index.push(key) {
                    return Err(file.refuse(key, other_row(&starts, first, index.len())));
                }
            }
        }
        pieces.extend(read);
    }
    let mut columns = Vec::with_capacity(features.len());
    for (field, feature) in (1..).zip(features) {
        columns.push((feature, column(&pieces, field, &fields[field].role)?));
    }
    Ok(SideTable { index: Arc::new(index), columns })
}

/// Returns the place of the other row with the same key. The error about a key of two rows needs
/// this place. `first` and `second` are the indices of the two rows in the table; row `second` is
/// in the last file of `starts`. The error names the first row of the last file that has the key.
/// If both rows are in this file, the other row is `second`; if not, it is `first`.
fn other_row(starts: &[(u32, PathBuf)], first: u32, second: u32) -> String {
    let file = starts.partition_point(|&(start, _)| start <= first) - 1;
    let (start, path) = &starts[file];
    match file + 1 == starts.len() {
        true => format!("row {}", second - start + 1),
        false => format!("row {} of {}", first - start + 1, path.display()),
    }
}

/// One of the files of a side table.
struct SideFile<'a> {
    config: &'a DataConfig,
    spec: &'a SideSpec,
    path: &'a Path,
}

impl SideFile<'_> {
    /// Reads all rows of the file in order.
    fn read(&self, fields: Vec<Field>) -> Result<Vec<Piece>> {
        // A side table may have another format than the data. Therefore its extension has priority
        // over the setting of the job.
        let format = match format_of(self.path, Format::Auto) {
            Ok(_) => Format::Auto,
            Err(_) => self.config.format,
        };
        let config = DataConfig { header: Header::Yes, format, ..self.config.clone() };
        let file = Arc::new(vec![DataFile::open(&config, self.path)?]);
        let reading =
            Arc::new(Reading::new(&file, fields, TextRules::new(&config), OtherColumns::PassOver)?);
        let workers = Workers::new(NonZeroUsize::MIN);
        let workers = Arc::new(workers.expect("a pool of one thread starts none"));
        let order = Order { seed: 0, epoch: 0, shuffle: false };
        let mut windows = Windows::new(reading, workers, order, WINDOW, 0, None);
        let mut pieces = Vec::new();
        while let Some(window) = windows.next_window()? {
            windows.read_ahead();
            pieces.extend(window.pieces);
        }
        Ok(pieces)
    }

    /// Returns the error about a missing key, or about a key of two rows. `twice` is the key of the
    /// two rows, and `other` is the place of the second row. The file is read again to get the text
    /// of the key.
    fn refuse(&self, twice: FeatureKey, other: String) -> ReaderError {
        let rule = Rule::Unique { twice, other };
        let lookup = SideLookup { raw: self.spec.raw, rule };
        match self.read(vec![key_field(self.spec, Role::SideRow(lookup))]) {
            Err(error) => error,
            Ok(_) => ReaderError::setting(
                format_args!("side.{}", self.spec.name),
                "the file of the side table has changed while it was read; try again",
            ),
        }
    }
}

/// Returns the key that stands for a missing key.
fn no_key(spec: &SideSpec) -> FeatureKey {
    FeatureKey::missing(&format!("side.{}", spec.name))
}

fn key_field(spec: &SideSpec, role: Role) -> Field {
    Field {
        used_by: format!("side table `{}`", spec.name),
        column: spec.key.clone(),
        role,
        slot: Slot::Pass,
    }
}

fn column(pieces: &[Piece], field: usize, role: &Role) -> Result<SideColumn> {
    Ok(match role.of_values() {
        Role::Id { .. } => SideColumn::Keys(values(pieces, field)),
        Role::Ids { .. } => {
            let rows = pieces.iter().map(|piece| piece.rows).sum();
            SideColumn::Lists(lists(pieces, rows, field)?)
        }
        _ => SideColumn::Numbers(values(pieces, field)),
    })
}
