//! The catalogue of the items that servers retrieve: reads it, and computes the vector of each
//! item.
//!
//! The file is read again for each version, because the items of a run that goes on for weeks
//! change. Its rows are encoded as a server encodes requests, so that the vector of an item has the
//! bits that the model computes for a request with this item.

use std::path::PathBuf;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{
    Encoder, FeatureKind, LookupPlan, PlanScratch, RawColumns, RawType, RawValue, RawValues, Schema,
};
use zillion_nn::zoo::{ITEM, ModelSpec};
use zillion_nn::{Graph, Params, Settings};
use zillion_reader::{DataConfig, Format, Header, Paths, RawRows};
use zillion_rows::layer::Unthrottled;
use zillion_rows::{RoundedRows, RowSource, TableSpec};
use zillion_scorer::{ItemIds, ItemVectors, Scorer};

use crate::error::{Error, Result};
use crate::job::{ItemsConfig, Job};

/// The number of items in a batch of the item's tower.
const ITEMS_AT_ONCE: usize = 4096;

/// A catalogue of items, ready to compute their vectors.
pub(super) struct Catalogue {
    /// The settings by which the file is read.
    data: DataConfig,
    path: String,
    /// The features of the item's tower, as columns of the file.
    columns: Schema,
    item: ItemColumn,
    encoder: Encoder,
    scorer: Scorer,
    dim: usize,
    scale: f32,
    user: Vec<String>,
}

/// The column with the ids of the items.
struct ItemColumn {
    /// The name of the feature.
    feature: String,
    /// The column of the feature in the data, by which side tables are joined.
    column: String,
    /// The column in the file.
    in_file: String,
    raw: RawType,
}

impl Catalogue {
    /// Opens the catalogue of a job. Reads the first rows, so that a wrong file is found before the
    /// first step.
    pub(super) fn open(
        job: &Job,
        config: &ItemsConfig,
        encoder: &Encoder,
        graph: &Graph,
        settings: Settings,
        workers: &Arc<Workers>,
    ) -> Result<Self> {
        let refuse = |reason: String| Err(Error::Catalogue { path: config.path.clone(), reason });
        let ModelSpec::TwoTower(spec) = &job.model else {
            return refuse("the model is no two_tower; remove `publish.items`".to_owned());
        };
        let name = spec.item_feature();
        let feature = job.schema.features.iter().find(|feature| feature.name == name);
        let Some((feature, raw)) = feature.and_then(|feature| match feature.kind {
            FeatureKind::Id { raw, .. } if feature.side.is_none() => Some((feature, raw)),
            _ => None,
        }) else {
            return refuse(format!(
                "feature `{name}` has no id for each item; choose a feature of kind id that is a \
                 column of the data as `model.item_id`"
            ));
        };
        let column = feature.column.clone();
        let in_file = config.id.clone().unwrap_or_else(|| column.clone());
        let item = ItemColumn { feature: name.to_owned(), column, in_file, raw };
        let of_user = encoder.for_features(&spec.user);
        let encoder = encoder.for_features(&spec.item);
        if let Some(both) =
            encoder.inputs().find(|input| of_user.inputs().any(|other| other.name == input.name))
        {
            // The vector of an item would depend on the user, or that of a user on an item.
            return refuse(format!(
                "both towers need the input `{}`, through a cross or a side table; a retrieved item \
                 would have the score of another one. Give each tower inputs of its own, or remove \
                 `publish.items`",
                both.name
            ));
        }
        let this = Self {
            data: DataConfig { header: Header::Yes, format: Format::default(), ..job.data.clone() },
            path: config.path.clone(),
            columns: columns_of(&job.schema, &encoder, &item),
            item,
            encoder,
            scorer: Scorer::with_outputs(graph, &[ITEM], settings, workers.clone())?,
            dim: spec.dim,
            scale: 1.0 / spec.temperature,
            user: spec.user.clone(),
        };
        if let Some(block) = this.read()?.next_block(ITEMS_AT_ONCE)? {
            this.encode(block.rows, block.columns, &mut ItemIds::new(raw), block.first)?;
        }
        Ok(this)
    }

    /// Computes the vectors of all items with these rows and parameters. The rows of `source` are
    /// rounded as versions of `tables` have them.
    pub(super) fn compute(
        &mut self,
        tables: &[TableSpec],
        source: &mut dyn RowSource,
        params: &Params,
    ) -> Result<ItemVectors> {
        let layouts = tables.iter().map(TableSpec::layout).collect();
        let mut source = RoundedRows::new(source, layouts);
        let mut ids = ItemIds::new(self.item.raw);
        let mut vectors: Vec<f32> = Vec::new();
        let mut scratch = PlanScratch::default();
        let mut rows = self.read()?;
        while let Some(block) = rows.next_block(ITEMS_AT_ONCE)? {
            let batch = self.encode(block.rows, block.columns, &mut ids, block.first)?;
            let plan = LookupPlan::build(&batch, self.encoder.schema(), &mut scratch);
            let scored = self.scorer.score(&batch, &plan, &mut source, params)?;
            vectors.extend_from_slice(scored.outputs.first().copied().unwrap_or_default());
        }
        let (dim, scale, user) = (self.dim, self.scale, self.user.clone());
        let items = ItemVectors::new(ids, vectors, dim, scale, user, &mut Unthrottled);
        items.map_err(|error| self.refuse(format!("{error}; correct the file")))
    }

    fn read(&self) -> Result<RawRows> {
        let files: Vec<PathBuf> = self.data.files(&Paths::from(self.path.as_str()))?;
        Ok(RawRows::open(&self.data, &files, &self.columns)?)
    }

    /// Encodes rows of the file, of which the first has the number `first`, and appends their ids.
    fn encode(
        &self,
        rows: usize,
        mut columns: RawColumns<'static>,
        ids: &mut ItemIds,
        first: u64,
    ) -> Result<zillion_feature::Batch> {
        let ItemColumn { feature, column, in_file, .. } = &self.item;
        if in_file != column
            && let Some(keys) = columns.remove(in_file.as_str())
        {
            columns.insert(column.clone().into(), keys);
        }
        if let Some(named) = columns.get(feature.as_str()) {
            self.take_ids(&named.values, ids, first)?;
        }
        self.encoder.encode(rows, &columns).map_err(|error| {
            let row =
                error.row.map_or(String::new(), |row| format!(", row {}", first + row as u64 + 1));
            self.refuse(format!("input `{}`{row}: {}", error.input, error.reason))
        })
    }

    /// Appends the ids of items.
    fn take_ids(&self, values: &RawValues<'_>, ids: &mut ItemIds, first: u64) -> Result<()> {
        let refused = match values {
            RawValues::Ints(values) => values.iter().position(|&id| !ids.push(&RawValue::Int(id))),
            RawValues::Uints(values) => {
                values.iter().position(|&id| !ids.push(&RawValue::Uint(id)))
            }
            RawValues::Any(values) => values.iter().position(|id| !ids.push(id)),
            RawValues::Floats(_) => Some(0),
        };
        match refused {
            None => Ok(()),
            Some(row) => Err(self.refuse(format!(
                "row {} has no id of an item in column `{}`; give every row an id",
                first + row as u64 + 1,
                self.item.in_file
            ))),
        }
    }

    fn refuse(&self, reason: String) -> Error {
        Error::Catalogue { path: self.path.clone(), reason }
    }
}

/// Returns the schema of the columns that the file of a catalogue has: the inputs of `encoder`,
/// with the ids of the items in their own column.
fn columns_of(schema: &Schema, encoder: &Encoder, item: &ItemColumn) -> Schema {
    let inputs: Vec<&str> = encoder.inputs().map(|input| input.name.as_str()).collect();
    let mut schema = Schema {
        labels: Vec::new(),
        weight: None,
        group: None,
        event_time: None,
        ..schema.clone()
    };
    schema.features.retain(|feature| match &feature.side {
        _ if feature.is_cross() => false,
        Some(side) => inputs.contains(&side.by.as_str()),
        None => inputs.contains(&feature.name.as_str()),
    });
    for feature in &mut schema.features {
        if feature.name == item.feature {
            feature.column.clone_from(&item.in_file);
        }
        if let Some(side) = &mut feature.side
            && side.by == item.column
        {
            side.by.clone_from(&item.in_file);
        }
    }
    schema
}
