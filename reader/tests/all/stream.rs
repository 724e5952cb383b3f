//! Tests of streams, with and without labels.

use std::io::Cursor as Bytes;

use zillion_feature::Cursor;
use zillion_reader::{Dataset, Labels};

use crate::fixture::{Folder, PLAIN, read, rows, schema, workers};

#[test]
fn a_stream_reads_like_a_file_once() {
    let job = schema("[features.user]\nkind='id'\n[labels.label]");
    let folder = Folder::new();
    let text =
        "user,label\n".to_owned() + &(0..1000).map(|i| format!("{i},1\n")).collect::<String>();
    folder.write("a.csv", &text);
    folder.write_gzip("a.csv.gz", text.as_bytes());
    folder.write_zstd("a.csv.zst", text.as_bytes());
    let wanted = folder.rows(&["a.csv"], &job);
    for name in ["a.csv", "a.csv.gz", "a.csv.zst"] {
        let stream = Bytes::new(std::fs::read(folder.path(name)).unwrap());
        let dataset =
            Dataset::from_reader(&folder.config, stream, "standard input", &job, Labels::Required)
                .unwrap();
        assert_eq!(dataset.rows(), None);
        assert!(rows(&read(&dataset, PLAIN, Cursor::default(), 2).unwrap()) == wanted, "{name}");
        let error = read(&dataset, PLAIN, Cursor::default(), 2).unwrap_err().to_string();
        assert!(error.contains(" is a stream and can be read only once"), "{error}");
    }
}

#[test]
fn prediction_needs_no_labels() {
    let job = schema(
        "[features.user]\nkind='id'\n[labels.click]\n[labels.buy]\n[columns]\nweight='w'\ngroup='user'",
    );
    let folder = Folder::new();
    folder.write("a.csv", "user,buy\n1,0\n2,1\n");
    let error = folder.error(&["a.csv"], &job);
    assert!(error.starts_with("column `click` of label `click` is missing"), "{error}");
    let files = [folder.path("a.csv")];
    let dataset = Dataset::open_with(&folder.config, &files, &job, Labels::Optional).unwrap();
    let batch = read(&dataset, PLAIN, Cursor::default(), 1).unwrap().remove(0).0;
    assert_eq!(batch.rows, 2);
    assert!(batch.labels[0].values.is_empty());
    assert_eq!(batch.labels[1].values, [0.0, 1.0]);
    assert!(batch.weight.is_none() && batch.group.is_some());
    folder.write("b.csv", "usr\n1\n");
    let files = [folder.path("b.csv")];
    let error = Dataset::open_with(&folder.config, &files, &job, Labels::Optional).unwrap_err();
    assert!(error.to_string().starts_with("column `user` of feature `user` is missing"), "{error}");
}

#[test]
fn what_is_wrong_with_a_stream_is_said_by_its_name() {
    let job = schema("[features.user]\nkind='id'\n[labels.label]");
    let open = |bytes: &'static [u8]| {
        Dataset::from_reader(
            &Folder::new().config,
            Bytes::new(bytes),
            "standard input",
            &job,
            Labels::Optional,
        )
    };
    assert_eq!(
        open(b"").unwrap_err().to_string(),
        "standard input is empty; remove it from the list, or write it again"
    );
    assert!(
        open(b"PAR1....")
            .unwrap_err()
            .to_string()
            .contains("a Parquet file cannot be read from a stream")
    );
    let dataset = open(b"user\n1\nx\n").unwrap();
    let error =
        dataset.batches(PLAIN, Cursor::default(), workers(1)).unwrap().next().unwrap().unwrap_err();
    assert!(
        error.to_string().starts_with("column `user`, row 2 (byte 7): \"x\" is not a whole number"),
        "{error}"
    );
    assert!(error.to_string().ends_with(": standard input"), "{error}");
}
