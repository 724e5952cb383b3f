//! Tests that compare the reading of CSV and TSV with a simple model.

use proptest::prelude::*;
use zillion_feature::{FeatureKey, Schema};

use crate::fixture::{Folder, PLAIN, read, rows, schema};
use zillion_feature::Cursor;

fn strings(columns: usize) -> Schema {
    let features: String =
        (0..columns).map(|i| format!("[features.c{i}]\nkind='id'\ntype='string'\n")).collect();
    schema(&format!("{features}[labels.label]"))
}

/// Returns the keys that the reader must return for the cells. An empty cell is a missing value.
fn expected(cells: &[Vec<String>]) -> Vec<Vec<FeatureKey>> {
    let key = |(i, cell): (usize, &String)| match cell.as_str() {
        "" => FeatureKey::missing(&format!("c{i}")),
        text => FeatureKey::from_text(text),
    };
    cells.iter().map(|row| row.iter().enumerate().map(key).collect()).collect()
}

fn found(folder: &Folder, name: &str, columns: usize) -> Vec<Vec<FeatureKey>> {
    let dataset = folder.open(&[name], &strings(columns)).unwrap();
    let batches = read(&dataset, PLAIN, Cursor::default(), 1).unwrap();
    let row =
        |batch: &zillion_feature::Batch, r: usize| batch.sparse.iter().map(|c| c.keys[r]).collect();
    batches.iter().flat_map(|(b, _)| (0..b.rows).map(move |r| row(b, r))).collect()
}

/// Writes a CSV file in the form of RFC 4180. If `quote_all` is true, cells that need no quotes are
/// quoted too.
fn write_csv(cells: &[Vec<String>], line_end: &str, quote_all: bool, last_end: bool) -> String {
    let columns = cells[0].len();
    let mut text: String = (0..columns).map(|i| format!("c{i},")).collect();
    text.push_str("label");
    for row in cells {
        text.push_str(line_end);
        for cell in row {
            if quote_all || cell.contains([',', '"', '\n', '\r']) {
                text.push_str(&format!("\"{}\",", cell.replace('"', "\"\"")));
            } else {
                text.push_str(&format!("{cell},"));
            }
        }
        text.push('1');
    }
    if last_end {
        text.push_str(line_end);
    }
    text
}

fn table() -> impl Strategy<Value = Vec<Vec<String>>> {
    let cell = prop_oneof!["[a-z0-9]{0,6}", "[ab,\"\n\r ]{0,8}", "[\u{feff}ä😀|\\\\'\t]{0,4}",];
    (1usize..4).prop_flat_map(move |columns| {
        prop::collection::vec(prop::collection::vec(cell.clone(), columns), 1..20)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_written_is_read(
        cells in table(),
        line_end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
        quote_all in any::<bool>(),
        last_end in any::<bool>(),
        mark in any::<bool>(),
    ) {
        // A quote in the middle of an unquoted cell is text. A quote at the start would open the
        // cell.
        let text = write_csv(&cells, line_end, quote_all, last_end);
        let mark = if mark { "\u{feff}" } else { "" };
        let folder = Folder::new();
        folder.write("a.csv", format!("{mark}{text}"));
        prop_assert_eq!(found(&folder, "a.csv", cells[0].len()), expected(&cells), "{:?}", text);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'"'), Just(b','), Just(b'\n'), Just(b'1')], 0..300),
        header in any::<bool>(),
        quoted in any::<bool>(),
    ) {
        let quote = if quoted { "\"" } else { "" };
        let folder = Folder::with(&format!("quote = '{quote}'"));
        let mut file = if header { b"c0,n,s,label\n".to_vec() } else { Vec::new() };
        file.extend(bytes);
        folder.write("a.csv", &file);
        let job = schema(
            "[features.c0]\nkind='id'\n[features.n]\nkind='numeric'\n[features.s]\nkind='ids'\ntype='string'\n[labels.label]",
        );
        if let Ok(dataset) = folder.open(&["a.csv"], &job) {
            let _ = read(&dataset, PLAIN, Cursor::default(), 1);
        }
    }
}

#[test]
fn large_files_with_and_without_quotes_keep_every_row() {
    // The text has several chunks. Quoted line ends lie before, at and after the end of a chunk.
    for quoted in [false, true] {
        let folder = Folder::new();
        let cells: Vec<Vec<String>> = (0..150_000)
            .map(|i| {
                let odd = quoted && i % 7 == 0;
                vec![format!("{i}{}", if odd { "\n\"x\r\n" } else { "" }), "abcdefgh".repeat(i % 4)]
            })
            .collect();
        folder.write("a.csv", write_csv(&cells, "\r\n", false, false));
        assert!(found(&folder, "a.csv", 2) == expected(&cells), "quoted: {quoted}");
    }
}

#[test]
fn delimiters_quotes_names_and_null_markers_can_be_set() {
    let job = schema(
        "[features.user]\nkind='id'\n[features.tags]\nkind='ids'\ntype='string'\n[features.age]\nkind='numeric'\nmissing=-1\n[labels.label]",
    );
    let plain = Folder::new();
    plain.write("a.csv", "user,tags,age,label\n7,x|y,3,1\n,,,0\n-1,|z|,2.5,1\n");
    let wanted = plain.rows(&["a.csv"], &job);
    assert!(wanted[1].contains("[-1.0]"), "{}", wanted[1]);

    let other = Folder::with(
        "format = 'csv'\nheader = ['label', 'user', 'tags', 'age']\ndelimiter = ';'\nquote = \"'\"\nnull = ['NULL', '\\N']\nlist_separator = ' '",
    );
    other.write("a.data", "1;7;'x y';3\r\n0;NULL;\\N;NULL\r\n1; -1 ;z \\N;2.5\r\n");
    assert_eq!(other.rows(&["a.data"], &job), wanted);

    let tabs = Folder::with("quote = ''");
    tabs.write("a.tsv", "user\ttags\tage\tlabel\n7\tx|y\t3\t1\n\t\t\t0\n-1\tz\t2.5\t1\n");
    assert_eq!(tabs.rows(&["a.tsv"], &job), wanted);
    tabs.write("b.tsv", "user\ttags\tage\tlabel\n7\t\"|\t3\t1\n");
    let quote = FeatureKey::from_text("\"");
    assert!(tabs.rows(&["b.tsv"], &job)[0].contains(&format!("{quote:?}")));
}

#[test]
fn compressed_files_read_like_plain_ones() {
    let folder = Folder::new();
    let job = schema("[features.user]\nkind='id'\n[labels.label]");
    let text: String = "user,label\n".to_owned()
        + &(0..200_000).map(|i| format!("{},{}\n", i * 7919, i % 2)).collect::<String>();
    folder.write("a.csv", &text);
    folder.write_gzip("a.csv.gz", text.as_bytes());
    folder.write_zstd("a.csv.zst", text.as_bytes());
    // The file has several gzip members or zstd frames, as `cat` and parallel compressors write
    // them.
    let (head, tail) = text.as_bytes().split_at(700_001);
    folder.write_gzip("head", head);
    folder.write_gzip("tail", tail);
    let both =
        [std::fs::read(folder.path("head")).unwrap(), std::fs::read(folder.path("tail")).unwrap()];
    folder.write("b.csv.gz", both.concat());
    let wanted = folder.rows(&["a.csv"], &job);
    for name in ["a.csv.gz", "a.csv.zst", "b.csv.gz"] {
        assert!(folder.rows(&[name], &job) == wanted, "{name}");
    }
}

#[test]
fn several_labels_may_be_missing_and_one_may_not() {
    let job = schema("[features.user]\nkind='id'\n[labels.click]\n[labels.buy]");
    let folder = Folder::new();
    folder.write("a.csv", "user,click,buy\n1,1,\n2,0,1\n");
    let dataset = folder.open(&["a.csv"], &job).unwrap();
    let batches = read(&dataset, PLAIN, Cursor::default(), 1).unwrap();
    let labels = &batches[0].0.labels;
    assert_eq!((labels[0].values.as_slice(), &labels[0].mask), ([1.0, 0.0].as_slice(), &None));
    assert_eq!(labels[1].mask.as_deref(), Some([false, true].as_slice()));
    assert_eq!(rows(&batches).len(), 2);
}
