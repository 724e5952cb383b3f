//! Tests of damaged files. Each of them must cause an error, and never a panic or an endless loop.

use std::sync::Arc;

use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Int32Array, Int64Array, ListArray, StringArray,
};
use arrow_ipc::CompressionType;
use proptest::prelude::*;
use zillion_feature::Cursor;

use crate::fixture::{Folder, PLAIN, read, schema, write_ipc};

fn columns() -> Vec<(&'static str, ArrayRef)> {
    let user: ArrayRef =
        Arc::new(Int64Array::from_iter((0..500).map(|i| (i % 5 > 0).then_some(i * 77))));
    let city: ArrayRef =
        Arc::new(StringArray::from_iter((0..500).map(|i| Some(format!("c{}", i % 17)))));
    let label: ArrayRef = Arc::new(Int64Array::from_iter_values((0..500).map(|i| i % 2)));
    vec![("user", user), ("city", city), ("label", label)]
}

fn file() -> Vec<u8> {
    let folder = Folder::new();
    folder.write_parquet("a.parquet", columns(), 200);
    std::fs::read(folder.path("a.parquet")).unwrap()
}

/// Returns the bytes of an Arrow file with a list column and a dictionary column. All record
/// batches share the dictionary.
fn arrow_file(compression: Option<CompressionType>) -> Vec<u8> {
    let mut columns = columns();
    let tags = (0..500).map(|i| Some((0..i % 3).map(|j| Some(i + j)).collect::<Vec<_>>()));
    let tags = ListArray::from_iter_primitive::<Int64Type, _, _>(tags);
    let names = StringArray::from_iter_values((0..7).map(|i| format!("n{i}")));
    let entries = Int32Array::from_iter_values((0..500).map(|i| i % 7));
    let names: DictionaryArray<Int32Type> = DictionaryArray::new(entries, Arc::new(names));
    columns.push(("tags", Arc::new(tags)));
    columns.push(("name", Arc::new(names)));
    let folder = Folder::new();
    write_ipc(&folder.path("a.arrow"), columns, 200, compression);
    std::fs::read(folder.path("a.arrow")).unwrap()
}

fn damage(
    bytes: &mut Vec<u8>,
    flips: Vec<(prop::sample::Index, u8)>,
    cut: Option<prop::sample::Index>,
) {
    for (at, bits) in flips {
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn flipped_and_missing_bytes_of_parquet_files(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = file();
        damage(&mut bytes, flips, cut);
        let folder = Folder::new();
        folder.write("a.parquet", bytes);
        let job = schema("[features.user]\nkind='id'\n[features.city]\nkind='id'\ntype='string'\n[labels.label]");
        if let Ok(dataset) = folder.open(&["a.parquet"], &job) {
            let _ = read(&dataset, PLAIN, Cursor::default(), 1);
        }
    }

    #[test]
    fn flipped_and_missing_bytes_of_arrow_files(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..4),
        in_footer in any::<bool>(),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        compression in prop::sample::select(vec![None, Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME)]),
    ) {
        let mut bytes = arrow_file(compression);
        if in_footer {
            let mut end = bytes.split_off(bytes.len() - 1500);
            damage(&mut end, flips, cut);
            bytes.extend(end);
        } else {
            damage(&mut bytes, flips, cut);
        }
        let folder = Folder::new();
        folder.write("a.arrow", bytes);
        let job = schema(
            "[features.user]\nkind='id'\n[features.city]\nkind='id'\ntype='string'\n[features.tags]\nkind='ids'\n\
             [features.name]\nkind='id'\ntype='string'\n[labels.label]",
        );
        if let Ok(file) = zillion_reader::DataFile::open(&folder.config, &folder.path("a.arrow"))
            && let Some(arrays) = file.arrays()
            && let Ok(batches) = arrays.batches()
        {
            batches.take_while(Result::is_ok).for_each(drop);
        }
        if let Ok(dataset) = folder.open(&["a.arrow"], &job) {
            let _ = read(&dataset, PLAIN, Cursor::default(), 1);
        }
    }
}

#[test]
fn arrow_files_that_are_something_else_say_what() {
    let folder = Folder::new();
    let job = schema("[features.user]\nkind='id'\n[labels.label]");
    let whole = arrow_file(None);
    let of = |bytes: &[u8]| {
        folder.write("a.arrow", bytes);
        folder.error(&["a.arrow"], &job)
    };
    assert!(of(&whole[..whole.len() / 2]).contains("because it is probably incomplete"));
    assert!(of(b"").contains("a.arrow is empty"));
    assert!(of(b"FEA1 something").contains("Feather version 1"));
    assert!(of(&[0xff; 64]).contains("an Arrow stream"));
    assert!(of(b"user,label").contains("does not begin with ARROW1"));
    folder.write("a.arrow", &whole);
    let wrong = schema("[features.city]\nkind='id'\n[labels.label]");
    assert!(
        folder.error(&["a.arrow"], &wrong).contains("column `city` is a column of strings, but")
    );
    let user: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(-1)]));
    let label: ArrayRef = Arc::new(Int64Array::from(vec![0, 1]));
    assert!(label.is_valid(0));
    write_ipc(&folder.path("a.arrow"), vec![("user", user), ("label", label)], 1, None);
    let job = schema("[features.user]\nkind='id'\ntype='u64'\n[labels.label]");
    assert!(
        folder
            .error(&["a.arrow"], &job)
            .starts_with("column `user`, row 2 (record batch 1): \"-1\" is negative"),
    );
}
