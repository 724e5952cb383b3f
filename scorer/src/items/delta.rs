//! The file with the difference between the items of a version and those of an earlier one.
//!
//! ```text
//! 8 bytes    the text ZILITEMD
//! 4 bytes    the number of bytes of the header, little-endian
//! header     JSON: see `Header`
//! removed    positions in the earlier list, as integers of 4 bytes, in ascending order
//! added      positions in the new list, likewise
//! changed    positions in the new list, likewise
//! ids        the ids of the added items, as in the file of all items
//! vectors    the vectors of the added items, and then those of the changed ones, as f32
//! ```
//!
//! The header names the earlier file and the whole new one by their hashes. A difference that is
//! applied to other items, or that gives other items than those that were published, is refused.
//!
//! # Invariants
//! A new list has the items of the earlier one in their order, without those that were removed and
//! with the added ones between them. So every position of the new list has exactly one item.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zillion_feature::RawType;
use zillion_rows::layer::Throttle;

use super::{
    FORMAT, ITEMS_AT_ONCE, ItemIds, ItemVectors, check_format, id_bytes, read_floats, read_header,
    read_ids, refuse, write_floats, write_header, write_ids,
};
use crate::error::Result;

/// The first bytes of a file.
const MAGIC: &[u8; 8] = b"ZILITEMD";

/// The header of a file with a difference of items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: u32,
    /// The BLAKE3 hash of the earlier file, which may be a difference too.
    parent: String,
    /// The BLAKE3 hash of the whole file of the new items.
    whole: String,
    ids: RawType,
    /// The number of items of the new list.
    items: u32,
    dim: u32,
    removed: u32,
    added: u32,
    changed: u32,
    /// The number of bytes of the texts of the added items; 0 for integers.
    text_bytes: u64,
}

/// The difference between the items of two versions.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemDelta {
    header: Header,
    removed: Vec<u32>,
    added: Vec<u32>,
    changed: Vec<u32>,
    ids: ItemIds,
    vectors: Vec<f32>,
}

impl ItemDelta {
    /// Returns the difference from the items `earlier`, whose file has the hash `parent`, to the
    /// items `now`, whose whole file has the hash `whole`. Returns `None` if it cannot be a
    /// difference, because the items have another order, another kind of id or another model.
    pub fn between(
        earlier: &ItemVectors,
        parent: &str,
        now: &ItemVectors,
        whole: &str,
    ) -> Option<Self> {
        let is_alike = earlier.dim == now.dim
            && earlier.scale.to_bits() == now.scale.to_bits()
            && earlier.user == now.user
            && earlier.ids().raw() == now.ids().raw();
        let items = u32::try_from(now.len()).ok().filter(|_| is_alike)?;
        let is_same = |before: u32, at: u32| {
            let bits = |x: &f32| x.to_bits();
            earlier.vector(before).iter().map(bits).eq(now.vector(at).iter().map(bits))
        };
        let (mut removed, mut added, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        let mut ids = ItemIds::new(now.ids().raw());
        let (mut floats_added, mut floats_changed) = (Vec::new(), Vec::new());
        // The first earlier item that was not reached.
        let mut next = 0;
        for at in 0..items {
            match earlier.known.index.row(now.ids().key(at as usize)) {
                None => {
                    added.push(at);
                    ids.push(&now.ids().get(at as usize));
                    floats_added.extend_from_slice(now.vector(at));
                }
                Some(before) if before < next => return None,
                Some(before) => {
                    removed.extend(next..before);
                    next = before + 1;
                    if !is_same(before, at) {
                        changed.push(at);
                        floats_changed.extend_from_slice(now.vector(at));
                    }
                }
            }
        }
        removed.extend(next..u32::try_from(earlier.len()).ok()?);
        floats_added.append(&mut floats_changed);
        let text_bytes = match &ids {
            ItemIds::Texts(texts) => texts.text.len() as u64,
            _ => 0,
        };
        let header = Header {
            format: FORMAT,
            parent: parent.to_owned(),
            whole: whole.to_owned(),
            ids: ids.raw(),
            items,
            dim: now.dim as u32,
            removed: removed.len() as u32,
            added: added.len() as u32,
            changed: changed.len() as u32,
            text_bytes,
        };
        Some(Self { header, removed, added, changed, ids, vectors: floats_added })
    }

    /// Returns the hash of the file to which the difference is applied.
    pub fn parent(&self) -> &str {
        &self.header.parent
    }

    /// Returns the hash of the whole file of the items after the difference.
    pub fn whole(&self) -> &str {
        &self.header.whole
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// Returns an error if an id is too long for a file.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
        write_header(MAGIC, &self.header, &mut put)?;
        for positions in [&self.removed, &self.added, &self.changed] {
            positions.iter().for_each(|at| put(&at.to_le_bytes()));
        }
        write_ids(&self.ids, &mut put)?;
        write_floats(&self.vectors, &mut put);
        Ok(out)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Returns an error if the file is damaged, has another format, or has positions that are not
    /// in ascending order.
    pub fn from_bytes(bytes: &[u8], pace: &mut dyn Throttle) -> Result<Self> {
        let (header, rest): (Header, _) = read_header(MAGIC, bytes)?;
        check_format(header.format)?;
        let [removed, added, changed, dim] =
            [header.removed, header.added, header.changed, header.dim].map(|count| count as usize);
        let positions = 4 * (removed + added + changed);
        let floats = (added + changed).checked_mul(4 * dim);
        let sizes = id_bytes(header.ids, added, header.text_bytes).zip(floats);
        let is_whole = |&((ids, texts), floats): &((usize, usize), usize)| {
            let sizes = [positions, ids, texts, floats];
            sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)) == Some(rest.len())
        };
        let Some(((ids, texts), _)) = sizes.filter(is_whole) else {
            return refuse(format!(
                "its header names {removed} removed, {added} added and {changed} changed items of \
                 {dim} floats, but {} bytes follow",
                rest.len()
            ));
        };
        let (of_removed, rest) = rest.split_at(4 * removed);
        let (of_added, rest) = rest.split_at(4 * added);
        let (of_changed, rest) = rest.split_at(4 * changed);
        let (of_ids, rest) = rest.split_at(ids);
        let (texts, floats) = rest.split_at(texts);
        Ok(Self {
            removed: read_positions("removed", of_removed)?,
            added: read_positions("added", of_added)?,
            changed: read_positions("changed", of_changed)?,
            ids: read_ids(header.ids, of_ids, texts, pace)?,
            vectors: read_floats(floats, pace),
            header,
        })
    }

    /// Returns the new items: the items `earlier` with the difference.
    ///
    /// # Errors
    /// Returns an error if a position does not fit the items, or if the new items are not those
    /// that were published.
    pub fn apply(&self, earlier: &ItemVectors, pace: &mut dyn Throttle) -> Result<ItemVectors> {
        let (items, dim) = (self.header.items as usize, earlier.dim);
        let is_alike = earlier.ids().raw() == self.header.ids && dim == self.header.dim as usize;
        let kept = earlier.len().checked_sub(self.removed.len());
        let fits = |positions: &[u32], len: usize| {
            positions.last().is_none_or(|&last| (last as usize) < len)
        };
        let are_inside = fits(&self.removed, earlier.len())
            && fits(&self.added, items)
            && fits(&self.changed, items);
        if !is_alike || !are_inside || kept.map(|kept| kept + self.added.len()) != Some(items) {
            return refuse(
                "their difference does not fit the items of the version before; publish a base"
                    .to_owned(),
            );
        }
        let new = match self.added.is_empty() && self.removed.is_empty() {
            true => self.change(earlier, pace)?,
            false => self.rebuild(earlier, pace)?,
        };
        if new.hash(pace)? != self.header.whole {
            return refuse(
                "their difference gives other items than those that were published; publish a base"
                    .to_owned(),
            );
        }
        Ok(new)
    }

    /// Changes vectors only. The new items share the ids of the earlier ones.
    fn change(&self, earlier: &ItemVectors, pace: &mut dyn Throttle) -> Result<ItemVectors> {
        let dim = earlier.dim;
        let mut vectors = copy(&earlier.vectors, dim, pace);
        for (&at, vector) in self.changed.iter().zip(self.vectors.chunks_exact(dim)) {
            vectors[at as usize * dim..][..dim].copy_from_slice(vector);
        }
        if !self.vectors.iter().all(|x| x.is_finite()) {
            return refuse("a changed vector has a float that is not finite".to_owned());
        }
        let (known, user) = (Arc::clone(&earlier.known), earlier.user.clone());
        Ok(ItemVectors { known, vectors, dim, scale: earlier.scale, user })
    }

    /// Builds the new list of items, and its index.
    fn rebuild(&self, earlier: &ItemVectors, pace: &mut dyn Throttle) -> Result<ItemVectors> {
        let (items, dim) = (self.header.items as usize, earlier.dim);
        let mut ids = ItemIds::new(self.header.ids);
        let mut vectors = Vec::with_capacity(items * dim);
        let (added, changed) = self.vectors.split_at(self.added.len() * dim);
        let mut added = self.added.iter().zip(added.chunks_exact(dim)).enumerate().peekable();
        let mut changed = self.changed.iter().zip(changed.chunks_exact(dim)).peekable();
        let mut removed = self.removed.iter().peekable();
        let mut before = 0;
        for at in 0..self.header.items {
            if at.is_multiple_of(ITEMS_AT_ONCE as u32) {
                pace.piece();
            }
            if let Some((number, (_, vector))) = added.next_if(|(_, (place, _))| **place == at) {
                ids.push(&self.ids.get(number));
                vectors.extend_from_slice(vector);
                continue;
            }
            while removed.next_if(|place| **place == before).is_some() {
                before += 1;
            }
            ids.push(&earlier.ids().get(before as usize));
            match changed.next_if(|(place, _)| **place == at) {
                Some((_, vector)) => vectors.extend_from_slice(vector),
                None => vectors.extend_from_slice(earlier.vector(before)),
            }
            before += 1;
        }
        ItemVectors::new(ids, vectors, dim, earlier.scale, earlier.user.clone(), pace)
    }
}

impl ItemVectors {
    /// Returns the vector of the item at a position, or an empty slice behind the last.
    fn vector(&self, at: u32) -> &[f32] {
        let start = at as usize * self.dim;
        self.vectors.get(start..start + self.dim).unwrap_or_default()
    }
}

/// Copies vectors of `dim` floats, with a pause between pieces.
fn copy(vectors: &[f32], dim: usize, pace: &mut dyn Throttle) -> Vec<f32> {
    let mut copy = Vec::with_capacity(vectors.len());
    for piece in vectors.chunks(dim * ITEMS_AT_ONCE) {
        copy.extend_from_slice(piece);
        pace.piece();
    }
    copy
}

/// Reads positions, which must be in ascending order.
fn read_positions(what: &str, bytes: &[u8]) -> Result<Vec<u32>> {
    let words = bytes.as_chunks::<4>().0.iter();
    let positions: Vec<u32> = words.map(|&word| u32::from_le_bytes(word)).collect();
    if !positions.is_sorted_by(|a, b| a < b) {
        return refuse(format!("the positions of {what} items are not in ascending order"));
    }
    Ok(positions)
}

#[cfg(test)]
mod tests;
