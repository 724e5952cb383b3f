//! The kind of file system of a folder.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the kind of the file system of `path` as the kernel names it (`ext4`, `tmpfs`, `nfs4`
/// …).
pub fn file_system_kind(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    parse_mounts(&fs::read_to_string("/proc/self/mounts").ok()?, &path)
}

/// Returns the kind of the file system that contains `path`. Of all mount points above `path`, the
/// longest one counts. If two file systems have the same mount point, the later one in the text
/// counts. Returns `None` if there is no such mount point.
fn parse_mounts(text: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in text.lines() {
        let mut words = line.split(' ');
        let (Some(_), Some(point), Some(kind)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let point = PathBuf::from(unescape(point));
        let depth = point.components().count();
        if path.starts_with(&point) && best.is_none_or(|(known, _)| depth >= known) {
            best = Some((depth, kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

/// Decodes the octal codes that the kernel writes for blanks, tabs, newlines and backslashes.
fn unescape(text: &str) -> String {
    let pairs = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    pairs.iter().fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_point_counts() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\nx /data\\040one nfs4 rw 0 0\n\
                      overlay /tmp overlay rw 0 0\n";
        let kind = |path: &str| parse_mounts(mounts, Path::new(path));
        assert_eq!(kind("/home/me").as_deref(), Some("ext4"));
        assert_eq!(kind("/tmp/x").as_deref(), Some("overlay"));
        assert_eq!(kind("/tmpx").as_deref(), Some("ext4"));
        assert_eq!(kind("/data one/y").as_deref(), Some("nfs4"));
        assert_eq!(parse_mounts("", Path::new("/")), None);
    }
}
