//! The guess of a first schema from the values in the columns.
//!
//! A person reads and corrects the schema. Therefore each guess has a reason. A column that no
//! feature can read is left out, and a hint tells what to change in the data.

mod column;
mod context;
mod label;
mod time;

use std::collections::BTreeMap;

use zillion_feature::{Classes, DateOrder, RawType, TimeUnit};
use zillion_reader::{Byte, DataConfig, Decimal};

use self::column::{follows, guess_column, multi_hot};
use self::context::Context;
use self::label::{choose_label, other_labels};
use self::time::{choose_event_time, guess_time, time_of};
use crate::profile::{ColumnProfile, Profile, SVM_QUERY};

/// The null markers that always mean a missing value, even in a column of texts.
const UNAMBIGUOUS: &str = "\\N NULL null Null NaN nan NAN N/A n/a #N/A <NA> (null) ?";
/// The null markers that may be normal values in a column of texts.
const AMBIGUOUS: &str = "NA na None none nil - -- missing undefined";

/// A draft of a schema.
#[derive(Clone, Debug)]
pub struct Guess {
    /// The `[data]` settings that follow from the values: null markers, decimal separator, list
    /// separator.
    pub config: DataConfig,
    /// The label, or the reason why no label was found.
    pub label: Result<GuessedLabel, String>,
    /// The other columns that hold 0 and 1 if the label was guessed. They could be the label too.
    pub other_labels: Vec<String>,
    /// The column of groups, such as the query of a libsvm file, or `None` if there is no such
    /// column.
    pub group: Option<String>,
    /// The column of event times, or `None` if no such column was found.
    pub event_time: Option<EventTime>,
    /// The remaining columns, each with its name and its guess. The label, the group and the event
    /// time are not among them.
    pub columns: Vec<(String, Guessed)>,
}

/// The guess of the label.
#[derive(Clone, Debug, PartialEq)]
pub struct GuessedLabel {
    /// The name of the column.
    pub name: String,
    /// The bound from which a value of the column is a label of 1, with the reason for it. `None`
    /// if the column holds 0 and 1, or if the label is an amount.
    pub at_least: Option<(f64, String)>,
    /// The two texts of the column, or `None` if the column holds numbers.
    pub texts: Option<TextLabel>,
    /// The kind of the numbers of the column if they are predicted as numbers.
    pub amount: Option<Amount>,
    /// The values of the column if it has a few. They are the classes of the label, or with a bound
    /// the other choice.
    pub classes: Option<Classes>,
}

/// The guess of a label that holds amounts, which are predicted as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Amount {
    /// Whether the logarithm of the mean is predicted, which suits counts and amounts from 0 on.
    /// Otherwise the number itself is predicted.
    pub is_count: bool,
    /// The distance from which an error counts linearly, or `None` if squared errors suit the
    /// numbers.
    pub huber_delta: Option<f64>,
    /// The median of the numbers.
    pub median: f64,
    /// A bound from which on a smaller part of the rows is, or `None` if all numbers are equal.
    pub bound: Option<f64>,
    /// The reason for the guess.
    pub reason: String,
}

/// The guess of a label that holds two texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextLabel {
    /// The text that makes the label 1.
    pub positive: String,
    /// The text that makes the label 0.
    pub negative: String,
    /// The reason for the guess.
    pub reason: String,
}

/// The guess of the event time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventTime {
    /// The name of the column.
    pub name: String,
    /// The unit of the times, or `None` if the type of the column has a unit of its own. Texts are
    /// converted to this unit.
    pub unit: Option<TimeUnit>,
    /// The unit of the numbers in the column, or `None` if the column holds dates or timestamps.
    pub own_unit: Option<TimeUnit>,
    /// The order of day and month in texts with dates that need one, with the reason for it.
    pub date_order: Option<(DateOrder, String)>,
    /// Whether the texts leave no other order.
    pub is_order_certain: bool,
}

/// The guess for one column, with its reason.
#[derive(Clone, Debug, PartialEq)]
pub enum Guessed {
    /// A feature with one id in each row.
    Id {
        /// The type of the ids.
        raw: RawType,
        /// The reason for the guess.
        reason: String,
    },
    /// A feature with several ids in each row.
    Ids {
        /// The type of the ids.
        raw: RawType,
        /// The reason for the guess.
        reason: String,
    },
    /// A feature with several ids in each row and a weight for each id.
    Weighted {
        /// The type of the ids.
        raw: RawType,
        /// The reason for the guess.
        reason: String,
    },
    /// A feature with a number in each row.
    Numeric {
        /// Whether the model should read the logarithm of the number.
        log: bool,
        /// The number that replaces a missing value, or `None` if no value is missing.
        missing: Option<f64>,
        /// The reason for the guess.
        reason: String,
    },
    /// A feature with the same number of floats in each row.
    Vector {
        /// The number of floats.
        size: usize,
        /// Whether some rows have no vector.
        has_gaps: bool,
        /// The reason for the guess.
        reason: String,
    },
    /// A feature with the day of a time.
    Time {
        /// The unit of times that are whole numbers.
        unit: Option<TimeUnit>,
        /// The order of day and month in dates that need one.
        order: Option<DateOrder>,
        /// The reason for the guess.
        reason: String,
    },
    /// A column that does not become a feature. The text is the reason.
    Left(String),
}

impl Guess {
    /// Takes over how a guess from more rows of the same data reads times, and which columns it
    /// leaves out. In a part of the rows, the order of day and month may be unknown, and in a part
    /// that was converted, numbers such as `1,234.00` are texts.
    pub fn keep_of(&mut self, whole: &Guess) {
        self.event_time.clone_from(&whole.event_time);
        let is_event = |name: &str| whole.event_time.as_ref().is_some_and(|time| time.name == name);
        self.columns.retain(|(name, _)| !is_event(name));
        for (name, guessed) in &mut self.columns {
            let known = whole.columns.iter().find(|(of_whole, _)| of_whole == name);
            let is_time = |guess: &Guessed| matches!(guess, Guessed::Time { .. });
            let is_left = |guess: &Guessed| matches!(guess, Guessed::Left(_));
            let is_kept = |known: &Guessed| is_time(known) || is_time(guessed) || is_left(known);
            if let Some((_, known)) = known.filter(|(_, known)| is_kept(known)) {
                guessed.clone_from(known);
            }
        }
        // A column that is the event time of the part only is a feature.
        let label = self.label.as_ref().ok().map(|label| &label.name);
        let known = |name: &String| {
            label == Some(name)
                || self.group.as_ref() == Some(name)
                || self.columns.iter().any(|(own, _)| own == name)
        };
        let lost: Vec<_> = whole.columns.iter().filter(|(name, _)| !known(name)).cloned().collect();
        self.columns.extend(lost);
    }
}

/// Returns the texts that may mean a missing value. A profile for [`guess`] must count these texts.
pub fn null_markers() -> Vec<String> {
    let markers = UNAMBIGUOUS.split(' ').chain(AMBIGUOUS.split(' '));
    markers.map(str::to_owned).collect()
}

/// Guesses a schema from a profile that was made with the [`null_markers`]. `label` is the name of
/// the label; if it is `None`, the label is guessed too.
pub fn guess(config: &DataConfig, profile: &Profile, label: Option<&str>) -> Guess {
    let mut config = config.clone();
    config.null = choose_null_markers(profile);
    // Three digits behind each comma of a column may be thousands.
    let decimals = |c: &ColumnProfile| c.cells.comma * u64::from(c.cells.thousands < c.cells.comma);
    let commas: u64 = profile.columns.iter().map(decimals).sum();
    let fractions: u64 = profile.columns.iter().map(|c| c.cells.fraction).sum();
    if commas > 0 && 2 * commas > fractions {
        config.decimal = Decimal::Comma;
    }
    if let Some(separator) = list_separator(profile) {
        config.list_separator = separator;
    }
    let chosen = choose_label(profile, label);
    let event_time = choose_event_time(profile);
    let group = profile.columns.iter().find(|c| c.data_type == SVM_QUERY && c.missing == 0);
    let group = group.map(|c| c.name.clone());
    let context = Context {
        label: chosen.as_ref().ok().map(|label| label.name.as_str()),
        has_event_time: event_time.is_some(),
    };
    let labels = chosen.as_ref().ok().and_then(|label| label.values(profile));
    let amounts = chosen.as_ref().ok().and_then(|label| label.numbers(profile));
    let mut columns = Vec::new();
    for column in &profile.columns {
        let is = |name: Option<&String>| name.is_some_and(|name| *name == column.name);
        let is_label = is(chosen.as_ref().ok().map(|label| &label.name));
        if is_label || is(event_time.as_ref().map(|time| &time.name)) || is(group.as_ref()) {
            continue;
        }
        let guessed = match time_of(column) {
            Some(time) => guess_time(column, time),
            None => {
                let follows = || amounts.as_deref().and_then(|amounts| follows(column, amounts));
                match context.leaves_out(column).or_else(follows) {
                    Some(why) => Guessed::Left(why),
                    None => guess_column(column, &config, labels.as_deref(), amounts.is_none()),
                }
            }
        };
        columns.push((column.name.clone(), guessed));
    }
    let other_labels = match (label, &chosen) {
        (None, Ok(chosen)) => other_labels(profile, &chosen.name),
        _ => Vec::new(),
    };
    Guess { config, label: chosen, other_labels, group, event_time, columns }
}

/// Returns the null markers for the `[data]` section. An unambiguous marker is chosen if it occurs
/// in any column. An ambiguous marker is chosen only if it occurs in a column of numbers.
fn choose_null_markers(profile: &Profile) -> Vec<String> {
    let unambiguous = UNAMBIGUOUS.split(' ').count();
    let is_chosen = |(at, _): &(usize, String)| {
        let numeric = |c: &ColumnProfile| matches!(c.kind(), "whole" | "number");
        let mut found =
            profile.columns.iter().filter(|c| c.markers.get(*at).is_some_and(|&n| n > 0));
        found.any(|column| *at < unambiguous || numeric(column))
    };
    null_markers().into_iter().enumerate().filter(is_chosen).map(|(_, marker)| marker).collect()
}

/// Returns the list separator that occurs in the most cells, over all columns of lists. Returns
/// `None` if no column contains lists.
fn list_separator(profile: &Profile) -> Option<Byte> {
    let mut votes: BTreeMap<char, u64> = BTreeMap::new();
    for column in &profile.columns {
        if let Some((separator, cells)) = multi_hot(column) {
            *votes.entry(separator).or_default() += cells;
        }
    }
    let (separator, _) = votes.into_iter().max_by_key(|&(_, cells)| cells)?;
    Byte::new(separator)
}

/// Returns the words of a name in lower case.
fn words(name: &str) -> Vec<String> {
    let mut split = String::new();
    let mut before = ' ';
    for c in name.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            split.push(' ');
        }
        split.push(if c.is_alphanumeric() { c } else { ' ' });
        before = c;
    }
    split.split_whitespace().map(str::to_lowercase).collect()
}

fn has_word(name: &str, list: &[&str]) -> bool {
    words(name).iter().any(|word| list.contains(&word.as_str()))
}
