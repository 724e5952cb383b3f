//! A buffer of lines that grows to a limit and no further.

use std::io::{self, Write};

/// A buffer that refuses bytes beyond its limit. A value that a client has sent may be longer in
/// JSON than in the request, so that its size is known only while it is written.
#[derive(Debug)]
pub(super) struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Bounded {
    /// Creates a buffer without bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit }
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of bytes at which the buffer is full.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Replaces the number of bytes at which the buffer is full.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns the bytes that were written.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// Returns an error if the buffer would be larger than its limit. Then it is unchanged.
    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > self.limit.saturating_sub(self.bytes.len()) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_refuses_more() {
        let mut buffer = Bounded::new(5);
        buffer.put(b"abc").unwrap();
        buffer.put(b"def").unwrap_err();
        buffer.put(b"de").unwrap();
        buffer.put(b"").unwrap();
        assert!(serde_json::to_writer(&mut buffer, "x").is_err());
        assert_eq!((buffer.len(), buffer.into_bytes()), (5, b"abcde".to_vec()));
    }
}
