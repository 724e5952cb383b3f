//! The decoding of values of Protobuf by roles, with the same rules as for Arrow and JSON.

use zillion_feature::raw_value::{
    RawId, ValueError, id_from_flag, id_from_float, id_from_int, id_from_uint,
};
use zillion_feature::{
    DateOrder, FeatureKey, LabelValues, Moment, RawType, RawValue, TimeRule, TimeUnit,
};

use super::plan::{ColumnPlan, Form, Scalar};
use super::row::ProtoValue;
use crate::block::Lists;
use crate::text::{Cell, TextCell, TextSettings};
use crate::value::{self, Outcome, Refusal};

/// The value of a column in a message, with the settings that determine the meaning of texts.
pub(super) struct ProtoCell<'a> {
    pub(super) value: ProtoValue<'a>,
    /// The values of a repeated column; empty otherwise.
    pub(super) list: &'a [ProtoValue<'a>],
    pub(super) column: &'a ColumnPlan,
    pub(super) settings: &'a TextSettings,
}

impl<'a> ProtoCell<'a> {
    #[inline]
    fn item(&self, value: ProtoValue<'a>) -> Self {
        ProtoCell { value, list: &[], ..*self }
    }

    #[inline]
    fn with_text<T>(&self, text: &[u8], read: impl FnOnce(TextCell<'_>) -> T) -> T {
        read(TextCell { text, settings: self.settings })
    }

    /// Calls `read` with the name of a value of an enum. A number that the schema does not have
    /// stands for itself.
    fn with_name<T>(&self, number: i32, read: impl FnOnce(TextCell<'_>) -> T) -> T {
        match self.column.name_of(number) {
            Some(name) => self.with_text(name.as_bytes(), read),
            None => self.with_text(number.to_string().as_bytes(), read),
        }
    }

    /// Returns the value as text for a message.
    fn describe(&self) -> String {
        match self.value {
            _ if self.column.is_list => {
                let items: Vec<_> =
                    self.list.iter().map(|&v| self.item(v).describe_one()).collect();
                format!("[{}]", items.join(","))
            }
            _ => self.describe_one(),
        }
    }

    fn describe_one(&self) -> String {
        match self.value {
            ProtoValue::Missing => "null".to_owned(),
            ProtoValue::Bool(flag) => flag.to_string(),
            ProtoValue::Int(x) => x.to_string(),
            ProtoValue::UInt(x) => x.to_string(),
            ProtoValue::Float(x) => x.to_string(),
            ProtoValue::Enum(number) => {
                self.column.name_of(number).map_or_else(|| number.to_string(), str::to_owned)
            }
            ProtoValue::Text(text) => String::from_utf8_lossy(text).into_owned(),
        }
    }
}

impl Cell for ProtoCell<'_> {
    fn format(&self) -> Vec<u8> {
        self.describe().into_bytes()
    }

    #[inline]
    fn id<I: RawId>(&self, raw: RawType) -> Outcome<Option<I>> {
        let id = match self.value {
            ProtoValue::Missing => return Ok(None),
            ProtoValue::Int(id) => id_from_int(raw, id),
            ProtoValue::UInt(id) => id_from_uint(raw, id),
            ProtoValue::Bool(flag) => Ok(id_from_flag(raw, flag)),
            // A number of 32 bits may have been rounded from here on.
            ProtoValue::Float(x)
                if self.column.scalar == Scalar::Float && x.abs() >= 16_777_216.0 =>
            {
                Err(ValueError::Rounded)
            }
            ProtoValue::Float(x) => id_from_float(raw, x),
            ProtoValue::Text(text) => return self.with_text(text, |cell| cell.id(raw)),
            ProtoValue::Enum(number) => return self.with_name(number, |cell| cell.id(raw)),
        };
        Ok(Some(id?))
    }

    #[inline]
    fn ids<I: RawId>(&self, raw: RawType, list: &mut Lists<I>) -> Outcome<()> {
        if self.column.is_list {
            for &value in self.list {
                if let Some(id) = self.item(value).id(raw)? {
                    list.push(id);
                }
            }
            return Ok(());
        }
        match self.value {
            // The value is one string that holds several ids, as in CSV.
            ProtoValue::Text(text) => self.with_text(text, |cell| cell.ids(raw, list)),
            _ => {
                if let Some(id) = self.id(raw)? {
                    list.push(id);
                }
                Ok(())
            }
        }
    }

    #[inline]
    fn number(&self) -> Outcome<Option<f64>> {
        Ok(Some(match self.value {
            ProtoValue::Missing => return Ok(None),
            ProtoValue::Bool(flag) => f64::from(u8::from(flag)),
            ProtoValue::Int(x) => x as f64,
            ProtoValue::UInt(x) => x as f64,
            ProtoValue::Float(x) => x,
            ProtoValue::Text(text) => return self.with_text(text, |cell| cell.number()),
            ProtoValue::Enum(number) => return self.with_name(number, |cell| cell.number()),
        }))
    }

    #[inline]
    fn label(&self) -> Outcome<Option<f32>> {
        self.number()?.map(|x| value::label(x, &value::LabelRule::Flag)).transpose()
    }

    fn label_of(&self, values: &LabelValues) -> Outcome<Option<f32>> {
        match self.value {
            ProtoValue::Missing => Ok(None),
            ProtoValue::Bool(flag) => value::label_from(values.of_flag(flag)),
            ProtoValue::Int(x) => value::label_from(values.of_number(x as f64)),
            ProtoValue::UInt(x) => value::label_from(values.of_number(x as f64)),
            ProtoValue::Float(x) => value::label_from(values.of_number(x)),
            ProtoValue::Text(text) => self.with_text(text, |cell| cell.label_of(values)),
            ProtoValue::Enum(number) => self.with_name(number, |cell| cell.label_of(values)),
        }
    }

    fn group(&self) -> Outcome<Option<u64>> {
        match self.value {
            ProtoValue::Text(text) => self.with_text(text, |cell| cell.group()),
            ProtoValue::Enum(number) => self.with_name(number, |cell| cell.group()),
            ProtoValue::Int(x) => Ok(Some(FeatureKey::from_i64(x).0)),
            ProtoValue::UInt(x) => Ok(Some(FeatureKey::from_u64(x).0)),
            ProtoValue::Missing => Ok(None),
            ProtoValue::Bool(_) | ProtoValue::Float(_) => Err(ValueError::NoText.into()),
        }
    }

    fn floats(&self, to: &mut Vec<f32>) -> Outcome<()> {
        if self.column.is_list {
            for &item in self.list {
                to.push(value::vector_float(self.item(item).number()?)?);
            }
            return Ok(());
        }
        match self.value {
            ProtoValue::Missing => Ok(()),
            ProtoValue::Text(text) => self.with_text(text, |cell| cell.floats(to)),
            _ => {
                to.push(value::vector_float(self.number()?)?);
                Ok(())
            }
        }
    }

    fn kept(&self) -> Outcome<RawValue<'static>> {
        Ok(match self.value {
            ProtoValue::Missing => RawValue::Missing,
            ProtoValue::Bool(flag) => RawValue::Bool(flag),
            ProtoValue::Int(x) => RawValue::Int(x),
            ProtoValue::UInt(x) => RawValue::Uint(x),
            ProtoValue::Float(x) => RawValue::Float(x),
            ProtoValue::Text(text) => value::kept_text(text)?,
            ProtoValue::Enum(number) => return self.with_name(number, |cell| cell.kept()),
        })
    }

    fn moment(&self, rule: &TimeRule) -> Outcome<Option<Moment>> {
        Ok(Some(match (self.value, self.column.form) {
            (ProtoValue::Missing, _) => return Ok(None),
            // A timestamp of Protobuf is in UTC.
            (ProtoValue::Int(count), Form::Time(unit)) => {
                Moment::from_count(count, unit).ok_or(ValueError::NotTime)?
            }
            (ProtoValue::Int(count), _) => rule.read_count(count)?,
            (ProtoValue::Float(count), _) => rule.read_float(count)?,
            (ProtoValue::Text(text), _) => return self.with_text(text, |cell| cell.moment(rule)),
            (ProtoValue::Bool(_) | ProtoValue::UInt(_) | ProtoValue::Enum(_), _) => {
                return Err(ValueError::NotTime.into());
            }
        }))
    }

    #[inline]
    fn time(&self, unit: Option<TimeUnit>, order: Option<DateOrder>) -> Outcome<Option<i64>> {
        match self.value {
            ProtoValue::Missing => Ok(None),
            ProtoValue::Int(time) => Ok(Some(time)),
            ProtoValue::Text(text) => self.with_text(text, |cell| cell.time(unit, order)),
            _ => Err(Refusal::NotTime),
        }
    }
}
