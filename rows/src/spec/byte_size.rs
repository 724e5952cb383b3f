//! The type for amounts of memory in a job file, such as `"4 GiB"`, `"512 MB"`, or a number of
//! bytes.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An amount of memory in bytes. In a job file: `"4 GiB"`, or a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// The names of the units and their sizes in bytes. The binary units come first, in descending
/// order, because an amount is written in the first binary unit that divides it.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

const WANTED: &str = "an amount of memory; write for example \"4 GiB\", \"512 MB\" or 1048576";

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = (&text[..digits], text[digits..].trim());
        let unit = match unit {
            "" => Some(1),
            name => UNITS.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|&(_, u)| u),
        };
        let bytes = number.parse::<u64>().ok().zip(unit).and_then(|(n, unit)| n.checked_mul(unit));
        bytes.map(Self).ok_or_else(|| format!("`{text}` is not {WANTED}"))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = UNITS[..4].iter().find(|(_, unit)| self.0 > 0 && self.0.is_multiple_of(*unit));
        match binary {
            Some((name, unit)) => write!(f, "{} {name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Amount;
        impl Visitor<'_> for Amount {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(WANTED)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                let refused = |_| E::custom(format!("{bytes} is not {WANTED}"));
                u64::try_from(bytes).map(ByteSize).map_err(refused)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Amount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written_as_people_do() {
        for (text, bytes) in
            [("4 GiB", 4 << 30), ("512MB", 512_000_000), ("1536 kib", 1536 << 10), (" 77 ", 77)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "GiB", "4 GiBs", "-1", "1.5 GiB", "99999999999 TiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        for bytes in [0, 1, 1023, 1024, 3 << 20, 4 << 30, (4 << 30) + 1, u64::MAX] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
        assert_eq!(ByteSize(4 << 30).to_string(), "4 GiB");
    }
}
