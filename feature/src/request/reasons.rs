//! The reasons for refused values, as the sender of a request reads them.

use crate::raw_value::ValueError;
use crate::schema::TimeUnit;

impl From<ValueError> for &'static str {
    /// Converts the reason for a refused value to a message for the sender of the request.
    fn from(error: ValueError) -> Self {
        match error {
            ValueError::NotWhole => {
                "the value is not a whole number; send a whole number or its digits"
            }
            ValueError::Beyond64Bits => {
                "the value does not fit the 64-bit type of the feature; send an id of the training data"
            }
            ValueError::Rounded => {
                "the value is a floating-point number that may have been rounded; send a whole \
                 number or its digits"
            }
            ValueError::Negative => {
                "the value is negative, but the type of the feature is u64; send a number from 0 on"
            }
            ValueError::NotNumber => {
                "the value is text, but the feature is a number; send a number"
            }
            ValueError::NotFinite => "the value is not finite; give `null` for a missing value",
            ValueError::NotUtf8 => "the value is not UTF-8; send UTF-8 text",
            ValueError::NoText => {
                "the value is a number with a fraction, but the type of the feature is text; send a string"
            }
            ValueError::NotTime => {
                "the value is not a time; send a date such as \"2024-05-01T10:00:00Z\""
            }
            ValueError::AmbiguousDate => {
                "the order of day and month is unknown; send a date such as \"2024-05-01\""
            }
            ValueError::NoTimeUnit => {
                "the value is a number, but the feature has no `time_unit`; send a date such as \
                 \"2024-05-01T10:00:00Z\""
            }
            ValueError::NotInUnit(TimeUnit::Second) => {
                "the value is not a number of seconds since 1970 between 1980 and 2199; send one, or \
                 a date"
            }
            ValueError::NotInUnit(TimeUnit::Millisecond) => {
                "the value is not a number of milliseconds since 1970 between 1980 and 2199; send \
                 one, or a date"
            }
            ValueError::NotInUnit(TimeUnit::Microsecond) => {
                "the value is not a number of microseconds since 1970 between 1980 and 2199; send \
                 one, or a date"
            }
            ValueError::NotInUnit(TimeUnit::Nanosecond) => {
                "the value is not a number of nanoseconds since 1970 between 1980 and 2199; send \
                 one, or a date"
            }
        }
    }
}
