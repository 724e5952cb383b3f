//! The text of the label in a drafted job, and the notes about it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use toml::Value;
use zillion_datatools::{Amount, GuessedLabel};

use super::{feature_name, one_line, quoted};

/// Prints what the label was guessed to be, if the column does not hold 0 and 1.
pub(super) fn print_notes(label: &GuessedLabel) {
    if let (Some(classes), None) = (&label.classes, &label.at_least) {
        eprintln!("note: the label is one of {} classes", classes.count());
    }
    if let Some((bound, reason)) = &label.at_least {
        eprintln!("note: the label is 1 if `{}` is at least {bound}: {reason}", label.name);
    }
    if let Some(amount) = &label.amount {
        let kind = label_kind(amount);
        eprintln!(
            "note: the label `{}` is predicted as a number (kind \"{kind}\"): {}",
            label.name, amount.reason
        );
    }
    if let Some(texts) = &label.texts {
        eprintln!(
            "note: the label is 1 if `{}` is \"{}\": {}",
            label.name, texts.positive, texts.reason
        );
    }
}

/// Writes the section of the label.
pub(super) fn write(text: &mut String, label: &GuessedLabel) {
    let name = &label.name;
    let _ = writeln!(text, "\n[labels.{}]", feature_name(name, &mut BTreeSet::new()));
    let classes = label.classes.as_ref();
    let list = classes.and_then(|classes| Value::try_from(classes).ok());
    if let (Some(list), None) = (&list, &label.at_least) {
        let _ = writeln!(text, "column = {}", quoted(name));
        let _ = writeln!(text, "kind = \"class\"  # each class gets a probability");
        let _ = writeln!(text, "classes = {list}");
        return;
    }
    if let Some(amount) = &label.amount {
        let (kind, reason) = (label_kind(amount), one_line(&amount.reason));
        let _ = writeln!(text, "column = {}", quoted(name));
        let _ = writeln!(text, "kind = \"{kind}\"  # {reason}");
        if amount.huber_delta.is_some() {
            let median = Value::from(amount.median);
            let _ = writeln!(text, "mean = {median}  # the median, where the output begins");
        }
        if let Some(bound) = amount.bound.map(Value::from) {
            let _ =
                writeln!(text, "# Or 1 from a bound on, in place of `kind`: at_least = {bound}");
            let _ = writeln!(text, "# with `metric = \"auc\"` in [train.plateau].");
        }
        return;
    }
    let _ = writeln!(text, "column = {}  # 1 is what is predicted", quoted(name));
    if let Some((bound, reason)) = &label.at_least {
        let bound = Value::from(*bound);
        let _ = writeln!(text, "at_least = {bound}  # 1 from here on: {}", one_line(reason));
    }
    if let Some(texts) = &label.texts {
        let (positive, negative) = (quoted(&texts.positive), quoted(&texts.negative));
        let _ = writeln!(text, "positive = {positive}  # {}", one_line(&texts.reason));
        let _ = writeln!(text, "negative = {negative}  # any other value is an error");
    }
    if let Some(list) = list {
        let _ = writeln!(text, "# Or a probability for each value, in place of `at_least`:");
        let _ = writeln!(text, "# kind = \"class\"\n# classes = {list}");
    }
}

/// Returns the kind that a label of amounts has in a job.
fn label_kind(amount: &Amount) -> &'static str {
    if amount.is_count { "count" } else { "number" }
}
