//! Counter-based random numbers, which are pure functions of their arguments.
//!
//! Zillion stores no state of random numbers, because such a state could depend on the order in
//! which threads run. A dropout mask is a function of the seed, the step, the row and the unit. An
//! initial row is a function of the seed, the key and the unit. The order of rows is a function of
//! the seed and the epoch. The functions are so small that the compiler can inline them into
//! vectorised loops.

/// Mixes 64 bits with the splitmix64 finaliser, which is a bijection.
#[inline(always)]
pub fn mix64(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Computes a new seed from a seed and a word. `combine(combine(seed, a), b)` is the seed of the
/// random stream with the coordinates (seed, a, b).
#[inline(always)]
pub fn combine(seed: u64, word: u64) -> u64 {
    mix64(seed ^ mix64(word))
}

/// Mixes 32 bits with "lowbias32" from the hash-prospector search of Chris Wellons, which is a
/// bijection. It is cheap in SIMD code, whereas 64-bit multiplications are expensive there.
#[inline(always)]
pub fn mix32(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Converts 32 random bits to a number from 0 (included) to 1 (excluded), in steps of 2⁻²⁴.
#[inline(always)]
pub fn unit_f32(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Computes a new seed from a seed and a text. It is used for parameters: their random numbers then
/// depend on their names and not on their positions.
pub fn text_seed(seed: u64, text: &str) -> u64 {
    combine(seed, xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}

/// Returns a permutation of `0..n` that depends only on the seed. It is made by Fisher–Yates
/// shuffling with counter-based draws.
pub fn permutation(seed: u64, n: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    for i in (1..order.len()).rev() {
        let draw = mix64(seed.wrapping_add(i as u64));
        // Multiply-shift maps the draw into 0..=i. Its bias of 2⁻³² is too small to be visible in a
        // shuffle.
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
