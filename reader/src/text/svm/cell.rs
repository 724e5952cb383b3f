//! The decoding of the values of sparse vectors by roles, with the same rules as for other text.

use zillion_feature::raw_value::{RawId, id_from_cell};
use zillion_feature::{DateOrder, LabelValues, Moment, RawType, RawValue, TimeRule, TimeUnit};

use super::row::{SvmColumn, SvmEntry, SvmRow};
use crate::block::Lists;
use crate::text::cell::{Cell, TextCell};
use crate::text::settings::TextSettings;
use crate::value::{Outcome, Refusal};

/// A value in one column of a libsvm or libffm row.
pub(crate) struct SvmCell<'a> {
    pub(in crate::text) read: SvmColumn,
    pub(in crate::text) row: &'a SvmRow<'a>,
    pub(in crate::text) settings: &'a TextSettings,
}

impl SvmCell<'_> {
    fn text(&self) -> Outcome<TextCell<'_>> {
        let text = match self.read {
            SvmColumn::Label => self.row.label,
            SvmColumn::Query => self.row.query.unwrap_or_default(),
            SvmColumn::Features | SvmColumn::Field(_) => return Err(Refusal::List),
        };
        Ok(TextCell { text, settings: self.settings })
    }
}

impl Cell for SvmCell<'_> {
    fn format(&self) -> Vec<u8> {
        if let Ok(cell) = self.text() {
            return cell.text.to_vec();
        }
        let entry = |e: &SvmEntry<'_>| format!("{}:{}", String::from_utf8_lossy(e.index), e.value);
        let entries: Vec<String> = self.row.entries_of(self.read).map(entry).collect();
        entries.join(" ").into_bytes()
    }

    fn id<I: RawId>(&self, raw: RawType) -> Outcome<Option<I>> {
        if let Ok(text) = self.text() {
            return text.id(raw);
        }
        let mut entries = self.row.entries_of(self.read);
        let Some(entry) = entries.next() else { return Ok(None) };
        // The result is an id without a weight, and a weight must not be dropped silently.
        if entries.next().is_some() || entry.value != 1.0 {
            return Err(Refusal::List);
        }
        Ok(Some(id_from_cell(raw, entry.index)?))
    }

    #[inline]
    fn ids<I: RawId>(&self, raw: RawType, list: &mut Lists<I>) -> Outcome<()> {
        if let Ok(text) = self.text() {
            return text.ids(raw, list);
        }
        for entry in self.row.entries_of(self.read) {
            list.push_weighted(id_from_cell(raw, entry.index)?, entry.value);
        }
        Ok(())
    }

    fn number(&self) -> Outcome<Option<f64>> {
        self.text()?.number()
    }

    fn label(&self) -> Outcome<Option<f32>> {
        let text = self.text()?;
        match (self.read, text.label()) {
            // The two classes of a libsvm file are +1 and -1, so -1 means label 0.
            (SvmColumn::Label, Err(Refusal::NotLabel)) if text.number() == Ok(Some(-1.0)) => {
                Ok(Some(0.0))
            }
            (_, label) => label,
        }
    }

    fn label_of(&self, values: &LabelValues) -> Outcome<Option<f32>> {
        self.text()?.label_of(values)
    }

    fn group(&self) -> Outcome<Option<u64>> {
        self.text()?.group()
    }

    fn floats(&self, to: &mut Vec<f32>) -> Outcome<()> {
        self.text()?.floats(to)
    }

    fn kept(&self) -> Outcome<RawValue<'static>> {
        self.text()?.kept()
    }

    fn moment(&self, rule: &TimeRule) -> Outcome<Option<Moment>> {
        self.text()?.moment(rule)
    }

    fn time(&self, unit: Option<TimeUnit>, order: Option<DateOrder>) -> Outcome<Option<i64>> {
        self.text()?.time(unit, order)
    }
}
