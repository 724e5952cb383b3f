//! The guess of what one column is.

use zillion_feature::RawType;
use zillion_reader::{Byte, DataConfig, Decimal};

use super::{Guessed, has_word, words};
use crate::counters::Span;
use crate::profile::{ColumnProfile, SVM_VECTOR};
use crate::relation::{Relation, relate};

/// The words that mark a column as an id if its name contains them, even if the values are numbers.
const ID_NAMES: [&str; 48] = [
    "id",
    "ids",
    "user",
    "item",
    "uid",
    "iid",
    "sku",
    "code",
    "zip",
    "zipcode",
    "category",
    "cat",
    "brand",
    "device",
    "campaign",
    "ad",
    "adgroup",
    "site",
    "app",
    "domain",
    "shop",
    "store",
    "ip",
    "os",
    "channel",
    "carrier",
    "network",
    "publisher",
    "advertiser",
    "creative",
    "product",
    "movie",
    "film",
    "song",
    "artist",
    "author",
    "article",
    "news",
    "city",
    "region",
    "country",
    "postcode",
    "language",
    "browser",
    "platform",
    "segment",
    "cluster",
    "slot",
];
/// The words that mark a column as the name of a row or of a session if its name contains them.
const ROW_NAMES: [&str; 12] = [
    "impression",
    "session",
    "request",
    "event",
    "row",
    "index",
    "uuid",
    "guid",
    "trace",
    "transaction",
    "order",
    "visit",
];
/// The maximum number of distinct whole numbers in a column of ids.
const FEW: u64 = 100;
/// The number of rows that a whole number occurs in on average, from which it counts as repeated.
const REPEATS: u64 = 5;
/// The share of rows that lie on a line with a label of amounts from which a column seems to be the
/// label in another unit.
const ON_LINE: f64 = 0.99;
/// The distance from that line up to which a row lies on it, in parts of the spread of the label.
const NEAR_LINE: f64 = 1e-3;
/// The rank correlation with a label of amounts from which a column has the order of the label.
const SAME_ORDER: f64 = 0.9999;
/// The least number of rows from which such a correlation is no chance.
const LEAST_ROWS_OF_A_LINE: usize = 30;
/// The AUC from which a column alone separates the label too well for a feature.
const LEAK: f64 = 0.995;
/// The mean number of bytes above which texts are considered to be prose.
const PROSE: f64 = 48.0;

/// Returns the list separator of a column and the number of cells that contain it, or `None` if the
/// column contains no lists. A column contains lists if at least a tenth of its texts contain the
/// separator, and if the pieces between separators are short and have fewer distinct values than
/// the whole cells.
pub(super) fn multi_hot(column: &ColumnProfile) -> Option<(char, u64)> {
    let cells = column.cells;
    if column.kind() != "text" || cells.lines > 0 || cells.decorated + cells.date > cells.text / 2 {
        return None;
    }
    let (distinct, _) = column.distinct();
    // Thousands, as in `1,234.00`, beside numbers are no lists.
    if cells.decorated > 0 && cells.whole + cells.fraction > cells.text {
        return None;
    }
    let lists = column.separated.iter().filter(|(_, s)| {
        let mean_piece = column.mean_bytes * cells.text as f64 / s.pieces.max(1) as f64;
        s.cells * 10 >= cells.text && mean_piece <= 24.0 && s.distinct() < distinct
    });
    lists.map(|(separator, s)| (*separator, s.cells)).max_by_key(|&(_, cells)| cells)
}

/// Returns the reason for leaving out a column of numbers that seem to be amounts of the label in
/// another unit, or that have the order of the label. `amounts` are the labels of the rows that the
/// profile kept.
pub(super) fn follows(column: &ColumnProfile, amounts: &[f64]) -> Option<String> {
    let pairs = column.kept.iter().map(|kept| kept.number).zip(amounts.iter().copied());
    let pairs: Vec<(f64, f64)> = pairs.filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    if pairs.len() < LEAST_ROWS_OF_A_LINE || 2 * pairs.len() < amounts.len() {
        return None;
    }
    let what = if on_line(&pairs) >= ON_LINE {
        "seems to be the label in another unit".to_owned()
    } else {
        let correlation = rank_correlation(&pairs).abs();
        if correlation.is_nan() || correlation < SAME_ORDER {
            return None;
        }
        format!("has the order of the label (a rank correlation of {correlation:.5})")
    };
    Some(format!(
        "it {what}, so it is probably known only after the label; make it a feature if it is known \
         before"
    ))
}

/// Returns the share of pairs that lie on the line through two quantiles of their middle. Far
/// values that both columns have for unknown amounts do not make a line.
fn on_line(pairs: &[(f64, f64)]) -> f64 {
    let mut by_y = pairs.to_vec();
    by_y.sort_unstable_by(|(_, a), (_, b)| a.total_cmp(b));
    let ((low_x, low_y), (high_x, high_y)) = (by_y[by_y.len() / 4], by_y[3 * by_y.len() / 4]);
    let (width, spread) = (high_x - low_x, high_y - low_y);
    if width == 0.0 || spread == 0.0 {
        return 0.0;
    }
    let is_near = |&&(x, y): &&(f64, f64)| {
        (low_y + (x - low_x) / width * spread - y).abs() <= NEAR_LINE * spread
    };
    pairs.iter().filter(is_near).count() as f64 / pairs.len() as f64
}

/// Returns the rank correlation of pairs (Spearman's), in which equal numbers share their mean
/// rank. It is not a number if a side has one value.
fn rank_correlation(pairs: &[(f64, f64)]) -> f64 {
    let ranks = |of: &dyn Fn(&(f64, f64)) -> f64| -> Vec<f64> {
        let mut order: Vec<(f64, usize)> = pairs.iter().map(of).zip(0..).collect();
        order.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
        let mut ranks = vec![0.0; order.len()];
        let mut first = 0;
        for equal in order.chunk_by(|(a, _), (b, _)| a == b) {
            let mean = first as f64 + (equal.len() - 1) as f64 / 2.0;
            equal.iter().for_each(|&(_, row)| ranks[row] = mean);
            first += equal.len();
        }
        ranks
    };
    let (x, y) = (ranks(&|pair| pair.0), ranks(&|pair| pair.1));
    let mean = (pairs.len() - 1) as f64 / 2.0;
    let sum = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum()
    };
    sum(&x, &y) / (sum(&x, &x) * sum(&y, &y)).sqrt()
}

/// Guesses what a column is. `labels` are the labels of the rows that the profile kept, or `None`
/// if they are not known. A column may not separate them alone if `tells` is true.
pub(super) fn guess_column(
    column: &ColumnProfile,
    config: &DataConfig,
    labels: Option<&[bool]>,
    tells: bool,
) -> Guessed {
    let cells = column.cells;
    let (distinct, exact) = column.distinct();
    let present = column.present();
    let many = if exact { distinct.to_string() } else { format!("about {distinct}") };
    if present == 0 {
        return Guessed::Left("no row has a value".to_owned());
    }
    if let Some(vector) = guess_vector(column) {
        return vector;
    }
    if distinct == 1 && present == column.rows {
        return Guessed::Left("every row has the same value".to_owned());
    }
    let all_distinct = distinct == column.rows && column.rows >= 100;
    let relation = labels.and_then(|labels| relate(&column.kept, labels));
    if let Some(relation) = relation.filter(|relation| tells && relation.auc >= LEAK) {
        return Guessed::Left(format!(
            "it separates the label alone (an AUC of {:.4} on held-out rows), so it is probably \
             known only after the label; make it a feature if it is known before",
            relation.auc
        ));
    }
    match column.kind() {
        "whole" => guess_whole(column, &many, all_distinct, relation),
        // Whole numbers are written with a fraction of zero where other rows have no value.
        "number"
            if cells.zero_fraction == cells.fraction + cells.not_finite
                && present < column.rows =>
        {
            guess_whole(column, &many, all_distinct, relation)
        }
        "number" if cells.beyond_u64 > 0 => Guessed::Left(format!(
            "{} of its whole numbers do not fit 64 bits and would be rounded; write them as texts",
            cells.beyond_u64
        )),
        "number" => {
            let as_point = cells.fraction - cells.comma;
            if config.decimal == Decimal::Comma && as_point > 0 {
                return Guessed::Left(format!(
                    "{as_point} of its numbers have a decimal point, but other columns have decimal \
                     commas; use the same sign in all columns"
                ));
            }
            if cells.comma > 0 && cells.thousands == cells.comma {
                let example = column.example_decorated.as_deref().unwrap_or_default();
                return Guessed::Left(format!(
                    "numbers such as \"{example}\", whose commas may separate thousands; write them \
                     without separators of thousands"
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
        "boolean" => Guessed::Id { raw: RawType::I64, reason: "true and false".to_owned() },
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

/// Returns the guess for a column whose lists hold the same number of floats, or `None` for any
/// other column.
fn guess_vector(column: &ColumnProfile) -> Option<Guessed> {
    let (least, most) = column.list_lengths?;
    if column.kind() != "list" || !column.data_type.contains("float") || most < 2 {
        return None;
    }
    if least != most {
        return Some(Guessed::Left(format!(
            "lists of {least} to {most} floats, but a vector has the same number in each row; bring \
             them to one length"
        )));
    }
    let has_gaps = column.present() < column.rows;
    Some(Guessed::Vector { size: most, has_gaps, reason: format!("lists of {most} floats") })
}

/// Guesses what a column of whole numbers is: ids or amounts.
fn guess_whole(
    column: &ColumnProfile,
    many: &str,
    all_distinct: bool,
    relation: Option<Relation>,
) -> Guessed {
    let (distinct, _) = column.distinct();
    if let Some(date) = date_of_digits(column) {
        return Guessed::Left(format!(
            "numbers such as {date}, which seem to be dates; write them as 2024-12-31, so that they \
             become the time of the row or a feature"
        ));
    }
    if is_counter(&column.name) {
        return numeric(column, format!("{many} different whole numbers, and the name of a count"));
    }
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
    if let Some(why) = names_rows(column, distinct) {
        return Guessed::Left(why);
    }
    if column.cells.padded > 0 {
        let reason = format!("{many} different codes, some of which begin with 0");
        return Guessed::Id { raw: RawType::String, reason };
    }
    if named {
        return id(format!("{many} different whole numbers, and the name of an id"));
    }
    if distinct <= FEW {
        return id(format!("only {many} different whole numbers"));
    }
    // Amounts of a few millions that hardly repeat would be learned by heart as ids. Hashes of 32
    // or 64 bits lie above them.
    let may_be_amounts = |max: f64| max < f64::from(1u32 << 31) && 2 * distinct > column.present();
    let hashes = column
        .numbers()
        .is_some_and(|n| n.max > 1e6 && n.p50 > n.max / 100.0 && !may_be_amounts(n.max));
    if hashes {
        return id(format!("{many} different whole numbers, spread like hashes"));
    }
    let repeats = column.present() >= REPEATS * distinct;
    match relation {
        Some(relation) if relation.has_order() => numeric(
            column,
            format!(
                "{many} different whole numbers, whose order predicts the label ({}); use kind `id` \
                 if they are ids",
                describe(&relation)
            ),
        ),
        Some(relation) if repeats => id(format!(
            "{many} different whole numbers, each in many rows, whose order predicts the label less \
             than they do as ids ({}); use kind `numeric` if they are amounts",
            describe(&relation)
        )),
        _ => numeric(
            column,
            format!("{many} different whole numbers; use kind `id` if they are ids"),
        ),
    }
}

/// Returns the first of the whole numbers of a column that are dates of eight digits, such as
/// 20241231, or `None` if the column has others.
fn date_of_digits(column: &ColumnProfile) -> Option<i64> {
    let numbers = column.numbers()?;
    let is_date = |number: f64| {
        let (year, month, day) =
            (number as i64 / 10_000, number as i64 / 100 % 100, number as i64 % 100);
        (1900..2100).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day)
    };
    let kept = column.kept.iter().map(|kept| kept.number).filter(|number| number.is_finite());
    let all = [numbers.min, numbers.max].into_iter().chain(kept).all(is_date);
    all.then_some(numbers.min as i64)
}

/// Returns whether a name is that of a count which [`crate::add_counters`] adds, such as
/// `item_rows_7d`.
fn is_counter(name: &str) -> bool {
    let words = words(name);
    let [.., of, window] = words.as_slice() else { return false };
    matches!(of.as_str(), "rows" | "positives") && window.parse::<Span>().is_ok()
}

/// Returns the losses of a relation as text.
fn describe(relation: &Relation) -> String {
    let Relation { base, by_value, by_order, .. } = relation;
    format!(
        "loss on held-out rows {by_order:.4} by order, {by_value:.4} by id, {base:.4} by neither"
    )
}

/// Returns the reason for leaving out a column whose values hardly repeat and whose name says that
/// they name rows. Returns `None` for any other column.
fn names_rows(column: &ColumnProfile, distinct: u64) -> Option<String> {
    let hardly = column.rows >= 100 && 2 * distinct > column.present();
    (hardly && has_word(&column.name, &ROW_NAMES)).then(|| {
        let repeats = column.present() as f64 / distinct.max(1) as f64;
        format!(
            "a value occurs in {repeats:.1} rows on average, so it names the row or its session and \
             says nothing about other rows"
        )
    })
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
    if (cells.date.max(column.times.day_first).max(column.times.month_first)) * 2 > cells.text {
        let why = column.times.order(cells.text).err().unwrap_or("some cells hold other values");
        return Guessed::Left(format!(
            "dates such as \"{example}\", but {why}; add a feature with derive = \"days\", and with \
             date_order if the year comes last"
        ));
    }
    let numbers = cells.whole + cells.beyond_i64 + cells.fraction;
    if cells.decorated * 2 > cells.text || (cells.decorated > 0 && numbers > cells.text) {
        let example = column.example_decorated.as_deref().unwrap_or(example);
        return Guessed::Left(format!(
            "numbers such as \"{example}\"; remove separators of thousands, currencies and units"
        ));
    }
    if example.starts_with('[') && example.ends_with(']') && column.data_type == "text" {
        return Guessed::Left(format!(
            "lists in the form of a programming language, such as \"{}\"; write their values without \
             brackets and quotes, with `|` between them",
            shorten(example)
        ));
    }
    // Numbers with fractions are no codes, however many texts stand between them.
    let is_amount = cells.fraction > 0 && numbers > cells.text;
    if (numbers > 9 * cells.text || is_amount) && column.data_type == "text" {
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
    if let Some(why) = names_rows(column, distinct) {
        return Guessed::Left(why);
    }
    if column.mean_bytes > PROSE && distinct * 2 > column.present() {
        return Guessed::Left(format!("prose such as \"{example}\""));
    }
    Guessed::Id { raw: RawType::String, reason: format!("{many} different texts") }
}

/// Returns the beginning of a long text.
fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push_str("..");
    }
    short
}
