//! The counts of the values in one column, which grow while the column is read.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, MixedHasher, Moment, TimeUnit};

use super::shape::{self, Shape};
use super::times::Times;
use super::values::Values;
use zillion_feature::raw_value::{group_from_bytes, parse_i64, parse_u64};
use zillion_reader::{Sample, Sketch};

/// The maximum number of numbers that are kept for the quantiles.
const SAMPLED: usize = 1 << 16;
/// The maximum number of characters of a text in a report.
const SHOWN: usize = 48;
/// The characters that may separate ids in one cell.
pub(super) const SEPARATORS: [u8; 3] = *b"|;,";

/// The counts of cells for each shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cells {
    /// The number of whole numbers that fit into an `i64`.
    pub whole: u64,
    /// The number of negative whole numbers.
    pub negative: u64,
    /// The number of whole numbers that fit only into a `u64`.
    pub beyond_i64: u64,
    /// The number of whole numbers that begin with a zero or a plus sign.
    pub padded: u64,
    /// The number of finite numbers that are written with a fraction or an exponent.
    pub fraction: u64,
    /// The number of these whose fraction is zero, such as `42.0`.
    pub zero_fraction: u64,
    /// The number of whole numbers that no 64-bit type holds and whose digits a JSON reader rounds.
    pub beyond_u64: u64,
    /// The number of numbers with a decimal comma.
    pub comma: u64,
    /// The number of these with three digits behind the comma, which may separate thousands.
    pub thousands: u64,
    /// The number of cells that are NaN or an infinity.
    pub not_finite: u64,
    /// The number of cells that mean true or false.
    pub boolean: u64,
    /// The number of cells that are lists.
    pub list: u64,
    /// The number of cells that are JSON objects.
    pub object: u64,
    /// The number of texts, including the texts that the next three fields count.
    pub text: u64,
    /// The number of texts that are numbers with thousands separators, currencies or units.
    pub decorated: u64,
    /// The number of texts that are dates or times.
    pub date: u64,
    /// The number of texts that contain a line end.
    pub lines: u64,
}

/// The counts of cells and pieces, if one character is the separator of the values in a cell.
#[derive(Clone, Debug, Default)]
pub struct Separated {
    /// The number of cells that contain the separator.
    pub cells: u64,
    /// The number of pieces if all text cells are split at the separator.
    pub pieces: u64,
    distinct: Option<Box<Sketch>>,
}

impl Separated {
    /// Returns the estimated number of distinct pieces.
    pub fn distinct(&self) -> u64 {
        self.distinct.as_ref().map_or(0, |sketch| sketch.count().round() as u64)
    }
}

/// The value of one row of a column, as the tests of the relation to the label need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// The key of the value. All missing values have the same key.
    pub(crate) key: FeatureKey,
    /// The value as a number, or NaN if the value is missing or no number.
    pub(crate) number: f64,
}

impl Kept {
    const MISSING: Self = Self { key: FeatureKey(0), number: f64::NAN };
}

/// The statistics of one column, which are updated while the column is read.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(super) missing: u64,
    pub(super) cells: Cells,
    pub(super) values: Values,
    pub(super) numbers: Sample,
    pub(super) smallest: f64,
    pub(super) largest: f64,
    /// The number of bytes of all texts.
    pub(super) bytes: u64,
    pub(super) separated: [Separated; 3],
    /// The number of values in all lists.
    pub(super) items: u64,
    /// The smallest and the largest number of values in a list.
    pub(super) list_lengths: Option<(usize, usize)>,
    /// Three counts of the values in JSON lists: whole numbers, texts, and all other values.
    pub(super) item_kinds: [u64; 3],
    /// The number of cells that are equal to each possible null marker.
    pub(super) markers: Vec<u64>,
    pub(super) example: Option<String>,
    pub(super) example_decorated: Option<String>,
    /// The values of the first rows, at most `most_kept`.
    pub(super) kept: Vec<Kept>,
    most_kept: usize,
    /// The counts of the values that are times.
    pub(super) times: Times,
    /// Whether each whole number is larger than the previous one.
    pub(super) ascending: bool,
    last: Option<i64>,
    /// The keys to search for. `found` holds the texts that were found for them.
    wanted: Arc<HashSet<FeatureKey, MixedHasher>>,
    pub(super) found: BTreeMap<FeatureKey, String>,
}

impl Tally {
    /// Makes the tally of a column without values. `most_kept` is the number of first rows whose
    /// values are kept.
    pub(super) fn new(
        markers: usize,
        wanted: Arc<HashSet<FeatureKey, MixedHasher>>,
        most_kept: usize,
    ) -> Self {
        Self {
            missing: 0,
            cells: Cells::default(),
            values: Values::default(),
            numbers: Sample::with_capacity(SAMPLED),
            smallest: f64::INFINITY,
            largest: f64::NEG_INFINITY,
            bytes: 0,
            separated: Default::default(),
            items: 0,
            list_lengths: None,
            item_kinds: [0; 3],
            markers: vec![0; markers],
            example: None,
            example_decorated: None,
            kept: Vec::new(),
            most_kept,
            times: Times::default(),
            ascending: true,
            last: None,
            wanted,
            found: BTreeMap::new(),
        }
    }

    /// Stores a text if its key is one of the keys to search for.
    fn look_for(&mut self, text: &[u8]) {
        if let Ok(text) = std::str::from_utf8(text) {
            let key = FeatureKey::from_text(text);
            if self.wanted.contains(&key) {
                self.found.entry(key).or_insert_with(|| text.to_owned());
            }
        }
    }

    /// Keeps the value of a row, if the row is one of the first rows.
    fn keep(&mut self, key: FeatureKey, number: f64) {
        if self.kept.len() < self.most_kept {
            self.kept.push(Kept { key, number });
        }
    }

    /// Counts the value of a row and keeps it.
    fn value(&mut self, key: FeatureKey, number: f64, text: impl FnOnce() -> String) {
        self.keep(key, number);
        self.values.add(key, text);
    }

    pub(super) fn missing(&mut self) {
        self.missing += 1;
        self.keep(Kept::MISSING.key, Kept::MISSING.number);
    }

    pub(super) fn whole(&mut self, id: i64) {
        self.add_whole(id, FeatureKey::from_i64(id), || id.to_string());
    }

    fn add_whole(&mut self, id: i64, key: FeatureKey, text: impl FnOnce() -> String) {
        self.cells.whole += 1;
        self.cells.negative += u64::from(id < 0);
        self.ascending &= self.last.is_none_or(|last| id > last);
        self.last = Some(id);
        self.number(id as f64);
        self.value(key, id as f64, text);
    }

    pub(super) fn beyond_i64(&mut self, id: u64) {
        self.cells.beyond_i64 += 1;
        self.number(id as f64);
        self.value(FeatureKey::from_u64(id), id as f64, || id.to_string());
    }

    pub(super) fn fraction(&mut self, x: f64) {
        let is_whole = x.fract() == 0.0 && x.abs() < 9_007_199_254_740_992.0;
        self.add_fraction(x, is_whole, float_key(x), || x.to_string());
    }

    /// Counts a floating-point number. `is_whole` says whether the reader takes it as an id.
    fn add_fraction(
        &mut self,
        x: f64,
        is_whole: bool,
        key: FeatureKey,
        text: impl FnOnce() -> String,
    ) {
        if !x.is_finite() {
            self.cells.not_finite += 1;
            self.keep(Kept::MISSING.key, Kept::MISSING.number);
            return;
        }
        self.cells.fraction += 1;
        self.cells.zero_fraction += u64::from(is_whole);
        self.ascending = false;
        self.number(x);
        self.value(key, x, text);
    }

    /// Counts a floating-point number of JSON. JSON has no whole numbers beyond 64 bits, so a
    /// number of this size may be an id that the reader has rounded.
    pub(super) fn json_float(&mut self, x: f64) {
        self.cells.beyond_u64 += u64::from(x.abs() >= 9.2e18);
        self.fraction(x);
    }

    pub(super) fn boolean(&mut self, x: bool) {
        self.cells.boolean += 1;
        self.value(FeatureKey::from_u64(u64::from(x)), f64::from(u8::from(x)), || x.to_string());
    }

    /// Counts a value of a type of dates or timestamps.
    pub(super) fn time(&mut self, time: Moment) {
        self.times.add(time);
        let seconds = time.count(TimeUnit::Second).unwrap_or_default();
        self.value(text_key(time.to_string().as_bytes()), seconds as f64, || time.to_string());
    }

    pub(super) fn object(&mut self) {
        self.cells.object += 1;
        self.keep(Kept::MISSING.key, Kept::MISSING.number);
    }

    pub(super) fn list(&mut self, items: usize) {
        self.cells.list += 1;
        self.items += items as u64;
        let (least, most) = self.list_lengths.unwrap_or((items, items));
        self.list_lengths = Some((least.min(items), most.max(items)));
        // The length is what one number can tell of a list.
        self.keep(FeatureKey::from_u64(items as u64), items as f64);
    }

    /// Counts one text in a list. The caller counts the list itself with [`Tally::list`].
    pub(super) fn text_item(&mut self, text: &[u8]) {
        if !self.wanted.is_empty() {
            self.look_for(text);
        }
        self.values.add(text_key(text), || format_text(text));
    }

    fn number(&mut self, x: f64) {
        self.numbers.add(x);
        self.smallest = self.smallest.min(x);
        self.largest = self.largest.max(x);
    }

    /// Counts a cell of a CSV or TSV file. A cell that can be read as a number is counted as a
    /// number. `decimal` is the decimal separator.
    pub(super) fn cell(&mut self, cell: &[u8], decimal: u8, markers: &[Vec<u8>]) {
        if !self.wanted.is_empty() {
            self.look_for(cell);
        }
        if let Some(at) = markers.iter().position(|m| m == cell) {
            self.markers[at] += 1;
            return self.keep(Kept::MISSING.key, Kept::MISSING.number);
        }
        let trimmed = cell.trim_ascii();
        if let Ok(id) = parse_i64(trimmed) {
            let digits = trimmed.strip_prefix(b"-").unwrap_or(trimmed);
            let is_padded = matches!(digits, [b'0', _, ..] | [b'+', ..]);
            if !is_padded {
                return self.whole(id);
            }
            self.cells.padded += 1;
            return self.add_whole(id, text_key(trimmed), || format_text(trimmed));
        }
        if let Ok(id) = parse_u64(trimmed) {
            return self.beyond_i64(id);
        }
        match shape::detect(trimmed) {
            // Codes such as 1e5 and 10e4 look like equal numbers, so their texts are compared.
            Shape::Point(x)
                if decimal == b'.' && trimmed.iter().any(|b| matches!(b, b'e' | b'E')) =>
            {
                return self.add_fraction(x, false, text_key(trimmed), || format_text(trimmed));
            }
            Shape::Point(x) if decimal == b'.' => {
                // The reader takes `42.0` as an id, and no other fraction.
                let whole = trimmed.strip_suffix(b".0");
                let is_whole = whole.is_some_and(|whole| parse_i64(whole).is_ok());
                return self.add_fraction(x, is_whole, float_key(x), || x.to_string());
            }
            Shape::Comma(x) => {
                self.cells.comma += 1;
                if shape::may_be_thousands(trimmed) {
                    self.cells.thousands += 1;
                    self.example_decorated.get_or_insert_with(|| format_text(cell));
                }
                return self.add_fraction(x, false, float_key(x), || x.to_string());
            }
            Shape::NotFinite => return self.fraction(f64::NAN),
            // Decorated numbers are counted among the texts.
            Shape::Decorated => {}
            Shape::Point(_) => self.decorated(cell),
            Shape::Date => self.cells.date += 1,
            Shape::Boolean(x) => return self.boolean(x),
            Shape::Other => {}
        }
        self.text(cell);
    }

    fn decorated(&mut self, cell: &[u8]) {
        self.cells.decorated += 1;
        self.example_decorated.get_or_insert_with(|| format_text(cell));
    }

    /// Counts a text as a text, even if it can be read as a number.
    pub(super) fn text(&mut self, text: &[u8]) {
        self.cells.text += 1;
        self.times.add_text(text);
        if matches!(shape::detect(text.trim_ascii()), Shape::Decorated) {
            self.decorated(text);
        }
        if !self.wanted.is_empty() {
            self.look_for(text);
            text.split(|b| SEPARATORS.contains(b)).for_each(|piece| self.look_for(piece));
        }
        self.bytes += text.len() as u64;
        self.cells.lines += u64::from(text.contains(&b'\n'));
        self.example.get_or_insert_with(|| format_text(text));
        self.value(text_key(text), f64::NAN, || format_text(text));
        for (separated, separator) in self.separated.iter_mut().zip(SEPARATORS) {
            let pieces = text.split(|&b| b == separator).filter(|p| !p.is_empty());
            let sketch = separated.distinct.get_or_insert_default();
            let mut count = 0;
            for piece in pieces {
                count += 1;
                sketch.add(text_key(piece.trim_ascii()));
            }
            separated.pieces += count;
            separated.cells += u64::from(text.contains(&separator));
        }
    }
}

/// Returns the key of a floating-point number. 3 and 3.0 are the same value, in one file or in two
/// files.
fn float_key(x: f64) -> FeatureKey {
    match x.fract() == 0.0 && x.abs() < 1e15 {
        true => FeatureKey::from_i64(x as i64),
        false => FeatureKey(mix64(x.to_bits())),
    }
}

/// Returns the key of a text. The text of a whole number in its usual spelling has the same key as
/// the number.
pub(crate) fn text_key(text: &[u8]) -> FeatureKey {
    match group_from_bytes(text) {
        Ok(word) => FeatureKey(word),
        Err(_) => FeatureKey::from_text(&String::from_utf8_lossy(text)),
    }
}

/// Returns a text in the form for reports: escaped, and cut to [`SHOWN`] characters.
fn format_text(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}..", text[..end].escape_debug()),
        None => text.escape_debug().to_string(),
    }
}
