//! The rules of the house that a compiler does not check.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::harness::root;

/// Who may know whom. `cli` and `tests` may know all.
const EDGES: [(&str, &[&str]); 9] = [
    ("feature", &[]),
    ("device", &[]),
    ("reader", &["feature", "device"]),
    ("embedding", &["feature", "device"]),
    ("nn", &["feature", "device"]),
    ("ps", &["feature", "device", "embedding"]),
    ("registry", &["feature", "device", "embedding", "nn"]),
    ("trainer", &["feature", "device", "reader", "embedding", "nn", "ps", "registry"]),
    ("serving", &["feature", "device", "embedding", "nn", "ps", "registry"]),
];

/// Words that mean a lock or an atomic on the way of a key.
const LOCKS: [&str; 5] = ["Mutex", "RwLock", "Atomic", "parking_lot", "RefCell<"];

fn folder_of(package: &str) -> &str {
    package.strip_prefix("zillion-").unwrap_or("cli")
}

fn is_ours(package: &str) -> bool {
    package == "zillion" || package.starts_with("zillion-")
}

#[test]
fn crates_know_only_whom_they_may() {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata runs");
    let edges: BTreeMap<&str, &[&str]> = EDGES.into_iter().collect();
    for package in &metadata.packages {
        let name = folder_of(&package.name);
        if name == "cli" || name == "tests" {
            continue;
        }
        let allowed = edges.get(name).unwrap_or_else(|| panic!("no rule for crate {name}"));
        for dependency in &package.dependencies {
            // Tests of a crate may lean on others; what ships may not.
            if dependency.kind == DependencyKind::Development || !is_ours(&dependency.name) {
                continue;
            }
            let other = folder_of(&dependency.name);
            assert!(allowed.contains(&other), "{name} must not know {other}");
        }
    }
}

#[test]
fn every_file_says_why_it_exists() {
    for (path, text) in sources(root()) {
        assert!(text.starts_with("//!"), "no //! header: {}", path.display());
    }
}

#[test]
fn unsafe_code_lives_in_device_only() {
    for (path, text) in sources(root()) {
        if path.starts_with(root().join("device")) || path.ends_with("tidy.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let found = ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|w| code.contains(w));
            assert!(!found, "unsafe outside device/: {}:{}", path.display(), number + 1);
        }
    }
}

#[test]
fn no_lock_stands_in_the_way_of_a_key() {
    for (path, text) in ["embedding", "ps"].iter().flat_map(|c| sources(&root().join(c))) {
        let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
        for (number, line) in text[..tests].lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for word in LOCKS {
                assert!(!code.contains(word), "{word} in {}:{}", path.display(), number + 1);
            }
        }
    }
}

#[test]
fn nothing_is_left_unfinished() {
    // In pieces, so that this file does not find itself.
    let words = [["to", "do!("].concat(), ["unimple", "mented!("].concat(), ["FIX", "ME"].concat()];
    for (path, text) in sources(root()) {
        for word in &words {
            assert!(!text.contains(word), "{word} in {}", path.display());
        }
    }
}

fn sources(top: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be listed") {
            let path = entry.expect("the folder can be listed").path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if path.is_dir() && name != "target" && name != "fixtures" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).expect("sources are text");
                files.push((path, text));
            }
        }
    }
    files.sort();
    assert!(!files.is_empty(), "no sources below {}", top.display());
    files
}
