//! The conversion of arrays to labels.

use arrow_array::ArrayRef;
use arrow_array::cast::AsArray;

use super::bad::Bad;
use super::numbers::{scan, scan_values};
use super::texts::{TextRules, is_text, texts};
use crate::value::{self, LabelRule, Outcome};

/// Calls `visit` with the label in each row of an array, with `None` if the row has no value, or
/// with the reason why the value is not a label.
pub(super) fn scan_labels(
    array: &ArrayRef,
    rule: &LabelRule,
    rules: &TextRules,
    mut visit: impl FnMut(Outcome<Option<f32>>) -> Outcome<()>,
) -> Result<(), Bad> {
    if let LabelRule::Values(values) = rule {
        if is_text(array) {
            return texts(array, |text| match rules.present(text) {
                Some(text) => visit(value::label_from(values.of_text(text.bytes()))),
                None => visit(Ok(None)),
            });
        }
        if let Some(flags) = array.as_boolean_opt() {
            return scan_values(flags.iter(), |flag| match flag {
                Some(flag) => visit(value::label_from(values.of_flag(flag))),
                None => visit(Ok(None)),
            });
        }
    }
    if let LabelRule::Class(classes) = rule
        && is_text(array)
    {
        return texts(array, |text| match rules.present(text) {
            Some(text) => visit(classes.find_text(text.bytes()).map(Some)),
            None => visit(Ok(None)),
        });
    }
    scan(array, |x| visit(x.map(|x| value::label(x, rule)).transpose()))
}
