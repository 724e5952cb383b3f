//! The decoding of one value of a row by its role. All grammars share it.

use zillion_feature::raw_value::{
    RawId, ValueError, group_from_bytes, id_from_cell, parse_f64, parse_f64_with_comma,
};
use zillion_feature::{
    DateOrder, FeatureKey, LabelValues, Moment, RawType, RawValue, TimeRule, TimeUnit,
};

use super::settings::TextSettings;
use crate::block::{Column, Lists};
use crate::config::Decimal;
use crate::derived::{end_vector, push_derived, raw_time, time_from_cell};
use crate::field::Role;
use crate::value::{self, ClassIndex, LabelRule, Outcome, Refusal};

/// A value of a row, as a grammar parses it. The methods return `None` if the value is missing.
pub(crate) trait Cell {
    fn id<I: RawId>(&self, raw: RawType) -> Outcome<Option<I>>;
    /// Appends the ids of a list to `list`, without missing ids.
    fn ids<I: RawId>(&self, raw: RawType, list: &mut Lists<I>) -> Outcome<()>;
    /// Appends the text of the value to `to`, in the same form as for an id of type string. Returns
    /// `false` if the value is missing.
    fn text(&self, to: &mut Vec<u8>) -> Outcome<bool> {
        let text = self.id::<RawValue<'static>>(RawType::String)?;
        if let Some(RawValue::Text(text)) = &text {
            to.extend_from_slice(text.as_bytes());
        }
        Ok(text.is_some())
    }
    fn number(&self) -> Outcome<Option<f64>>;
    fn label(&self) -> Outcome<Option<f32>>;
    /// Returns a label that is made from some values of its column.
    fn label_of(&self, values: &LabelValues) -> Outcome<Option<f32>>;
    /// Returns the index of the class of the value.
    fn class(&self, classes: &ClassIndex) -> Outcome<Option<f32>> {
        match classes {
            ClassIndex::Numbers(_) => {
                let number = self.number().map_err(|_| Refusal::NotClass)?;
                number.map(|x| classes.find_number(x)).transpose()
            }
            ClassIndex::Texts(_) => {
                let mut text = Vec::new();
                Ok(if self.text(&mut text)? { Some(classes.find_text(&text)?) } else { None })
            }
        }
    }
    fn group(&self) -> Outcome<Option<u64>>;
    /// Returns whether an element of a list is missing.
    fn has_gap(&self) -> bool {
        false
    }
    /// Appends the floats of a vector to `to`, or nothing if the vector is missing.
    fn floats(&self, to: &mut Vec<f32>) -> Outcome<()>;
    /// Returns the value as it is, for a copy.
    fn kept(&self) -> Outcome<RawValue<'static>>;
    /// Returns a time from which a feature derives a number.
    fn moment(&self, rule: &TimeRule) -> Outcome<Option<Moment>>;
    /// Returns an event time. With a unit, the value may also be a text with a date.
    fn time(&self, unit: Option<TimeUnit>, order: Option<DateOrder>) -> Outcome<Option<i64>>;
    /// Returns the value as text for messages.
    fn format(&self) -> Vec<u8>;
}

/// Decodes a value by its role and appends it to the column.
#[inline]
pub(crate) fn push<C: Cell>(column: &mut Column, role: &Role, cell: &C) -> Outcome<()> {
    match (role, column) {
        (Role::Id { raw, missing }, Column::Keys(keys)) => {
            keys.push(cell.id(*raw)?.unwrap_or(*missing));
        }
        (Role::Ids { raw }, Column::Lists(lists)) => {
            cell.ids(*raw, lists)?;
            lists.end()?;
        }
        (Role::RawId { raw }, Column::Raws(values)) => {
            values.push(cell.id(*raw)?.unwrap_or(RawValue::Missing));
        }
        (Role::Text, Column::Texts(texts)) => {
            let is_there = cell.text(&mut texts.bytes)?;
            texts.end(is_there);
        }
        (Role::RawIds { raw, weighted, whole }, Column::RawLists(lists)) => {
            if *whole && cell.has_gap() {
                return Err(Refusal::ListGap);
            }
            let start = lists.values.len();
            cell.ids(*raw, lists)?;
            let mut weights = lists.weights.iter().flat_map(|weights| &weights[start..]);
            if !weighted && weights.any(|&weight| weight != 1.0) {
                return Err(Refusal::Weighted);
            }
            lists.end()?;
        }
        (Role::Numeric { map, missing }, Column::Floats(values)) => {
            values.push(match cell.number()? {
                Some(x) => value::numeric(map, x)?,
                None => missing.ok_or(Refusal::Missing)?,
            });
        }
        (Role::Bucket { buckets, missing }, Column::Keys(keys)) => {
            keys.push(value::bucket(buckets, cell.number()?, *missing)?);
        }
        (Role::Number { needed }, Column::Numbers(values)) => {
            values.push(value::number(cell.number()?, *needed)?);
        }
        (Role::SideRow(lookup), Column::Rows(rows)) => {
            rows.push(lookup.row(cell.id(lookup.raw)?)?);
        }
        (Role::Label { rule, .. }, Column::Labels(labels)) => {
            let label = match rule {
                LabelRule::Flag => cell.label()?,
                LabelRule::Values(values) => cell.label_of(values)?,
                LabelRule::Class(classes) => cell.class(classes)?,
                _ => cell.number()?.map(|x| value::label(x, rule)).transpose()?,
            };
            value::push_label(labels, label)?;
        }
        (Role::Weight, Column::Floats(values)) => {
            let x = cell.number().map_err(|_| Refusal::NotWeight)?;
            values.push(value::weight(x.ok_or(Refusal::Missing)?)?);
        }
        (Role::Group, Column::Words(words)) => {
            words.push(cell.group()?.ok_or(Refusal::Missing)?);
        }
        (Role::Derived { rule, role }, column) => {
            push_derived(column, rule, role, cell.moment(rule)?)?;
        }
        (Role::Vector { size, missing }, Column::Vectors(vectors)) => {
            cell.floats(&mut vectors.values)?;
            end_vector(vectors, *size, *missing)?;
        }
        (Role::RawVector { size }, Column::Vectors(vectors)) => {
            cell.floats(&mut vectors.values)?;
            let start = vectors.offsets.last().map_or(0, |&end| end as usize);
            match vectors.values.len() == start {
                true => vectors.end()?,
                false => end_vector(vectors, *size, None)?,
            }
        }
        (Role::Kept, Column::Raws(values)) => values.push(cell.kept()?),
        (Role::RawTime { rule }, Column::Raws(values)) => {
            values.push(raw_time(cell.moment(rule)?));
        }
        (Role::EventTime { unit, order }, Column::Times(times)) => {
            let time = cell.time(*unit, *order)?.ok_or(Refusal::Missing)?;
            times.push(value::time(time, *unit)?);
        }
        // The variant always fits the role, because `Column::with_capacity` chose it by the role.
        (role, column) => unreachable!("{role:?} does not decode into {column:?}"),
    }
    Ok(())
}

/// A cell of text, with the settings that determine its meaning.
#[derive(Clone, Copy)]
pub(crate) struct TextCell<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) settings: &'a TextSettings,
}

impl<'a> TextCell<'a> {
    #[inline]
    fn present(&self) -> Option<&'a [u8]> {
        (!self.settings.rules.is_missing(self.text)).then_some(self.text)
    }
}

impl Cell for TextCell<'_> {
    #[inline]
    fn id<I: RawId>(&self, raw: RawType) -> Outcome<Option<I>> {
        Ok(self.present().map(|text| id_from_cell(raw, text)).transpose()?)
    }

    #[inline]
    fn text(&self, to: &mut Vec<u8>) -> Outcome<bool> {
        let Some(text) = self.present() else { return Ok(false) };
        std::str::from_utf8(text).map_err(|_| ValueError::NotUtf8)?;
        to.extend_from_slice(text);
        Ok(true)
    }

    fn has_gap(&self) -> bool {
        let rules = &self.settings.rules;
        self.present()
            .is_some_and(|text| rules.split_all(text).any(|id| rules.is_missing(id.trim_ascii())))
    }

    #[inline]
    fn ids<I: RawId>(&self, raw: RawType, list: &mut Lists<I>) -> Outcome<()> {
        let Some(text) = self.present() else { return Ok(()) };
        for id in self.settings.rules.split(text) {
            list.push(id_from_cell(raw, id)?);
        }
        Ok(())
    }

    #[inline]
    fn number(&self) -> Outcome<Option<f64>> {
        self.present().map(|text| self.settings.number(text)).transpose()
    }

    fn label(&self) -> Outcome<Option<f32>> {
        self.present().map(|text| self.settings.label(text)).transpose()
    }

    fn label_of(&self, values: &LabelValues) -> Outcome<Option<f32>> {
        let Some(text) = self.present() else { return Ok(None) };
        // A number with a decimal comma is compared as a number.
        if text.contains(&b',')
            && let Ok(x) = self.settings.number(text)
        {
            return value::label_from(values.of_number(x));
        }
        value::label_from(values.of_text(text))
    }

    fn class(&self, classes: &ClassIndex) -> Outcome<Option<f32>> {
        let Some(text) = self.present() else { return Ok(None) };
        Ok(Some(match classes {
            ClassIndex::Numbers(_) => {
                let number = self.settings.number(text).map_err(|_| Refusal::NotClass)?;
                classes.find_number(number)?
            }
            ClassIndex::Texts(_) => classes.find_text(text)?,
        }))
    }

    fn group(&self) -> Outcome<Option<u64>> {
        Ok(self.present().map(group_from_bytes).transpose()?)
    }

    fn floats(&self, to: &mut Vec<f32>) -> Outcome<()> {
        let Some(text) = self.present() else { return Ok(()) };
        for part in self.settings.rules.split_all(text) {
            let is_missing = self.settings.rules.is_missing(part.trim_ascii());
            let x = (!is_missing).then(|| self.settings.number(part)).transpose()?;
            to.push(value::vector_float(x)?);
        }
        Ok(())
    }

    fn kept(&self) -> Outcome<RawValue<'static>> {
        value::kept_text(self.text)
    }

    fn moment(&self, rule: &TimeRule) -> Outcome<Option<Moment>> {
        Ok(self.present().map(|text| rule.read_text(text)).transpose()?)
    }

    fn time(&self, unit: Option<TimeUnit>, order: Option<DateOrder>) -> Outcome<Option<i64>> {
        self.present().map(|text| time_from_cell(text, unit, order)).transpose()
    }

    fn format(&self) -> Vec<u8> {
        self.text.to_vec()
    }
}

impl TextSettings {
    #[inline]
    fn number(&self, cell: &[u8]) -> Outcome<f64> {
        Ok(match self.decimal {
            Decimal::Point => parse_f64(cell.trim_ascii())?,
            Decimal::Comma => parse_f64_with_comma(cell.trim_ascii())?,
        })
    }

    fn label(&self, cell: &[u8]) -> Outcome<f32> {
        match self.decimal {
            Decimal::Comma if cell.contains(&b',') => {
                let number = self.number(cell).map_err(|_| Refusal::NotLabel);
                number.and_then(|x| value::label(x, &LabelRule::Flag))
            }
            _ => value::label_from_cell(cell),
        }
    }
}

const _: () = assert!(size_of::<Outcome<FeatureKey>>() <= 16);
