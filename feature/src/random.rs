//! The counter-based random numbers, which are pure functions of their arguments.
//!
//! Zillion keeps no random state, because such a state could depend on the order of threads. A
//! dropout mask is a function of (seed, step, row, unit), an initial row is a function of (seed,
//! key, unit), and the order of rows is a function of (seed, epoch). The functions are small enough
//! to be inlined into vectorised loops.

/// Mixes 64 bits: the splitmix64 finaliser (a bijection).
#[inline(always)]
pub fn mix64(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a new seed from a seed and a word. `combine(combine(seed, a), b)` is the seed of the
/// stream (seed, a, b).
#[inline(always)]
pub fn combine(seed: u64, word: u64) -> u64 {
    mix64(seed ^ mix64(word))
}

/// Mixes 32 bits: "lowbias32" of Chris Wellons' hash-prospector search (a bijection). It is cheap
/// in SIMD, where 64-bit multiplies are not.
#[inline(always)]
pub fn mix32(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Maps 32 random bits to `[0, 1)` on a grid of 2⁻²⁴.
#[inline(always)]
pub fn unit_f32(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Returns a new seed from a seed and a text, so that the random numbers of a parameter depend on
/// its name and not on its position.
pub fn text_seed(seed: u64, text: &str) -> u64 {
    combine(seed, xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}

/// Returns a permutation of `0..n` that the seed determines (Fisher–Yates on counter-based draws).
pub fn permutation(seed: u64, n: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    for i in (1..order.len()).rev() {
        let draw = mix64(seed.wrapping_add(i as u64));
        // Multiply-shift into 0..=i: the bias of 2⁻³² is far below anything a shuffle can show.
        let j = ((u128::from(draw) * (i as u128 + 1)) >> 64) as usize;
        order.swap(i, j);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_is_one_and_depends_on_its_seed() {
        let a = permutation(1, 1000);
        let b = permutation(2, 1000);
        let mut sorted = a.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert_ne!(a, b);
        assert_eq!(a, permutation(1, 1000));
        assert!(permutation(3, 0).is_empty());
    }

    #[test]
    fn every_position_of_a_permutation_is_reached() {
        let mut first = [0usize; 8];
        for seed in 0..8000 {
            first[permutation(mix64(seed), 8)[0] as usize] += 1;
        }
        assert!(first.iter().all(|&n| (850..1150).contains(&n)), "{first:?}");
    }

    #[test]
    fn unit_numbers_are_uniform() {
        let n = 1 << 20;
        let mean = (0..n).map(|i| f64::from(unit_f32(mix32(i)))).sum::<f64>() / f64::from(n);
        assert!((mean - 0.5).abs() < 1e-3, "{mean}");
        assert!(unit_f32(u32::MAX) < 1.0);
    }
}
