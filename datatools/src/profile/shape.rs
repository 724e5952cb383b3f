//! The shapes of texts that are not whole numbers.

/// The shape of a cell that is not a whole number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    /// A number with a decimal point or in scientific notation.
    Point(f64),
    /// A number with a decimal comma.
    Comma(f64),
    /// NaN or an infinity.
    NotFinite,
    /// A word that means true or false.
    Boolean(bool),
    /// A number with thousands separators, a currency or a unit.
    Decorated,
    /// A date or a time.
    Date,
    Other,
}

pub(super) fn detect(cell: &[u8]) -> Shape {
    let Ok(text) = std::str::from_utf8(cell) else { return Shape::Other };
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    // A code of many digits is no number, because a floating-point number would round it.
    if digits > 19 && digits == text.len() {
        return Shape::Other;
    }
    if let Ok(x) = text.parse::<f64>() {
        return match x.is_finite() {
            true => Shape::Point(x),
            // Hexadecimal codes such as 12e34567 look like numbers beyond all bounds.
            false if digits > 0 => Shape::Other,
            false => Shape::NotFinite,
        };
    }
    if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") {
        return Shape::Boolean(text.eq_ignore_ascii_case("true"));
    }
    if digits == 0 || text.len() > 40 {
        return Shape::Other;
    }
    if text.matches(',').count() == 1
        && !text.contains('.')
        && let Ok(x) = text.replace(',', ".").parse::<f64>()
    {
        return Shape::Comma(x);
    }
    if is_date(text) || names_month(text) {
        return Shape::Date;
    }
    if is_decorated(text) { Shape::Decorated } else { Shape::Other }
}

/// Returns whether a text is a date with the name of a month, such as `01-Mar-2023`.
fn names_month(text: &str) -> bool {
    let words: Vec<&str> =
        text.split([' ', '-', '/', '.', ',']).filter(|w| !w.is_empty()).collect();
    let is_month = |word: &str| {
        word.get(..3).is_some_and(|start| {
            MONTHS.iter().any(|month| start.eq_ignore_ascii_case(month))
                && word.len() <= 9
                && word.bytes().all(|byte| byte.is_ascii_alphabetic())
        })
    };
    let is_number = |word: &&&str| word.bytes().all(|byte| byte.is_ascii_digit());
    (2..=5).contains(&words.len())
        && words.iter().take(3).any(|word| is_month(word))
        && words.iter().take(3).filter(is_number).count() >= 2.min(words.len() - 1)
}

/// The beginnings of the English names of months.
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Returns whether a text begins with something like a date or a time: two or three numbers with
/// the same separator `-`, `/`, `.` or `:` between them. Examples are `2024-05-01`, `1.5.24`,
/// `2024-05-01T10:00:00Z` and `10:30`.
fn is_date(text: &str) -> bool {
    let day = text.split([' ', 'T']).next().unwrap_or_default();
    for separator in ['-', '/', '.', ':'] {
        let parts: Vec<&str> = day.split(separator).collect();
        let numbers = parts
            .iter()
            .all(|p| (1..=4).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_digit()));
        let enough = parts.len() == 3 || (separator == ':' && parts.len() == 2);
        let years = parts.iter().filter(|p| p.len() > 2).count();
        if numbers && enough && years <= 1 {
            return true;
        }
    }
    false
}

/// Returns whether the comma of a number may separate thousands, as in `1,280`.
pub(super) fn may_be_thousands(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let Some(comma) = digits.iter().position(|&byte| byte == b',') else { return false };
    let (before, after) = (&digits[..comma], &digits[comma + 1..]);
    (1..=3).contains(&before.len())
        && before[0] != b'0'
        && after.len() == 3
        && after.iter().all(u8::is_ascii_digit)
}

/// The codes of currencies that stand before or behind an amount.
const CURRENCIES: [&str; 11] =
    ["US$", "USD", "EUR", "GBP", "JPY", "CNY", "INR", "CHF", "kr", "zł", "Rs."];

/// Returns whether a text is a number if thousands separators, currencies and units are removed.
/// Examples are `1.234,56`, `1 000`, `$5.00`, `9.45 EUR` and `12 %`.
fn is_decorated(text: &str) -> bool {
    let ornaments = [
        '$', '€', '£', '¥', '₹', '₩', '₺', '₽', '%', ' ', '(', ')', '\u{a0}', '\u{202f}', '\'',
        ',', '.',
    ];
    let text = CURRENCIES
        .iter()
        .find_map(|code| text.strip_prefix(code).or_else(|| text.strip_suffix(code)))
        .unwrap_or(text);
    let bare: String = text.chars().filter(|c| !ornaments.contains(c)).collect();
    let bare = bare.strip_prefix(['-', '+']).unwrap_or(&bare);
    !bare.is_empty() && bare.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_texts_are_detected() {
        for (text, shape) in [
            ("1.5", Shape::Point(1.5)),
            ("-2e3", Shape::Point(-2000.0)),
            ("1,5", Shape::Comma(1.5)),
            ("-0,25", Shape::Comma(-0.25)),
            ("nan", Shape::NotFinite),
            ("-inf", Shape::NotFinite),
            ("12e34567", Shape::Other),
            ("1234567890123456789012", Shape::Other),
            ("True", Shape::Boolean(true)),
            ("1.234,56", Shape::Decorated),
            ("1,234,567", Shape::Decorated),
            ("$ 5.00", Shape::Decorated),
            ("12 %", Shape::Decorated),
            ("€9.45", Shape::Decorated),
            ("9.45 EUR", Shape::Decorated),
            ("2024-05-01", Shape::Date),
            ("01-Mar-2023", Shape::Date),
            ("March 5, 2023", Shape::Date),
            ("Mar 5 units", Shape::Other),
            ("1.5.24", Shape::Date),
            ("2024-05-01T10:00:00Z", Shape::Date),
            ("10:30", Shape::Date),
            ("a1", Shape::Other),
            ("1,2,", Shape::Decorated),
            ("", Shape::Other),
            ("x,y", Shape::Other),
        ] {
            assert_eq!(detect(text.as_bytes()), shape, "{text}");
        }
    }
}
