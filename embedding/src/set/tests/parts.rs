//! Tests of parts that do not fit the checkpoint. Each part must be refused with the right message.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, UInt32Array, UInt64Array,
};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field, Schema};
use proptest::prelude::*;

use crate::TableSet;
use crate::testing::fixtures::*;
use zillion_rows::{Dtype, OptimizerSpec, PartSource, TableSpec, conformance};
use zillion_rows::{PartInfo, TableParts};

fn spec() -> TableSpec {
    let adagrad = OptimizerSpec::Adagrad { lr: 0.1, initial_accumulator: 0.0, eps: 1e-8 };
    table("ids", false, vec![segment("vector", 2, adagrad, 0.0)])
}

fn reopen(folder: &Path, parts: &[TableParts]) -> Result<TableSet, String> {
    let mut set = TableSet::new(vec![spec()], shards(3)).unwrap();
    set.restore(&workers(2), folder, parts).map_err(|e| e.to_string())?;
    Ok(set)
}

fn listing(parts: Vec<PartInfo>) -> Vec<TableParts> {
    let rows = parts.iter().map(|p| p.rows).sum();
    vec![TableParts {
        narrow: None,
        table: "ids".to_owned(),
        rows,
        dirty_epoch: 1,
        parts,
        candidates: None,
        filter: None,
        changes: None,
        digest: None,
    }]
}

/// Writes a part with the content that `write` produces, and returns its entry with the right hash.
fn forge(folder: &Path, write: impl FnOnce(&mut Vec<u8>)) -> Vec<TableParts> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    let file = "tables/ids/part-00000.arrow".to_owned();
    std::fs::create_dir_all(folder.join("tables/ids")).unwrap();
    std::fs::write(folder.join(&file), &bytes).unwrap();
    let blake3 = blake3::hash(&bytes).to_hex().to_string();
    listing(vec![PartInfo { file, rows: 2, bytes: bytes.len() as u64, blake3, slots: None }])
}

fn lists(width: i32, rows: usize, item: Field, values: Option<ArrayRef>) -> ArrayRef {
    let values =
        values.unwrap_or_else(|| Arc::new(Float32Array::from(vec![0.5; rows * width as usize])));
    Arc::new(FixedSizeListArray::try_new(Arc::new(item), width, values, None).unwrap())
}

/// Returns the columns of a valid part of two rows.
fn good() -> Vec<(&'static str, ArrayRef)> {
    let item = || Field::new("item", DataType::Float32, false);
    vec![
        ("key", Arc::new(UInt64Array::from(vec![5u64, 1 << 60]))),
        ("weights", lists(2, 2, item(), None)),
        ("state", lists(2, 2, item(), None)),
        ("count", Arc::new(UInt32Array::from(vec![1, 2]))),
        ("last_step", Arc::new(UInt64Array::from(vec![1u64, 2]))),
        ("dirty_epoch", Arc::new(UInt32Array::from(vec![1, 1]))),
    ]
}

fn metadata() -> Vec<(&'static str, &'static str)> {
    vec![
        ("zillion.format", "1"),
        ("zillion.segments", "vector:2:adagrad"),
        ("zillion.slots", "0..4096"),
        ("zillion.table", "ids"),
    ]
}

fn write(
    out: &mut Vec<u8>,
    columns: &[(&str, ArrayRef)],
    metadata: &[(&str, &str)],
    batches: usize,
) {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, column)| {
            Field::new(*name, column.data_type().clone(), column.null_count() > 0)
        })
        .collect();
    let metadata: std::collections::BTreeMap<String, String> =
        metadata.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let schema = Arc::new(Schema::new(fields).with_metadata(metadata));
    let batch = RecordBatch::try_new(schema.clone(), columns.iter().map(|c| c.1.clone()).collect())
        .unwrap();
    let mut writer = FileWriter::try_new(out, &schema).unwrap();
    (0..batches).for_each(|_| writer.write(&batch).unwrap());
    writer.finish().unwrap();
}

#[test]
fn a_good_part_written_by_others_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let parts = forge(folder.path(), |out| write(out, &good(), &metadata(), 1));
    assert_eq!(reopen(folder.path(), &parts).unwrap().rows(zillion_feature::TableId(0)), 2);
}

#[test]
fn every_malformed_part_is_refused_by_name() {
    type Columns = Vec<(&'static str, ArrayRef)>;
    let change = |name: &'static str, column: ArrayRef| -> Columns {
        good().into_iter().map(|c| if c.0 == name { (name, column.clone()) } else { c }).collect()
    };
    let nullable = || Field::new("item", DataType::Float32, true);
    let with_null: ArrayRef =
        Arc::new(Float32Array::from(vec![Some(1.0), None, Some(1.0), Some(1.0)]));
    let columns: Vec<(Columns, &str)> = vec![
        (good()[..5].to_vec(), "column `dirty_epoch` is missing"),
        ([good(), good()[..1].to_vec()].concat(), "7 columns instead of 6"),
        (
            [good()[1..2].to_vec(), good()[..1].to_vec(), good()[2..].to_vec()].concat(),
            "column 0 is `weights`",
        ),
        (change("count", Arc::new(UInt64Array::from(vec![1u64, 2]))), "column `count` is UInt64"),
        (
            change("weights", lists(3, 2, Field::new("item", DataType::Float32, false), None)),
            "column `weights` is",
        ),
        (
            change("state", lists(1, 2, Field::new("item", DataType::Float32, false), None)),
            "column `state` is",
        ),
        (change("weights", lists(2, 2, nullable(), Some(with_null))), "column `weights`"),
        (
            change("count", Arc::new(UInt32Array::from(vec![Some(1), None]))),
            "column `count` is UInt32 with nulls",
        ),
        (
            change("key", Arc::new(UInt64Array::from(vec![7u64, 7]))),
            "column `key`, row 1: key 0x0000000000000007 is the same",
        ),
        (
            change("key", Arc::new(UInt64Array::from(vec![7u64, 6]))),
            "column `key`, row 1: key 0x0000000000000006 is below",
        ),
        (
            change("last_step", Arc::new(UInt64Array::from(vec![1u64, 1 << 33]))),
            "column `last_step`, row 1",
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let refused = |parts: &[TableParts], expected: &str| {
        let message = reopen(folder.path(), parts).expect_err(expected);
        assert!(message.contains(expected), "{message}\n  does not say: {expected}");
        assert!(message.contains("tables/ids/part-00000.arrow"), "{message}");
    };
    for (columns, expected) in columns {
        refused(&forge(folder.path(), |out| write(out, &columns, &metadata(), 1)), expected);
    }
    for (key, value, expected) in [
        ("zillion.format", "2", "is `2`, but this version of Zillion reads `1`"),
        ("zillion.table", "users", "belongs to table `users`"),
        ("zillion.slots", "0..2048", "holds slots 0..2048 instead of 0..4096"),
        (
            "zillion.segments",
            "vector:2:adam",
            "are `vector:2:adam`, but those of the job are `vector:2:adagrad`",
        ),
    ] {
        let changed: Vec<_> =
            metadata().into_iter().map(|m| if m.0 == key { (key, value) } else { m }).collect();
        refused(&forge(folder.path(), |out| write(out, &good(), &changed, 1)), expected);
    }
    refused(&forge(folder.path(), |out| write(out, &good(), &metadata(), 0)), "0 record batches");
    refused(&forge(folder.path(), |out| write(out, &good(), &metadata(), 2)), "2 record batches");
    refused(&forge(folder.path(), |out| out.extend(b"no Arrow")), "no footer");
    refused(&forge(folder.path(), |out| out.extend([7; 100])), "not a valid part of a checkpoint");
    refused(
        &forge(folder.path(), |out| {
            out.extend([0; 50]);
            out.extend(1000i32.to_le_bytes());
            out.extend(b"ARROW1");
        }),
        "footer is longer than the file",
    );
    let mut parts = forge(folder.path(), |out| write(out, &good(), &metadata(), 1));
    parts[0].parts[0].rows = 3;
    parts[0].rows = 3;
    refused(&parts, "the file has 2 rows, but the checkpoint lists 3");
    parts[0].parts[0].bytes += 1;
    refused(&parts, "truncated or changed");
    std::fs::remove_file(folder.path().join(&parts[0].parts[0].file)).unwrap();
    refused(&parts, "check that it exists");
}

#[test]
fn a_row_of_another_parts_slots_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut parts = forge(folder.path(), |out| {
        let halves: Vec<_> = metadata()
            .into_iter()
            .map(|m| if m.0 == "zillion.slots" { (m.0, "0..2048") } else { m })
            .collect();
        let mut columns = good();
        columns[0].1 = Arc::new(UInt64Array::from(vec![5u64, 1 << 63]));
        write(out, &columns, &halves, 1);
    });
    let mut second = parts[0].parts[0].clone();
    second.file = "tables/ids/part-00001.arrow".to_owned();
    parts[0].parts.push(second);
    parts[0].rows = 4;
    let message = reopen(folder.path(), &parts).unwrap_err();
    assert!(
        message.contains(
            "column `key`, row 1: key 0x8000000000000000 belongs to slot 2048, but the part holds slots 0..2048"
        ),
        "{message}"
    );
}

#[test]
fn a_listing_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let good = forge(folder.path(), |out| write(out, &good(), &metadata(), 1));
    let refused = |change: &dyn Fn(&mut Vec<TableParts>), expected: &str| {
        let mut parts = good.clone();
        change(&mut parts);
        let message = reopen(folder.path(), &parts).expect_err(expected);
        assert!(message.contains(expected), "{message}\n  does not say: {expected}");
    };
    refused(&|p| p.clear(), "the checkpoint does not; use");
    refused(&|p| p.push(p[0].clone()), "lists this table twice");
    refused(&|p| p.push(TableParts { table: "x".into(), ..p[0].clone() }), "the job does not; use");
    refused(&|p| p[0].rows = 9, "the parts have 2 rows, but the table has 9");
    refused(&|p| p[0].parts.clear(), "no file has the slots 0..4096");
    refused(&|p| p[0].parts = vec![p[0].parts[0].clone(); 3], "lists 3");
    refused(
        &|p| p[0].parts[0].file = "../../etc/passwd".into(),
        "part 0 instead of `tables/ids/part-00000.arrow`",
    );
}

#[test]
fn a_table_beyond_its_cap_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let parts = forge(folder.path(), |out| write(out, &good(), &metadata(), 1));
    let spec = TableSpec { dense: true, max_rows: Some(1), ..spec() };
    let mut set = TableSet::new(vec![spec], shards(1)).unwrap();
    let message = set.restore(&workers(1), folder.path(), &parts).unwrap_err().to_string();
    assert!(message.contains("the limit of the table is 1"), "{message}");
}

#[test]
fn a_refused_checkpoint_leaves_the_tables_as_they_were() {
    let workers = workers(2);
    let mut set = filled(&workers, 3, 100);
    plain_step(&mut set, &workers, 1, 100);
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (parts, before) = checkpoint(&set, &workers, folder.path());
    let last = folder.path().join(&parts.last().unwrap().parts.last().unwrap().file);
    let mut bytes = std::fs::read(&last).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&last, bytes).unwrap();
    assert!(set.restore(&workers, folder.path(), &parts).is_err());
    assert!(checkpoint(&set, &workers, other.path()).1 == before);
}

/// Returns the checkpoint of a trained table that has every kind of segment.
fn trained() -> (tempfile::TempDir, Vec<TableParts>) {
    let workers = workers(1);
    let mut set = filled(&workers, 3, 50);
    (1..=3).for_each(|t| plain_step(&mut set, &workers, t, 60));
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    (folder, parts)
}

#[test]
fn a_flipped_bit_anywhere_is_refused_by_file_name() {
    let (folder, parts) = trained();
    let workers = workers(1);
    let files: Vec<&PartInfo> = parts.iter().flat_map(|t| &t.parts).collect();
    for draw in 0..400u64 {
        let random = zillion_feature::random::mix64(draw);
        let file = &files[draw as usize % files.len()].file;
        let path = folder.path().join(file);
        let whole = std::fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        let at = (random >> 8) as usize % bytes.len();
        bytes[at] ^= 1 << (random % 8);
        std::fs::write(&path, bytes).unwrap();
        let mut set = TableSet::new(everything(), shards(2)).unwrap();
        let message = set.restore(&workers, folder.path(), &parts).unwrap_err().to_string();
        assert!(message.contains("the file was changed") && message.contains(file), "{message}");
        let opened = PartSource::open(&workers, folder.path(), everything(), &parts);
        assert!(opened.unwrap_err().to_string().contains(file));
        std::fs::write(&path, whole).unwrap();
    }
}

proptest! {
    /// Checks that a part with arbitrary bytes and the right hash gives an error and never a panic.
    #[test]
    fn no_bytes_make_a_reader_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in 0usize..40) {
        let folder = tempfile::tempdir().unwrap();
        let parts = forge(folder.path(), |out| {
            write(out, &good(), &metadata(), 1);
            let at = at.index(out.len());
            out[at] = byte;
            // Some files are cut at the front, so that the rest still ends like an Arrow file.
            if cut < 10 {
                out.drain(..cut * 8);
            }
        });
        let _ = reopen(folder.path(), &parts);
    }

    #[test]
    fn a_search_finds_what_is_there_and_nothing_else(
        mut keys in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..200, (0u64..200).prop_map(|k| u64::MAX - k)], 1..300),
        probes in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..210, (0u64..210).prop_map(|k| u64::MAX - k)], 0..60),
    ) {
        keys.sort_unstable();
        keys.dedup();
        let sgd = OptimizerSpec::Sgd { lr: 0.1 };
        let spec = table("ids", true, vec![segment("v", 1, sgd, 0.0)]);
        let workers = workers(1);
        let mut set = TableSet::new(vec![spec.clone()], shards(1)).unwrap();
        let keys: Vec<_> = keys.into_iter().map(zillion_feature::FeatureKey).collect();
        set.prefill(&workers, zillion_feature::TableId(0), &keys).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let parts = write_snapshot(&mut set, &workers, folder.path(), &zillion_device::Files::new()).unwrap();
        let shape = crate::shape::TableShape::new(spec).unwrap();
        let opened = zillion_rows::part::open_rows(&workers, folder.path(), &[&shape], &[&parts[0]], &[zillion_rows::part::ALL_SLOTS], zillion_rows::part::Need::State).unwrap();
        let all = keys.iter().map(|k| k.0).chain(probes);
        for key in all.map(zillion_feature::FeatureKey) {
            let found = zillion_rows::part::RowPart::find_among(&opened[0], key);
            prop_assert_eq!(found.is_some(), keys.binary_search(&key).is_ok());
            if let Some((part, row)) = found {
                prop_assert_eq!(part.key(row), key);
            }
        }
    }
}

#[test]
fn a_checkpoint_is_a_row_source_for_any_optimizer() {
    let workers = workers(2);
    let mut set = filled(&workers, 3, 50);
    (1..=3).for_each(|t| plain_step(&mut set, &workers, t, 60));
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    let (expected, absent) = crate::set::tests::contents(&mut set, &workers);
    // The tables have another optimizer, as an evaluation job may have.
    let mut specs = everything();
    specs[0].segments[0].optimizer = OptimizerSpec::Sgd { lr: 1.0 };
    let mut source = PartSource::open(&workers, folder.path(), specs, &parts).unwrap();
    let default = crate::set::tests::defaults();
    conformance::check(&mut source, &expected, &absent, &default).unwrap();

    let mut specs = everything();
    specs[0].segments[0].dim = 8;
    let message = PartSource::open(&workers, folder.path(), specs, &parts).unwrap_err().to_string();
    assert!(message.contains("column `weights`"), "{message}");
    let mut specs = everything();
    specs[0].segments.reverse();
    let message = PartSource::open(&workers, folder.path(), specs, &parts).unwrap_err().to_string();
    assert!(
        message.contains("those of the job are `linear:1:ftrl,vector:16:rowwise_adagrad`"),
        "{message}"
    );
}

#[test]
fn any_arrow_reader_opens_a_part() {
    use arrow_array::cast::AsArray;
    let (folder, parts) = trained();
    for (spec, table) in everything().iter().zip(&parts) {
        for part in &table.parts {
            let file = std::fs::File::open(folder.path().join(&part.file)).unwrap();
            let mut reader = arrow_ipc::reader::FileReader::try_new(file, None).unwrap();
            let batch = reader.next().unwrap().unwrap();
            assert!(reader.next().is_none());
            assert_eq!(batch.num_rows() as u64, part.rows);
            let weights = batch.column_by_name("weights").unwrap().as_fixed_size_list();
            assert_eq!(weights.value_length() as usize, spec.layout().width());
            // The column of the state exists even if there is no state and its lists are empty.
            let state = batch.column_by_name("state").unwrap().as_fixed_size_list();
            assert_eq!(
                (state.value_length() as usize, state.len()),
                (spec.state_width(), batch.num_rows())
            );
            let bytes = spec.checkpoint_bytes_per_row() * part.rows;
            assert!((bytes..bytes + 8192).contains(&part.bytes), "{} for {bytes}", part.bytes);
        }
    }
}

#[test]
fn parts_keep_the_type_of_their_weights_and_another_one_is_refused() {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float16Type, Float32Type, UInt16Type};
    let workers = workers(2);
    let of = |dtype| TableSpec { dtype, ..spec() };
    for dtype in Dtype::ALL {
        let mut set = TableSet::new(vec![of(dtype)], shards(3)).unwrap();
        (1..=3).for_each(|t| plain_step(&mut set, &workers, t, 60));
        let folder = tempfile::tempdir().unwrap();
        let parts =
            write_snapshot(&mut set, &workers, folder.path(), &zillion_device::Files::new())
                .unwrap();
        let view = crate::TableView::open(&workers, folder.path(), of(dtype), &parts).unwrap();
        assert_eq!(view.rows(), parts[0].rows);
        assert_eq!(
            view.survey(&workers, 3).payload_bytes,
            set.statistics()[0].payload_bytes,
            "{dtype:?}"
        );

        // Any Arrow reader sees numbers, or the bits of bf16 with a note on their meaning.
        let file = std::fs::File::open(folder.path().join(&parts[0].parts[0].file)).unwrap();
        let mut reader = arrow_ipc::reader::FileReader::try_new(file, None).unwrap();
        let batch = reader.next().unwrap().unwrap();
        let keys =
            batch.column_by_name("key").unwrap().as_primitive::<arrow_array::types::UInt64Type>();
        let lists = batch.column_by_name("weights").unwrap().as_fixed_size_list();
        let DataType::FixedSizeList(item, _) = lists.data_type() else { unreachable!() };
        let said = item.metadata().get("zillion.dtype").map(String::as_str);
        let values: Vec<f32> = match dtype {
            Dtype::F32 => lists.values().as_primitive::<Float32Type>().values().to_vec(),
            Dtype::F16 => {
                let values = lists.values().as_primitive::<Float16Type>().values();
                values.iter().map(|x| x.to_f32()).collect()
            }
            Dtype::Bf16 => {
                let bits = lists.values().as_primitive::<UInt16Type>().values();
                bits.iter().map(|&b| f32::from_bits(u32::from(b) << 16)).collect()
            }
        };
        assert_eq!(said, (dtype == Dtype::Bf16).then_some("bf16"));
        for (&key, weights) in keys.values().iter().zip(values.chunks(2)) {
            let row = view.get(zillion_feature::FeatureKey(key)).unwrap();
            assert_eq!(*row.weights, *weights, "{dtype:?}");
        }

        for other in Dtype::ALL.into_iter().filter(|&other| other != dtype) {
            let mut set = TableSet::new(vec![of(other)], shards(2)).unwrap();
            let restored = set.restore(&workers, folder.path(), &parts).map_err(|e| e.to_string());
            let opened = PartSource::open(&workers, folder.path(), vec![of(other)], &parts);
            for message in [restored.unwrap_err(), opened.unwrap_err().to_string()] {
                assert!(message.contains("tables/ids/part-00000.arrow"), "{message}");
                let (stored, job) = (dtype.name(), other.name());
                let words = format!(
                    "of the part are {stored}, but the job's table has `dtype = \"{job}\"`"
                );
                assert!(message.contains(&words), "{message}");
            }
        }
        // Another dimension is refused by name too, for every type.
        let mut wider = of(dtype);
        wider.segments[0].dim = 3;
        let mut set = TableSet::new(vec![wider], shards(2)).unwrap();
        let message = set.restore(&workers, folder.path(), &parts).unwrap_err().to_string();
        assert!(message.contains("column `weights`") && message.contains("ids/part-"), "{message}");
    }
}

#[test]
fn an_empty_table_has_one_part_without_rows() {
    let workers = workers(1);
    let sgd = OptimizerSpec::Sgd { lr: 0.1 };
    let specs = vec![table("ids", false, vec![segment("v", 3, sgd, 0.0)])];
    let set = TableSet::new(specs.clone(), shards(2)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    assert_eq!((parts[0].rows, parts[0].parts.len()), (0, 1));
    let mut again = TableSet::new(specs, shards(3)).unwrap();
    again.restore(&workers, folder.path(), &parts).unwrap();
    assert_eq!(again.rows(zillion_feature::TableId(0)), 0);
}

/// Checks that a part of the first version of the format can still be read.
#[test]
fn the_bytes_of_the_format_are_pinned() {
    let (_folder, parts) = trained();
    let hashes: Vec<&str> =
        parts.iter().flat_map(|t| &t.parts).take(3).map(|p| &p.blake3[..16]).collect();
    assert_eq!(hashes, PINNED);
}

const PINNED: [&str; 3] = ["62472a69eeeab9fa", "11424ae8d5e7648a", "823df37e0e19d18c"];

#[test]
fn a_disk_that_fails_at_any_operation_is_an_error_with_the_files_name() {
    use zillion_device::Failpoint;
    use zillion_device::Files;
    use zillion_device::durable::Fault;
    let workers = workers(1);
    let mut set = filled(&workers, 3, 50);
    let counting = Arc::new(Failpoint::counting());
    let folder = tempfile::tempdir().unwrap();
    write_snapshot(&mut set, &workers, folder.path(), &Files::with_failpoints(counting.clone()))
        .unwrap();
    let operations = counting.operations();
    assert!(operations > 20, "{operations}");
    for at in 1..=operations {
        let files = Files::with_failpoints(Arc::new(Failpoint::new(at, Fault::Enospc)));
        let folder = tempfile::tempdir().unwrap();
        let error =
            write_snapshot(&mut set, &workers, folder.path(), &files).unwrap_err().to_string();
        assert!(error.contains("the disk is full"), "{at}: {error}");
    }
}
