//! The steps of a publisher that make a new base of a long chain.

use std::sync::Arc;

use zillion_registry::{Chain, VersionManifest};

use super::super::branch::Branch;
use super::super::compactor::CompactionCounts;
use super::super::parent::has_row_types;
use super::super::schedule::{ChainSize, Schedule};
use super::Publisher;
use crate::error::Result;

impl Publisher {
    /// Returns the chain that the next version continues, or `None` if the version must be a base.
    /// `chain` ends with the newest version of the run. If a merge of it is due, the result is a
    /// base with the rows of a few versions ago.
    ///
    /// A merge that fails is reported, and the version is a delta on `chain`: an operator sees a
    /// chain that grows, and readers lose nothing.
    pub(super) fn choose_base(
        &mut self,
        branch: &mut Branch,
        chain: Option<Chain>,
    ) -> Option<Chain> {
        let max_deltas = self.config.max_deltas;
        // A delta has the number type and the schema of its base.
        let schema = self.frame.schema_hash();
        let has_schema =
            |chain: &Chain| chain.newest().is_some_and(|v| v.frame.schema_hash == schema);
        let has_types = |chain: &Chain| has_row_types(chain, &self.tables) && has_schema(chain);
        let chain = chain.filter(|chain| !chain.is_too_long() && has_types(chain));
        let versions = chain.iter().flat_map(Chain::versions).map(Arc::as_ref);
        let Some(schedule) =
            Schedule::of(versions, max_deltas).filter(|_| self.compactor.is_some())
        else {
            return chain.filter(|chain| !needs_base(chain, max_deltas));
        };
        if let (Some(due), Some(chain)) = (schedule.due, &chain) {
            match self.publish_merged(branch, &chain.versions()[..due]) {
                Ok(Some(base)) => return Some(Chain::default().followed_by(base)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(
                        "the deltas of model `{}` stay on their base, and a longer chain will be \
                         merged next: {error}",
                        self.model.name()
                    );
                    self.count_failure();
                }
            }
        }
        let next = schedule.next.zip(chain.as_ref()).map(|(next, chain)| &chain.versions()[..next]);
        self.begin_merge(next);
        chain
    }

    /// Publishes the base that repeats the last version of `chain`, and waits for its merge if it
    /// is late. A run that was killed after this publication finds the base. Returns `None` if
    /// there is nothing to publish.
    fn publish_merged(
        &mut self,
        branch: &mut Branch,
        chain: &[Arc<VersionManifest>],
    ) -> Result<Option<Arc<VersionManifest>>> {
        let (Some(repeated), Some(newest)) = (chain.last(), branch.newest()) else {
            return Ok(None);
        };
        let Some(compactor) = &mut self.compactor else { return Ok(None) };
        let found = branch.find_repeat(&self.model, repeated)?;
        // A rewind by hand puts the base into quarantine with all versions behind the good one.
        let found = found.filter(|base| {
            self.model.check_files(base.version).is_ok()
                && self.model.check_usable(base.version).is_ok()
        });
        let base = if let Some(base) = found {
            compactor.give_up();
            base
        } else {
            compactor.begin(chain)?;
            if let (false, Some(collector)) = (compactor.is_permitted(), &mut self.collector) {
                collector.end();
            }
            let layer = compactor.finish()?;
            compactor.counts.bytes += layer.files().map(|file| file.bytes).sum::<u64>();
            let items = self.item_files.whole_of(&self.model, chain)?;
            let base = Arc::new(self.model.publish_compaction(newest, repeated, layer, items)?);
            compactor.counts.published += 1;
            tracing::debug!("version {} repeats {} in one layer", base.version, repeated.version);
            branch.push(None, base.clone());
            if let Some(collector) = &mut self.collector {
                collector.count_publication(base.clone());
            }
            base
        };
        // The base has the rows of the version that it repeats, so the next delta has the changes
        // since that one.
        let known = self.known.iter().find(|(version, _)| *version == repeated.version);
        if let Some(&(_, epoch)) = known {
            self.know(base.version, epoch);
        }
        Ok(Some(base))
    }

    /// Begins to merge a chain unless it is being merged, and gives up the merge of any other one.
    /// Lets a merge that is ready copy its files, if no collection runs.
    fn begin_merge(&mut self, chain: Option<&[Arc<VersionManifest>]>) {
        let Some(compactor) = &mut self.compactor else { return };
        match chain {
            None => compactor.give_up(),
            Some(chain) => {
                if let Err(error) = compactor.begin(chain) {
                    tracing::warn!("the deltas of a model are not merged: {error}");
                }
            }
        }
        let is_idle = self.collector.as_ref().is_none_or(|collector| collector.is_idle());
        if is_idle && compactor.wants_permission() {
            compactor.permit();
        }
    }

    /// Counts a publication for the next collection, and begins it if it may run now.
    pub(super) fn count_publication(&mut self, version: Arc<VersionManifest>) {
        let Some(collector) = &mut self.collector else { return };
        collector.count_publication(version);
        // The files that a merge copies belong to no version yet.
        if !self.compactor.as_ref().is_some_and(|compactor| compactor.is_permitted()) {
            collector.begin_if_due(&self.model);
        }
    }

    /// Ends the work beside the publications, and returns the counts of merges.
    pub(crate) fn end(mut self) -> CompactionCounts {
        let Some(compactor) = &mut self.compactor else { return CompactionCounts::default() };
        compactor.give_up();
        compactor.counts
    }

    /// Adds further merges to the counts of an earlier publisher of the run.
    pub(crate) fn count_on_from(&mut self, counts: CompactionCounts) {
        if let Some(compactor) = &mut self.compactor {
            compactor.counts = counts;
        }
    }

    fn count_failure(&mut self) {
        if let Some(compactor) = &mut self.compactor {
            compactor.counts.failed += 1;
        }
    }
}

/// Returns whether a version that continues the chain must be a base.
fn needs_base(chain: &Chain, max_deltas: u64) -> bool {
    let mut size = ChainSize::default();
    chain.versions().iter().for_each(|version| size.add(version.layer.rows()));
    size.needs_base(max_deltas)
}
