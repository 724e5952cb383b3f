//! Answers: the outputs of a version for the rows of a request.

use zillion_feature::LabelKind;
use zillion_registry::VersionId;
use zillion_scorer::{RowScores, Servable};

use crate::error::{Result, ServeError};
use crate::text::shorten;

/// The answer of a version to the rows of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The number of the version that answered, from the first byte to the last.
    pub version: VersionId,
    /// The outputs by name, with one value per row.
    pub outputs: Vec<(String, Vec<f32>)>,
}

/// The name of the output of the first label, if the label is 0 or 1.
pub const PROBABILITIES: &str = "probabilities";
/// The name of the output of the first label, if the label is a number or a count.
pub const PREDICTIONS: &str = "predictions";
/// The name of the output with the score of the first label: its log odds, or the predicted number
/// or its logarithm. Only requests that name this output get it.
pub const LOGITS: &str = "logits";
/// The name of the output of a model that scores without labels.
pub const SCORES: &str = "scores";

impl Answer {
    /// Creates an answer from its version and outputs.
    pub fn of(version: VersionId, outputs: Vec<(String, Vec<f32>)>) -> Self {
        Self { version, outputs }
    }

    /// Chooses the outputs that were asked for by name, or all predictions if none was. The
    /// scores move into the answer; only scores that two outputs share are copied.
    ///
    /// # Errors
    /// Returns an error if the model has no output of a requested name, or if a name occurs twice.
    pub fn choose(servable: &Servable, mut scores: RowScores, names: &[String]) -> Result<Self> {
        let all = output_names(servable);
        check_names(&all, names)?;
        let chosen: Vec<&Output> = match names {
            [] => all.iter().filter(|output| output.by_default).collect(),
            names => names.iter().map(|name| find(&all, name)).collect::<Result<_>>()?,
        };
        let mut uses = vec![0usize; scores.logits.len()];
        chosen.iter().for_each(|output| uses[output.task] += 1);
        let mut outputs = Vec::with_capacity(chosen.len());
        for output in chosen {
            let logits = &mut scores.logits[output.task];
            uses[output.task] -= 1;
            let logits = match uses[output.task] {
                0 => std::mem::take(logits),
                _ => logits.clone(),
            };
            let values = match output.predicts {
                Some(kind) => logits.into_iter().map(|logit| kind.predict(logit)).collect(),
                None => logits,
            };
            outputs.push((output.name.clone(), values));
        }
        Ok(Self { version: servable.version(), outputs })
    }
}

/// Checks the names of the outputs that a request asks for, before its rows are scored.
///
/// # Errors
/// Returns an error if the model has no output of a name, or if a name occurs twice: an answer has
/// at most as many values as the model computes.
pub(crate) fn check_outputs(servable: &Servable, names: &[String]) -> Result<()> {
    match names {
        [] => Ok(()),
        names => check_names(&output_names(servable), names),
    }
}

fn check_names(all: &[Output], names: &[String]) -> Result<()> {
    // Of one name more than there are outputs, one is unknown or occurs twice, so that the loop
    // ends there.
    for (at, name) in names.iter().enumerate() {
        find(all, name)?;
        if names[..at].contains(name) {
            return Err(ServeError::Malformed(format!(
                "output `{name}` is named twice; name each output at most once"
            )));
        }
    }
    Ok(())
}

/// Returns the output with a name, or an error that lists the outputs of the model.
fn find<'a>(outputs: &'a [Output], name: &str) -> Result<&'a Output> {
    outputs.iter().find(|output| output.name == name).ok_or_else(|| {
        let known: Vec<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
        let (name, known) = (shorten(name), known.join("`, `"));
        ServeError::Malformed(format!("unknown output `{name}`; use one of `{known}`"))
    })
}

/// An output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The name of the output in the protocols.
    pub name: String,
    /// The number of the task whose score this output is.
    pub task: usize,
    /// The kind of the label that the output predicts; `None`: the output is the score itself.
    pub predicts: Option<LabelKind>,
    /// Whether the output is in the answer to a request that names none.
    pub by_default: bool,
}

/// Lists the outputs of a model: the prediction and the score of each task, or the score of a
/// model without labels.
pub fn output_names(servable: &Servable) -> Vec<Output> {
    if !servable.has_predictions() {
        let name = SCORES.to_owned();
        return vec![Output { name, task: 0, predicts: None, by_default: true }];
    }
    let named = |prefix: &str, task: usize, name: &str| match task {
        0 => prefix.to_owned(),
        _ => format!("{prefix}/{name}"),
    };
    let of = |(task, name): (usize, &String)| {
        let kind = servable.kind_of_task(task);
        let prediction = if kind.is_binary() { PROBABILITIES } else { PREDICTIONS };
        [(prediction, Some(kind)), (LOGITS, None)].map(|(prefix, predicts)| Output {
            name: named(prefix, task, name),
            task,
            predicts,
            by_default: predicts.is_some(),
        })
    };
    servable.tasks().iter().enumerate().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_output_is_named_at_most_once() {
        let output = |name: &str| Output {
            name: name.to_owned(),
            task: 0,
            predicts: None,
            by_default: true,
        };
        let all = [output("probabilities"), output("logits")];
        let check = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            check_names(&all, &names).map_err(|error| error.to_string())
        };
        assert_eq!(check(&["logits", "probabilities"]), Ok(()));
        let twice = check(&["logits", "logits"]).unwrap_err();
        assert!(twice.contains("output `logits` is named twice"), "{twice}");
        assert!(check(&["logits"; 1 << 20]).unwrap_err().contains("named twice"));
        let long = "x".repeat(3 << 20);
        let unknown = check(&["logits", &long]).unwrap_err();
        assert!(unknown.contains("unknown output") && unknown.len() < 300, "{unknown}");
    }
}
