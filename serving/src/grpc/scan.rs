//! The fields of a protobuf message, read one by one without copies.
//!
//! A generated decoder reads all of a message, and a message of 32 MiB may have ten million fields.
//! The network's thread must not do that. This scanner looks at the tag and the length of each
//! field, and stops at a number of fields that no true request has.

use crate::error::{Result, ServeError};

/// The largest number of fields of a message that are looked at.
pub(super) const MOST_FIELDS: usize = 16_384;

/// The largest number of bytes of a text that names something.
pub(super) const MOST_NAME_BYTES: usize = 1024;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field<'a> {
    /// A number of variable length.
    Number(u64),
    /// Bytes: a text, a message, or packed numbers.
    Bytes(&'a [u8]),
    /// A number of four or eight bytes, which no request names anything with.
    Fixed,
}

/// The fields of a message: the number and the value of each.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    what: &'static str,
    rest: &'a [u8],
    seen: usize,
    most: usize,
}

/// Returns the fields of a message of the type `what`, at most `most` of them.
pub(super) fn fields<'a>(what: &'static str, message: &'a [u8], most: usize) -> Fields<'a> {
    Fields { what, rest: message, seen: 0, most }
}

fn malformed(what: &str) -> ServeError {
    ServeError::Malformed(format!("the message is not a {what}: it is not valid protobuf"))
}

impl<'a> Fields<'a> {
    fn number(&mut self) -> Result<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or_else(|| malformed(self.what))?;
            self.rest = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(malformed(self.what))
    }

    fn take(&mut self, bytes: u64) -> Result<&'a [u8]> {
        let bytes = usize::try_from(bytes).map_err(|_| malformed(self.what))?;
        let (taken, rest) =
            self.rest.split_at_checked(bytes).ok_or_else(|| malformed(self.what))?;
        self.rest = rest;
        Ok(taken)
    }

    fn read(&mut self) -> Result<(u64, Field<'a>)> {
        self.seen += 1;
        if self.seen > self.most {
            return Err(ServeError::TooLarge {
                what: "the number of fields of the message",
                limit: self.most,
                setting: "none: send fewer inputs, outputs or parameters",
            });
        }
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Field::Number(self.number()?),
            1 => {
                self.take(8)?;
                Field::Fixed
            }
            2 => {
                let bytes = self.number()?;
                Field::Bytes(self.take(bytes)?)
            }
            5 => {
                self.take(4)?;
                Field::Fixed
            }
            _ => return Err(malformed(self.what)),
        };
        Ok((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.rest = &[];
        }
        Some(read)
    }
}

/// Reads a text that names something.
///
/// # Errors
/// Returns an error if the text is longer than a name, or is not UTF-8.
pub(super) fn name(bytes: &[u8]) -> Result<String> {
    if bytes.len() > MOST_NAME_BYTES {
        return Err(ServeError::TooLarge {
            what: "a name in the message",
            limit: MOST_NAME_BYTES,
            setting: "none: names are short",
        });
    }
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| malformed("request with names in UTF-8"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::proto::inference::ModelInferRequest;

    #[test]
    fn the_fields_of_a_generated_message_are_found() {
        let request = ModelInferRequest {
            model_name: "ctr".to_owned(),
            id: "x".to_owned(),
            raw_input_contents: vec![vec![7u8; 300].into()],
            ..ModelInferRequest::default()
        };
        let bytes = request.encode_to_vec();
        let found: Vec<_> = fields("ModelInferRequest", &bytes, 10).map(Result::unwrap).collect();
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], (1, Field::Bytes(b"ctr")));
        assert!(fields("ModelInferRequest", &bytes, 2).any(|field| field.is_err()));
        assert!(
            fields("ModelInferRequest", &bytes[..bytes.len() - 1], 10).any(|field| field.is_err())
        );
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let read = fields("x", &bytes, 100).count();
            prop_assert!(read <= 101);
        }
    }
}
