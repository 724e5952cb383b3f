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
    /// A number of four or eight bytes.
    Fixed(&'a [u8]),
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

/// Returns the error of bytes that are not a message of the type `what`.
pub(super) fn malformed(what: &str) -> ServeError {
    ServeError::Malformed(format!(
        "the message is not a {what}, because it is not valid protobuf; send a valid message"
    ))
}

/// Reads a number of variable length from the front of bytes, and returns it with the rest.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0u64;
    for (at, &byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Some((number, &bytes[at + 1..]));
        }
    }
    None
}

impl<'a> Fields<'a> {
    fn number(&mut self) -> Result<u64> {
        let (number, rest) = varint(self.rest).ok_or_else(|| malformed(self.what))?;
        self.rest = rest;
        Ok(number)
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
                remedy: "send fewer inputs, outputs or parameters",
            });
        }
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Field::Number(self.number()?),
            1 => Field::Fixed(self.take(8)?),
            2 => {
                let bytes = self.number()?;
                Field::Bytes(self.take(bytes)?)
            }
            5 => Field::Fixed(self.take(4)?),
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
    text(bytes).map(str::to_owned)
}

/// Reads a text that names something, and borrows it from the message.
///
/// # Errors
/// Returns an error if the text is longer than a name, or is not UTF-8.
pub(super) fn text(bytes: &[u8]) -> Result<&str> {
    if bytes.len() > MOST_NAME_BYTES {
        return Err(ServeError::TooLarge {
            what: "the size in bytes of a name in the message",
            limit: MOST_NAME_BYTES,
            remedy: "send the names that the model has",
        });
    }
    std::str::from_utf8(bytes).map_err(|_| malformed("request with names in UTF-8"))
}

/// The largest number of entries of a map of parameters.
pub(super) const MOST_PARAMETERS: usize = 64;

/// Reads the key of an entry of a map of parameters, of which `count` were read before.
///
/// # Errors
/// Returns an error if there are more than [`MOST_PARAMETERS`], or if the key is longer than a
/// name.
pub(super) fn parameter<'a>(entry: &'a [u8], count: &mut usize) -> Result<&'a str> {
    *count += 1;
    if *count > MOST_PARAMETERS {
        return Err(ServeError::Malformed(format!(
            "the request, an input or an output has more than {MOST_PARAMETERS} parameters; send \
             only the parameters of the protocol"
        )));
    }
    let mut key = "";
    for field in fields("parameter", entry, MOST_PARAMETERS) {
        if let (1, Field::Bytes(bytes)) = field? {
            key = text(bytes)?;
        }
    }
    Ok(key)
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
