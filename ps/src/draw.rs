//! The drawing of numbers that no other process draws.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

/// Returns the number that this process has drawn for itself.
pub(crate) fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(draw)
}

/// Draws a number above 0. The random keys of the standard library's hash maps come from the
/// system, and the process and the time are mixed in.
pub(crate) fn draw() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    hasher.write_u128(now.map_or(0, |now| now.as_nanos()));
    hasher.finish().max(1)
}
