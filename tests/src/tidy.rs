//! Tests of the rules of structure and style that the compiler does not check.

mod circles;
mod flags;
mod language;
mod sizes;
mod source;

use std::collections::BTreeMap;

use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::harness::{root, sources};

/// The crates that each crate may depend on. The crates `console`, `bench`, `cli`, `python` and
/// `tests` may depend on all crates.
const EDGES: &[(&str, &[&str])] = &[
    ("access", &["device"]),
    ("config", &[]),
    ("feature", &["config"]),
    ("device", &[]),
    ("reader", &["config", "feature", "device", "store"]),
    ("datatools", &["config", "feature", "device", "reader"]),
    ("rows", &["feature", "device"]),
    ("embedding", &["feature", "device", "rows"]),
    ("nn", &["config", "feature", "device"]),
    ("ps", &["access", "feature", "device", "rows", "embedding", "store"]),
    ("store", &["device"]),
    ("stream", &["device"]),
    ("registry", &["access", "feature", "device", "rows", "store"]),
    ("scorer", &["feature", "device", "rows", "nn", "registry"]),
    (
        "trainer",
        &[
            "config",
            "feature",
            "device",
            "reader",
            "rows",
            "embedding",
            "nn",
            "ps",
            "store",
            "stream",
            "registry",
            "scorer",
        ],
    ),
    ("serving", &["access", "config", "feature", "device", "rows", "store", "registry", "scorer"]),
];

/// The words that show a lock or an atomic. The crates that look up keys must not contain them
/// outside of tests.
const LOCKS: [&str; 10] = [
    "Mutex",
    "RwLock",
    "Atomic",
    "parking_lot",
    "RefCell<",
    "UnsafeCell",
    "Condvar",
    "OnceLock",
    "LazyLock",
    "mpsc",
];

/// The files of these crates that may contain such words, each with the words and the reason. None
/// of them is on the way of a key: they are used once for each frame, connection or process.
const MAY_LOCK: &[(&str, &[&str], &str)] = &[
    ("ps/src/conformance/maps.rs", &["Mutex"], "a home of the map in memory, for tests"),
    ("ps/src/draw.rs", &["OnceLock"], "a process draws its number once"),
    ("ps/src/etcd/calls.rs", &["Mutex"], "the login at etcd, which no step needs"),
    ("ps/src/remote/options.rs", &["Atomic"], "the flag that ends a wait for servers and trainers"),
    (
        "ps/src/remote/heart.rs",
        &["Mutex", "Atomic"],
        "a thread beside the trainer finds a server lost",
    ),
    ("ps/src/server.rs", &["mpsc"], "frames go from the thread of sockets to that of the tables"),
    (
        "ps/src/server/connection.rs",
        &["mpsc", "Atomic"],
        "frames and signs of life of a connection",
    ),
    ("ps/src/server/engine.rs", &["mpsc"], "the receiving end of the frames"),
    ("ps/src/server/figures.rs", &["Mutex", "Atomic"], "counters of frames, which metrics read"),
    ("ps/src/server/listener.rs", &["mpsc"], "the sending end of the frames"),
    ("ps/src/server/pool.rs", &["Mutex"], "the memory of frames that arrive, once for each piece"),
    (
        "ps/src/server/request.rs",
        &["mpsc", "Atomic", "OnceLock"],
        "answers and signs of life of a connection",
    ),
    (
        "ps/src/server/uploads.rs",
        &["Mutex", "Condvar"],
        "files of checkpoints wait for the threads that send them to a bucket",
    ),
];

fn folder_of(package: &str) -> &str {
    package.strip_prefix("zillion-").unwrap_or("cli")
}

fn is_ours(package: &str) -> bool {
    package == "zillion" || package.starts_with("zillion-")
}

#[test]
fn crates_depend_only_on_allowed_crates() {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata runs");
    let edges: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    for package in &metadata.packages {
        let name = folder_of(&package.name);
        if ["bench", "cli", "console", "python", "tests"].contains(&name) {
            continue;
        }
        let allowed = edges.get(name).unwrap_or_else(|| panic!("no rule for crate {name}"));
        for dependency in &package.dependencies {
            // The tests of a crate may depend on other crates, but its production code may not.
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

/// Checks that closures of vectorised functions are marked with `#[inline(always)]`. Without the
/// attribute, LLVM may compile the closure as a separate function. The closure then uses only the
/// baseline instructions, and nothing reports this.
#[test]
fn vectorised_closures_are_inlined() {
    for (path, text) in sources(root()) {
        if path.ends_with("tidy.rs") {
            continue;
        }
        let code: String = text.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
        for (at, _) in code.match_indices("vectorised(") {
            let call: String = code[at..].chars().take(60).filter(|c| !c.is_whitespace()).collect();
            let closure = call.starts_with("vectorised(|") || call.starts_with("vectorised(move|");
            assert!(!closure, "#[inline(always)] is missing: {}: {call}", path.display());
        }
    }
}

#[test]
fn no_lock_stands_in_the_way_of_a_key() {
    // Test files beside the sources of a crate may use locks.
    for (path, text) in ["embedding/src", "ps/src"].iter().flat_map(|c| sources(&root().join(c))) {
        let tests = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
        let allowed = MAY_LOCK.iter().find(|(file, ..)| path == root().join(file));
        let allowed = allowed.map_or(&[][..], |(_, words, _)| *words);
        let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
        for (number, line) in text[..tests].lines().map(code).enumerate() {
            for word in LOCKS.into_iter().filter(|word| !allowed.contains(word)) {
                assert!(!line.contains(word), "{word} in {}:{}", path.display(), number + 1);
            }
        }
        for word in allowed {
            let is_used = text[..tests].lines().map(code).any(|line| line.contains(word));
            assert!(is_used, "{} has no {word}; remove it from MAY_LOCK", path.display());
        }
    }
    for (file, ..) in MAY_LOCK {
        assert!(root().join(file).exists(), "{file} is in MAY_LOCK, but does not exist");
    }
}

#[test]
fn nothing_is_left_unfinished() {
    // The words are written in pieces, so that this test does not find its own file.
    let words = [["to", "do!("].concat(), ["unimple", "mented!("].concat(), ["FIX", "ME"].concat()];
    for (path, text) in sources(root()) {
        for word in &words {
            assert!(!text.contains(word), "{word} in {}", path.display());
        }
    }
}
