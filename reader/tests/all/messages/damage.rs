//! Tests of damaged Arrow messages, and of messages that claim more than they weigh. Each of them
//! must be rejected or decoded, and never cause a panic or harm another message.

use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Int8Array, Int64Array, ListArray, NullArray, StringArray,
    StringViewArray,
};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_ipc::CompressionType;
use arrow_schema::{DataType, Field};
use proptest::prelude::*;
use zillion_reader::{MessageFormat, RejectionKind};

use super::arrow::{Columns, Frame, columns, message};
use super::{decode, job, rejection};
use crate::fixture::schema;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn a_damaged_message_harms_no_other(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
        words in prop::collection::vec((any::<prop::sample::Index>(), any::<i32>()), 0..2),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        in_front in any::<bool>(),
        layout in 0u8..60,
        frame in prop::sample::select(vec![Frame::Stream, Frame::File]),
        compression in prop::sample::select(
            vec![None, Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME)]),
    ) {
        let good = message(columns(0, 30, layout), 20, frame, compression);
        let mut bad = good.clone();
        // Most of the front is metadata.
        let reach = if in_front { bad.len() / 3 } else { bad.len() };
        for (at, bits) in flips {
            bad[at.index(reach)] ^= bits;
        }
        for (at, word) in words {
            let at = at.index(reach) / 4 * 4;
            bad[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        if let Some(cut) = cut {
            bad.truncate(cut.index(bad.len()));
        }
        let decoded = decode(MessageFormat::Arrow, &job(), &[&good, &bad, &good]);
        let wanted = decode(MessageFormat::Arrow, &job(), &[&good]);
        prop_assert_eq!((decoded.rows[0], decoded.rows[2]), (30, 30));
        let damaged = decoded.rows[1];
        prop_assert_eq!(decoded.batch.rows, 60 + damaged);
        if damaged == 0 {
            let twice = decode(MessageFormat::Arrow, &job(), &[&good, &good]);
            prop_assert_eq!(&decoded.batch, &twice.batch);
        } else {
            prop_assert!(decoded.rejected.is_empty());
        }
        let keys = |batch: &zillion_feature::Batch| batch.sparse[0].keys.clone();
        let (all, one) = (keys(&decoded.batch), keys(&wanted.batch));
        prop_assert_eq!(&all[..30], &one[..]);
        prop_assert_eq!(&all[30 + damaged..], &one[..]);
    }

    #[test]
    fn bytes_are_decoded_or_rejected(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        start in prop::sample::select(vec![&b""[..], b"ARROW1\0\0", b"\xff\xff\xff\xff\x10\0\0\0"]),
    ) {
        rejection(MessageFormat::Arrow, &job(), [start, &bytes].concat());
    }
}

fn with_label(name: &'static str, array: ArrayRef) -> Columns {
    let label = Int64Array::from(vec![0; array.len()]);
    vec![(name, array), ("click", Arc::new(label))]
}

/// Returns `rows` rows of a dictionary whose only entry has `length` bytes.
fn repeated(rows: usize, length: usize) -> ArrayRef {
    let entries = StringArray::from(vec!["x".repeat(length)]);
    Arc::new(DictionaryArray::<Int8Type>::new(Int8Array::from(vec![0; rows]), Arc::new(entries)))
}

#[test]
fn a_message_that_claims_more_than_it_weighs_is_rejected() {
    let job = schema(
        "[features.user]\nkind='ids'\ntype='string'\n[features.copy]\nkind='id'\ncolumn='user'\ntype='string'\n[labels.click]",
    );
    let numbers = schema("[features.user]\nkind='ids'\n[labels.click]");
    let nulls: ArrayRef = Arc::new(NullArray::new(1 << 40));
    let nulls = vec![("user", nulls.clone()), ("click", nulls)];
    let values: ArrayRef = Arc::new(NullArray::new(1 << 30));
    let offsets = OffsetBuffer::new(ScalarBuffer::from(vec![0, 1 << 30]));
    let item = Arc::new(Field::new("item", DataType::Null, true));
    let list: ArrayRef = Arc::new(ListArray::new(item, offsets, values, None));
    let zeros: ArrayRef = Arc::new(Int64Array::from(vec![0; 1 << 20]));
    let text = "x".repeat(100_000);
    let mut views = StringViewArray::from_iter_values([text.as_str()]);
    let view = views.views()[0];
    views = StringViewArray::new(
        ScalarBuffer::from(vec![view; 50_000]),
        vec![Buffer::from(text.as_bytes())],
        None,
    );
    for (name, job, columns, compression) in [
        ("nulls", &job, nulls, None),
        ("a list of nulls", &numbers, with_label("user", list), None),
        ("zeros", &numbers, with_label("user", zeros), Some(CompressionType::ZSTD)),
        ("a repeated entry", &job, with_label("user", repeated(20_000, 100_000)), None),
        ("repeated views", &job, with_label("user", Arc::new(views)), None),
    ] {
        for frame in [Frame::Stream, Frame::File] {
            let bytes = message(columns.clone(), usize::MAX, frame, compression);
            let rejection = rejection(MessageFormat::Arrow, job, &bytes);
            assert_eq!(rejection.kind, RejectionKind::Format, "{name}");
            let text = rejection.to_string();
            assert!(text.contains("which is too much for its size"), "{name}: {text}");
        }
    }
}

#[test]
fn a_dictionary_of_ids_is_read_once() {
    // One feature reads the column, so that no value is copied.
    let job = schema("[features.user]\nkind='id'\ntype='string'\n[labels.click]");
    let columns = with_label("user", repeated(20_000, 100_000));
    let decoded =
        decode(MessageFormat::Arrow, &job, &[message(columns, 20_000, Frame::Stream, None)]);
    assert_eq!((decoded.batch.rows, decoded.rejected.len()), (20_000, 0));
}
