//! The description of a consumed span of messages, by which a replay proves that the data is the
//! same.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::decisions::Took;
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::source::Message;

/// A span that is being consumed: its messages are counted and hashed.
///
/// The hash of a span is 0 before its first message. Each message makes it the xxh3-64 of the bytes
/// of the message, with the hash before as the seed. So it depends on the order of the messages and
/// on their bounds.
#[derive(Clone, Debug)]
pub struct Taking {
    took: Took,
}

impl Taking {
    /// Begins a span at offset `from`.
    pub fn new(partition: Partition, from: u64) -> Self {
        Self { took: Took { partition, from, to: from, count: 0, hash: 0 } }
    }

    /// Adds a message, which ends the span until the next one.
    pub fn add(&mut self, message: &Message<'_>) {
        self.took.hash = xxh3_64_with_seed(message.bytes, self.took.hash);
        self.took.count += 1;
        self.took.to = message.next;
    }

    /// Moves the end of the span to `offset`, over bytes that are no messages. An offset before the
    /// end of the span changes nothing.
    pub fn extend_to(&mut self, offset: u64) {
        self.took.to = self.took.to.max(offset);
    }

    /// Returns the number of messages so far.
    pub fn count(&self) -> u64 {
        self.took.count
    }

    /// Returns the span as the log records it.
    pub fn finish(self) -> Took {
        self.took
    }
}

/// Checks that a span which was read again is the span that the log has recorded.
///
/// # Errors
/// Returns an error if the data has changed: a different bound, number or hash.
pub fn check_took(recorded: &Took, read: &Took) -> Result<()> {
    if recorded == read {
        return Ok(());
    }
    let problem = format!(
        "the data has {} messages up to offset {} with hash {:016x}, but {} messages with hash \
         {:016x} were consumed before",
        read.count, read.to, read.hash, recorded.count, recorded.hash
    );
    Err(Error::Differs {
        partition: recorded.partition,
        from: recorded.from,
        to: recorded.to,
        problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(messages: &[&str]) -> Took {
        let partition = Partition { stream: 0, number: 2 };
        let mut taking = Taking::new(partition, 5);
        let mut offset = 5;
        for text in messages {
            let next = offset + text.len() as u64 + 1;
            taking.add(&Message { partition, offset, next, bytes: text.as_bytes() });
            offset = next;
        }
        taking.finish()
    }

    #[test]
    fn a_span_knows_order_and_bounds_of_messages() {
        let took = take(&["ab", "c"]);
        assert_eq!((took.from, took.to, took.count), (5, 10, 2));
        check_took(&took, &take(&["ab", "c"])).unwrap();
        for other in [&["c", "ab"][..], &["a", "bc"], &["ab"], &["ab", "d"]] {
            let error = check_took(&took, &take(other)).unwrap_err().to_string();
            assert!(error.contains("partition 2 of stream 0, offsets 5 to 10"), "{error}");
        }
        // The hash is part of the format of the log.
        assert_eq!(took.hash, xxh3_64_with_seed(b"c", xxh3_64_with_seed(b"ab", 0)));
    }

    #[test]
    fn the_end_of_a_span_moves_forward_only() {
        let mut taking = Taking::new(Partition { stream: 0, number: 0 }, 5);
        taking.extend_to(9);
        taking.extend_to(7);
        assert_eq!(taking.count(), 0);
        assert_eq!(taking.finish().to, 9);
    }
}
