//! The values of a column that make a label 1 or 0, such as `yes` and `no`.

use serde::{Deserialize, Serialize};

use crate::raw_value::parse_f64;

/// A value of a label's column, as the job writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LabelValue {
    /// A boolean. It is equal to the numbers 1 and 0 and to the texts `true` and `false`.
    Bool(bool),
    /// A whole number. It is equal to a text with this number.
    Int(i64),
    /// A number. It is equal to a text with this number.
    Float(f64),
    /// A text. It is compared exactly, without spaces around it, unless it and the value are
    /// numbers, which are compared as such.
    Text(String),
}

/// One value or a list of values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    /// A value that stands alone.
    One(LabelValue),
    /// A list of values.
    More(Vec<LabelValue>),
}

/// The values that make a label 1, and those that make it 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelValues {
    /// The values that make the label 1.
    pub positive: OneOrMore,
    /// The values that make the label 0, or `None` if every other value does.
    pub negative: Option<OneOrMore>,
}

impl LabelValue {
    fn number(&self) -> Option<f64> {
        match self {
            Self::Bool(flag) => Some(f64::from(u8::from(*flag))),
            Self::Int(x) => Some(*x as f64),
            Self::Float(x) => Some(*x),
            Self::Text(_) => None,
        }
    }

    fn is_text(&self, text: &[u8]) -> bool {
        match self {
            Self::Text(own) if own.trim().as_bytes() == text => true,
            Self::Bool(flag) if text.eq_ignore_ascii_case(flag.to_string().as_bytes()) => true,
            _ => parse_f64(text).is_ok_and(|x| self.is_number(x)),
        }
    }

    fn is_number(&self, x: f64) -> bool {
        let own = match self {
            Self::Text(own) => parse_f64(own.trim().as_bytes()).ok(),
            _ => self.number(),
        };
        // A column of 32-bit floats has the nearest such float of the written number.
        own.is_some_and(|own| own == x || f64::from(own as f32) == x)
    }

    fn is_flag(&self, flag: bool) -> bool {
        match self {
            Self::Text(own) => own.trim().eq_ignore_ascii_case(if flag { "true" } else { "false" }),
            _ => self.number() == Some(f64::from(u8::from(flag))),
        }
    }
}

impl OneOrMore {
    fn as_slice(&self) -> &[LabelValue] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::More(values) => values,
        }
    }
}

impl LabelValues {
    /// Returns the values of a label.
    ///
    /// # Errors
    /// Returns the key of the wrong setting with the problem, if a list is empty, a value is an
    /// empty text or not finite, or a value makes the label both 1 and 0.
    pub(crate) fn new(
        positive: OneOrMore,
        negative: Option<OneOrMore>,
    ) -> Result<Self, (&'static str, &'static str)> {
        let values = Self { positive, negative };
        for (key, list) in
            [("positive", Some(&values.positive)), ("negative", values.negative.as_ref())]
        {
            let list = list.map(OneOrMore::as_slice);
            if list.is_some_and(<[_]>::is_empty) {
                return Err((key, "needs at least one value"));
            }
            let is_wrong = |value: &LabelValue| match value {
                LabelValue::Text(text) => text.trim().is_empty(),
                LabelValue::Float(x) => !x.is_finite(),
                LabelValue::Bool(_) | LabelValue::Int(_) => false,
            };
            if list.unwrap_or_default().iter().any(is_wrong) {
                return Err((
                    key,
                    "must hold finite numbers, booleans or texts that are not empty",
                ));
            }
        }
        let is_positive = |value: &LabelValue| match value {
            LabelValue::Bool(flag) => values.of_flag(*flag) == Some(true),
            LabelValue::Int(_) | LabelValue::Float(_) => {
                values.of_number(value.number().unwrap_or_default()) == Some(true)
            }
            LabelValue::Text(text) => values.of_text(text.as_bytes()) == Some(true),
        };
        let negative = values.negative.as_ref().map(OneOrMore::as_slice);
        if negative.unwrap_or_default().iter().any(is_positive) {
            return Err(("negative", "has a value of `positive`; remove it from one of them"));
        }
        Ok(values)
    }

    /// Returns whether a text makes the label 1, or `None` if it is none of the values.
    pub fn of_text(&self, text: &[u8]) -> Option<bool> {
        let text = text.trim_ascii();
        self.of(|value| value.is_text(text))
    }

    /// Returns whether a number makes the label 1, or `None` if it is none of the values.
    pub fn of_number(&self, x: f64) -> Option<bool> {
        self.of(|value| value.is_number(x))
    }

    /// Returns whether a boolean makes the label 1, or `None` if it is none of the values.
    pub fn of_flag(&self, flag: bool) -> Option<bool> {
        self.of(|value| value.is_flag(flag))
    }

    fn of(&self, is_equal: impl Fn(&LabelValue) -> bool) -> Option<bool> {
        if self.positive.as_slice().iter().any(&is_equal) {
            return Some(true);
        }
        match &self.negative {
            None => Some(false),
            Some(negative) => negative.as_slice().iter().any(is_equal).then_some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Schema;

    fn values(settings: &str) -> Result<LabelValues, String> {
        let job = format!("[features.a]\nkind = 'id'\n[labels.y]\n{settings}");
        let job: toml::Value = job.parse::<toml::Table>().unwrap().into();
        let schema = Schema::from_job(&job).map_err(|e| e.to_string())?;
        // The printed schema is read as the same schema.
        let printed: toml::Table = schema.to_job().into_iter().collect();
        assert_eq!(Schema::from_job(&printed.into()).unwrap(), schema);
        Ok(schema.labels[0].values.clone().unwrap())
    }

    #[test]
    fn a_value_is_the_same_in_every_format() {
        let yes = values("positive = 'yes'").unwrap();
        assert_eq!([yes.of_text(b" yes "), yes.of_text(b"Yes")], [Some(true), Some(false)]);
        let two = values("positive = 2\nnegative = [1, 0]").unwrap();
        assert_eq!([two.of_text(b"2"), two.of_text(b"2.0"), two.of_number(2.0)], [Some(true); 3]);
        assert_eq!([two.of_text(b"1"), two.of_number(0.0)], [Some(false); 2]);
        assert_eq!([two.of_text(b"x"), two.of_number(3.0)], [None; 2]);
        let flag = values("positive = true\nnegative = false").unwrap();
        assert_eq!(
            [flag.of_text(b"TRUE"), flag.of_text(b"1"), flag.of_flag(true)],
            [Some(true); 3]
        );
        assert_eq!([flag.of_text(b"0"), flag.of_flag(false)], [Some(false); 2]);
        let texts = values("positive = ['1', 'true']\nnegative = '0'").unwrap();
        assert_eq!([texts.of_number(1.0), texts.of_flag(true)], [Some(true); 2]);
        assert_eq!([texts.of_number(0.0), texts.of_number(2.0)], [Some(false), None]);
        assert_eq!([texts.of_text(b"1.0"), texts.of_text(b"01")], [Some(true); 2]);
        // A column of 32-bit floats has the nearest such float.
        let tenth = values("positive = 0.1").unwrap();
        let nearest = [0.1, f64::from(0.1f32), 0.2].map(|x| tenth.of_number(x));
        assert_eq!(nearest, [Some(true), Some(true), Some(false)]);
    }

    #[test]
    fn contradictions_are_refused() {
        for (settings, problem) in [
            ("negative = 'no'", "needs `positive`"),
            ("positive = 'yes'\nat_least = 1.0", "both make the label"),
            ("positive = 'yes'\nkind = 'number'", "`kind` must be \"binary\""),
            ("positive = []", "at least one value"),
            ("positive = ' '", "not empty"),
            ("positive = nan", "finite"),
            ("positive = [1, 2]\nnegative = '2'", "a value of `positive`"),
        ] {
            let refused = values(settings).unwrap_err();
            assert!(refused.contains(problem), "{settings}: {refused}");
        }
    }
}
