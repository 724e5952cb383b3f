//! The file with the vectors of the items that a version can retrieve.
//!
//! ```text
//! 8 bytes   the text ZILITEMS
//! 4 bytes   the number of bytes of the header, little-endian
//! header    JSON: see `Header`
//! ids       integers of 8 bytes; or, for texts, a length of 4 bytes for each, and then all texts
//! vectors   the vector of each item, as f32 in the order of the ids
//! ```
//!
//! All numbers are little-endian. The manifest of the version has the hash of the file. But a
//! writer of the registry can write any file with its hash, so that every size is checked against
//! the length of the file before memory is taken for it.
//!
//! # Invariants
//! No two items have the same id, and every float of a vector is finite.

mod delta;
mod load;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zillion_feature::{FeatureKey, RawType, RawValue, SideIndex};
use zillion_rows::layer::Throttle;

pub use self::delta::ItemDelta;
pub use self::load::{LoadedItems, load_items};
use crate::error::{Error, Result};

/// The first bytes of a file.
const MAGIC: &[u8; 8] = b"ZILITEMS";
/// The format that this program writes and reads.
const FORMAT: u32 = 1;
/// The largest number of bytes of a header.
const MAX_HEADER: usize = 1 << 20;
/// The largest number of floats of a vector.
const MAX_DIM: usize = 1 << 16;
/// The number of items that are checked between two pauses.
const ITEMS_AT_ONCE: usize = 4096;
/// The number of floats that are read or written between two pauses.
const FLOATS_AT_ONCE: usize = 1 << 18;

/// The header of a file of item vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: u32,
    ids: RawType,
    items: u32,
    dim: u32,
    /// The factor between the inner product of two vectors and the score.
    scale: f32,
    /// The number of bytes of all texts together; 0 for integers.
    text_bytes: u64,
    /// The features of the user's tower.
    user: Vec<String>,
}

/// The ids of items, in the order of their vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemIds {
    /// Ids that are signed integers.
    Ints(Vec<i64>),
    /// Ids that are unsigned integers.
    Uints(Vec<u64>),
    /// Ids that are texts.
    Texts(Texts),
}

/// A list of texts in one piece of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    text: String,
    /// The end of each text in `text`.
    ends: Vec<usize>,
}

/// The vectors of items, and what a server needs to compute the scores of a user with them.
#[derive(Debug)]
pub struct ItemVectors {
    known: Arc<KnownIds>,
    vectors: Vec<f32>,
    dim: usize,
    scale: f32,
    user: Vec<String>,
}

/// The ids of items with their index. Versions with the same items share them.
#[derive(Debug)]
struct KnownIds {
    ids: ItemIds,
    index: SideIndex,
}

impl Texts {
    /// Appends a text to the list.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len());
    }

    /// Returns the text at a position, or an empty one behind the last.
    fn get(&self, at: usize) -> &str {
        let start = at.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied());
        let range = start.zip(self.ends.get(at).copied());
        range.and_then(|(start, end)| self.text.get(start..end)).unwrap_or_default()
    }
}

impl ItemIds {
    /// Returns an empty list of ids of a type.
    pub fn new(raw: RawType) -> Self {
        match raw {
            RawType::I64 => Self::Ints(Vec::new()),
            RawType::U64 => Self::Uints(Vec::new()),
            RawType::String => Self::Texts(Texts::default()),
        }
    }

    /// Appends an id. Returns `false` if the value is missing or has another type.
    pub fn push(&mut self, id: &RawValue<'_>) -> bool {
        match (self, id) {
            (Self::Ints(ids), RawValue::Int(id)) => ids.push(*id),
            (Self::Uints(ids), RawValue::Uint(id)) => ids.push(*id),
            (Self::Uints(ids), RawValue::Int(id)) => match u64::try_from(*id) {
                Ok(id) => ids.push(id),
                Err(_) => return false,
            },
            (Self::Texts(texts), RawValue::Text(text)) => texts.push(text),
            _ => return false,
        }
        true
    }

    /// Returns the number of ids.
    pub fn len(&self) -> usize {
        match self {
            Self::Ints(ids) => ids.len(),
            Self::Uints(ids) => ids.len(),
            Self::Texts(texts) => texts.ends.len(),
        }
    }

    /// Returns whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the type of the ids.
    pub fn raw(&self) -> RawType {
        match self {
            Self::Ints(_) => RawType::I64,
            Self::Uints(_) => RawType::U64,
            Self::Texts(_) => RawType::String,
        }
    }

    /// Returns the id at a position, or a missing value behind the last.
    pub fn get(&self, at: usize) -> RawValue<'_> {
        match self {
            Self::Ints(ids) => ids.get(at).map_or(RawValue::Missing, |&id| RawValue::Int(id)),
            Self::Uints(ids) => ids.get(at).map_or(RawValue::Missing, |&id| RawValue::Uint(id)),
            Self::Texts(texts) => RawValue::Text(texts.get(at).into()),
        }
    }

    /// Returns the key of the id at a position, by which the model knows the item.
    fn key(&self, at: usize) -> FeatureKey {
        match self {
            Self::Ints(ids) => FeatureKey::from_i64(ids[at]),
            Self::Uints(ids) => FeatureKey::from_u64(ids[at]),
            Self::Texts(texts) => FeatureKey::from_text(texts.get(at)),
        }
    }
}

impl ItemVectors {
    /// Puts ids and vectors together. `scale` is the factor between the inner product of two
    /// vectors and the score, and `user` has the names of the features of the user's tower.
    ///
    /// # Errors
    /// Returns an error if the number of floats does not fit the number of ids, if two items have
    /// the same id, or if a float is not finite.
    pub fn new(
        ids: ItemIds,
        vectors: Vec<f32>,
        dim: usize,
        scale: f32,
        user: Vec<String>,
        pace: &mut dyn Throttle,
    ) -> Result<Self> {
        let items = ids.len();
        if !(1..=MAX_DIM).contains(&dim) || items.checked_mul(dim) != Some(vectors.len()) {
            return refuse(format!(
                "{} floats are no vectors of {dim} floats for {items} items",
                vectors.len()
            ));
        }
        if !scale.is_finite() {
            return refuse(format!("the factor of the scores is {scale}, which is not finite"));
        }
        let mut index = SideIndex::default();
        let together = (FLOATS_AT_ONCE / dim).clamp(1, ITEMS_AT_ONCE);
        for at in 0..items {
            if at.is_multiple_of(together) {
                pace.piece();
            }
            if index.push(ids.key(at)).is_err() {
                return refuse(format!("the id {} occurs twice", describe(&ids.get(at))));
            }
            if !vectors[at * dim..(at + 1) * dim].iter().all(|x| x.is_finite()) {
                let id = describe(&ids.get(at));
                return refuse(format!("the vector of item {id} has a float that is not finite"));
            }
        }
        let known = Arc::new(KnownIds { ids, index });
        Ok(Self { known, vectors, dim, scale, user })
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.known.ids.len()
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.known.ids.is_empty()
    }

    /// Returns the number of floats of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the ids of the items.
    pub fn ids(&self) -> &ItemIds {
        &self.known.ids
    }

    /// Returns the vectors of all items, one behind the other.
    pub fn vectors(&self) -> &[f32] {
        &self.vectors
    }

    /// Returns the factor between the inner product of two vectors and the score.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Returns the names of the features of the user's tower.
    pub fn user_features(&self) -> &[String] {
        &self.user
    }

    /// Returns the position of the item with an id, or `None` if no item has the id.
    ///
    /// # Errors
    /// Returns the reason if the value is not of the type of the ids.
    pub fn find(&self, id: &RawValue<'_>) -> Result<Option<u32>, &'static str> {
        let key: Option<FeatureKey> = id.id(self.known.ids.raw())?;
        Ok(key.and_then(|key| self.known.index.row(key)))
    }

    /// Returns the number of bytes that the ids, their index and the vectors need in memory, near
    /// enough for a gauge.
    pub fn bytes(&self) -> usize {
        let ids = match self.ids() {
            ItemIds::Ints(_) | ItemIds::Uints(_) => 8 * self.len(),
            ItemIds::Texts(texts) => texts.text.len() + 8 * self.len(),
        };
        // An entry of the index has a key, a position and a byte of the table.
        ids + size_of_val(&self.vectors[..]) + 24 * self.len()
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// Returns an error if there are more items than a file can hold.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(12 * self.len() + size_of_val(&self.vectors[..]) + 1024);
        self.write(&mut |bytes| out.extend_from_slice(bytes))?;
        Ok(out)
    }

    /// Returns the BLAKE3 hash of the bytes of the file, in hexadecimal.
    ///
    /// # Errors
    /// Returns an error if there are more items than a file can hold.
    pub fn hash(&self, pace: &mut dyn Throttle) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        self.write(&mut |bytes| {
            hasher.update(bytes);
            pace.piece();
        })?;
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Writes the file piece by piece.
    fn write(&self, out: &mut dyn FnMut(&[u8])) -> Result<()> {
        let text_bytes = match self.ids() {
            ItemIds::Texts(texts) => texts.text.len() as u64,
            _ => 0,
        };
        let Ok(items) = u32::try_from(self.len()) else {
            return refuse(format!("{} items are more than a file can hold", self.len()));
        };
        let header = Header {
            format: FORMAT,
            ids: self.ids().raw(),
            items,
            dim: self.dim as u32,
            scale: self.scale,
            text_bytes,
            user: self.user.clone(),
        };
        write_header(MAGIC, &header, out)?;
        write_ids(self.ids(), out)?;
        write_floats(&self.vectors, out);
        Ok(())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Returns an error if the file is damaged, has another format, or breaks an invariant of this
    /// module.
    pub fn from_bytes(bytes: &[u8], pace: &mut dyn Throttle) -> Result<Self> {
        let (header, rest): (Header, _) = read_header(MAGIC, bytes)?;
        check_format(header.format)?;
        let (items, dim) = (header.items as usize, header.dim as usize);
        let floats = items.checked_mul(dim).and_then(|floats| floats.checked_mul(4));
        let sizes = floats.zip(id_bytes(header.ids, items, header.text_bytes));
        let is_whole = |&(floats, (ids, texts)): &(usize, (usize, usize))| {
            floats.checked_add(ids).and_then(|sum| sum.checked_add(texts)) == Some(rest.len())
        };
        let Some((_, (ids, texts))) = sizes.filter(is_whole) else {
            return refuse(format!(
                "its header names {items} items of {dim} floats, but {} bytes follow",
                rest.len()
            ));
        };
        let (ids, rest) = rest.split_at(ids);
        let (texts, floats) = rest.split_at(texts);
        let ids = read_ids(header.ids, ids, texts, pace)?;
        let vectors = read_floats(floats, pace);
        Self::new(ids, vectors, dim, header.scale, header.user, pace)
    }
}

/// Writes the first bytes of a file, with the length of its header and the header.
fn write_header<H: Serialize>(
    magic: &[u8; 8],
    header: &H,
    out: &mut dyn FnMut(&[u8]),
) -> Result<()> {
    let header = serde_json::to_vec(header).map_err(|e| Error::Items(e.to_string()))?;
    if header.len() > MAX_HEADER {
        return refuse("the names of the features are too long".to_owned());
    }
    out(magic);
    out(&(header.len() as u32).to_le_bytes());
    out(&header);
    Ok(())
}

/// Reads the header of a file, and returns it with the bytes behind it.
fn read_header<'a, H: Deserialize<'a>>(magic: &[u8; 8], bytes: &'a [u8]) -> Result<(H, &'a [u8])> {
    let rest = bytes.strip_prefix(magic);
    let parts = rest.and_then(|rest| rest.split_first_chunk::<4>());
    let Some((length, rest)) = parts else {
        let name = String::from_utf8_lossy(magic);
        return refuse(format!("it does not begin with {name}"));
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_HEADER || length > rest.len() {
        return refuse(format!("its header has {length} bytes, which is too long"));
    }
    let (header, rest) = rest.split_at(length);
    let header = serde_json::from_slice(header)
        .map_err(|e| Error::Items(format!("its header cannot be read: {e}")))?;
    Ok((header, rest))
}

fn check_format(format: u32) -> Result<()> {
    if format != FORMAT {
        return refuse(format!("it has format {format}, but this program reads format {FORMAT}"));
    }
    Ok(())
}

/// Writes the ids of a file.
fn write_ids(ids: &ItemIds, out: &mut dyn FnMut(&[u8])) -> Result<()> {
    let mut bytes = Vec::with_capacity(8 * ids.len());
    match ids {
        ItemIds::Ints(ids) => ids.iter().for_each(|id| bytes.extend(id.to_le_bytes())),
        ItemIds::Uints(ids) => ids.iter().for_each(|id| bytes.extend(id.to_le_bytes())),
        ItemIds::Texts(texts) => {
            let mut start = 0;
            for &end in &texts.ends {
                let Ok(length) = u32::try_from(end - start) else {
                    return refuse("an id has more than 4 GiB".to_owned());
                };
                bytes.extend(length.to_le_bytes());
                start = end;
            }
            bytes.extend_from_slice(texts.text.as_bytes());
        }
    }
    out(&bytes);
    Ok(())
}

/// Writes floats in pieces.
fn write_floats(floats: &[f32], out: &mut dyn FnMut(&[u8])) {
    let mut bytes = Vec::new();
    for piece in floats.chunks(FLOATS_AT_ONCE) {
        bytes.clear();
        piece.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        out(&bytes);
    }
}

/// Reads floats, with a pause between pieces.
fn read_floats(bytes: &[u8], pace: &mut dyn Throttle) -> Vec<f32> {
    let mut floats = Vec::with_capacity(bytes.len() / 4);
    for piece in bytes.chunks(4 * FLOATS_AT_ONCE) {
        let (piece, _) = piece.as_chunks::<4>();
        floats.extend(piece.iter().map(|&bytes| f32::from_le_bytes(bytes)));
        pace.piece();
    }
    floats
}

/// Returns the number of bytes of the ids before the texts, and that of the texts, as a header
/// names them. Returns `None` if the numbers cannot be right.
fn id_bytes(raw: RawType, items: usize, text_bytes: u64) -> Option<(usize, usize)> {
    let (width, texts) = match raw {
        RawType::String => (4, usize::try_from(text_bytes).ok()?),
        _ => (8, (text_bytes == 0).then_some(0)?),
    };
    Some((items.checked_mul(width)?, texts))
}

/// Reads the ids of a type.
fn read_ids(raw: RawType, bytes: &[u8], texts: &[u8], pace: &mut dyn Throttle) -> Result<ItemIds> {
    let words = bytes.as_chunks::<8>().0.iter();
    Ok(match raw {
        RawType::I64 => ItemIds::Ints(words.map(|&word| i64::from_le_bytes(word)).collect()),
        RawType::U64 => ItemIds::Uints(words.map(|&word| u64::from_le_bytes(word)).collect()),
        RawType::String => {
            let Ok(text) = std::str::from_utf8(texts) else {
                return refuse("an id is not UTF-8".to_owned());
            };
            let (lengths, _) = bytes.as_chunks::<4>();
            let mut ends = Vec::with_capacity(lengths.len());
            let mut end = 0usize;
            for (at, &length) in lengths.iter().enumerate() {
                if at.is_multiple_of(ITEMS_AT_ONCE) {
                    pace.piece();
                }
                let length = u32::from_le_bytes(length) as usize;
                end = end.saturating_add(length);
                if length == 0 || !text.is_char_boundary(end) {
                    return refuse("the length of an id is wrong".to_owned());
                }
                ends.push(end);
            }
            if end != text.len() {
                return refuse("the lengths of the ids are wrong".to_owned());
            }
            ItemIds::Texts(Texts { text: text.to_owned(), ends })
        }
    })
}

fn refuse<T>(reason: String) -> Result<T> {
    Err(Error::Items(reason))
}

/// Returns an id as it is written in messages.
fn describe(id: &RawValue<'_>) -> String {
    match id {
        RawValue::Int(id) => id.to_string(),
        RawValue::Uint(id) => id.to_string(),
        RawValue::Text(text) => format!("{:?}", text.chars().take(100).collect::<String>()),
        _ => "that is missing".to_owned(),
    }
}

#[cfg(test)]
mod tests;
