//! A damaged file is an error like any other: it never panics, and never hangs.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, StringArray};
use proptest::prelude::*;
use zillion_feature::Cursor;

use crate::fixture::{Folder, PLAIN, read, schema};

fn file() -> Vec<u8> {
    let folder = Folder::new();
    let user: ArrayRef =
        Arc::new(Int64Array::from_iter((0..500).map(|i| (i % 5 > 0).then_some(i * 77))));
    let city: ArrayRef =
        Arc::new(StringArray::from_iter((0..500).map(|i| Some(format!("c{}", i % 17)))));
    let label: ArrayRef = Arc::new(Int64Array::from_iter_values((0..500).map(|i| i % 2)));
    folder.write_parquet("a.parquet", vec![("user", user), ("city", city), ("label", label)], 200);
    std::fs::read(folder.path("a.parquet")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn flipped_and_missing_bytes_of_parquet_files(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = file();
        for (at, bits) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = Folder::new();
        folder.write("a.parquet", bytes);
        let job = schema("[features.user]\nkind='id'\n[features.city]\nkind='id'\ntype='string'\n[labels.label]");
        if let Ok(dataset) = folder.open(&["a.parquet"], &job) {
            let _ = read(&dataset, PLAIN, Cursor::default(), 1);
        }
    }
}
