//! The scenarios of the suite for published versions: a base and deltas are written, opened, and
//! compared with the model.

use std::collections::{BTreeMap, BTreeSet};

use zillion_device::Files;
use zillion_feature::FeatureKey;
use zillion_rows::layer::{Found, Layer, LayerManifest, Unthrottled, merge_layers, verify_layer};
use zillion_rows::{Dtype, TableLayout};

use super::scenarios::{Folder, fill, plan, step};
use super::{Action, MakeClient, TABLES, history, model, specs};
use crate::client::{Since, TrainClient};

/// The number of ended dirty epochs for which a client must keep the lists of changes.
pub(super) const EPOCHS: usize = 2;

/// The rows of each table by key, each with its weights and its number of pushes.
pub(super) type State = Vec<BTreeMap<FeatureKey, (Vec<f32>, u32)>>;

/// The versions that have been published, with the files of their layers.
pub(super) struct Versions {
    folder: Folder,
    layouts: Vec<TableLayout>,
    /// The layers of the last base and of the later deltas.
    chain: Vec<Layer>,
    /// The states at the ends of the dirty epochs, oldest first.
    ends: Vec<End>,
    /// The manifests of all layers that were written, oldest first.
    pub(super) manifests: Vec<LayerManifest>,
}

/// The state of the tables at the end of a dirty epoch, and the keys that have changed since this
/// moment.
struct End {
    epoch: u32,
    base: Layer,
    /// Whether a client must know the changes since the end of this epoch.
    is_known: bool,
    changed: Vec<BTreeSet<FeatureKey>>,
}

impl Versions {
    /// Publishes the first version, and starts to track changes.
    pub(super) fn begin(client: &mut dyn TrainClient, state: &State) -> Result<Self, String> {
        client.track_changes(EPOCHS).map_err(|e| format!("`track_changes` failed: {e}"))?;
        let mut versions = Self {
            folder: Folder::new()?,
            layouts: client.layouts().to_vec(),
            chain: Vec::new(),
            ends: Vec::new(),
            manifests: Vec::new(),
        };
        let base = versions.base(client, state)?;
        versions.chain.push(base.clone());
        versions.end(client, base)?;
        Ok(versions)
    }

    /// Marks the row of a key as changed, because it was written, created or evicted.
    pub(super) fn changed(&mut self, table: usize, key: FeatureKey) {
        self.ends.iter_mut().for_each(|end| {
            end.changed[table].insert(key);
        });
    }

    /// Records that the tables were restored. A client does not know the evictions before a
    /// restore.
    pub(super) fn restarted(&mut self) {
        self.ends.iter_mut().for_each(|end| end.is_known = false);
    }

    /// Publishes a base, a delta since the last version, and a delta since the version that is
    /// `back` versions older than the last one. If the client does not know the changes since a
    /// version, the delta since this version is left out.
    pub(super) fn publish(
        &mut self,
        client: &mut dyn TrainClient,
        back: usize,
        state: &State,
    ) -> Result<(), String> {
        let base = self.base(client, state)?;
        match self.delta(client, 0, state)? {
            Some(delta) => {
                self.chain.push(delta);
                let merged = self.merged(&self.chain.clone())?;
                same_rows("all deltas over the first base", &merged, state)?;
            }
            None => self.chain = vec![base.clone()],
        }
        self.delta(client, back, state)?;
        self.end(client, base)
    }

    fn end(&mut self, client: &mut dyn TrainClient, base: Layer) -> Result<(), String> {
        let ended = client.end_dirty_epoch();
        let epoch = ended.map_err(|e| format!("`end_dirty_epoch` failed: {e}"))?;
        if self.ends.last().is_some_and(|last| last.epoch >= epoch) {
            return Err(format!("epoch {epoch} has ended twice"));
        }
        let changed = vec![BTreeSet::new(); TABLES];
        self.ends.push(End { epoch, base, is_known: true, changed });
        Ok(())
    }

    fn base(&mut self, client: &mut dyn TrainClient, state: &State) -> Result<Layer, String> {
        let base = self.write(client, Since::Base)?.ok_or("a base is not written")?;
        same_rows("a base", &base, state)?;
        Ok(base)
    }

    fn delta(
        &mut self,
        client: &mut dyn TrainClient,
        back: usize,
        state: &State,
    ) -> Result<Option<Layer>, String> {
        let Some(index) = self.ends.len().checked_sub(1 + back) else { return Ok(None) };
        let epoch = self.ends[index].epoch;
        let Some(delta) = self.write(client, Since::Epoch(epoch))? else {
            let must = self.ends[index].is_known && back <= EPOCHS;
            return if must { Err(format!("no delta, {back} epochs back")) } else { Ok(None) };
        };
        let end = &self.ends[index];
        for (table, changed) in end.changed.iter().enumerate() {
            let keys: BTreeSet<FeatureKey> = delta.iter(table).map(|(key, _)| key).collect();
            if keys != *changed {
                return Err(format!(
                    "the delta of table {table} since epoch {epoch} has {keys:?} and {changed:?} changed"
                ));
            }
        }
        let merged = self.merged(&[end.base.clone(), delta.clone()])?;
        same_rows(&format!("a delta over the base of epoch {epoch}"), &merged, state)?;
        Ok(Some(delta))
    }

    fn write(
        &mut self,
        client: &mut dyn TrainClient,
        since: Since,
    ) -> Result<Option<Layer>, String> {
        let written = client.write_layer(since, self.folder.path(), &Files::new());
        let Some(manifest) = written.map_err(|e| format!("`write_layer` failed: {e}"))? else {
            return Ok(None);
        };
        let layer = self.open(&manifest)?;
        self.manifests.push(manifest);
        Ok(Some(layer))
    }

    fn merged(&self, layers: &[Layer]) -> Result<Layer, String> {
        let layers: Vec<&Layer> = layers.iter().collect();
        let folder = self.folder.path();
        let merged =
            merge_layers(&Files::new(), folder, &self.layouts, &layers, true, &mut Unthrottled);
        self.open(&merged.map_err(|e| format!("no merge: {e}"))?)
    }

    fn open(&self, manifest: &LayerManifest) -> Result<Layer, String> {
        let folder = self.folder.path();
        let whole = verify_layer(folder, manifest, &self.layouts, &mut Unthrottled);
        let opened = whole.and_then(|()| Layer::open(folder, manifest, &self.layouts));
        opened.map_err(|e| format!("a layer that was written: {e}"))
    }
}

/// Returns an error if a layer does not have exactly the rows of `state`.
fn same_rows(what: &str, layer: &Layer, state: &State) -> Result<(), String> {
    let bits = |weights: &[f32]| weights.iter().map(|w| w.to_bits()).collect::<Vec<u32>>();
    for (table, rows) in state.iter().enumerate() {
        let found: BTreeMap<FeatureKey, (Vec<u32>, u32)> = layer
            .iter(table)
            .filter_map(|(key, found)| match found {
                Found::Row(row) => Some((key, (bits(&row.weights), row.count))),
                Found::Tombstone => None,
            })
            .collect();
        let wanted: BTreeMap<_, _> =
            rows.iter().map(|(&key, (weights, count))| (key, (bits(weights), *count))).collect();
        if found != wanted {
            return Err(format!("{what}, table {table}: {found:?} instead of {wanted:?}"));
        }
    }
    Ok(())
}

/// Checks that two clients from `make` write the same layers for the same history, even if the
/// clients have different numbers of shards and threads.
pub(super) fn the_same_history_writes_the_same_layers(
    dtype: Dtype,
    make: &mut MakeClient<'_>,
) -> Result<(), String> {
    for seed in 100..104 {
        let mut actions = history(seed);
        // The dense tables are filled first.
        actions.insert(1, Action::Publish { back: 0 });
        actions.push(Action::Publish { back: 1 });
        let mut written = Vec::new();
        for _ in 0..3 {
            let layers = model::publish(dtype, make(specs()).as_mut(), &actions);
            written.push(layers.map_err(|e| format!("history {seed}: {e}"))?);
        }
        if written[0].len() < 2 || written.iter().any(|layers| *layers != written[0]) {
            return Err(format!("history {seed}: two clients write different layers"));
        }
    }
    Ok(())
}

pub(super) fn deltas_are_known_or_refused(make: &mut MakeClient<'_>) -> Result<(), String> {
    let (files, folder) = (Files::new(), Folder::new()?);
    let fails = |e: crate::Error| e.to_string();
    let mut client = make(specs());
    let client = client.as_mut();
    fill(client)?;
    let write =
        |client: &mut dyn TrainClient, since| client.write_layer(since, folder.path(), &files);
    let before = client.end_dirty_epoch().map_err(fails)?;
    if write(client, Since::Epoch(before)).map_err(fails)?.is_some() {
        return Err("there is a delta although changes are not tracked".to_owned());
    }
    client.track_changes(1).map_err(fails)?;
    if write(client, Since::Epoch(before)).map_err(fails)?.is_some() {
        return Err("there is a delta from before changes were tracked".to_owned());
    }
    let since = client.end_dirty_epoch().map_err(fails)?;
    if write(client, Since::Epoch(since + 1)).is_ok() {
        return Err("there is a delta since an epoch that has not ended".to_owned());
    }
    step(client, 1, &plan(&[1, 2, 30])).map_err(fails)?;
    let delta = write(client, Since::Epoch(since)).map_err(fails)?.ok_or("no delta")?;
    let rows: Vec<u64> = delta.tables.iter().map(|table| table.rows).collect();
    // In the second table every row moves, the third has no key 30, and the last admits a key on
    // its second occurrence.
    if rows != [3, 20, 2, 0] {
        return Err(format!("the delta has {rows:?} rows"));
    }
    let statistics = client.stats().map_err(fails)?;
    let bytes: Vec<u64> = statistics.iter().map(|table| table.change_bytes).collect();
    if bytes[0] < 3 * 8 {
        return Err(format!("lists of changes that have {bytes:?} bytes"));
    }
    Ok(())
}

/// Writes a checkpoint and restores the client from it.
pub(super) fn restart(client: &mut dyn TrainClient) -> Result<(), String> {
    let folder = Folder::new()?;
    let parts =
        client.checkpoint(folder.path(), &Files::new()).map_err(model::failed("checkpoint"))?;
    client.restore(folder.path(), &parts).map_err(model::failed("restore"))
}
