//! The names of the classes of a label.

use serde::{Deserialize, Serialize};
use toml::Value;

use super::LabelSpec;

/// The smallest number of classes of a label.
const FEWEST: usize = 2;
/// The largest number of classes of a label. Each class has a score of its own in every row.
const MOST: usize = 256;

/// The names of the classes of a label, in the order of their scores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Classes {
    /// Whole numbers, which the column holds as numbers.
    Numbers(Vec<i64>),
    /// Texts, which the column holds as strings.
    Texts(Vec<String>),
}

impl Classes {
    /// Reads the list of a job.
    ///
    /// # Errors
    /// Returns the reason if the list is too short or too long, if a name occurs twice, or if the
    /// names are neither all texts nor all whole numbers.
    pub(super) fn read(values: &[Value]) -> Result<Self, String> {
        if !(FEWEST..=MOST).contains(&values.len()) {
            return Err(format!(
                "has {} names; list {FEWEST} to {MOST} classes, or put rare values into one class",
                values.len()
            ));
        }
        let numbers: Option<Vec<i64>> = values.iter().map(Value::as_integer).collect();
        let texts = || values.iter().map(|value| value.as_str().map(str::to_owned)).collect();
        let classes = match (numbers, texts()) {
            (Some(numbers), _) => Self::Numbers(numbers),
            (None, Some(texts)) => Self::Texts(texts),
            (None, None) => {
                let message = "must be all texts or all whole numbers, as the values of the column";
                return Err(message.to_owned());
            }
        };
        // A larger number could not be told from its neighbours in a column of floats.
        if let Self::Numbers(numbers) = &classes
            && let Some(large) = numbers.iter().find(|number| number.unsigned_abs() > 1 << 53)
        {
            return Err(format!("has {large}, which is beyond 2^53; write large ids as texts"));
        }
        let names = classes.names();
        if let Some(empty) = names.iter().position(String::is_empty) {
            return Err(format!(
                "has an empty text at {empty}, which is a missing value; remove it"
            ));
        }
        let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
        match twice {
            Some((_, name)) => Err(format!("names `{name}` twice; name each class once")),
            None => Ok(classes),
        }
    }

    /// Returns the list of a job.
    pub(super) fn to_values(&self) -> Vec<Value> {
        match self {
            Self::Numbers(numbers) => numbers.iter().map(|&number| number.into()).collect(),
            Self::Texts(texts) => texts.iter().map(|text| text.as_str().into()).collect(),
        }
    }

    /// Returns the number of classes.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Texts(texts) => texts.len(),
        }
    }

    /// Returns the names of the classes as texts.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Numbers(numbers) => numbers.iter().map(i64::to_string).collect(),
            Self::Texts(texts) => texts.clone(),
        }
    }
}

impl LabelSpec {
    /// Returns the names of the tasks that learn the label: `label=class` for each class, or the
    /// name of the label alone.
    #[must_use]
    pub fn task_names(&self) -> Vec<String> {
        match &self.classes {
            None => vec![self.name.clone()],
            Some(classes) => {
                classes.names().iter().map(|class| format!("{}={class}", self.name)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &str) -> Result<Classes, String> {
        let table: toml::Table = toml::from_str(&format!("classes = {list}")).expect("TOML");
        Classes::read(table["classes"].as_array().expect("a list"))
    }

    #[test]
    fn classes_are_texts_or_whole_numbers() {
        assert_eq!(read("[3, 1, -2]"), Ok(Classes::Numbers(vec![3, 1, -2])));
        let texts = read("['a', 'b c']").unwrap();
        assert_eq!(texts, Classes::Texts(vec!["a".to_owned(), "b c".to_owned()]));
        assert_eq!(Classes::read(&texts.to_values()), Ok(texts));
        for (list, part) in [
            ("['a']", "has 1 names"),
            ("['a', 1]", "all texts or all whole numbers"),
            ("[1.5, 2.5]", "all texts or all whole numbers"),
            ("['a', 'b', 'a']", "names `a` twice"),
            ("['a', '']", "an empty text"),
            ("[1, 9007199254740993]", "beyond 2^53"),
        ] {
            let error = read(list).unwrap_err();
            assert!(error.contains(part), "{list}: {error}");
        }
        let many: Vec<Value> = (0..257).map(Value::from).collect();
        assert!(Classes::read(&many).is_err() && Classes::read(&many[1..]).is_ok());
    }
}
