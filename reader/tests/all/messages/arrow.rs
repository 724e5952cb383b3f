//! Tests of Arrow messages. They are compared with Arrow files.

use std::sync::Arc;

use arrow_array::types::{Int8Type, Int64Type};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int64Array, LargeStringArray, ListArray,
    NullArray, RecordBatch, StringArray, StringViewArray, TimestampMillisecondArray, UInt32Array,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{DictionaryHandling, FileWriter, IpcWriteOptions, StreamWriter};
use proptest::prelude::*;
use zillion_feature::Cursor;
use zillion_reader::{BatchOrder, MessageFormat, RejectionKind};

use super::{decode, job, known, rejection};
use crate::fixture::{Folder, read, schema, write_ipc};

pub(super) type Columns = Vec<(&'static str, ArrayRef)>;

/// The framing of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Frame {
    Stream,
    File,
}

/// Returns a message with `group` rows in each record batch.
pub(super) fn message(
    columns: Columns,
    group: usize,
    frame: Frame,
    compression: Option<CompressionType>,
) -> Vec<u8> {
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let all = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let starts = (0..all.num_rows()).step_by(group);
    let mut parts = starts.map(|start| all.slice(start, group.min(all.num_rows() - start)));
    let bytes = Vec::new();
    match frame {
        Frame::Stream => {
            let mut writer =
                StreamWriter::try_new_with_options(bytes, &all.schema(), options).unwrap();
            parts.try_for_each(|part| writer.write(&part)).unwrap();
            writer.into_inner().unwrap()
        }
        Frame::File => {
            let mut writer =
                FileWriter::try_new_with_options(bytes, &all.schema(), options).unwrap();
            parts.try_for_each(|part| writer.write(&part)).unwrap();
            writer.into_inner().unwrap()
        }
    }
}

fn dictionary(texts: impl Iterator<Item = Option<String>>) -> ArrayRef {
    let texts: Vec<Option<String>> = texts.collect();
    let texts = texts.iter().map(Option::as_deref);
    Arc::new(DictionaryArray::<Int8Type>::from_iter(texts))
}

/// Returns the columns of [`super::JOB`] for the rows `first..first + rows`, and columns that no
/// field reads. `layout` selects one of the layouts that Arrow has for the same values.
pub(super) fn columns(first: usize, rows: usize, layout: u8) -> Columns {
    let range = first as i64..(first + rows) as i64;
    let city = |i: i64| (i % 7 > 0).then(|| format!("c{}", i % 5));
    let cities: ArrayRef = match layout % 4 {
        0 => Arc::new(StringArray::from_iter(range.clone().map(city))),
        1 => Arc::new(LargeStringArray::from_iter(range.clone().map(city))),
        2 => Arc::new(StringViewArray::from_iter(range.clone().map(city))),
        _ => dictionary(range.clone().map(city)),
    };
    let tags = |i: i64| Some(format!("t{}|u{}", i % 3, i % 4));
    let tags: ArrayRef = match layout % 3 {
        0 => Arc::new(StringArray::from_iter(range.clone().map(tags))),
        1 => dictionary(range.clone().map(tags)),
        _ => Arc::new(NullArray::new(rows)),
    };
    let past = range.clone().map(|i| Some((0..i % 4).map(|j| Some(i + j)).collect::<Vec<_>>()));
    let flags = range.clone().map(|i| Some(i % 2 == 0));
    let ints = |of: fn(i64) -> Option<i64>| -> ArrayRef {
        Arc::new(Int64Array::from_iter(range.clone().map(of)))
    };
    let floats = |of: fn(i64) -> Option<f64>| -> ArrayRef {
        Arc::new(Float64Array::from_iter(range.clone().map(of)))
    };
    let words = range.clone().map(|i| Some(i as u32 / 3));
    let times = range.clone().map(|i| Some(1_700_000_000_000 + i));
    let mut columns: Columns = vec![
        ("unread", ints(Some)),
        ("user", ints(|i| (i % 11 > 0).then_some(i))),
        ("city", cities),
        ("tags", tags),
        ("past", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(past))),
        ("price", floats(|i| (i % 3 > 0).then_some(i as f64 / 4.0))),
        ("height", floats(|i| Some(i as f64 / 100.0))),
        ("click", Arc::new(BooleanArray::from_iter(flags))),
        ("watch", ints(|i| (i % 5 > 0).then_some(i % 9))),
        ("w", floats(|_| Some(0.5))),
        ("session", Arc::new(UInt32Array::from_iter(words))),
        ("time", Arc::new(TimestampMillisecondArray::from_iter(times))),
        ("unread words", Arc::new(StringArray::from_iter(range.map(city)))),
    ];
    columns.rotate_left(usize::from(layout) % 5);
    columns
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn messages_decode_as_files_do(
        sizes in prop::collection::vec((0usize..40, 1usize..20), 1..6),
        layouts in prop::collection::vec(0u8..60, 6),
        frame in prop::sample::select(vec![Frame::Stream, Frame::File]),
        compression in prop::sample::select(
            vec![None, Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME)]),
    ) {
        let folder = Folder::new();
        let (mut first, mut files, mut messages) = (0, Vec::new(), Vec::new());
        for (&(rows, group), &layout) in sizes.iter().zip(&layouts) {
            messages.push(message(columns(first, rows, layout), group, frame, compression));
            if rows > 0 {
                let name = format!("{first}.arrow");
                write_ipc(&folder.path(&name), columns(first, rows, layout), group, None);
                files.push(name);
            }
            first += rows;
        }
        let job = job();
        let decoded = decode(MessageFormat::Arrow, &job, &messages);
        prop_assert_eq!(&decoded.rejected, &[]);
        prop_assert_eq!(decoded.rows, sizes.iter().map(|(rows, _)| *rows).collect::<Vec<_>>());
        if files.is_empty() {
            prop_assert_eq!(decoded.batch.rows, 0);
            return Ok(());
        }
        let names: Vec<&str> = files.iter().map(String::as_str).collect();
        let dataset = folder.open(&names, &job).unwrap().with_statistics(known());
        let order = BatchOrder { seed: 0, shuffle: false, batch_rows: 1 << 20, drop_last: false };
        let batches = read(&dataset, order, Cursor::default(), 1).unwrap();
        prop_assert_eq!(batches.len(), 1);
        prop_assert_eq!(&decoded.batch, &batches[0].0);
    }
}

#[test]
fn large_messages_keep_every_row() {
    for frame in [Frame::Stream, Frame::File] {
        let whole = message(columns(0, 30_000, 3), 20_000, frame, None);
        let parts: Vec<Vec<u8>> =
            (0..30).map(|i| message(columns(i * 1000, 1000, 3), 300, frame, None)).collect();
        let (whole, parts) = (
            decode(MessageFormat::Arrow, &job(), &[whole]),
            decode(MessageFormat::Arrow, &job(), &parts),
        );
        assert_eq!((whole.batch.rows, parts.rejected.len()), (30_000, 0));
        assert_eq!(whole.batch, parts.batch);
    }
}

#[test]
fn a_stream_may_replace_or_extend_its_dictionaries() {
    let job = schema("[features.city]\nkind='id'\ntype='string'\n[labels.click]");
    // The dictionary of the second batch extends the first one. That of the third has other texts.
    let texts = [vec!["a", "b", "a"], vec!["a", "b", "c"], vec!["d", "a", "d"]];
    let plain = StringArray::from(texts.concat());
    let label = |rows: usize| -> ArrayRef { Arc::new(Int64Array::from(vec![1; rows])) };
    let wanted = vec![("city", Arc::new(plain) as ArrayRef), ("click", label(9))];
    let wanted = message(wanted, 9, Frame::Stream, None);
    let wanted = decode(MessageFormat::Arrow, &job, &[wanted]).batch;
    for handling in [DictionaryHandling::Resend, DictionaryHandling::Delta] {
        let options = IpcWriteOptions::default().with_dictionary_handling(handling);
        let batches = texts.iter().map(|texts| {
            let city = dictionary(texts.iter().map(|text| Some((*text).to_owned())));
            RecordBatch::try_from_iter([("city", city), ("click", label(3))]).unwrap()
        });
        let batches: Vec<RecordBatch> = batches.collect();
        let schema = batches[0].schema();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        let decoded = decode(MessageFormat::Arrow, &job, &[writer.into_inner().unwrap()]);
        assert_eq!((&decoded.batch, decoded.rejected.len()), (&wanted, 0), "{handling:?}");
    }
}

fn small(user: Vec<Option<i64>>, label: Vec<i64>) -> Columns {
    let users: ArrayRef = Arc::new(Int64Array::from(user));
    vec![("user", users), ("click", Arc::new(Int64Array::from(label)))]
}

#[test]
fn a_changed_column_is_named() {
    let job = schema("[features.user]\nkind='id'\n[labels.click]");
    let good = message(small(vec![Some(1)], vec![1]), 9, Frame::Stream, None);
    let of = |columns: Columns| {
        let bad = message(columns, 9, Frame::Stream, None);
        let decoded = decode(MessageFormat::Arrow, &job, &[&good, &bad, &good]);
        assert_eq!((decoded.rows.as_slice(), decoded.rejected.len()), (&[1, 0, 1][..], 1));
        assert_eq!(decoded.rejected[0].index, 1);
        decoded.rejected[0].rejection.clone()
    };
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    for (name, text) in [
        ("users", "column `user`: the column of feature `user` is missing; did you mean `users`?"),
        (
            "user",
            "column `user`: the column is a column of strings, but feature `user` needs whole",
        ),
    ] {
        let mut columns = small(vec![Some(1)], vec![1]);
        columns[0] = (name, texts.clone());
        let rejection = of(columns);
        assert_eq!(rejection.kind, RejectionKind::Columns);
        assert_eq!((rejection.column.as_deref(), rejection.row), (Some("user"), None));
        assert!(rejection.to_string().starts_with(text), "{rejection}");
    }
    let mut columns = small(vec![Some(1)], vec![1]);
    columns.push(columns[1].clone());
    assert!(of(columns).to_string().contains("column `click`: the column appears 2 times"));
}

#[test]
fn a_message_with_a_bad_row_has_no_rows() {
    let job = schema("[features.user]\nkind='id'\ntype='u64'\n[labels.click]");
    let users = vec![Some(1), None, Some(3), Some(4), Some(-5), Some(-6)];
    let bad = message(small(users, vec![0, 1, 0, 1, 0, 7]), 2, Frame::Stream, None);
    let good = message(small(vec![Some(8), Some(9)], vec![0, 1]), 2, Frame::Stream, None);
    let decoded = decode(MessageFormat::Arrow, &job, &[&bad, &good]);
    assert_eq!((decoded.rows.as_slice(), decoded.batch.rows), (&[0, 2][..], 2));
    let rejection = &decoded.rejected[0].rejection;
    assert_eq!((rejection.kind, rejection.row), (RejectionKind::Value, Some(5)));
    let text = rejection.to_string();
    assert!(text.starts_with("column `user`, row 5: \"-5\" is negative"), "{text}");
    // The first bad row is named, in whichever column it is.
    let first = message(small(vec![Some(1), Some(-2)], vec![2, 0]), 2, Frame::Stream, None);
    let text = super::rejection(MessageFormat::Arrow, &job, first).to_string();
    assert!(text.starts_with("column `click`, row 1: \"2\" is not 0 or 1"), "{text}");
}

#[test]
fn what_is_no_arrow_message_says_what() {
    let job = schema("[features.user]\nkind='id'\n[labels.click]");
    let file = message(small(vec![Some(1)], vec![1]), 9, Frame::File, None);
    let stream = message(small(vec![Some(1)], vec![1]), 9, Frame::Stream, None);
    for (message, problem) in [
        (&b""[..], "it is empty"),
        (b"FEA1 something", "it is Feather version 1"),
        (b"{\"user\":1,\"click\":1}", "it is cut off"),
        (&file[..file.len() - 1], "it begins as a file, but is cut off"),
        (b"ARROW1\0\0", "it begins as a file, but is cut off"),
        (&stream[..stream.len() / 2], "it is cut off"),
        (&[&stream[..], &stream].concat(), "bytes follow its end"),
        (&[0; 8], "it has no schema"),
    ] {
        let rejection = rejection(MessageFormat::Arrow, &job, message);
        assert_eq!(rejection.kind, RejectionKind::Format);
        let expected = format!("not a readable Arrow IPC stream or file ({problem});");
        assert!(rejection.to_string().starts_with(&expected), "{rejection}");
    }
}
