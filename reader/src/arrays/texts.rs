//! The conversion of Arrow arrays of strings and byte strings to ids and keys.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_schema::DataType;
use zillion_feature::FeatureKey;
use zillion_feature::raw_value::{RawId, id_from_bytes};

use super::bad::{Bad, unexpected};
use crate::config::DataConfig;
use crate::value::Outcome;

/// The rules for strings in files of every format: the texts that stand for a missing value, and
/// the separator of ids.
#[derive(Clone, Debug)]
pub(crate) struct TextRules {
    null: Arc<[Vec<u8>]>,
    list_separator: u8,
}

impl TextRules {
    /// Returns the rules that the `[data]` section of a job sets.
    pub(crate) fn new(config: &DataConfig) -> Self {
        let null = config.null.iter().map(|text| text.clone().into_bytes()).collect();
        Self { null, list_separator: config.list_separator.byte() }
    }

    /// Returns whether a cell stands for a missing value: it is empty or one of the null markers.
    #[inline]
    pub(crate) fn is_missing(&self, text: &[u8]) -> bool {
        text.is_empty() || self.null.iter().any(|marker| marker == text)
    }

    /// Returns the ids of a multi-hot cell that are not missing, without the spaces around them.
    #[inline]
    pub(crate) fn split<'a>(&self, cell: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.split_all(cell).map(<[u8]>::trim_ascii).filter(|id| !self.is_missing(id))
    }

    /// Returns the parts of a cell between the separators of lists.
    pub(crate) fn split_all<'a>(&self, cell: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        cell.split(|&b| b == self.list_separator)
    }

    /// Returns the text, or `None` if there is no text or if the text stands for a missing value.
    #[inline]
    pub(super) fn present<'a>(&self, text: Option<Text<'a>>) -> Option<Text<'a>> {
        text.filter(|text| !self.is_missing(text.bytes()))
    }
}

/// The keys of the entries of a dictionary. These keys are computed once for all arrays that share
/// the dictionary.
#[derive(Clone, Debug, Default)]
pub(crate) struct DictionaryKeys {
    dictionary: Option<ArrayRef>,
    keys: Vec<FeatureKey>,
}

/// A text in UTF-8, or bytes that may or may not be UTF-8.
#[derive(Clone, Copy)]
pub(crate) enum Text<'a> {
    Valid(&'a str),
    Bytes(&'a [u8]),
}

impl Text<'_> {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Valid(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }

    #[inline]
    pub(super) fn id<I: RawId>(&self) -> Outcome<I> {
        match self {
            Self::Valid(text) => Ok(I::of_text(text)),
            Self::Bytes(bytes) => Ok(id_from_bytes(bytes)?),
        }
    }
}

/// Calls `visit` with each row of an array of strings or byte strings, or with `None` if the row
/// has no value. Does nothing if the array has another type.
pub fn visit_texts(array: &ArrayRef, mut visit: impl FnMut(Option<&[u8]>)) {
    if is_text(array) {
        let visited = texts(array, |text| {
            visit(text.as_ref().map(Text::bytes));
            Ok(())
        });
        debug_assert!(visited.is_ok(), "the visitor refuses nothing");
    }
}

/// Returns whether the array has a type that [`texts`] accepts.
pub(super) fn is_text(array: &ArrayRef) -> bool {
    use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
    matches!(array.data_type(), Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView)
}

/// Calls `visit` with the text of each row of an array, or with `None` if the row is null. Stops at
/// the first text that `visit` refuses.
pub(crate) fn texts<'a>(
    array: &'a ArrayRef,
    mut visit: impl FnMut(Option<Text<'a>>) -> Outcome<()>,
) -> Result<(), Bad> {
    let mut visit_row = |row: usize, text: Option<Text<'a>>| {
        visit(text).map_err(|refusal| Bad { row, refusal, text: text.map(|t| t.bytes().to_vec()) })
    };
    macro_rules! visit_all {
        ($strings:expr, $text:expr) => {
            $strings.iter().enumerate().try_for_each(|(row, text)| visit_row(row, text.map($text)))
        };
    }
    match array.data_type() {
        DataType::Utf8 => visit_all!(array.as_string::<i32>(), Text::Valid),
        DataType::LargeUtf8 => visit_all!(array.as_string::<i64>(), Text::Valid),
        DataType::Utf8View => visit_all!(array.as_string_view(), Text::Valid),
        DataType::Binary => visit_all!(array.as_binary::<i32>(), Text::Bytes),
        DataType::LargeBinary => visit_all!(array.as_binary::<i64>(), Text::Bytes),
        DataType::BinaryView => visit_all!(array.as_binary_view(), Text::Bytes),
        _ => unexpected(array),
    }
}

/// Appends the ids of an array of strings.
pub(super) fn text_ids<I: RawId>(
    array: &ArrayRef,
    missing: &I,
    rules: &TextRules,
    ids: &mut Vec<I>,
) -> Result<(), Bad> {
    texts(array, |text| {
        ids.push(match rules.present(text) {
            Some(text) => text.id()?,
            None => missing.clone(),
        });
        Ok(())
    })
}

/// Appends the keys of a dictionary array, whose rows refer to the strings of a dictionary.
pub(super) fn dictionary_keys(
    array: &ArrayRef,
    missing: FeatureKey,
    rules: &TextRules,
    cache: &mut DictionaryKeys,
    keys: &mut Vec<FeatureKey>,
) -> Result<(), Bad> {
    let Some(array) = array.as_dictionary_opt::<Int32Type>() else { unexpected(array) };
    let values = array.values();
    if !cache.dictionary.as_ref().is_some_and(|known| Arc::ptr_eq(known, values)) {
        cache.keys.clear();
        text_ids(values, &missing, rules, &mut cache.keys)?;
        cache.dictionary = Some(values.clone());
    }
    let entries = &cache.keys;
    keys.extend(array.keys().iter().map(|entry| {
        // In a damaged file, an index may lie beyond the end of the dictionary. Arrow checks the
        // indices too, but this code does not rely on that check.
        let entry = entry.and_then(|e| entries.get(e as usize));
        entry.copied().unwrap_or(missing)
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_around_the_ids_of_a_list_are_no_part_of_them() {
        let rules = TextRules { null: [b"NA".to_vec()].into(), list_separator: b',' };
        let ids: Vec<&[u8]> = rules.split(b"Action, Drama ,NA, NA,,Sci Fi").collect();
        assert_eq!(ids, [&b"Action"[..], b"Drama", b"Sci Fi"]);
    }
}
