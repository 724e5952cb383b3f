//! Tests of the reader on files in a bucket, without a job. The batches must be those of the same
//! files on this machine, also if requests fail, if hardly anything fits into memory, and from any
//! position on.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;
use zillion_device::{Files, Workers};
use zillion_feature::{Batch, Cursor, Schema};
use zillion_reader::{BatchOrder, DataConfig, Dataset, Paths, Result, Stores, statistics};
use zillion_store::{Environment, Store};

use super::environment;
use super::proxy::{Fault, Proxy, storm};
use super::s3::{Create, S3Server};
use crate::formats::{as_json, record_batch, write_arrow};
use crate::harness::{JOB, csv};

/// The folder of the data in the bucket.
const ROOT: &str = "s3://models/data";

/// The files of one data set in every format, in a folder of this machine.
fn write_formats(folder: &Path, rows: usize) {
    let text = csv(0, rows);
    let write = |name: &str, text: &[u8]| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("our own folder");
        std::fs::write(path, text).expect("our own file");
    };
    write("train.csv", text.as_bytes());
    write("train.jsonl", as_json(&text).as_bytes());
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, text.as_bytes()).expect("a vector takes bytes");
    write("train.csv.gz", &packed.finish().expect("a vector takes bytes"));
    let (header, lines) = text.split_once('\n').expect("a header");
    let lines: Vec<&str> = lines.lines().collect();
    for (name, part) in [
        ("parts/a.csv", &lines[..400]),
        ("parts/a-b.csv", &lines[400..700]),
        ("parts/a/day=2/c.csv", &lines[700..]),
    ] {
        write(name, format!("{header}\n{}\n", part.join("\n")).as_bytes());
    }
    write("parts/_SUCCESS", b"");
    write_arrow(&folder.join("train.arrow"), &text);
    write_parquet(&folder.join("train.parquet"), &text, 300);
}

fn write_parquet(path: &Path, text: &str, group_rows: usize) {
    let batch = record_batch(text);
    let file = std::fs::File::create(path).expect("a file");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows));
    let writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build()));
    let mut writer = writer.expect("a writer");
    writer.write(&batch).expect("it takes rows");
    writer.close().expect("it takes a footer");
}

/// Copies a folder into the bucket.
fn upload(server: &S3Server, folder: &Path) {
    let target = server.bucket().join("data");
    let copied = Command::new("cp").arg("-r").arg(folder).arg(target).status();
    assert!(copied.expect("cp runs").success());
}

fn stores(address: SocketAddr, more: &[(&str, &str)]) -> Stores {
    let own = environment(address).into_iter().map(|(name, value)| (name.to_owned(), value));
    let more = more.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    Stores::in_environment(own.chain(more).collect::<Environment>())
}

fn schema() -> Schema {
    Schema::from_job(&JOB.parse::<toml::Table>().expect("the job is TOML").into()).expect("a job")
}

/// Reads the batches of some files from a position on.
fn read(root: &Path, train: &str, stores: &Stores, from: Cursor) -> Result<Vec<Batch>> {
    let config = DataConfig {
        root: root.to_owned(),
        train: Paths::from(train),
        stores: stores.clone(),
        ..DataConfig::default()
    };
    let workers = Arc::new(Workers::new(NonZeroUsize::new(2).expect("two")).expect("a pool"));
    let dataset = Dataset::open(&config, &config.files(&config.train)?, &schema())?;
    let dataset = dataset.clone().with_statistics(statistics(&dataset, &workers)?);
    let order = BatchOrder { seed: 3, shuffle: true, batch_rows: 64, drop_last: false };
    dataset.batches(order, from, workers)?.map(|item| Ok(item?.0)).collect()
}

/// A bucket with the files of a folder.
struct Bucketful {
    server: S3Server,
    folder: TempDir,
}

impl Bucketful {
    fn new(rows: usize) -> Self {
        let (server, folder) = (S3Server::start(Create::Honoured), TempDir::new().expect("one"));
        write_formats(folder.path(), rows);
        upload(&server, folder.path());
        Self { server, folder }
    }
}

#[test]
fn batches_of_a_bucket_are_those_of_local_files() {
    let all = Bucketful::new(1500);
    let proxy = Proxy::start(all.server.address, storm(17, 30));
    for limits in [
        &[][..],
        // Ranges of one request hold several blocks, and hardly any block stays in memory.
        &[("ZILLION_STORE_FETCH_BYTES", "4000"), ("ZILLION_STORE_CACHE_BYTES", "10000")],
        &[("ZILLION_STORE_CACHE_BYTES", "1"), ("ZILLION_STORE_AT_ONCE", "1")],
    ] {
        let stores = stores(proxy.address, limits);
        for train in [
            "train.csv",
            "train.csv.gz",
            "train.jsonl",
            "train.arrow",
            "train.parquet",
            "parts",
            "parts/a*",
            "parts/**/*.csv",
            "parts/[a]/day=*/c.csv",
        ] {
            for from in [Cursor::default(), Cursor { epoch: 2, row: 320 }] {
                let local = read(all.folder.path(), train, &Stores::default(), from);
                let local = local.expect("the files are there");
                let remote = read(Path::new(ROOT), train, &stores, from).expect("it answers");
                assert!(!local.is_empty());
                assert!(remote == local, "{train} {limits:?} {from:?}");
            }
        }
        assert!(stores.sums().retries > 0);
    }
    // A glob that is not written for folders also matches the marker of a finished job.
    let star = read(Path::new(ROOT), "parts/*", &stores(proxy.address, &[]), Cursor::default());
    assert!(star.expect_err("it is no data").to_string().contains("_SUCCESS"));
}

/// Reads a file in the bucket, which `change` changes at its request `at`. Returns the error.
fn read_while_it_changes(name: &str, at: usize, change: fn(&Path)) -> String {
    let all = Bucketful::new(1500);
    let requests = Arc::new(AtomicUsize::new(0));
    let path: PathBuf = all.server.bucket().join("data").join(name);
    let (counted, wanted) = (requests.clone(), format!("/data/{name} "));
    let proxy = Proxy::start(all.server.address, move |head| {
        let is_read = head.starts_with("GET ") && head.contains(&wanted);
        if is_read && counted.fetch_add(1, Ordering::Relaxed) + 1 == at {
            change(&path);
        }
        Fault::None
    });
    let stores = stores(proxy.address, &[("ZILLION_STORE_AT_ONCE", "1")]);
    let result = read(Path::new(ROOT), name, &stores, Cursor::default());
    let error = result.expect_err("the object changes").to_string();
    assert!(requests.load(Ordering::Relaxed) >= at);
    assert!(error.contains(&format!("{ROOT}/{name}")), "{error}");
    error
}

#[test]
fn a_replaced_object_is_an_error_with_its_name() {
    let replace: fn(&Path) = |path| {
        let mut bytes = std::fs::read(path).expect("it is there");
        // The size stays the same, so that only the entity tag tells the two states apart.
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(path, bytes).expect("our own file");
    };
    for name in ["train.csv", "train.csv.gz", "train.jsonl", "train.parquet", "train.arrow"] {
        // At the first request, while the file is opened, and later.
        for at in [1, 4] {
            let error = read_while_it_changes(name, at, replace);
            assert!(error.contains("was replaced after it was opened"), "{name} {at}: {error}");
            assert!(error.contains("new data under new names"), "{name} {at}: {error}");
        }
    }
}

#[test]
fn a_removed_object_is_an_error_with_its_name() {
    let remove: fn(&Path) = |path| std::fs::remove_file(path).expect("our own file");
    for name in ["train.csv", "train.parquet"] {
        let error = read_while_it_changes(name, 4, remove);
        assert!(error.contains("was removed after it was opened"), "{name}: {error}");
    }
}

#[test]
fn an_object_that_is_listed_again_has_its_new_state() {
    let all = Bucketful::new(800);
    let stores = stores(all.server.address, &[]);
    let read = || read(Path::new(ROOT), "train.csv", &stores, Cursor::default());
    let before = read().expect("it answers");
    std::fs::write(all.server.bucket().join("data/train.csv"), csv(5, 800)).expect("our file");
    let after = read().expect("the new state is listed");
    assert_eq!(after.len(), before.len());
    assert!(after != before);
}

#[test]
fn lists_that_a_bucket_refuses_are_explained() {
    let all = Bucketful::new(800);
    let error = |train: &str, more: &[(&str, &str)]| {
        let stores = stores(all.server.address, more);
        let read = read(Path::new(""), train, &stores, Cursor::default());
        read.expect_err("there is no such data").to_string()
    };
    for (train, reason) in [
        ("s3://nowhere/data/*.csv", "create the bucket, or correct its name"),
        ("s3://models/data/none*.csv", "matches no file (looked for s3://models/data/none*.csv)"),
        ("s3://models/none", "matches no file"),
        ("s3://models/data/[.csv", "is not a valid glob"),
        ("http://models/data/train.csv", "the kind of store is unknown"),
    ] {
        let error = error(train, &[]);
        assert!(error.contains(reason), "{train}: {error}");
    }
    let denied = error("s3://models/data/*.csv", &[("AWS_SECRET_ACCESS_KEY", "another secret")]);
    assert!(denied.contains("403") && denied.contains("credentials"), "{denied}");
    assert!(!denied.contains("another secret"), "{denied}");
}

/// Measures how fast files are read from the bucket and from this machine. The objects are written
/// through the store, because the server computes the entity tag of other files for each request.
#[test]
#[ignore = "a measurement for docs/BENCHMARKS.md"]
fn measure_reading_from_a_bucket() {
    let (server, folder) = (S3Server::start(Create::Honoured), TempDir::new().expect("one"));
    let text = csv(0, 400_000);
    std::fs::write(folder.path().join("train.csv"), &text).expect("our own file");
    write_parquet(&folder.path().join("train.parquet"), &text, 65_536);
    let limits = [
        ("ZILLION_STORE_FETCH_BYTES", "2097152"),
        ("ZILLION_STORE_CACHE_BYTES", "4194304"),
        ("ZILLION_STORE_REQUEST_MS", "30000"),
    ];
    let own = environment(server.address).into_iter().map(|(name, value)| (name.to_owned(), value));
    let more = limits.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let store = Store::open_in(&own.chain(more).collect(), ROOT, Files::new()).expect("a store");
    for name in ["train.csv", "train.parquet"] {
        let bytes = std::fs::read(folder.path().join(name)).expect("it is there");
        store.put(name, bytes.into()).expect("it takes objects");
        for turn in 0..3 {
            let time = |root: &Path, stores: &Stores| {
                let began = Instant::now();
                let batches = read(root, name, stores, Cursor::default()).expect("it answers");
                assert_eq!(batches.iter().map(|batch| batch.rows).sum::<usize>(), 400_000);
                began.elapsed().as_secs_f64()
            };
            let local = time(folder.path(), &Stores::default());
            let remote = time(Path::new(ROOT), &stores(server.address, &limits));
            eprintln!("{name} {turn}: local {local:.2} s, bucket {remote:.2} s");
        }
    }
}
