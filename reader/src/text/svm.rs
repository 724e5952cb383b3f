//! libsvm and its relatives: `label [qid:N] index:value ..`, and libffm's `label field:index:value ..`.
//!
//! A row is one sparse vector. Its entries are a list column called `features`, index as id and value
//! as weight; of libffm one such column a field, `field_0` and so on. The rest are columns `label` and,
//! where the rows have it, `qid`. `#` begins a comment.

use std::collections::BTreeSet;
use std::path::Path;

use zillion_feature::RawType;

use super::cell::{self, Cell, List, TextCell};
use super::decode::{Problem, Rows, bad_value};
use super::lines::Lines;
use super::{Grammar, TextSettings};
use crate::block::Column;
use crate::error::{ReaderError, Result as ReaderResult};
use crate::field::{Field, Role};
use crate::id::{self, Id};
use crate::value::{self, Outcome, Refusal};

pub(crate) const LABEL: &str = "label";
pub(crate) const QUERY: &str = "qid";
pub(crate) const FEATURES: &str = "features";
const FIELD: &str = "field_";

/// What each field reads.
#[derive(Clone, Debug)]
pub(crate) struct SvmPlan {
    /// Whether entries have a field.
    with_fields: bool,
    reads: Vec<Reads>,
    /// Whether a row may have fields that nothing reads.
    pub(super) refuses_others: bool,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    Label,
    Query,
    Features,
    Field(u32),
}

impl Reads {
    pub(crate) fn of(column: &str) -> Option<Self> {
        Some(match column {
            LABEL => Self::Label,
            QUERY => Self::Query,
            FEATURES => Self::Features,
            other => Self::Field(other.strip_prefix(FIELD)?.parse().ok()?),
        })
    }
}

impl SvmPlan {
    /// Checks that each field reads something that its column is.
    pub(super) fn new(columns: &[String], fields: &[Field], path: &Path) -> ReaderResult<Self> {
        let mut reads = Vec::with_capacity(fields.len());
        for field in fields {
            // The column was found among those that `columns` named.
            let read = Reads::of(&field.column).unwrap_or(Reads::Features);
            let fits = matches!(
                (read, &field.role),
                (Reads::Label | Reads::Query, _)
                    | (
                        Reads::Features | Reads::Field(_),
                        Role::Ids { .. } | Role::RawIds { .. } | Role::WeightedIds { .. }
                    )
                    | (
                        Reads::Field(_),
                        Role::Id { .. } | Role::RawId { .. } | Role::Text | Role::SideRow(_)
                    )
            );
            if !fits {
                return Err(ReaderError::ColumnType {
                    column: field.column.clone(),
                    mismatch: format!(
                        "the indices and values of sparse vectors, which {} cannot read; declare `kind = \"ids\"`, whose weights the values are",
                        field.used_by
                    ),
                    path: path.to_owned(),
                });
            }
            reads.push(read);
        }
        let with_fields = !columns.iter().any(|name| name == FEATURES);
        Ok(Self { with_fields, reads, refuses_others: false })
    }
}

/// The columns of some rows. Rows that cannot be read are passed over, unless no row can be read.
///
/// # Errors
/// What is wrong with the first row.
pub(super) fn columns(text: &[u8]) -> Result<Vec<String>, String> {
    let mut lines = Lines::new(Grammar::Svm, text);
    let mut with_query = false;
    // The first entry says whether there are fields; rows that are otherwise are refused when they come.
    let mut with_fields = None;
    let mut numbers = BTreeSet::new();
    let mut first_problem = None;
    let mut readable = false;
    let mut row = SvmRow::default();
    while let Some(line) = lines.advance() {
        if let Err(problem) = row.read(line) {
            first_problem.get_or_insert(problem);
            continue;
        }
        readable = true;
        with_query |= row.query.is_some();
        for entry in &row.entries {
            with_fields.get_or_insert(entry.field.is_some());
            numbers.extend(entry.field);
        }
    }
    if let (Some(problem), false) = (first_problem, readable) {
        return Err(problem);
    }
    let mut columns = vec![LABEL.to_owned()];
    columns.extend(with_query.then(|| QUERY.to_owned()));
    match with_fields.unwrap_or(false) {
        true => columns.extend(numbers.into_iter().map(|number| format!("{FIELD}{number}"))),
        false => columns.push(FEATURES.to_owned()),
    }
    Ok(columns)
}

/// One entry of a sparse vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry<'a> {
    pub(crate) field: Option<u32>,
    pub(crate) index: &'a [u8],
    pub(crate) value: f32,
}

/// One row.
#[derive(Clone, Debug, Default)]
pub(crate) struct SvmRow<'a> {
    pub(crate) label: &'a [u8],
    pub(crate) query: Option<&'a [u8]>,
    pub(crate) entries: Vec<Entry<'a>>,
}

impl<'a> SvmRow<'a> {
    /// # Errors
    /// What is wrong with the line and what to do.
    pub(crate) fn read(&mut self, line: &'a [u8]) -> Result<(), String> {
        let line = match memchr::memchr(b'#', line) {
            Some(comment) => &line[..comment],
            None => line,
        };
        (self.label, self.query) = (&[], None);
        self.entries.clear();
        let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        for (at, word) in words.enumerate() {
            match memchr::memchr(b':', word) {
                None if at == 0 => self.label = word,
                None => return Err(not_an_entry(word)),
                Some(3) if self.entries.is_empty() && word.starts_with(b"qid") => {
                    self.query = Some(&word[4..]);
                }
                Some(colon) => {
                    let entry = Entry::read(word, colon).ok_or_else(|| not_an_entry(word))?;
                    self.entries.push(entry);
                }
            }
        }
        Ok(())
    }

    /// The entries of a column.
    pub(crate) fn entries_of(&self, read: Reads) -> impl Iterator<Item = &Entry<'a>> {
        let field = match read {
            Reads::Field(number) => Some(number),
            _ => None,
        };
        self.entries.iter().filter(move |entry| entry.field == field)
    }
}

impl<'a> Entry<'a> {
    #[inline]
    fn read(word: &'a [u8], colon: usize) -> Option<Self> {
        let (first, rest) = (&word[..colon], &word[colon + 1..]);
        let (field, index, value) = match memchr::memchr(b':', rest) {
            Some(second) => {
                let number = value::parse_u64(first).ok().and_then(|n| u32::try_from(n).ok())?;
                (Some(number), &rest[..second], &rest[second + 1..])
            }
            None => (None, first, rest),
        };
        let value = value::parse_f64(value).ok()? as f32;
        let whole = value::parse_i64(index).is_ok() || value::parse_u64(index).is_ok();
        (whole && value.is_finite()).then_some(Self { field, index, value })
    }
}

#[cold]
fn not_an_entry(word: &[u8]) -> String {
    format!(
        "\"{}\" is not `index:value` (nor `field:index:value`) with a whole number and a finite one",
        value::shorten(word)
    )
}

/// The rows of a chunk.
pub(super) struct SvmRows<'a> {
    lines: Lines<'a>,
    line: &'a [u8],
    row: SvmRow<'a>,
    plan: &'a SvmPlan,
    settings: &'a TextSettings,
}

impl<'a> SvmRows<'a> {
    pub(super) fn new(lines: Lines<'a>, plan: &'a SvmPlan, settings: &'a TextSettings) -> Self {
        Self { lines, line: &[], row: SvmRow::default(), plan, settings }
    }
}

impl Rows for SvmRows<'_> {
    #[inline]
    fn advance(&mut self) -> Result<bool, Problem> {
        let Some(line) = self.lines.advance() else { return Ok(false) };
        self.line = line;
        Ok(true)
    }

    fn start(&self) -> usize {
        self.lines.start()
    }

    fn text(&self) -> &[u8] {
        self.line
    }

    fn peek(&mut self, field: usize, role: &Role, column: &mut Column) -> Option<()> {
        self.row.read(self.line).ok()?;
        let read = self.plan.reads[field];
        let cell = SvmCell { read, row: &self.row, settings: self.settings };
        cell::push(column, role, &cell).ok()
    }

    #[inline]
    fn decode(&mut self, columns: &mut [Column], fields: &[Field]) -> Result<(), Problem> {
        self.row.read(self.line).map_err(Problem::Record)?;
        let with_fields = self.plan.with_fields;
        if let Some(other) = self.row.entries.iter().find(|e| e.field.is_some() != with_fields) {
            let index = value::shorten(other.index);
            return Err(Problem::Record(match with_fields {
                true => format!(
                    "the entry with index {index} has no field, which the first rows' entries have (`field:index:value`)"
                ),
                false => format!(
                    "the entry with index {index} has a field, which the first rows' entries do not have (`index:value`)"
                ),
            }));
        }
        if self.plan.refuses_others {
            self.refuse_others()?;
        }
        for (at, (&read, field)) in self.plan.reads.iter().zip(fields).enumerate() {
            let cell = SvmCell { read, row: &self.row, settings: self.settings };
            if let Err(refusal) = cell::push(&mut columns[at], &field.role, &cell) {
                let text = cell.shown();
                return Err(bad_value(at, fields, refusal, Some(&text)));
            }
        }
        Ok(())
    }
}

impl SvmRows<'_> {
    /// What a row has that nothing reads.
    fn refuse_others(&self) -> Result<(), Problem> {
        let is_read = |read: Reads| self.plan.reads.contains(&read);
        let refuse = |what: String| Err(Problem::Record(super::beyond_first_rows(&what)));
        if self.row.query.is_some() && !is_read(Reads::Query) {
            return refuse("qid".to_owned());
        }
        let fields = self.row.entries.iter().filter_map(|entry| entry.field);
        match fields.into_iter().find(|&number| !is_read(Reads::Field(number))) {
            Some(number) => refuse(format!("{FIELD}{number}")),
            None => Ok(()),
        }
    }
}

/// A column of a row.
struct SvmCell<'r, 'a> {
    read: Reads,
    row: &'r SvmRow<'a>,
    settings: &'r TextSettings,
}

impl SvmCell<'_, '_> {
    fn text(&self) -> Outcome<TextCell<'_>> {
        let text = match self.read {
            Reads::Label => self.row.label,
            Reads::Query => self.row.query.unwrap_or_default(),
            Reads::Features | Reads::Field(_) => return Err(Refusal::List),
        };
        Ok(TextCell { text, settings: self.settings })
    }

    fn shown(&self) -> Vec<u8> {
        if let Ok(cell) = self.text() {
            return cell.text.to_vec();
        }
        let entry = |e: &Entry<'_>| format!("{}:{}", String::from_utf8_lossy(e.index), e.value);
        let entries: Vec<String> = self.row.entries_of(self.read).map(entry).collect();
        entries.join(" ").into_bytes()
    }
}

impl Cell for SvmCell<'_, '_> {
    fn id<I: Id>(&self, raw: RawType) -> Outcome<Option<I>> {
        if let Ok(text) = self.text() {
            return text.id(raw);
        }
        let mut entries = self.row.entries_of(self.read);
        let Some(entry) = entries.next() else { return Ok(None) };
        // An id has no weight, and dropping one in silence would be wrong.
        if entries.next().is_some() || entry.value != 1.0 {
            return Err(Refusal::List);
        }
        id::from_cell(raw, entry.index).map(Some)
    }

    #[inline]
    fn ids<I: Id>(&self, raw: RawType, list: &mut List<'_, I>) -> Outcome<()> {
        if let Ok(text) = self.text() {
            return text.ids(raw, list);
        }
        for entry in self.row.entries_of(self.read) {
            list.push_weighted(id::from_cell(raw, entry.index)?, entry.value);
        }
        Ok(())
    }

    fn number(&self) -> Outcome<Option<f64>> {
        self.text()?.number()
    }

    fn label(&self) -> Outcome<Option<f32>> {
        let text = self.text()?;
        match (self.read, text.label()) {
            // The two classes of a libsvm file are +1 and -1.
            (Reads::Label, Err(Refusal::NotLabel)) if text.number() == Ok(Some(-1.0)) => {
                Ok(Some(0.0))
            }
            (_, label) => label,
        }
    }

    fn group(&self) -> Outcome<Option<u64>> {
        self.text()?.group()
    }

    fn time(&self) -> Outcome<Option<i64>> {
        self.text()?.time()
    }
}
