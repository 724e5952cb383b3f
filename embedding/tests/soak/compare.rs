//! The functions that compare bits and files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use zillion_feature::RowBuffer;

pub(crate) fn assert_same_rows(a: &RowBuffer, b: &RowBuffer, what: &str) {
    assert_eq!(a.tables.len(), b.tables.len());
    for (table, (a, b)) in a.tables.iter().zip(&b.tables).enumerate() {
        assert_eq!((a.stride, a.values.len()), (b.stride, b.values.len()), "{what}: table {table}");
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        if let Some(at) = a.values.iter().zip(&b.values).position(differs) {
            let row = at / a.stride;
            let (a, b) = (a.row(row), b.row(row));
            panic!("{what}: table {table}, row {row} of the plan is {a:?} here and {b:?} there");
        }
        assert_eq!(a.counts, b.counts, "{what}: counts of table {table}");
    }
}

/// Checks that the files below two folders have the same names and bytes.
pub(crate) fn assert_same_files(a: &Path, b: &Path) {
    let names = files_below(a);
    assert_eq!(names, files_below(b), "names of files");
    assert!(!names.is_empty(), "a checkpoint without a file");
    for name in names {
        let same = std::fs::read(a.join(&name)).unwrap() == std::fs::read(b.join(&name)).unwrap();
        assert!(same, "bytes of {}", name.display());
    }
}

fn files_below(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    found
}
