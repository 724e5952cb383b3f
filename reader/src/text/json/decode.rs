//! Values of JSON to what roles make of them, by the rules that text and Parquet have too.

use zillion_feature::{FeatureKey, RawType};

use super::JsonPlan;
use super::row::{JsonRow, Value};
use crate::block::Column;
use crate::field::{Field, Role};
use crate::id::{self, Id};
use crate::text::TextSettings;
use crate::text::cell::{self, Cell, List, TextCell};
use crate::text::decode::{Problem, Rows, bad_value};
use crate::text::lines::Lines;
use crate::value::{self, Outcome, Refusal};

/// The rows of a chunk of JSON lines.
pub(crate) struct JsonRows<'a> {
    lines: Lines<'a>,
    line: &'a [u8],
    row: JsonRow<'a>,
    plan: &'a JsonPlan,
    settings: &'a TextSettings,
}

impl<'a> JsonRows<'a> {
    pub(crate) fn new(lines: Lines<'a>, plan: &'a JsonPlan, settings: &'a TextSettings) -> Self {
        Self { lines, line: &[], row: JsonRow::default(), plan, settings }
    }
}

impl Rows for JsonRows<'_> {
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
        self.row.read(self.line, &self.plan.keys).ok()?;
        let value = self.row.value(self.plan.key_of[field]);
        let cell = JsonCell { value, row: &self.row, settings: self.settings };
        cell::push(column, role, &cell).ok()
    }

    #[inline]
    fn decode(&mut self, columns: &mut [Column], fields: &[Field]) -> Result<(), Problem> {
        self.row.read(self.line, &self.plan.keys).map_err(Problem::Record)?;
        for (index, &key) in self.plan.key_of.iter().enumerate() {
            let value = self.row.value(key);
            let cell = JsonCell { value, row: &self.row, settings: self.settings };
            if let Err(refusal) = cell::push(&mut columns[index], &fields[index].role, &cell) {
                let text = cell.shown();
                return Err(bad_value(index, fields, refusal, Some(text.as_bytes())));
            }
        }
        Ok(())
    }
}

/// A value of a row.
struct JsonCell<'r, 'a> {
    value: Value<'a>,
    row: &'r JsonRow<'a>,
    settings: &'r TextSettings,
}

impl<'a> JsonCell<'_, 'a> {
    #[inline]
    fn text(&self) -> Option<TextCell<'_>> {
        let text = self.row.text(self.value)?.as_bytes();
        Some(TextCell { text, settings: self.settings })
    }

    fn of(&self, value: Value<'a>) -> JsonCell<'_, 'a> {
        JsonCell { value, row: self.row, settings: self.settings }
    }

    /// How a message shows the value: as JSON has it, or nearly.
    fn shown(&self) -> String {
        match self.value {
            Value::Missing => "null".to_owned(),
            Value::Bool(flag) => flag.to_string(),
            Value::Int(x) => x.to_string(),
            Value::UInt(x) => x.to_string(),
            Value::Float(x) => x.to_string(),
            Value::Text(_) | Value::Unescaped(..) => {
                self.row.text(self.value).unwrap_or_default().to_owned()
            }
            Value::List(start, end) => {
                let items = self.row.items(start, end).iter();
                let items: Vec<String> = items.map(|&item| self.of(item).shown()).collect();
                format!("[{}]", items.join(","))
            }
            Value::Object => "{..}".to_owned(),
        }
    }
}

impl Cell for JsonCell<'_, '_> {
    #[inline]
    fn id<I: Id>(&self, raw: RawType) -> Outcome<Option<I>> {
        let is_text = raw == RawType::String;
        let id = match self.value {
            Value::Missing => return Ok(None),
            // What a CSV cell with the same digits is.
            Value::Int(id) if is_text => id::from_bytes(id.to_string().as_bytes()),
            Value::UInt(id) if is_text => id::from_bytes(id.to_string().as_bytes()),
            Value::Bool(flag) if is_text => id::from_bytes(flag.to_string().as_bytes()),
            Value::Int(id) => id::from_i64(raw, id),
            Value::UInt(id) => id::from_u64(raw, id),
            Value::Bool(flag) => Ok(I::of_u64(u64::from(flag))),
            Value::Float(_) if is_text => Err(Refusal::NoText),
            // The parser makes a floating-point number of -0 and of what 64 bits cannot hold.
            Value::Float(x) if x == 0.0 && x.is_sign_negative() => Ok(I::of_u64(0)),
            Value::Float(x) if x.fract() == 0.0 && x.abs() >= 9.2e18 => Err(Refusal::Beyond64Bits),
            Value::Float(_) => Err(Refusal::NotWhole),
            Value::List(..) => Err(Refusal::List),
            Value::Object => Err(Refusal::Object),
            Value::Text(_) | Value::Unescaped(..) => {
                return self.text().map_or(Ok(None), |text| text.id(raw));
            }
        };
        id.map(Some)
    }

    #[inline]
    fn ids<I: Id>(&self, raw: RawType, list: &mut List<'_, I>) -> Outcome<()> {
        match self.value {
            Value::List(start, end) => {
                for &item in self.row.items(start, end) {
                    if let Some(id) = self.of(item).id(raw)? {
                        list.push(id);
                    }
                }
            }
            // One string that holds several ids, as in CSV.
            Value::Text(_) | Value::Unescaped(..) => {
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
            Value::Missing => return Ok(None),
            Value::Bool(flag) => f64::from(u8::from(flag)),
            Value::Int(x) => x as f64,
            Value::UInt(x) => x as f64,
            Value::Float(x) => x,
            Value::List(..) => return Err(Refusal::List),
            Value::Object => return Err(Refusal::Object),
            Value::Text(_) | Value::Unescaped(..) => {
                return self.text().map_or(Ok(None), |text| text.number());
            }
        }))
    }

    fn label(&self) -> Outcome<Option<f32>> {
        match self.text() {
            Some(text) => text.label(),
            None => match self.number() {
                Ok(x) => x.map(|x| value::label(x, None)).transpose(),
                Err(_) => Err(Refusal::NotLabel),
            },
        }
    }

    fn group(&self) -> Outcome<Option<u64>> {
        match self.value {
            Value::Float(_) => Err(Refusal::NoText),
            Value::Bool(flag) => value::group_from_bytes(flag.to_string().as_bytes()).map(Some),
            _ => match self.text() {
                Some(text) => text.group(),
                None => {
                    let key = self.id(RawType::U64).or_else(|_| self.id(RawType::I64))?;
                    Ok(key.map(|key: FeatureKey| key.0))
                }
            },
        }
    }

    fn time(&self) -> Outcome<Option<i64>> {
        match self.value {
            Value::Missing => Ok(None),
            Value::Int(time) => Ok(Some(time)),
            _ => self.text().map_or(Err(Refusal::NotTime), |text| text.time()),
        }
    }
}
