//! The reader of a client's time limit in the header `grpc-timeout`: a number of up to eight digits
//! and its unit.

use std::time::Duration;

use axum::http::HeaderMap;

/// Reads the time limit of a call, or returns `None` if there is no readable header.
pub(super) fn read(headers: &HeaderMap) -> Option<Duration> {
    parse(headers.get("grpc-timeout")?.to_str().ok()?)
}

fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn time_limits_have_the_units_of_the_protocol() {
        for (text, wanted) in [
            ("2H", Some(Duration::from_secs(7200))),
            ("3M", Some(Duration::from_secs(180))),
            ("4S", Some(Duration::from_secs(4))),
            ("5m", Some(Duration::from_millis(5))),
            ("6u", Some(Duration::from_micros(6))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("100000000n", None),
            ("S", None),
            ("5", None),
            ("", None),
            ("-1S", None),
            ("1 S", None),
            ("5x", None),
            ("5é", None),
        ] {
            assert_eq!(parse(text), wanted, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in ".{0,12}", number in any::<u32>(), unit in "[HMSmunx]") {
            let _ = (parse(&text), parse(&format!("{number}{unit}")));
        }
    }
}
