//! The decoding of JSON values by roles, with the same rules as for CSV and Parquet.

use zillion_feature::raw_value::{
    RawId, ValueError, group_from_bytes, id_from_flag, id_from_float, id_from_int, id_from_uint,
};
use zillion_feature::{
    DateOrder, FeatureKey, LabelValues, Moment, RawType, RawValue, TimeRule, TimeUnit,
};

use super::row::{JsonRow, JsonValue};
use crate::block::Lists;
use crate::derived::{event_rule, event_time};
use crate::text::cell::{Cell, TextCell};
use crate::text::settings::TextSettings;
use crate::value::{self, LabelRule, Outcome, Refusal};

/// A value of a JSON row, with the settings that determine the meaning of texts.
pub(crate) struct JsonCell<'a> {
    pub(in crate::text) value: JsonValue<'a>,
    pub(in crate::text) row: &'a JsonRow<'a>,
    pub(in crate::text) settings: &'a TextSettings,
}

impl<'a> JsonCell<'a> {
    #[inline]
    fn text(&self) -> Option<TextCell<'_>> {
        let text = self.row.text(self.value)?.as_bytes();
        Some(TextCell { text, settings: self.settings })
    }

    fn of(&self, value: JsonValue<'a>) -> Self {
        JsonCell { value, row: self.row, settings: self.settings }
    }

    /// Returns the value as text for a message. The text is JSON or similar to JSON.
    fn describe(&self) -> String {
        match self.value {
            JsonValue::Missing => "null".to_owned(),
            JsonValue::Bool(flag) => flag.to_string(),
            JsonValue::Int(x) => x.to_string(),
            JsonValue::UInt(x) => x.to_string(),
            JsonValue::Float(x) => x.to_string(),
            JsonValue::Text(_) | JsonValue::Unescaped(..) => {
                self.row.text(self.value).unwrap_or_default().to_owned()
            }
            JsonValue::List(start, end) => {
                let items = self.row.items(start, end).iter();
                let items: Vec<String> = items.map(|&item| self.of(item).describe()).collect();
                format!("[{}]", items.join(","))
            }
            JsonValue::Object => "{..}".to_owned(),
        }
    }
}

impl Cell for JsonCell<'_> {
    fn format(&self) -> Vec<u8> {
        self.describe().into_bytes()
    }

    #[inline]
    fn id<I: RawId>(&self, raw: RawType) -> Outcome<Option<I>> {
        let id = match self.value {
            JsonValue::Missing => return Ok(None),
            // If the id is a text, a JSON number gets the same key as a CSV cell with the same
            // digits.
            JsonValue::Int(id) => id_from_int(raw, id),
            JsonValue::UInt(id) => id_from_uint(raw, id),
            JsonValue::Bool(flag) => Ok(id_from_flag(raw, flag)),
            // The parser also returns a floating-point number for integers that 64 bits cannot
            // hold.
            JsonValue::Float(x)
                if raw != RawType::String && x.fract() == 0.0 && x.abs() >= 9.2e18 =>
            {
                Err(ValueError::Beyond64Bits)
            }
            JsonValue::Float(x) => id_from_float(raw, x),
            JsonValue::List(..) => return Err(Refusal::List),
            JsonValue::Object => return Err(Refusal::Object),
            JsonValue::Text(_) | JsonValue::Unescaped(..) => {
                return self.text().map_or(Ok(None), |text| text.id(raw));
            }
        };
        Ok(Some(id?))
    }

    fn has_gap(&self) -> bool {
        let is_missing = |item: &JsonValue<'_>| match *item {
            JsonValue::Missing => true,
            JsonValue::Text(_) | JsonValue::Unescaped(..) => self
                .row
                .text(*item)
                .is_none_or(|text| self.settings.rules.is_missing(text.as_bytes())),
            _ => false,
        };
        match self.value {
            JsonValue::List(start, end) => self.row.items(start, end).iter().any(is_missing),
            _ => self.text().is_some_and(|text| text.has_gap()),
        }
    }

    #[inline]
    fn ids<I: RawId>(&self, raw: RawType, list: &mut Lists<I>) -> Outcome<()> {
        match self.value {
            JsonValue::List(start, end) => {
                for &item in self.row.items(start, end) {
                    if let Some(id) = self.of(item).id(raw)? {
                        list.push(id);
                    }
                }
            }
            // The value is one string that holds several ids, as in CSV.
            JsonValue::Text(_) | JsonValue::Unescaped(..) => {
                if let Some(text) = self.text() {
                    text.ids(raw, list)?;
                }
            }
            _ => {
                if let Some(id) = self.id(raw)? {
                    list.push(id);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn number(&self) -> Outcome<Option<f64>> {
        Ok(Some(match self.value {
            JsonValue::Missing => return Ok(None),
            JsonValue::Bool(flag) => f64::from(u8::from(flag)),
            JsonValue::Int(x) => x as f64,
            JsonValue::UInt(x) => x as f64,
            JsonValue::Float(x) => x,
            JsonValue::List(..) => return Err(Refusal::List),
            JsonValue::Object => return Err(Refusal::Object),
            JsonValue::Text(_) | JsonValue::Unescaped(..) => {
                return self.text().map_or(Ok(None), |text| text.number());
            }
        }))
    }

    fn label(&self) -> Outcome<Option<f32>> {
        match self.text() {
            Some(text) => text.label(),
            None => match self.number() {
                Ok(x) => x.map(|x| value::label(x, &LabelRule::Flag)).transpose(),
                Err(_) => Err(Refusal::NotLabel),
            },
        }
    }

    fn label_of(&self, values: &LabelValues) -> Outcome<Option<f32>> {
        match self.value {
            JsonValue::Missing => Ok(None),
            JsonValue::Bool(flag) => value::label_from(values.of_flag(flag)),
            _ => match self.text() {
                Some(text) => text.label_of(values),
                None => match self.number()? {
                    Some(x) => value::label_from(values.of_number(x)),
                    None => Ok(None),
                },
            },
        }
    }

    fn group(&self) -> Outcome<Option<u64>> {
        match self.value {
            JsonValue::Float(_) => Err(ValueError::NoText.into()),
            JsonValue::Bool(flag) => Ok(Some(group_from_bytes(flag.to_string().as_bytes())?)),
            _ => match self.text() {
                Some(text) => text.group(),
                None => {
                    let key = self.id(RawType::U64).or_else(|_| self.id(RawType::I64))?;
                    Ok(key.map(|key: FeatureKey| key.0))
                }
            },
        }
    }

    fn floats(&self, to: &mut Vec<f32>) -> Outcome<()> {
        match self.value {
            JsonValue::Missing => Ok(()),
            // A log of requests writes a missing vector as a list with one missing value.
            JsonValue::List(start, end) if self.row.items(start, end) == [JsonValue::Missing] => {
                Ok(())
            }
            JsonValue::List(start, end) => {
                for &item in self.row.items(start, end) {
                    to.push(value::vector_float(self.of(item).number()?)?);
                }
                Ok(())
            }
            JsonValue::Object => Err(Refusal::Object),
            _ => match self.text() {
                // The value is one string that holds the numbers, as in CSV.
                Some(text) => text.floats(to),
                None => {
                    to.push(value::vector_float(self.number()?)?);
                    Ok(())
                }
            },
        }
    }

    fn kept(&self) -> Outcome<RawValue<'static>> {
        Ok(match self.value {
            JsonValue::Missing => RawValue::Missing,
            JsonValue::Bool(flag) => RawValue::Bool(flag),
            JsonValue::Int(x) => RawValue::Int(x),
            JsonValue::UInt(x) => RawValue::Uint(x),
            // The parser has rounded whole numbers that 64 bits cannot hold.
            JsonValue::Float(x) if x.fract() == 0.0 && x.abs() >= 9.2e18 => {
                return Err(ValueError::Rounded.into());
            }
            JsonValue::Float(x) => RawValue::Float(x),
            JsonValue::List(..) => return Err(Refusal::List),
            JsonValue::Object => return Err(Refusal::Object),
            JsonValue::Text(_) | JsonValue::Unescaped(..) => {
                let text = self.row.text(self.value).unwrap_or_default();
                RawValue::Text(text.to_owned().into())
            }
        })
    }

    fn moment(&self, rule: &TimeRule) -> Outcome<Option<Moment>> {
        Ok(Some(match self.value {
            JsonValue::Missing => return Ok(None),
            JsonValue::Int(count) => rule.read_count(count)?,
            JsonValue::Float(count) => rule.read_float(count)?,
            JsonValue::List(..) => return Err(Refusal::List),
            JsonValue::Object => return Err(Refusal::Object),
            JsonValue::Bool(_) | JsonValue::UInt(_) => return Err(ValueError::NotTime.into()),
            JsonValue::Text(_) | JsonValue::Unescaped(..) => {
                return self.text().map_or(Ok(None), |text| text.moment(rule));
            }
        }))
    }

    fn time(&self, unit: Option<TimeUnit>, order: Option<DateOrder>) -> Outcome<Option<i64>> {
        match (self.value, unit) {
            (JsonValue::Missing, _) => Ok(None),
            (JsonValue::Int(time), _) => Ok(Some(time)),
            (JsonValue::Float(time), Some(unit)) => {
                let moment = event_rule(unit, None).read_float(time).map_err(value::refuse_time)?;
                event_time(moment, unit).map(Some)
            }
            _ => self.text().map_or(Err(Refusal::NotTime), |text| text.time(unit, order)),
        }
    }
}
