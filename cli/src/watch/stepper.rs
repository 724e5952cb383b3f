//! The pauses after steps of training: a description of each batch, and a prompt for a person.

use std::fmt::Write as _;
use std::io::{self, BufRead, IsTerminal, Write as _};

use zillion_feature::{Batch, FeatureKey, FeatureSpec, LabelKind, Schema};
use zillion_trainer::InspectedStep;

use crate::ids::{IdKind, hex};

/// The number of rows of a batch that are shown: the rows with the largest loss.
const WORST: usize = 3;
/// The largest number of ids of a list that are shown.
const MOST_IDS: usize = 8;
const HELP: &str = "Enter: next step  c: continue  q: stop with a checkpoint  a number: continue for so many steps";

/// A prompt that pauses training. A person enters the number of steps to continue.
#[derive(Debug)]
pub(crate) struct Stepper {
    /// The number of steps until the next pause; `u64::MAX` if there are no more pauses.
    left: u64,
}

impl Default for Stepper {
    fn default() -> Self {
        Self { left: 1 }
    }
}

/// The answer of the user to the prompt.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The run continues for this number of steps.
    Run(u64),
    /// The run writes a checkpoint and ends.
    Stop,
}

impl Stepper {
    /// Counts a step. Returns whether training pauses after it.
    pub(crate) fn count_step(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// Waits for an answer. Returns whether the run must stop.
    pub(crate) fn ask(&mut self) -> bool {
        loop {
            eprint!("{}", if io::stdin().is_terminal() { "step> " } else { "" });
            let _ = io::stderr().flush();
            let mut line = String::new();
            let answer = match io::stdin().lock().read_line(&mut line) {
                Ok(n) if n > 0 => parse(line.trim()),
                // Standard input has ended or failed, so no other answer can come.
                _ => {
                    eprintln!("standard input has ended: training continues without pauses");
                    Some(Answer::Run(u64::MAX))
                }
            };
            match answer {
                Some(Answer::Stop) => return true,
                Some(Answer::Run(left)) => {
                    self.left = left;
                    return false;
                }
                None => eprintln!("{HELP}"),
            }
        }
    }
}

fn parse(line: &str) -> Option<Answer> {
    match line {
        "" => Some(Answer::Run(1)),
        "c" => Some(Answer::Run(u64::MAX)),
        "q" => Some(Answer::Stop),
        number => number.parse().ok().filter(|&steps| steps > 0).map(Answer::Run),
    }
}

/// Describes a step: its loss, its norms, and the rows with the largest loss.
pub(super) fn describe(step: &InspectedStep<'_>) -> String {
    let InspectedStep { schema, batch, .. } = *step;
    let mut text = format!(
        "step {}  epoch {}  rows {}..{}  loss {:.6}\ngradient norms: dense {:.3e}",
        step.step,
        step.epoch + 1,
        step.first_row,
        step.first_row + batch.rows as u64,
        step.loss,
        step.dense_norm
    );
    for (name, norm) in schema.tables.iter().zip(step.table_norms) {
        let _ = write!(text, ", {name} {norm:.3e}");
    }
    for (row, loss) in worst(step) {
        let label = batch.labels[0].values[row];
        let kind = schema.labels[0].kind;
        let (what, scores) = match kind {
            LabelKind::Binary => ("probability", step.logits),
            LabelKind::Class => ("probability", scores_of_class(step, label)),
            LabelKind::Number | LabelKind::Count => ("prediction", step.logits),
        };
        let label = match &schema.labels[0].classes {
            Some(classes) => classes.names().swap_remove(label as usize),
            None => label.to_string(),
        };
        let _ = write!(
            text,
            "\nrow {row}  loss {loss:.4}  {what} {:.4}  {} {label}\n   ",
            kind.predict_exactly(scores[row]),
            schema.labels[0].name
        );
        for (name, value) in values(schema, batch, row) {
            let _ = write!(text, " {name}={value}");
        }
    }
    text
}

/// Returns the rows of the batch with the largest loss in descending order, each with its loss. The
/// loss is the cross-entropy of a label of 0 or 1 or of classes, and the squared error of a number.
fn worst(step: &InspectedStep<'_>) -> Vec<(usize, f64)> {
    let Some(labels) = step.batch.labels.first() else { return Vec::new() };
    let known = |row: usize| labels.mask.as_ref().is_none_or(|mask| mask[row]);
    let loss = |row: usize| {
        let (x, y) = (f64::from(step.logits[row]), f64::from(labels.values[row]));
        let loss = match step.schema.labels[0].kind {
            // The binary cross-entropy of a logit, in a form that cannot overflow.
            LabelKind::Binary => x.max(0.0) - x * y + (-x.abs()).exp().ln_1p(),
            LabelKind::Class => -f64::from(scores_of_class(step, labels.values[row])[row]),
            kind => (kind.predict_exactly(step.logits[row]) - y).powi(2),
        };
        (row, loss)
    };
    let mut rows: Vec<(usize, f64)> = (0..step.logits.len().min(labels.values.len()))
        .filter(|&row| known(row))
        .map(loss)
        .collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    rows.truncate(WORST);
    rows
}

/// Returns the scores of the class with this index.
fn scores_of_class<'a>(step: &InspectedStep<'a>, class: f32) -> &'a [f32] {
    step.scores[class as usize]
}

/// Returns the name and the value of each feature of a row as text. Ids are shown as in the data,
/// except for ids of text, which are shown as hexadecimal keys.
fn values<'a>(schema: &'a Schema, batch: &'a Batch, row: usize) -> Vec<(&'a str, String)> {
    let (mut sparse, mut numeric) = (batch.sparse.iter(), batch.numeric.iter());
    let value = |feature: &'a FeatureSpec| {
        let text = match feature.table() {
            None => {
                let columns = numeric.by_ref().take(feature.numeric_width());
                let values: Vec<String> = columns.map(|values| values[row].to_string()).collect();
                Some(values.join(" "))
            }
            Some(_) => sparse.next().map(|column| keys(feature, column.row(row))),
        };
        (feature.name.as_str(), text.unwrap_or_default())
    };
    schema.features.iter().map(value).collect()
}

fn keys(feature: &FeatureSpec, keys: &[FeatureKey]) -> String {
    let missing = FeatureKey::missing(&feature.name);
    let kind = IdKind::of(&feature.kind);
    let one = |key: FeatureKey| match key == missing {
        true => "missing".to_owned(),
        false => kind.and_then(|kind| kind.recover(key)).unwrap_or_else(|| hex(key)),
    };
    match keys {
        [key] if feature.pooling().is_none() => one(*key),
        _ => {
            let shown: Vec<String> = keys.iter().take(MOST_IDS).map(|&key| one(key)).collect();
            let more = if keys.len() > MOST_IDS { ", .." } else { "" };
            format!("[{}{more}]", shown.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood() {
        assert_eq!(parse(""), Some(Answer::Run(1)));
        assert_eq!(parse("12"), Some(Answer::Run(12)));
        assert_eq!(parse("c"), Some(Answer::Run(u64::MAX)));
        assert_eq!(parse("q"), Some(Answer::Stop));
        for line in ["0", "-1", "quit", "1 2"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_pause_comes_after_as_many_steps_as_were_asked_for() {
        let mut stepper = Stepper { left: 3 };
        assert_eq!([0; 3].map(|_| stepper.count_step()), [false, false, true]);
        stepper.left = u64::MAX;
        assert!(!stepper.count_step());
    }
}
