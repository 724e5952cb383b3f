//! The first look at the bytes of a manifest, before its parts take memory: the hash, the
//! signatures, and the number of values of the schema.
//!
//! The writer of a bucket chooses the bytes of a manifest. A value of the schema takes up to fifty
//! times the memory of its text, so that the values are counted first, and a reader with trusted
//! keys checks the signature before it keeps anything else.

use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use zillion_access::Signature;

/// The largest number of values and keys of a schema: ten thousand features with ten settings each
/// have less than half of it.
const MAX_SCHEMA_VALUES: u64 = 1 << 18;

/// The largest number of signatures of a manifest.
const MAX_SIGNATURES: usize = 16;

/// The fields of a manifest that are looked at first.
#[derive(Debug, Deserialize)]
pub(crate) struct Scan {
    /// The hash that the manifest records, which is not verified yet.
    #[serde(default)]
    pub(crate) chain: String,
    /// The signatures of the manifest.
    #[serde(default, deserialize_with = "read_signatures")]
    pub(crate) signatures: Vec<Signature>,
    #[serde(default)]
    schema: Count,
}

impl Scan {
    /// Looks at a manifest.
    ///
    /// # Errors
    /// Returns the problem if the bytes are not JSON, or have too many values.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, String> {
        let scan: Self = serde_json::from_slice(bytes)
            .map_err(|error| format!("the manifest cannot be parsed: {error}"))?;
        if scan.schema.0 > MAX_SCHEMA_VALUES {
            return Err(format!(
                "its schema has {} values, but a schema has at most {MAX_SCHEMA_VALUES}",
                scan.schema.0
            ));
        }
        Ok(scan)
    }
}

/// Reads at most [`MAX_SIGNATURES`] signatures.
fn read_signatures<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Signature>, D::Error> {
    struct Signatures;
    impl<'de> Visitor<'de> for Signatures {
        type Value = Vec<Signature>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_SIGNATURES} signatures")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
            let mut signatures = Vec::new();
            while let Some(signature) = all.next_element()? {
                if signatures.len() == MAX_SIGNATURES {
                    return Err(A::Error::invalid_length(MAX_SIGNATURES + 1, &self));
                }
                signatures.push(signature);
            }
            Ok(signatures)
        }
    }
    deserializer.deserialize_seq(Signatures)
}

/// The number of values and keys in a piece of JSON, which is read without being kept.
#[derive(Clone, Copy, Debug, Default)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Counter)
    }
}

/// The visitor that counts.
struct Counter;

impl<'de> Visitor<'de> for Counter {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Count, E> {
        Ok(Count(1))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Count, E> {
        Ok(Count(1))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Count, E> {
        Ok(Count(1))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Count, E> {
        Ok(Count(1))
    }

    fn visit_str<E>(self, _: &str) -> Result<Count, E> {
        Ok(Count(1))
    }

    fn visit_unit<E>(self) -> Result<Count, E> {
        Ok(Count(1))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Count, A::Error> {
        let mut count = 1;
        while let Some(Count(inner)) = all.next_element()? {
            count += inner;
        }
        Ok(Count(count))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Count, A::Error> {
        let mut count = 1;
        while let Some((IgnoredAny, Count(inner))) = all.next_entry()? {
            count += 1 + inner;
        }
        Ok(Count(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_a_schema_are_counted_before_they_are_kept() {
        let scan = |schema: &str| Scan::of(format!("{{\"schema\":{schema}}}").as_bytes());
        assert_eq!(scan("{\"a\":[1,true,null,\"x\"],\"b\":0.5}").unwrap().schema.0, 9);
        let most = usize::try_from(MAX_SCHEMA_VALUES).unwrap();
        assert!(scan(&format!("[{}0]", "0,".repeat(most - 2))).is_ok());
        let said = scan(&format!("[{}0]", "0,".repeat(most - 1))).unwrap_err();
        assert!(said.contains("values, but a schema has at most"), "{said}");
        let said = scan(&format!("[{}[]]", "{},".repeat(most))).unwrap_err();
        assert!(said.contains("values, but a schema has at most"), "{said}");
    }

    #[test]
    fn a_manifest_has_few_signatures() {
        let scan = |number: usize| {
            let signature = "{\"key\":\"k\",\"ed25519\":\"00\"}";
            Scan::of(
                format!("{{\"signatures\":[{}]}}", vec![signature; number].join(",")).as_bytes(),
            )
        };
        assert_eq!(scan(MAX_SIGNATURES).unwrap().signatures.len(), MAX_SIGNATURES);
        assert!(scan(MAX_SIGNATURES + 1).unwrap_err().contains("at most 16 signatures"));
        assert!(Scan::of(b"{").is_err());
    }
}
