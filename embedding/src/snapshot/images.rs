//! The images of rows: copies of their old contents, stored one after another in large chunks.
//!
//! An image consists of a key, the number of the previous image in the same slot, and the words of
//! the row in both slabs. A new image is copied to the end of the last chunk, or to the place of an
//! image that has been released. So a push that keeps an image does little more work than any other
//! push. The thread that drops the snapshot gives all chunks back to the system.
//!
//! # Invariants
//! * Every image is either in the list of its slot or free.
//!
//! # Concurrency
//! An `Images` is a plain value without locks. The snapshot of a table owns it.

use zillion_device::DeviceError;
use zillion_feature::FeatureKey;

use crate::error::Result;

/// The number of words before the words of a row: the key, and the number of the previous image.
const HEAD: usize = 3;

/// The number of words of a chunk, unless a single image has more.
const CHUNK_WORDS: usize = 256 << 10;

/// The number that marks the end of a list of images.
pub(crate) const NONE: u32 = u32::MAX;

/// A store of images of rows with a fixed number of words.
#[derive(Debug)]
pub(crate) struct Images {
    /// The number of words of a row of weights.
    weights: usize,
    /// The number of words of an image.
    stride: usize,
    in_chunk: usize,
    chunks: Vec<Vec<u32>>,
    /// The number of images that have been made, including the images that are free now.
    made: u32,
    /// The number of the first free image, or [`NONE`] if no image is free.
    free: u32,
}

impl Images {
    /// Creates a store without images. The rows have `weights` words in the weight slab and
    /// `companion` words in the companion slab.
    pub(crate) fn new(weights: usize, companion: usize) -> Self {
        let stride = HEAD + weights + companion;
        let in_chunk = (CHUNK_WORDS / stride).max(1);
        Self { weights, stride, in_chunk, chunks: Vec::new(), made: 0, free: NONE }
    }

    /// Stores the image of a row, and returns the number of the image. `before` is the number of
    /// the previous image in the list.
    pub(crate) fn keep(
        &mut self,
        key: FeatureKey,
        before: u32,
        weights: &[u32],
        companion: &[u32],
    ) -> Result<u32> {
        let head = [key.0 as u32, (key.0 >> u32::BITS) as u32, before];
        if self.free != NONE {
            let image = self.free;
            self.free = self.words(image)[HEAD - 1];
            let (at, start) = self.place(image);
            let words = &mut self.chunks[at][start..start + self.stride];
            words[..HEAD].copy_from_slice(&head);
            words[HEAD..HEAD + weights.len()].copy_from_slice(weights);
            words[HEAD + weights.len()..].copy_from_slice(companion);
            return Ok(image);
        }
        let image = self.made;
        if image as usize == self.chunks.len() * self.in_chunk {
            self.add_chunk()?;
        }
        let (at, _) = self.place(image);
        let chunk = &mut self.chunks[at];
        chunk.extend_from_slice(&head);
        chunk.extend_from_slice(weights);
        chunk.extend_from_slice(companion);
        self.made += 1;
        Ok(image)
    }

    fn add_chunk(&mut self) -> Result<()> {
        let words = self.in_chunk * self.stride;
        let mut chunk = Vec::new();
        let refused = |e: std::collections::TryReserveError| DeviceError::OutOfMemory {
            bytes: words * size_of::<u32>(),
            source: std::io::Error::other(e),
        };
        chunk.try_reserve_exact(words).map_err(refused)?;
        self.chunks.push(chunk);
        Ok(())
    }

    /// Frees the place of an image for a later image. Returns the number of the previous image in
    /// the list.
    pub(crate) fn release(&mut self, image: u32) -> u32 {
        let free = std::mem::replace(&mut self.free, image);
        let (at, start) = self.place(image);
        std::mem::replace(&mut self.chunks[at][start + HEAD - 1], free)
    }

    /// Returns the key of an image and the number of the previous image in its list, or `None` for
    /// the number [`NONE`].
    pub(crate) fn head(&self, image: u32) -> Option<(FeatureKey, u32)> {
        if image == NONE {
            return None;
        }
        let words = self.words(image);
        let key = u64::from(words[0]) | u64::from(words[1]) << u32::BITS;
        Some((FeatureKey(key), words[HEAD - 1]))
    }

    /// Returns the words of the row in an image: first the words of the weight slab, then the words
    /// of the companion slab.
    pub(crate) fn row(&self, image: u32) -> (&[u32], &[u32]) {
        self.words(image)[HEAD..].split_at(self.weights)
    }

    pub(crate) fn bytes(&self) -> usize {
        let chunks: usize = self.chunks.iter().map(Vec::capacity).sum();
        chunks * size_of::<u32>() + self.chunks.capacity() * size_of::<Vec<u32>>()
    }

    fn words(&self, image: u32) -> &[u32] {
        let (at, start) = self.place(image);
        &self.chunks[at][start..start + self.stride]
    }

    /// Returns the index of the chunk that holds an image, and the position of the image's first
    /// word in the chunk.
    fn place(&self, image: u32) -> (usize, usize) {
        let image = image as usize;
        (image / self.in_chunk, image % self.in_chunk * self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_what_was_kept_and_places_are_used_again() {
        // The widths give chunks of many images and chunks of one image.
        for width in [3, CHUNK_WORDS] {
            let mut images = Images::new(width, 2);
            let row = |i: u64| vec![i as u32 + 3; width];
            let key = |i: u64| FeatureKey(u64::MAX - i);
            let mut newest = NONE;
            for i in 0..5 {
                newest = images.keep(key(i), newest, &row(i), &[i as u32, 7]).unwrap();
            }
            let bytes = images.bytes();
            let mut list = Vec::new();
            while let Some((k, before)) = images.head(newest) {
                let i = (4 - list.len()) as u64;
                assert_eq!(k, key(i));
                assert_eq!(images.row(newest), (row(i).as_slice(), [i as u32, 7].as_slice()));
                list.push(newest);
                newest = before;
            }
            assert_eq!(list, [4, 3, 2, 1, 0]);
            assert_eq!(images.release(3), 2);
            assert_eq!(images.release(1), 0);
            for (i, place) in [(9, 1), (8, 3), (7, 5)] {
                assert_eq!(images.keep(key(i), NONE, &row(i), &[1, 2]).unwrap(), place);
                assert_eq!(images.head(place), Some((key(i), NONE)));
                assert_eq!(images.row(place).0, row(i));
            }
            assert_eq!(images.row(2).0, row(2));
            assert!(width > 3 || images.bytes() == bytes);
        }
    }
}
