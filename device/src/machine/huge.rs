//! The kernel's settings for huge pages.

use std::fs;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicBool, Ordering};

/// The kernel's setting for transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// The kernel uses huge pages for all memory.
    Always,
    /// The kernel uses huge pages only for memory for which a program requests them, as the slabs
    /// do.
    Advised,
    /// The kernel uses no huge pages. Random access to large tables is then about half as fast. The
    /// command `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` turns them on.
    Never,
}

/// Returns the kernel's setting for transparent huge pages.
pub fn huge_pages() -> Option<HugePages> {
    parse_huge_pages(&fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?)
}

/// Returns whether reserved pages of 2 MiB (`vm.nr_hugepages`) should be used. The result is true
/// if the machine had reserved pages at the first call in this process, and if no request for such
/// pages has failed since. Fragmentation of memory does not affect reserved pages, and they are not
/// part of the resident memory.
#[cfg(target_os = "linux")]
pub(crate) fn has_reserved_pages() -> bool {
    static RESERVED: OnceLock<bool> = OnceLock::new();
    let are_reserved = *RESERVED.get_or_init(|| {
        let pages = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
        pages.is_ok_and(|pages| pages.trim().parse().is_ok_and(|pages: u64| pages > 0))
    });
    are_reserved && !REFUSED.load(Ordering::Relaxed)
}

/// Whether the system has refused memory for reserved pages that this process had already mapped.
#[cfg(target_os = "linux")]
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Stops the use of reserved pages, so that other processes can have them.
#[cfg(target_os = "linux")]
pub(crate) fn stop_using_reserved_pages() {
    REFUSED.store(true, Ordering::Relaxed);
}

/// Parses the word in brackets in a text such as "always [madvise] never".
fn parse_huge_pages(text: &str) -> Option<HugePages> {
    let chosen = text.split('[').nth(1)?.split(']').next()?;
    match chosen {
        "always" => Some(HugePages::Always),
        "madvise" => Some(HugePages::Advised),
        "never" => Some(HugePages::Never),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_brackets_counts() {
        assert_eq!(parse_huge_pages("always [madvise] never\n"), Some(HugePages::Advised));
        assert_eq!(parse_huge_pages("[always] madvise never"), Some(HugePages::Always));
        assert_eq!(parse_huge_pages("always madvise [never]"), Some(HugePages::Never));
        assert_eq!(parse_huge_pages("always [sometimes] never"), None);
        assert_eq!(parse_huge_pages(""), None);
    }
}
