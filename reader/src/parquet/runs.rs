//! The decoder of Parquet's hybrid encoding of run lengths and packed bits, which stores levels and
//! dictionary indices.

use bytes::Bytes;
use zillion_device::simd::vectorised;

/// A decoder of the numbers of a page, which reads one run after another.
#[derive(Debug)]
pub(super) struct Runs {
    bytes: Bytes,
    /// The byte at which the next run starts.
    next: usize,
    width: usize,
    run: Run,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    Repeat {
        value: u32,
        left: usize,
    },
    /// A run of packed numbers. It starts at byte `start`; `done` numbers have been read and `left`
    /// numbers remain.
    Packed {
        start: usize,
        done: usize,
        left: usize,
    },
}

impl Runs {
    /// Returns a decoder of numbers of `width` bits, or `None` if `width` is above 32.
    pub(super) fn new(bytes: Bytes, width: usize) -> Option<Self> {
        (width <= 32).then_some(Self {
            bytes,
            next: 0,
            width,
            run: Run::Repeat { value: 0, left: 0 },
        })
    }

    /// Skips the next `count` numbers and returns `true` if they lie in one run that repeats
    /// `value`. Otherwise returns `false` and skips nothing.
    pub(super) fn pass_over(&mut self, count: usize, value: u32) -> bool {
        if matches!(self.run, Run::Repeat { left: 0, .. } | Run::Packed { left: 0, .. })
            && self.start_run().is_none()
        {
            return false;
        }
        match &mut self.run {
            Run::Repeat { value: found, left } if *found == value && *left >= count => {
                *left -= count;
                true
            }
            _ => false,
        }
    }

    /// Decodes the next numbers into `out`. Returns `None` if the page has too few numbers.
    pub(super) fn fill(&mut self, mut out: &mut [u32]) -> Option<()> {
        while !out.is_empty() {
            match &mut self.run {
                Run::Repeat { left: 0, .. } | Run::Packed { left: 0, .. } => self.start_run()?,
                Run::Repeat { value, left } => {
                    let count = out.len().min(*left);
                    let (now, later) = out.split_at_mut(count);
                    now.fill(*value);
                    *left -= count;
                    out = later;
                }
                Run::Packed { start, done, left } => {
                    let count = out.len().min(*left);
                    let (now, later) = out.split_at_mut(count);
                    unpack(self.bytes.get(*start..)?, *done, self.width, now)?;
                    *done += count;
                    *left -= count;
                    out = later;
                }
            }
        }
        Some(())
    }

    fn start_run(&mut self) -> Option<()> {
        let header = self.varint()?;
        let count = usize::try_from(header >> 1).ok()?;
        if header & 1 == 0 {
            let size = self.width.div_ceil(8);
            let bytes = self.bytes.get(self.next..self.next.checked_add(size)?)?;
            let value = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
            self.next += size;
            self.run = Run::Repeat { value, left: count };
        } else {
            let size = count.checked_mul(self.width)?;
            self.run = Run::Packed { start: self.next, done: 0, left: count.checked_mul(8)? };
            self.next = self.next.checked_add(size)?;
        }
        // An empty run is refused, because the loop would read it again without end.
        (count > 0).then_some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = *self.bytes.get(self.next)?;
            self.next += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

/// Unpacks numbers of `width` bits from `bytes` into `out`, starting with the number at index
/// `first`. Returns `None` if there are too few bytes.
fn unpack(bytes: &[u8], first: usize, width: usize, out: &mut [u32]) -> Option<()> {
    if width == 0 {
        out.fill(0);
        return Some(());
    }
    // The packed bytes may end early only within the padding after the last number.
    let end = (first + out.len()).checked_mul(width)?.div_ceil(8);
    let bytes =
        bytes.get(..bytes.len().min((first + out.len()).div_ceil(8).checked_mul(width)?))?;
    if end > bytes.len() {
        return None;
    }
    let aligned = first.next_multiple_of(8).min(first + out.len());
    let (head, rest) = out.split_at_mut(aligned - first);
    let (groups, tail) = rest.split_at_mut(rest.len() / 8 * 8);
    head.iter_mut().zip(first..).for_each(|(out, at)| *out = one(bytes, at, width));
    let at = aligned + groups.len();
    tail.iter_mut().zip(at..).for_each(|(out, at)| *out = one(bytes, at, width));
    let bytes = bytes.get(aligned / 8 * width..)?;
    macro_rules! widths {
        ($($width:literal)*) => {
            match width {
                $($width => vectorised(#[inline(always)] || unpack_groups::<$width>(bytes, groups)),)*
                _ => return None,
            }
        };
    }
    widths!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
    Some(())
}

fn one(bytes: &[u8], at: usize, width: usize) -> u32 {
    let bit = at * width;
    let mut word = [0; 8];
    let from = &bytes[bit / 8..bytes.len().min(bit / 8 + 8)];
    word[..from.len()].copy_from_slice(from);
    (u64::from_le_bytes(word) >> (bit % 8)) as u32 & mask(width)
}

const fn mask(width: usize) -> u32 {
    ((1u64 << width) - 1) as u32
}

/// Unpacks groups of eight numbers. Each group takes `WIDTH` bytes. The length of `groups` must be
/// a multiple of eight.
#[inline(always)]
fn unpack_groups<const WIDTH: usize>(bytes: &[u8], groups: &mut [u32]) {
    for (group, out) in groups.chunks_exact_mut(8).enumerate() {
        let start = group * WIDTH;
        let mut padded = [0; 40];
        // The loop reads words of eight bytes. The last group may be followed by too few bytes for
        // a word.
        let from = match bytes.get(start..start + WIDTH + 8) {
            Some(from) => from,
            None => {
                let rest = &bytes[start..bytes.len().min(start + WIDTH)];
                padded[..rest.len()].copy_from_slice(rest);
                &padded[..WIDTH + 8]
            }
        };
        for (i, out) in out.iter_mut().enumerate() {
            let bit = i * WIDTH;
            let mut word = [0; 8];
            word.copy_from_slice(&from[bit / 8..bit / 8 + 8]);
            *out = (u64::from_le_bytes(word) >> (bit % 8)) as u32 & mask(WIDTH);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Packs numbers as the format requires, with the least significant bit first.
    fn packed(numbers: &[u32], width: usize) -> Vec<u8> {
        let mut bytes = vec![0; (numbers.len() * width).div_ceil(8)];
        for (i, number) in numbers.iter().enumerate() {
            for bit in 0..width {
                let at = i * width + bit;
                bytes[at / 8] |= ((number >> bit & 1) as u8) << (at % 8);
            }
        }
        bytes
    }

    fn varint(mut x: u64, bytes: &mut Vec<u8>) {
        while x >= 0x80 {
            bytes.push(x as u8 | 0x80);
            x >>= 7;
        }
        bytes.push(x as u8);
    }

    proptest! {
        #[test]
        fn numbers_come_back_however_they_are_asked_for(
            width in 0usize..=32,
            runs in prop::collection::vec((any::<bool>(), 1usize..40, any::<u32>()), 1..8),
            pieces in prop::collection::vec(1usize..70, 1..20),
        ) {
            let limit = if width == 0 { 0 } else { mask(width) };
            let (mut bytes, mut numbers) = (Vec::new(), Vec::new());
            for (repeats, count, seed) in runs {
                if repeats {
                    let value = seed & limit;
                    varint((count as u64) << 1, &mut bytes);
                    bytes.extend(&value.to_le_bytes()[..width.div_ceil(8)]);
                    numbers.extend(std::iter::repeat_n(value, count));
                } else {
                    let values: Vec<u32> =
                        (0..count as u32 * 8).map(|i| seed.wrapping_mul(i * 2 + 1) & limit).collect();
                    varint((count as u64) << 1 | 1, &mut bytes);
                    bytes.extend(packed(&values, width));
                    numbers.extend(values);
                }
            }
            let mut runs = Runs::new(bytes.into(), width).unwrap();
            let mut at = 0;
            for piece in pieces.into_iter().cycle() {
                let piece = piece.min(numbers.len() - at);
                if piece == 0 {
                    break;
                }
                let wanted = &numbers[at..at + piece];
                if !runs.pass_over(piece, wanted[0]) {
                    let mut found = vec![0; piece];
                    prop_assert_eq!(runs.fill(&mut found), Some(()));
                    prop_assert_eq!(&found, wanted);
                } else {
                    prop_assert!(wanted.iter().all(|x| *x == wanted[0]));
                }
                at += piece;
            }
            prop_assert_eq!(runs.fill(&mut [0]), None);
        }

        #[test]
        fn noise_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), width in 0usize..=32) {
            let mut runs = Runs::new(bytes.into(), width).unwrap();
            let mut out = [0; 33];
            for _ in 0..40 {
                if runs.fill(&mut out).is_none() {
                    break;
                }
            }
        }
    }
}
