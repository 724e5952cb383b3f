//! The conversion of arrays of lists to vectors of floats.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};

use super::bad::{Bad, unexpected};
use super::numbers::scan;
use super::texts::{TextRules, is_text, texts};
use crate::block::Lists;
use crate::derived::end_vector;
use crate::value::{self, Outcome};
use zillion_feature::raw_value::parse_f64;

/// Appends the vectors of an array of lists of numbers, or of texts with numbers. `for_request`
/// tells whether a missing vector is an empty list; otherwise `missing` stands for its floats.
pub(super) fn vectors(
    array: &ArrayRef,
    size: usize,
    missing: Option<f32>,
    for_request: bool,
    rules: &TextRules,
    to: &mut Lists<f32>,
) -> Result<(), Bad> {
    let end = |to: &mut Lists<f32>, is_missing: bool| -> Outcome<()> {
        match is_missing && for_request {
            true => to.end(),
            false => end_vector(to, size, missing),
        }
    };
    if is_text(array) {
        return texts(array, |text| {
            let text = rules.present(text);
            if let Some(text) = &text {
                for part in rules.split_all(text.bytes()) {
                    let part = part.trim_ascii();
                    let is_missing = rules.is_missing(part);
                    let x = (!is_missing).then(|| parse_f64(part)).transpose()?;
                    to.values.push(value::vector_float(x)?);
                }
            }
            end(to, text.is_none())
        });
    }
    let Some(lists) = array.as_list_opt::<i32>() else {
        if array.null_count() == array.len() {
            return (0..array.len()).try_for_each(|row| {
                end(to, true).map_err(|refusal| Bad { row, refusal, text: None })
            });
        }
        unexpected(array)
    };
    let ends = lists.value_offsets();
    for row in 0..lists.len() {
        let (from, until) = (ends[row] as usize, ends[row + 1] as usize);
        let at = |refusal, text| Bad { row, refusal, text };
        let is_missing = lists.is_null(row);
        if !is_missing {
            let items = lists.values().slice(from, until - from);
            let read = scan(&items, |x| {
                to.values.push(value::vector_float(x)?);
                Ok(())
            });
            read.map_err(|bad| Bad { row, ..bad })?;
        }
        end(to, is_missing || from == until).map_err(|refusal| {
            at(refusal, Some(format!("a list of {}", until - from).into_bytes()))
        })?;
    }
    Ok(())
}
