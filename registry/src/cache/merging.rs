//! The merges of a cache, and the layers of a version whose merges are not made yet.
//!
//! A merge can take minutes: sooner or later the deltas are joined to the base. A new version must
//! not wait for it. So a cache that merges later opens a version with the merges that exist and
//! with the layers of the remaining versions, up to [`MAX_OPEN_LAYERS`] layers. The missing merges
//! are made by [`LayerMerge::run`] on another thread, and the version is opened again. Every lookup
//! gives the same bits before and after, because a merge has the newest row of each key.
//!
//! If there are more layers, the smallest neighbours are joined before the version is opened. These
//! are usually the newest deltas, and not the base.
//!
//! # Concurrency
//! A merge reads open layers and writes new files, so the cache can be used while it runs. From
//! [`Cache::next_merge`] to [`Cache::end_merge`], no process removes a file that is newer than the
//! beginning of the merge.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use zillion_device::{Files, mmap};
use zillion_rows::TableLayout;
use zillion_rows::layer::{
    Layer, LayerFile, LayerManifest, MAX_OPEN_LAYERS, Throttle, merge_layers,
};

use super::{Cache, list_names, run_name, short};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::stack::stack;
use crate::version::VersionManifest;

type Chain = [Arc<VersionManifest>];

/// A merge of neighbouring layers of a version into one layer, which any thread can run.
#[derive(Debug)]
pub struct LayerMerge {
    files: Files,
    files_dir: PathBuf,
    merges_dir: PathBuf,
    /// The name of the run of versions.
    name: String,
    layouts: Vec<TableLayout>,
    /// The layers, oldest first.
    layers: Vec<Layer>,
    /// Whether the oldest layer is a base.
    is_base: bool,
}

impl LayerMerge {
    /// Makes the merge, and records it in the folder of the cache.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, or if a layer has lost pages.
    pub fn run(&self, pace: &mut dyn Throttle) -> Result<LayerManifest> {
        let layers: Vec<&Layer> = self.layers.iter().collect();
        let (files, folder) = (&self.files, &self.files_dir);
        let manifest = merge_layers(files, folder, &self.layouts, &layers, self.is_base, pace)?;
        // Lost pages of a mapped file read as zeros. A merge of them would have a valid hash.
        let ranges = mmap::faulted_ranges();
        if layers.iter().any(|layer| layer.overlaps(&ranges)) {
            let reason = "a cached file was truncated or could not be read while layers were merged; \
                          check the disk of the cache, and load the version again";
            return Err(Error::File { path: folder.clone(), reason: reason.to_owned() });
        }
        pace.piece();
        files.sync_dir(folder)?;
        let bytes = serde_json::to_vec(&manifest)
            .expect("a layer's manifest is plain data with text keys, which JSON can always hold");
        files.write_bytes(self.merges_dir.join(format!("{}.json", self.name)), &bytes)?;
        pace.waited();
        Ok(manifest)
    }
}

/// The number of deltas that [`Cache::merge_chain`] joins at once. For each key, a merge looks at
/// every layer that it joins.
const JOINED_AT_ONCE: usize = 16;

impl Cache {
    /// Merges a chain to one layer with all rows of its last version, and returns the manifest of
    /// the layer. Its files are in [`Cache::folder`]. The same chain gives the same bytes.
    ///
    /// The deltas are joined first, in groups, and then to the base, so that each row of the base
    /// is written once. In memory are one part of a layer and the pages that a merge reads.
    ///
    /// # Errors
    /// Returns [`Error::File`] for a file that is missing or damaged, and an error if `pace` has
    /// ended the work.
    pub fn merge_chain(
        &mut self,
        model: &Model,
        chain: &Chain,
        pace: &mut dyn Throttle,
    ) -> Result<LayerManifest> {
        let Some(newest) = chain.last() else {
            return Err(Error::Refused(
                "the chain of versions is empty; give at least one version".to_owned(),
            ));
        };
        if let [base] = chain {
            self.open_single(model, base, &base.layouts(), pace)?;
            return model.layer(base);
        }
        let layouts = newest.layouts();
        let starts = (1..chain.len()).step_by(JOINED_AT_ONCE);
        let groups = starts.map(|start| start..(start + JOINED_AT_ONCE).min(chain.len()));
        for run in groups.chain(std::iter::once(1..chain.len())).filter(|run| run.len() > 1) {
            self.prepare_merge(model, chain, run, &layouts, pace)?.run(pace)?;
        }
        self.prepare_merge(model, chain, 0..chain.len(), &layouts, pace)?.run(pace)
    }

    /// Makes [`Cache::rows`] leave merges to [`Cache::next_merge`] if the version can be opened
    /// without them.
    pub fn set_merges_later(&mut self, merges_later: bool) {
        self.merges_later = merges_later;
    }

    /// Returns the number of layers that [`Cache::rows`] opens for a chain.
    ///
    /// # Errors
    /// Returns an error if the folder of the merges cannot be listed.
    pub fn count_layers(&self, chain: &Chain) -> Result<usize> {
        Ok(self.choose_runs(chain)?.len())
    }

    /// Begins the next merge of a chain that [`Cache::rows`] has opened, the one of the newest
    /// layers first. Returns `None` if no merge is missing. The caller runs the merge, ends it with
    /// [`Cache::end_merge`], and begins no other merge before that.
    ///
    /// # Errors
    /// Returns [`Error::File`] for a file that is missing or damaged.
    pub fn next_merge(
        &mut self,
        model: &Model,
        chain: &Chain,
        pace: &mut dyn Throttle,
    ) -> Result<Option<LayerMerge>> {
        let Some(newest) = chain.last() else { return Ok(None) };
        let layouts = newest.layouts();
        let made = self.list_merges()?;
        for target in stack(&row_counts(chain)).into_iter().rev() {
            if target.len() == 1 || made.has(chain, &target) {
                continue;
            }
            self.begin_merge()?;
            let merge = self.prepare_merge(model, chain, target, &layouts, pace);
            if merge.is_err() {
                self.end_merge(None)?;
            }
            return merge.map(Some);
        }
        Ok(None)
    }

    /// Records the end of the merge that [`Cache::next_merge`] began. `merged` is its result if it
    /// has succeeded.
    ///
    /// # Errors
    /// Returns an error if the claim of this process cannot be written.
    pub fn end_merge(&mut self, merged: Option<&LayerManifest>) -> Result<()> {
        if let Some(merged) = merged {
            self.record_merge(merged);
        }
        self.merging_since = None;
        self.write_claim()
    }

    fn begin_merge(&mut self) -> Result<()> {
        self.merging_since = Some(SystemTime::now());
        self.write_claim()
    }

    /// Opens the layers of a run of versions for its merge.
    pub(super) fn prepare_merge(
        &mut self,
        model: &Model,
        chain: &Chain,
        run: Range<usize>,
        layouts: &[TableLayout],
        pace: &mut dyn Throttle,
    ) -> Result<LayerMerge> {
        if !self.merges_dir.is_dir() {
            self.files.create_dir(&self.files_dir)?;
            self.files.create_dir(&self.merges_dir)?;
        }
        let name = run_name(chain, &run);
        let is_base = run.start == 0;
        let mut layers = Vec::new();
        for part in self.list_merges()?.cover(chain, &run) {
            // A merge that is damaged is made again from the layers of its versions.
            let merge = match part.len() {
                1 => None,
                _ => self.open_merge(&run_name(chain, &part), layouts, pace)?,
            };
            match merge {
                Some(layer) => layers.push(layer),
                None => {
                    for version in &chain[part] {
                        layers.push(self.open_single(model, version, layouts, pace)?);
                    }
                }
            }
        }
        let (files, files_dir) = (self.files.clone(), self.files_dir.clone());
        let (merges_dir, layouts) = (self.merges_dir.clone(), layouts.to_vec());
        Ok(LayerMerge { files, files_dir, merges_dir, name, layouts, layers, is_base })
    }

    /// Counts a merge, whose files have just been hashed.
    pub(super) fn record_merge(&mut self, merged: &LayerManifest) {
        self.scrubbed.extend(merged.files().map(LayerFile::name));
        self.merges += 1;
        self.merged_bytes += merged.files().map(|file| file.bytes).sum::<u64>();
    }

    /// Returns the runs of versions that [`Cache::rows`] opens as one layer each.
    pub(super) fn choose_runs(&self, chain: &Chain) -> Result<Vec<Range<usize>>> {
        let rows = row_counts(chain);
        let targets = stack(&rows);
        if !self.merges_later {
            return Ok(targets);
        }
        let made = self.list_merges()?;
        let mut runs: Vec<(usize, Range<usize>)> = Vec::new();
        for (number, target) in targets.iter().enumerate() {
            runs.extend(made.cover(chain, target).into_iter().map(|run| (number, run)));
        }
        while runs.len() > MAX_OPEN_LAYERS {
            let size = |run: &Range<usize>| rows[run.clone()].iter().sum::<u64>();
            // Runs of different targets stay apart, so that no row is merged in vain.
            let pairs = (1..runs.len()).filter(|&next| runs[next - 1].0 == runs[next].0);
            let smallest = pairs.min_by_key(|&next| size(&runs[next - 1].1) + size(&runs[next].1));
            let Some(next) = smallest else { break };
            let (_, joined) = runs.remove(next);
            runs[next - 1].1.end = joined.end;
        }
        Ok(runs.into_iter().map(|(_, run)| run).collect())
    }

    /// Returns the runs of a chain as the merges that exist cover them, or `None` if the chain
    /// cannot be opened without a further merge.
    pub(super) fn cover(&self, chain: &Chain) -> Result<Option<Vec<Range<usize>>>> {
        let made = self.list_merges()?;
        let targets = stack(&row_counts(chain));
        let runs: Vec<_> = targets.iter().flat_map(|target| made.cover(chain, target)).collect();
        Ok((runs.len() <= MAX_OPEN_LAYERS).then_some(runs))
    }

    fn list_merges(&self) -> Result<Merges> {
        let mut merges = Merges::default();
        for name in list_names(&self.merges_dir)? {
            if let Some((from, to)) = name.strip_suffix(".json").and_then(|n| n.split_once('-')) {
                merges.0.entry(from.to_owned()).or_default().insert(to.to_owned());
            }
        }
        Ok(merges)
    }
}

/// The merges in the folder of a cache: for each version before a merged run, by its short hash,
/// the last versions of the runs.
#[derive(Debug, Default)]
struct Merges(BTreeMap<String, BTreeSet<String>>);

impl Merges {
    fn has(&self, chain: &Chain, run: &Range<usize>) -> bool {
        let ends = self.0.get(&before(chain, run.start));
        ends.is_some_and(|ends| ends.contains(&short(&chain[run.end - 1].chain)))
    }

    /// Divides a run into the longest runs that are merged, and into single versions.
    fn cover(&self, chain: &Chain, run: &Range<usize>) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        let mut start = run.start;
        while start < run.end {
            let ends = self.0.get(&before(chain, start));
            let longest = ends.and_then(|ends| {
                let mut longer = (start + 2..run.end + 1).rev();
                longer.find(|&end| ends.contains(&short(&chain[end - 1].chain)))
            });
            let end = longest.unwrap_or(start + 1);
            runs.push(start..end);
            start = end;
        }
        runs
    }
}

/// Returns the name of the version before the version at `start`.
pub(super) fn before(chain: &Chain, start: usize) -> String {
    match start {
        0 => "base".to_owned(),
        start => short(&chain[start - 1].chain),
    }
}

fn row_counts(chain: &Chain) -> Vec<u64> {
    chain.iter().map(|version| version.layer.rows()).collect()
}
