//! The guess of a first schema from the values in the columns.
//!
//! A person reads and corrects the schema. Therefore each guess has a reason. A column that no
//! feature can read is left out, and a hint tells what to change in the data.

use std::collections::BTreeMap;

use zillion_feature::RawType;
use zillion_reader::{Byte, DataConfig, Decimal};

use crate::profile::{ColumnProfile, Profile, SVM_LABEL, SVM_QUERY, SVM_VECTOR};

/// The null markers that always mean a missing value, even in a column of texts.
const UNAMBIGUOUS: &str = "\\N NULL null Null NaN nan NAN N/A n/a #N/A <NA> (null) ?";
/// The null markers that may be normal values in a column of texts.
const AMBIGUOUS: &str = "NA na None none nil - -- missing undefined";

/// The common names of labels. The most likely name comes first.
const LABELS: &str = "label click clicked is_click is_clicked target y conversion converted \
                      is_converted purchase purchased bought liked like response outcome class";
/// The words that mark a column as an id if its name contains them, even if the values are numbers.
const ID_NAMES: [&str; 22] = [
    "id", "ids", "user", "item", "uid", "iid", "sku", "code", "zip", "zipcode", "category", "cat",
    "brand", "device", "campaign", "ad", "adgroup", "site", "app", "domain", "shop", "store",
];
/// The words that mark a column as a time if its name contains them.
const TIME_NAMES: [&str; 8] =
    ["time", "timestamp", "ts", "date", "datetime", "hour", "created", "updated"];
/// The maximum number of distinct whole numbers in a column of ids.
const FEW: u64 = 100;
/// The mean number of bytes above which texts are considered to be prose.
const PROSE: f64 = 48.0;

/// A draft of a schema.
#[derive(Clone, Debug)]
pub struct Guess {
    /// The `[data]` settings that follow from the values: null markers, decimal separator, list
    /// separator.
    pub config: DataConfig,
    /// The name of the label, or the reason why no label was found.
    pub label: Result<String, String>,
    /// The column of groups, such as the query of a libsvm file, or `None` if there is no such
    /// column.
    pub group: Option<String>,
    /// The column of event times, or `None` if no such column was found.
    pub event_time: Option<String>,
    /// The remaining columns, each with its name and its guess. The label, the group and the event
    /// time are not among them.
    pub columns: Vec<(String, Guessed)>,
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
    /// A column that does not become a feature. The text is the reason.
    Left(String),
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
    let commas: u64 = profile.columns.iter().map(|c| c.cells.comma).sum();
    let fractions: u64 = profile.columns.iter().map(|c| c.cells.fraction).sum();
    if commas > 0 && 2 * commas > fractions {
        config.decimal = Decimal::Comma;
    }
    if let Some(separator) = list_separator(profile) {
        config.list_separator = separator;
    }
    let chosen = choose_label(profile, label);
    let event_time = profile.columns.iter().find(|c| is_time(c)).map(|c| c.name.clone());
    let group = profile.columns.iter().find(|c| c.data_type == SVM_QUERY && c.missing == 0);
    let group = group.map(|c| c.name.clone());
    let mut columns = Vec::new();
    for column in &profile.columns {
        let is_label = chosen.as_ref().is_ok_and(|name| *name == column.name);
        let is_row = [&event_time, &group].contains(&&Some(column.name.clone()));
        if !is_label && !is_row {
            columns.push((column.name.clone(), guess_column(column, &config)));
        }
    }
    Guess { config, label: chosen, group, event_time, columns }
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

/// Returns the list separator of a column and the number of cells that contain it, or `None` if the
/// column contains no lists. A column contains lists if at least a tenth of its texts contain the
/// separator, and if the pieces between separators are short and have fewer distinct values than
/// the whole cells.
fn multi_hot(column: &ColumnProfile) -> Option<(char, u64)> {
    let cells = column.cells;
    if column.kind() != "text" || cells.lines > 0 || cells.decorated + cells.date > cells.text / 2 {
        return None;
    }
    let (distinct, _) = column.distinct();
    let lists = column.separated.iter().filter(|(_, s)| {
        let mean_piece = column.mean_bytes * cells.text as f64 / s.pieces.max(1) as f64;
        s.cells * 10 >= cells.text && mean_piece <= 24.0 && s.distinct() < distinct
    });
    lists.map(|(separator, s)| (*separator, s.cells)).max_by_key(|&(_, cells)| cells)
}

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

fn is_time(column: &ColumnProfile) -> bool {
    if column.data_type == "timestamp" || column.data_type.starts_with("date") {
        return column.missing == 0;
    }
    // The range covers seconds to nanoseconds since 1970, for the years 2001 to 2096.
    let plausible = column.numbers().is_some_and(|n| {
        [1.0, 1e3, 1e6, 1e9].iter().any(|unit| n.min >= 1e9 * unit && n.max < 4e9 * unit)
    });
    column.kind() == "whole"
        && column.present() == column.rows
        && plausible
        && has_word(&column.name, &TIME_NAMES)
}

/// Returns whether each row has the value 0 or 1, in any spelling that a label may have.
fn is_binary(column: &ColumnProfile) -> bool {
    let numbers = column.numbers();
    let zero_one = numbers.is_some_and(|n| n.min == 0.0 && n.max == 1.0);
    let (distinct, _) = column.distinct();
    column.present() == column.rows
        && distinct == 2
        && match column.kind() {
            "whole" | "number" if column.data_type == SVM_LABEL => {
                zero_one || numbers.is_some_and(|n| n.min == -1.0 && n.max == 1.0)
            }
            "whole" | "number" => zero_one,
            "boolean" => true,
            _ => false,
        }
}

fn choose_label(profile: &Profile, given: Option<&str>) -> Result<String, String> {
    let listed = |names: Vec<&str>| names.join(", ");
    let all = || listed(profile.columns.iter().map(|c| c.name.as_str()).collect());
    if let Some(name) = given {
        let column = profile
            .column(name)
            .ok_or_else(|| format!("unknown column `{name}`; name one of {}", all()))?;
        if is_binary(column) {
            return Ok(name.to_owned());
        }
        return Err(not_binary(column));
    }
    let binary: Vec<&ColumnProfile> = profile.columns.iter().filter(|c| is_binary(c)).collect();
    if let Some(column) = find_usual_label(binary.iter().copied()) {
        return Ok(column.name.clone());
    }
    if let Some(column) = find_usual_label(profile.columns.iter()) {
        return Err(not_binary(column));
    }
    match binary.as_slice() {
        [one] => Ok(one.name.clone()),
        [] => Err(format!(
            "no column holds only 0 and 1, so no column can be the label; add such a column (for \
             example 1 if a rating is at least 4). The columns are {}",
            all()
        )),
        many => Err(format!(
            "several columns hold 0 and 1; choose one of them with the setting `label`: {}",
            listed(many.iter().map(|c| c.name.as_str()).collect())
        )),
    }
}

/// Returns the column that has the most likely name of a label, or `None` if no column has a common
/// name of a label.
fn find_usual_label<'a>(
    columns: impl Iterator<Item = &'a ColumnProfile> + Clone,
) -> Option<&'a ColumnProfile> {
    LABELS.split(' ').find_map(|name| columns.clone().find(|c| c.name.to_lowercase() == name))
}

fn not_binary(column: &ColumnProfile) -> String {
    let name = &column.name;
    let missing = column.rows - column.present();
    if missing > 0 {
        return format!(
            "label `{name}` has no value in {missing} of {} rows; remove these rows first",
            column.rows
        );
    }
    let top: Vec<String> = column.top(3).into_iter().map(|c| format!("\"{}\"", c.value)).collect();
    match column.distinct() {
        (1, _) => {
            format!("label `{name}` is {} in every row; choose another label", top.join(""))
        }
        (2, _) => format!("label `{name}` holds {}; write 0 and 1 instead", top.join(" and ")),
        (n, _) => format!(
            "label `{name}` holds {n} values ({}, ..) instead of 0 and 1; convert it to 0 and 1, or \
             choose another column with the setting `label`",
            top.join(", ")
        ),
    }
}

fn guess_column(column: &ColumnProfile, config: &DataConfig) -> Guessed {
    let cells = column.cells;
    let (distinct, exact) = column.distinct();
    let present = column.present();
    let many = if exact { distinct.to_string() } else { format!("about {distinct}") };
    if present == 0 {
        return Guessed::Left("no row has a value".to_owned());
    }
    if distinct == 1 && present == column.rows {
        return Guessed::Left("every row has the same value".to_owned());
    }
    let all_distinct = distinct == column.rows && column.rows >= 100;
    match column.kind() {
        "whole" => guess_whole(column, &many, all_distinct),
        "number" => {
            let as_point = cells.fraction - cells.comma;
            if config.decimal == Decimal::Comma && as_point > 0 {
                return Guessed::Left(format!(
                    "{as_point} of its numbers have a decimal point, but other columns have decimal \
                     commas; use the same sign in all columns"
                ));
            }
            if config.decimal == Decimal::Point && cells.comma > 0 {
                return Guessed::Left(format!(
                    "{} of its numbers have a decimal comma, but other columns have decimal points; \
                     use the same sign in all columns",
                    cells.comma
                ));
            }
            if cells.not_finite > 0 {
                let n = cells.not_finite;
                return Guessed::Left(format!(
                    "{n} of its numbers are not finite; replace or remove them first"
                ));
            }
            numeric(column, format!("{many} different numbers"))
        }
        "boolean" => {
            let raw = if column.data_type == "text" { RawType::String } else { RawType::I64 };
            Guessed::Id { raw, reason: "true and false".to_owned() }
        }
        "list" if column.data_type == SVM_VECTOR => Guessed::Weighted {
            raw: RawType::I64,
            reason: format!(
                "sparse vectors with {many} different indices, whose values become weights"
            ),
        },
        "list" if column.data_type.contains("string") => {
            Guessed::Ids { raw: RawType::String, reason: "lists of strings".to_owned() }
        }
        "list" if column.data_type.contains("int") => Guessed::Ids {
            raw: RawType::I64,
            reason: format!("lists of {many} different whole numbers"),
        },
        "text" => guess_text(column, config, &many, all_distinct),
        other => Guessed::Left(format!("no feature reads a column of type {other}; convert it")),
    }
}

fn guess_whole(column: &ColumnProfile, many: &str, all_distinct: bool) -> Guessed {
    let (distinct, _) = column.distinct();
    let named = has_word(&column.name, &ID_NAMES);
    if all_distinct && (column.ascending || named) {
        let reason = "every row has a different whole number, which only names the row";
        return Guessed::Left(reason.to_owned());
    }
    let raw = if column.cells.beyond_i64 > 0 { RawType::U64 } else { RawType::I64 };
    if raw == RawType::U64 && column.cells.negative > 0 {
        let reason = "it has negative numbers and numbers beyond 2^63, which no 64-bit type holds; \
                      write them as texts";
        return Guessed::Left(reason.to_owned());
    }
    let id = |reason: String| Guessed::Id { raw, reason };
    if named {
        return id(format!("{many} different whole numbers, and the name of an id"));
    }
    if distinct <= FEW {
        return id(format!("only {many} different whole numbers"));
    }
    let hashes = column.numbers().is_some_and(|n| n.max > 1e6 && n.p50 > n.max / 100.0);
    if hashes {
        return id(format!("{many} different whole numbers, spread like hashes"));
    }
    numeric(column, format!("{many} different whole numbers; use kind `id` if they are ids"))
}

fn numeric(column: &ColumnProfile, reason: String) -> Guessed {
    let numbers = column.numbers();
    // A logarithm suits counts and amounts, whose values have a long tail and are never below zero.
    let log = numbers.is_some_and(|n| n.min >= 0.0 && n.p99 > 20.0 && n.p99 > 5.0 * n.p50);
    let missing = (column.present() < column.rows).then(|| numbers.map_or(0.0, |n| n.p50));
    Guessed::Numeric { log, missing, reason }
}

fn guess_text(
    column: &ColumnProfile,
    config: &DataConfig,
    many: &str,
    all_distinct: bool,
) -> Guessed {
    let cells = column.cells;
    let example = column.example.as_deref().unwrap_or_default();
    if cells.date * 2 > cells.text {
        return Guessed::Left(format!(
            "dates such as \"{example}\"; add columns for their parts (hour, weekday), or seconds since \
             1970 for `[columns] event_time`"
        ));
    }
    let numbers = cells.whole + cells.beyond_i64 + cells.fraction;
    if cells.decorated * 2 > cells.text || (cells.decorated > 0 && numbers > cells.text) {
        let example = column.example_decorated.as_deref().unwrap_or(example);
        return Guessed::Left(format!(
            "numbers such as \"{example}\"; remove separators of thousands, currencies and units"
        ));
    }
    if numbers > 9 * cells.text && column.data_type == "text" {
        let text = cells.text;
        return Guessed::Left(format!(
            "numbers, except for {text} texts such as \"{example}\"; if these texts stand for a missing \
             value, add them to `data.null`"
        ));
    }
    if all_distinct {
        let reason = "every row has a different text, which only names the row";
        return Guessed::Left(reason.to_owned());
    }
    if let Some((separator, _)) = multi_hot(column) {
        if Some(config.list_separator) == Byte::new(separator) {
            let reason = format!("several values per cell, separated by `{separator}`");
            return Guessed::Ids { raw: RawType::String, reason };
        }
        return Guessed::Left(format!(
            "several values per cell, separated by `{separator}`, but other columns use `{}`; use the \
             same separator in all columns",
            char::from(config.list_separator.byte())
        ));
    }
    let (distinct, _) = column.distinct();
    if column.mean_bytes > PROSE && distinct * 2 > column.present() {
        return Guessed::Left(format!("prose such as \"{example}\""));
    }
    Guessed::Id { raw: RawType::String, reason: format!("{many} different texts") }
}
