//! The items of versions as files: whole, or as a difference to the items of the parent.
//!
//! A difference is published if it and the differences before it have at most half of the bytes of
//! the whole items at their begin. So a server that loads a version reads at most 1.5 times the
//! bytes of its items.
//!
//! # Invariants
//! Whether a version has a difference follows from the versions on which it stands and from its
//! items. So a run that was killed publishes the same versions as one that was not.

use std::sync::Arc;

use zillion_registry::{DraftItems, ITEM_DELTA, ITEMS, Model, VersionFile, VersionManifest};
use zillion_rows::layer::Unthrottled;
use zillion_scorer::{ItemDelta, ItemVectors, load_items};

use crate::error::Result;

/// The part of the bytes of whole items that the differences on them may have: one half.
const MOST_PART: u64 = 2;

/// The items that a publisher has published last.
#[derive(Debug, Default)]
pub(super) struct ItemFiles {
    kept: Option<(VersionFile, ItemVectors)>,
}

impl ItemFiles {
    /// Returns the items of a version that stands on `chain`, or of a base.
    pub(super) fn draft(
        &mut self,
        model: &Model,
        chain: Option<&[Arc<VersionManifest>]>,
        now: ItemVectors,
    ) -> Result<DraftItems> {
        let whole = now.hash(&mut Unthrottled)?;
        let before = chain.and_then(|chain| Some((chain, chain.last()?.items.as_ref()?)));
        let Some((chain, parent)) = before else { return self.keep_whole(now) };
        let earlier = self.earlier(model, chain, parent)?;
        if earlier.hash(&mut Unthrottled)? == whole {
            let parent = parent.clone();
            self.kept = Some((parent, now));
            return Ok(DraftItems::Parent);
        }
        let delta = ItemDelta::between(earlier, &parent.blake3, &now, &whole);
        let bytes = delta.map(|delta| delta.to_bytes()).transpose()?;
        match bytes.filter(|bytes| is_small(chain, bytes.len() as u64)) {
            None => self.keep_whole(now),
            Some(bytes) => {
                self.kept = Some((VersionFile::of(ITEM_DELTA, &bytes), now));
                Ok(DraftItems::Delta(bytes))
            }
        }
    }

    /// Returns the bytes of the whole items of the last version of `chain`, if the version has a
    /// difference of them.
    pub(super) fn whole_of(
        &mut self,
        model: &Model,
        chain: &[Arc<VersionManifest>],
    ) -> Result<Option<Vec<u8>>> {
        let file = chain.last().and_then(|version| version.items.as_ref());
        match file.filter(|file| file.kind == ITEM_DELTA) {
            None => Ok(None),
            // The items that are kept belong to a later version, which the next difference needs.
            Some(file) => Ok(Some(load(model, chain, file)?.to_bytes()?)),
        }
    }

    fn keep_whole(&mut self, now: ItemVectors) -> Result<DraftItems> {
        let bytes = now.to_bytes()?;
        self.kept = Some((VersionFile::of(ITEMS, &bytes), now));
        Ok(DraftItems::Whole(bytes))
    }

    /// Returns the items in the file `parent` of the last version of `chain`.
    fn earlier(
        &mut self,
        model: &Model,
        chain: &[Arc<VersionManifest>],
        parent: &VersionFile,
    ) -> Result<&ItemVectors> {
        let kept = match self.kept.take().filter(|(known, _)| known == parent) {
            Some(kept) => kept,
            None => (parent.clone(), load(model, chain, parent)?),
        };
        Ok(&self.kept.insert(kept).1)
    }
}

/// Returns whether the items of a version are `items`.
pub(super) fn are_same(model: &Model, file: &VersionFile, items: &ItemVectors) -> Result<bool> {
    let whole = items.hash(&mut Unthrottled)?;
    if file.kind != ITEM_DELTA {
        return Ok(file.blake3 == whole);
    }
    let delta = ItemDelta::from_bytes(&model.read_file(file)?, &mut Unthrottled)?;
    Ok(delta.whole() == whole)
}

/// Returns whether a difference of `bytes` bytes, with those on which it stands, is small enough.
fn is_small(chain: &[Arc<VersionManifest>], bytes: u64) -> bool {
    let mut files = VersionManifest::item_files(chain);
    files.dedup();
    let whole = files.pop().map_or(0, |whole| whole.bytes);
    let deltas = files.iter().fold(bytes, |sum, file| sum.saturating_add(file.bytes));
    deltas <= whole / MOST_PART
}

fn load(model: &Model, chain: &[Arc<VersionManifest>], file: &VersionFile) -> Result<ItemVectors> {
    let mut read =
        |file: &VersionFile, _: &mut dyn zillion_rows::layer::Throttle| Ok(model.read_file(file)?);
    Ok(load_items(file, chain, &[], &mut read, &mut Unthrottled)?)
}
