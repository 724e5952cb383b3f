//! The answers of a server, and the check that they are correct.
//!
//! A version always answers a request with the same bytes, so even a long run has few different
//! answers. Each different answer is stored once and compared after the run, so that the comparison
//! does not disturb the measurement. An answer that mixes two versions differs from the answers of
//! both versions, so the check always detects it.
//!
//! # Memory
//! One answer is stored for each pair of a version and a body. If a server returns more than
//! [`MOST`] different answers, the others are only counted as unchecked. An unchecked answer makes
//! the run fail, like a wrong answer.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use zillion_console::{compute_pool, durable_files};
use zillion_registry::{Cache, Model, VersionId};
use zillion_rows::layer::Unthrottled;
use zillion_scorer::Servable;

use super::bodies::Body;
use super::grpc;
use crate::args::Protocol;

/// The maximum number of different answers that are stored.
const MOST: usize = 65_536;

/// The answers of a run.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Whether answers are stored and checked after the run.
    is_checked: bool,
    /// The number of times that each answer was received. The key is the index of the body and the
    /// bytes of the answer.
    kept: HashMap<(usize, Bytes), u64>,
    /// The number of answers that name each version.
    pub(crate) versions: BTreeMap<String, u64>,
    unchecked: u64,
}

/// The result of checking the answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Checked {
    /// The number of answers that were compared.
    pub(crate) compared: u64,
    /// The number of compared answers that differ from the scores of their version.
    pub(crate) mismatches: u64,
    /// The number of answers that could not be compared.
    pub(crate) unchecked: u64,
    /// The description of the first wrong answer, or `None` if there is no wrong answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first: Option<String>,
}

/// The parts of an answer that the check needs, for all protocols.
#[derive(Debug, Deserialize)]
struct Answer {
    model_version: Option<String>,
    outputs: Option<Vec<Tensor>>,
    predictions: Option<Vec<f32>>,
    scores: Option<Vec<f32>>,
}

#[derive(Debug, Deserialize)]
struct Tensor {
    name: String,
    data: Vec<f32>,
}

/// The expected answer to a body: the name of each default output, with its values.
pub(crate) type Expected = Vec<(String, Vec<f32>)>;

impl Answers {
    pub(crate) fn new(is_checked: bool) -> Self {
        Self { is_checked, ..Self::default() }
    }

    /// Adds an answer to the body with the index `body`.
    pub(crate) fn add(&mut self, body: usize, answer: Bytes) {
        let version = match is_json(&answer) {
            true => named_version(&answer).map(Cow::Borrowed),
            false => grpc::named_version(&answer).map(Cow::Owned),
        };
        if let Some(version) = version {
            match self.versions.get_mut(version.as_ref()) {
                Some(count) => *count += 1,
                None => drop(self.versions.insert(version.into_owned(), 1)),
            }
        }
        if !self.is_checked {
            return;
        }
        let is_full = self.kept.len() >= MOST;
        match self.kept.get_mut(&(body, answer.clone())) {
            Some(count) => *count += 1,
            None if is_full => self.unchecked += 1,
            None => drop(self.kept.insert((body, answer), 1)),
        }
    }

    /// Compares all answers with scores that this process computes for `bodies`. Each version is
    /// loaded once, with a cache in the folder `cache`, and shares layers with the version that was
    /// loaded before it. `asked` is the version for answers that do not name a version.
    pub(crate) fn compare(
        &self,
        protocol: Protocol,
        asked: Option<VersionId>,
        model: &Model,
        bodies: &[Body],
        cache: &Path,
    ) -> Result<Checked> {
        let mut cache = Cache::open(cache, model.name(), durable_files()?)?;
        let workers = compute_pool(None)?;
        let mut loaded: Option<(VersionId, Servable)> = None;
        let expected = |version: VersionId, body: usize| -> Result<Expected> {
            let servable = match loaded.take() {
                Some((open, servable)) if open == version => servable,
                before => {
                    let others = before.iter().map(|(_, servable)| servable);
                    Servable::load(model, version, others, &mut cache, &workers, &mut Unthrottled)?
                }
            };
            let (_, servable) = loaded.insert((version, servable));
            let scores = servable.score(bodies[body].rows, &bodies[body].columns)?;
            Ok(zillion_serving::Answer::choose(servable, scores, &[])?.outputs)
        };
        Ok(self.check(protocol, asked, expected))
    }

    /// Compares all answers with the expected scores, in ascending order of the versions.
    /// `expected` returns the scores of a version for the body with an index.
    fn check(
        &self,
        protocol: Protocol,
        asked: Option<VersionId>,
        mut expected: impl FnMut(VersionId, usize) -> Result<Expected>,
    ) -> Checked {
        let mut checked = Checked { unchecked: self.unchecked, ..Checked::default() };
        if self.unchecked > 0 {
            checked.first = Some(format!(
                "the server gave more than {MOST} different answers; the rest was not checked"
            ));
        }
        let mut by_version: BTreeMap<(VersionId, usize), Vec<(Answer, u64)>> = BTreeMap::new();
        for ((body, bytes), &count) in &self.kept {
            match read(bytes, asked) {
                Ok((version, answer)) => {
                    by_version.entry((version, *body)).or_default().push((answer, count));
                }
                Err(reason) => {
                    checked.unchecked += count;
                    checked.first.get_or_insert(format!("body {body}: {reason:#}"));
                }
            }
        }
        for ((version, body), answers) in by_version {
            let expected = match expected(version, body) {
                Ok(expected) => expected,
                Err(reason) => {
                    checked.unchecked += answers.iter().map(|(_, count)| count).sum::<u64>();
                    checked.first.get_or_insert(format!("version {version}: {reason:#}"));
                    continue;
                }
            };
            for (answer, count) in answers {
                checked.compared += count;
                if let Some(difference) = answer.difference(protocol, &expected) {
                    checked.mismatches += count;
                    checked
                        .first
                        .get_or_insert(format!("version {version}, body {body}: {difference}"));
                }
            }
        }
        checked
    }
}

/// Returns whether an answer is JSON, which begins with a brace. A gRPC answer never begins with
/// this byte.
fn is_json(answer: &[u8]) -> bool {
    answer.first() == Some(&b'{')
}

/// Returns the version that a JSON answer names, or `None` if it names no version. The rest of the
/// answer is not parsed.
pub(crate) fn named_version(answer: &[u8]) -> Option<&str> {
    const KEY: &[u8] = br#""model_version":""#;
    let at = answer.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let digits = answer[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&answer[at..at + digits]).ok()
}

fn read(bytes: &[u8], asked: Option<VersionId>) -> Result<(VersionId, Answer)> {
    let answer = match is_json(bytes) {
        true => serde_json::from_slice(bytes).context("the answer is not JSON of this protocol")?,
        false => {
            let (version, outputs) = grpc::decode_answer(bytes)?;
            let tensor = |(name, data)| Tensor { name, data };
            let outputs = Some(outputs.into_iter().map(tensor).collect());
            Answer { model_version: Some(version), outputs, predictions: None, scores: None }
        }
    };
    let named = answer.model_version.as_ref().map(|version| version.parse());
    let named = named.transpose().context("the version that the answer names is not a number")?;
    match (named, asked) {
        (Some(named), Some(asked)) if named != asked => {
            bail!("version {named} answered a request for version {asked}")
        }
        (named, asked) => Ok((named.or(asked).context("the answer names no version")?, answer)),
    }
}

impl Answer {
    /// Returns a description of the first difference from the expected scores, or `None` if all
    /// scores are equal bit for bit.
    fn difference(&self, protocol: Protocol, expected: &Expected) -> Option<String> {
        let first = expected.first().map_or(&[][..], |(_, scores)| scores);
        match (protocol, self) {
            (Protocol::V2 | Protocol::Grpc, Self { outputs: Some(outputs), .. }) => {
                let names = |found: &Tensor, (name, _): &(String, Vec<f32>)| found.name == *name;
                if outputs.len() != expected.len()
                    || !outputs.iter().zip(expected).all(|(found, wanted)| names(found, wanted))
                {
                    return Some("the answer has other outputs than the version".to_owned());
                }
                let pairs = outputs.iter().zip(expected);
                pairs
                    .into_iter()
                    .find_map(|(found, (_, scores))| describe_difference(&found.data, scores))
            }
            (Protocol::Predict, Self { predictions: Some(found), .. })
            | (Protocol::Rank, Self { scores: Some(found), .. }) => {
                describe_difference(found, first)
            }
            _ => Some("the answer has no scores".to_owned()),
        }
    }
}

fn describe_difference(found: &[f32], wanted: &[f32]) -> Option<String> {
    if found.len() != wanted.len() {
        return Some(format!("{} scores instead of {}", found.len(), wanted.len()));
    }
    let row = found.iter().zip(wanted).position(|(a, b)| a.to_bits() != b.to_bits())?;
    let rows = found.iter().zip(wanted).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    Some(format!(
        "{rows} rows differ, the first is row {row}: {} instead of {}",
        found[row], wanted[row]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(version: u64, data: &[f32]) -> Bytes {
        let data = serde_json::to_string(data).unwrap();
        format!(
            r#"{{"model_name":"m","model_version":"{version}","outputs":[{{"name":"p","shape":[2],"datatype":"FP32","data":{data}}}]}}"#
        )
        .into()
    }

    /// Returns thirds for version 3 and tenths for version 4. The body must be body 0.
    fn expected(version: VersionId, body: usize) -> Result<Expected> {
        assert_eq!(body, 0);
        match version.0 {
            3 => Ok(vec![("p".to_owned(), vec![1.0 / 3.0, 2.0 / 3.0])]),
            4 => Ok(vec![("p".to_owned(), vec![0.1, 0.2])]),
            _ => bail!("not there"),
        }
    }

    fn check(given: &[Bytes]) -> Checked {
        let mut answers = Answers::new(true);
        given.iter().for_each(|answer| answers.add(0, answer.clone()));
        answers.check(Protocol::V2, None, expected)
    }

    #[test]
    fn each_answer_is_compared_with_the_version_that_it_names() {
        let good = [v2(3, &[1.0 / 3.0, 2.0 / 3.0]), v2(4, &[0.1, 0.2]), v2(4, &[0.1, 0.2])];
        let checked = check(&good);
        assert_eq!((checked.compared, checked.mismatches, checked.unchecked), (3, 0, 0));
        assert_eq!(checked.first, None);
    }

    #[test]
    fn an_answer_that_mixes_versions_is_found_however_rare() {
        let mut answers = vec![v2(3, &[1.0 / 3.0, 2.0 / 3.0]); 1000];
        answers.push(v2(3, &[1.0 / 3.0, 0.2]));
        let checked = check(&answers);
        assert_eq!((checked.compared, checked.mismatches), (1001, 1));
        assert!(
            checked
                .first
                .unwrap()
                .contains("version 3, body 0: 1 rows differ, the first is row 1: 0.2")
        );
    }

    #[test]
    fn one_bit_is_a_difference() {
        let next = f32::from_bits(0.1f32.to_bits() + 1);
        assert_eq!(check(&[v2(4, &[next, 0.2])]).mismatches, 1);
        assert_eq!(check(&[v2(4, &[0.1])]).mismatches, 1);
    }

    #[test]
    fn what_cannot_be_compared_does_not_pass() {
        for wrong in [v2(9, &[0.1, 0.2]), "{}".into(), "nonsense".into()] {
            let checked = check(&[wrong]);
            assert_eq!((checked.compared, checked.unchecked), (0, 1));
            assert!(checked.first.is_some());
        }
        let mut answers = Answers::new(true);
        answers.add(0, v2(4, &[0.1, 0.2]));
        let other = answers.check(Protocol::V2, Some(VersionId(3)), expected);
        assert!(other.first.unwrap().contains("version 4 answered a request for version 3"));
        let as_rank = answers.check(Protocol::Rank, None, expected);
        assert_eq!(as_rank.mismatches, 1);
    }

    #[test]
    fn other_protocols_are_read_too() {
        let mut answers = Answers::new(true);
        answers.add(0, r#"{"model_version":"4","scores":[0.1,0.2]}"#.into());
        assert_eq!(answers.check(Protocol::Rank, None, expected).compared, 1);
        assert_eq!(answers.check(Protocol::Rank, None, expected).mismatches, 0);
        assert_eq!(answers.versions["4"], 1);
        let mut answers = Answers::new(true);
        answers.add(0, r#"{"predictions":[0.1,0.2]}"#.into());
        assert_eq!(answers.check(Protocol::Predict, None, expected).unchecked, 1);
        let checked = answers.check(Protocol::Predict, Some(VersionId(4)), expected);
        assert_eq!((checked.compared, checked.mismatches), (1, 0));
    }
}
