//! The guess of the label.

use zillion_feature::Classes;

use super::{Amount, GuessedLabel, TextLabel, has_word};
use crate::profile::{ColumnProfile, Count, Kept, Profile, SVM_LABEL, text_key};

/// The common names of labels. The most likely name comes first.
const LABELS: &str = "label click clicked is_click is_clicked target y conversion converted \
                      is_converted purchase purchased bought liked like response outcome class";
/// The common names of what a user did with a row.
const OUTCOMES: &str = "click clicked is_click is_clicked conversion converted is_converted purchase \
                        purchased is_purchase bought liked like is_like shared share follow followed \
                        comment commented add_to_cart cart installed install subscribed signup \
                        long_view watched finished";
/// The common names of grades that a user gives. They become labels by a bound.
const GRADES: &str = "rating ratings stars score grade overall review_score";
/// The texts that make a label 1, and those that make it 0.
const POSITIVE: &str = "yes y t on click clicked purchase purchased bought buy positive pos like \
                        liked success won";
const NEGATIVE: &str = "no n f off none negative neg skip skipped ignored dislike disliked failure \
                        lost";
/// The maximum number of bytes of a text that a report shows whole.
const LONGEST_TEXT: usize = 48;
/// The common names of labels whose whole numbers are classes rather than amounts.
const CLASSES: &str = "class category label target species genre topic y";
/// The numbers of values that a label of classes may have.
const CLASS_COUNTS: std::ops::RangeInclusive<u64> = 3..=50;
/// The least number of rows for each class of a drafted label, on average.
const LEAST_ROWS_OF_A_CLASS: u64 = 5;
/// The words that mark a column as a count if its name contains them.
const COUNTS: [&str; 20] = [
    "count",
    "counts",
    "num",
    "number",
    "n",
    "clicks",
    "views",
    "visits",
    "purchases",
    "orders",
    "sales",
    "quantity",
    "qty",
    "units",
    "rentals",
    "plays",
    "installs",
    "calls",
    "claims",
    "cnt",
];
/// The maximum number of values of a label that becomes 0 and 1 by a bound. A column with more
/// values holds amounts.
const MOST_GRADES: u64 = 11;
/// The largest number up to which a label of numbers from 0 on is predicted as it is. Layers reach
/// larger numbers slowly, and reach their logarithms at once.
const MOST_PLAIN: f64 = 20.0;
/// The largest share of rows that a drafted bound lets have a label of 1, if a smaller share is
/// possible.
const MOST_POSITIVE: f64 = 0.6;

impl GuessedLabel {
    /// Returns the numbers of the rows that the profile kept, if the label holds amounts.
    pub(super) fn numbers(&self, profile: &Profile) -> Option<Vec<f64>> {
        self.amount.as_ref()?;
        Some(profile.column(&self.name)?.kept.iter().map(|kept| kept.number).collect())
    }

    /// Returns the labels of the rows that the profile kept, or `None` if one of them is missing or
    /// the label has classes.
    pub(super) fn values(&self, profile: &Profile) -> Option<Vec<bool>> {
        if let Some(texts) = &self.texts {
            let [positive, negative] =
                [&texts.positive, &texts.negative].map(|t| text_key(t.as_bytes()));
            let label = |kept: &Kept| match kept.key {
                key if key == positive => Some(true),
                key if key == negative => Some(false),
                _ => None,
            };
            return profile.column(&self.name)?.kept.iter().map(label).collect();
        }
        if self.classes.is_some() && self.at_least.is_none() {
            return None;
        }
        // An amount is tested by whether it is above the median.
        let above = self.amount.as_ref().map_or(0.5, |amount| amount.median.next_up());
        let bound = self.at_least.as_ref().map_or(above, |(bound, _)| *bound);
        let label = |number: f64| (!number.is_nan()).then_some(number >= bound);
        profile.column(&self.name)?.kept.iter().map(|kept| label(kept.number)).collect()
    }
}

/// Returns whether a name is that of something that a user did with a row, which is an outcome.
pub(super) fn is_outcome(name: &str) -> bool {
    OUTCOMES.split(' ').any(|known| name.eq_ignore_ascii_case(known))
}

/// Returns whether each row has the value 0 or 1, in any spelling that a label may have.
pub(super) fn is_binary(column: &ColumnProfile) -> bool {
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

/// Returns the label of a profile. `given` is the name of the label, or `None` if it is to be
/// guessed.
///
/// # Errors
/// Returns the reason why no column can be the label.
pub(super) fn choose_label(profile: &Profile, given: Option<&str>) -> Result<GuessedLabel, String> {
    let listed = |names: Vec<&str>| names.join(", ");
    let all = || listed(profile.columns.iter().map(|c| c.name.as_str()).collect());
    if let Some(name) = given {
        let column = profile
            .column(name)
            .ok_or_else(|| format!("unknown column `{name}`; name one of {}", all()))?;
        return label_of(column);
    }
    let binary: Vec<&ColumnProfile> = profile.columns.iter().filter(|c| is_binary(c)).collect();
    if let Some(column) = find_named(LABELS, binary.iter().copied()) {
        return label_of(column);
    }
    let guessed = |column| {
        label_of(column).map_err(|why| {
            format!("{why}; this label was guessed by its name, so name another with the setting `label` if it is not the one")
        })
    };
    if let Some(column) = find_named(LABELS, profile.columns.iter()) {
        return guessed(column);
    }
    let numeric = profile.columns.iter().filter(|c| matches!(c.kind(), "whole" | "number"));
    if let Some(column) = find_named(GRADES, numeric) {
        return guessed(column);
    }
    match binary.as_slice() {
        [one] => label_of(one),
        [] => Err(format!(
            "no column holds only 0 and 1, so no column can be the label; add such a column, or \
             name one with the setting `label`: numbers become a label by a bound, texts by those \
             that make it 1 or as classes. \
             The columns are {}",
            all()
        )),
        many => Err(format!(
            "several columns hold 0 and 1; choose one of them with the setting `label`: {}",
            listed(many.iter().map(|c| c.name.as_str()).collect())
        )),
    }
}

/// Returns the names of the columns that hold 0 and 1, without the label.
pub(super) fn other_labels(profile: &Profile, label: &str) -> Vec<String> {
    let others = profile.columns.iter().filter(|c| c.name != label && is_binary(c));
    others.map(|column| column.name.clone()).collect()
}

/// Returns a column as the label. A column with more than a few numbers holds amounts. For other
/// numbers than 0 and 1, chooses a bound.
fn label_of(column: &ColumnProfile) -> Result<GuessedLabel, String> {
    let name = column.name.clone();
    if is_binary(column) {
        return Ok(GuessedLabel { name, at_least: None, texts: None, amount: None, classes: None });
    }
    let classes = find_classes(column);
    let is_named = CLASSES.split(' ').any(|known| known == name.to_lowercase());
    if matches!(classes, Some(Classes::Texts(_))) || (is_named && classes.is_some()) {
        return Ok(GuessedLabel { name, at_least: None, texts: None, amount: None, classes });
    }
    let (distinct, _) = column.distinct();
    if let Some(texts) = text_label(column) {
        return Ok(GuessedLabel {
            name,
            at_least: None,
            texts: Some(texts),
            amount: None,
            classes: None,
        });
    }
    let is_number = matches!(column.kind(), "whole" | "number");
    let usable = is_number && column.present() == column.rows && column.cells.not_finite == 0;
    if usable && let Some(amount) = find_amount(column) {
        return Ok(GuessedLabel {
            name,
            at_least: None,
            texts: None,
            amount: Some(amount),
            classes: None,
        });
    }
    let Some(bound) = column.bound_of_share(MOST_POSITIVE).filter(|_| usable && distinct > 1)
    else {
        return Err(not_binary(column));
    };
    // The value between 1 and -1 often means that nothing is known.
    let has_middle = distinct == 3
        && column.kind() == "whole"
        && column.numbers().is_some_and(|n| n.min == -1.0 && n.max == 1.0);
    let bound = if has_middle { 1.0 } else { bound };
    let positive = 100.0 * column.share_from(bound);
    let mut reason = format!(
        "is every {name} from {bound} on what you want to predict? {positive:.0} % of the rows have it"
    );
    if has_middle {
        reason.push_str(&format!(
            ". 0 counts as -1 does; if it means that nothing is known, select the other rows first \
             (zillion data filter, \"{name} != 0\")"
        ));
    }
    Ok(GuessedLabel { name, at_least: Some((bound, reason)), texts: None, amount: None, classes })
}

/// Returns the amounts of a column of finite numbers, or `None` if it has only a few values, which
/// are grades.
fn find_amount(column: &ColumnProfile) -> Option<Amount> {
    let (numbers, (distinct, _)) = (column.numbers()?, column.distinct());
    let is_named = has_word(&column.name, &COUNTS);
    let (is_whole, from_zero) = (column.kind() == "whole", numbers.min >= 0.0);
    let may_count = is_whole && from_zero;
    // Grades such as `num_stars` begin at 1, counts at 0.
    let may_be_few = is_named && may_count && distinct > 2 && numbers.min < 1.0;
    if distinct <= MOST_GRADES && !may_be_few {
        return None;
    }
    // Half of the rows may have the same number, such as zero.
    let (low, high) = (numbers.p25, numbers.p75);
    let spread = if high > low { high - low } else { numbers.p99 - numbers.min };
    let [least, most, from, to] = [numbers.min, numbers.max, low, high].map(short);
    let range = format!("{least} to {most}, half of them {from} to {to}");
    let median = numbers.p50;
    let bound = column.bound_of_share(MOST_POSITIVE);
    if from_zero && numbers.p99 > numbers.min && (may_count || numbers.max > MOST_PLAIN) {
        let what = if may_count { "whole numbers" } else { "amounts" };
        let reason = format!(
            "are these {what} ({range}) counts or amounts, of which the mean is wanted? Its logarithm \
             is learned; `number` learns the number itself"
        );
        return Some(Amount { is_count: true, huber_delta: None, median, bound, reason });
    }
    // Squared errors of rare far values would decide everything.
    let far = (numbers.max - high).max(low - numbers.min);
    let huber_delta =
        (far > 10.0 * spread).then_some(short(1.5 * spread)).filter(|delta| *delta > 0.0);
    let remedy = match low.abs().max(high.abs()) > MOST_PLAIN {
        true => {
            " Large numbers are learned slowly: divide the column by a number near half its spread"
        }
        false => "",
    };
    let reason = format!("is the number itself wanted ({range})?{remedy}");
    Some(Amount { is_count: false, huber_delta, median, bound, reason })
}

/// Returns a number of four digits that is near another one.
fn short(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}

/// Returns the two texts of a column, if it has exactly two in all rows. The positive one is known
/// by its word, and otherwise the rarer one.
fn text_label(column: &ColumnProfile) -> Option<TextLabel> {
    let is_usable = column.kind() == "text" && column.present() == column.rows;
    let top = column.top(3);
    let ([one, other], (2, true), true) = (top.as_slice(), column.distinct(), is_usable) else {
        return None;
    };
    if [one, other].iter().any(|count| !is_whole(&count.value)) {
        return None;
    }
    let is = |words: &str, text: &str| words.split(' ').any(|word| text.eq_ignore_ascii_case(word));
    let says = |count: &Count, other: &Count| {
        is(POSITIVE, count.value.trim()) || is(NEGATIVE, other.value.trim())
    };
    let (positive, negative, why) = match (says(one, other), says(other, one)) {
        (true, false) => (one, other, "by its word"),
        (false, true) => (other, one, "by its word"),
        // The most frequent value comes first.
        _ => (other, one, "the rarer of the two"),
    };
    let share = 100.0 * positive.count as f64 / column.rows.max(1) as f64;
    let reason = format!(
        "is \"{}\" what you want to predict ({why})? {share:.0} % of the rows have it",
        positive.value
    );
    let (positive, negative) = (positive.value.trim().to_owned(), negative.value.trim().to_owned());
    Some(TextLabel { positive, negative, reason })
}

/// Returns whether the text of a report is the value: it is neither shortened nor escaped.
fn is_whole(text: &str) -> bool {
    text.len() <= LONGEST_TEXT && !text.contains('\\')
}

/// Returns the values of a column as classes, in ascending order, or `None` if the column has too
/// few or too many values, too few rows of each, or rows without one.
fn find_classes(column: &ColumnProfile) -> Option<Classes> {
    let (distinct, is_exact) = column.distinct();
    if !is_exact || !CLASS_COUNTS.contains(&distinct) || column.present() != column.rows {
        return None;
    }
    if column.rows < LEAST_ROWS_OF_A_CLASS * distinct {
        return None;
    }
    let values: Vec<String> =
        column.top(distinct as usize).into_iter().map(|count| count.value).collect();
    if values.len() as u64 != distinct {
        return None;
    }
    match column.kind() {
        "text" => {
            let mut texts = values;
            texts.sort();
            texts.iter().all(|text| is_whole(text)).then_some(Classes::Texts(texts))
        }
        "whole" => {
            let numbers: Option<Vec<i64>> = values.iter().map(|text| text.parse().ok()).collect();
            let mut numbers = numbers?;
            numbers.sort_unstable();
            Some(Classes::Numbers(numbers))
        }
        _ => None,
    }
}

/// Returns the column that has the most likely one of some names, or `None` if no column has one.
fn find_named<'a>(
    names: &str,
    columns: impl Iterator<Item = &'a ColumnProfile> + Clone,
) -> Option<&'a ColumnProfile> {
    names.split(' ').find_map(|name| columns.clone().find(|c| c.name.to_lowercase() == name))
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
            "label `{name}` holds {n} values ({}, ..) instead of 0 and 1; name those that make \
             it 1 in a job, as in `positive = [\"a\", \"b\"]`, or \
             choose another column with the setting `label`",
            top.join(", ")
        ),
    }
}
