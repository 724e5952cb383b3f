//! The bounded queue between the threads that score and the thread that writes.
//!
//! # Concurrency
//! No thread that scores waits for the queue: lines that do not fit are refused at once. The bytes
//! count from the moment at which lines enter the queue until they are written or given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};

/// The most requests that wait. The bound of bytes is reached first, unless requests are small.
const MOST_WAITING: usize = 16_384;

/// The lines of a request.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) model: Arc<str>,
    pub(super) bytes: Vec<u8>,
    pub(super) rows: u64,
}

/// A message to the thread that writes.
#[derive(Debug)]
pub(super) enum Message {
    /// The lines of one request.
    Lines(Lines),
    /// The log ends after the lines before this message.
    End,
}

/// The reason why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The queue has no room.
    Full,
    /// The thread that writes has ended.
    Ended,
}

/// The number of bytes that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes bytes from the number, because they wait no longer.
    pub(super) fn release(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The sending end of the queue.
#[derive(Debug)]
pub(super) struct Queue {
    sender: SyncSender<Message>,
    waiting: Waiting,
    most_bytes: usize,
}

impl Queue {
    /// Creates a queue of at most `most_bytes` bytes, and its receiving end.
    pub(super) fn new(most_bytes: usize) -> (Self, Receiver<Message>) {
        let (sender, receiver) = mpsc::sync_channel(MOST_WAITING);
        (Self { sender, waiting: Waiting::default(), most_bytes }, receiver)
    }

    /// Returns the number of bytes that wait.
    pub(super) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Returns the number of bytes for which there is room.
    pub(super) fn room(&self) -> usize {
        self.most_bytes.saturating_sub(self.waiting.bytes())
    }

    /// Hands lines over without waiting.
    ///
    /// # Errors
    /// Returns the reason if the lines are not taken.
    pub(super) fn push(&self, lines: Lines) -> Result<(), Refused> {
        let bytes = lines.bytes.len();
        let before = self.waiting.0.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.most_bytes {
            self.waiting.release(bytes);
            return Err(Refused::Full);
        }
        self.send(Message::Lines(lines)).inspect_err(|_| self.waiting.release(bytes))
    }

    /// Tells the thread to end, without waiting.
    ///
    /// # Errors
    /// Returns the reason if the message is not taken.
    pub(super) fn push_end(&self) -> Result<(), Refused> {
        self.send(Message::End)
    }

    fn send(&self, message: Message) -> Result<(), Refused> {
        self.sender.try_send(message).map_err(|error| match error {
            TrySendError::Full(_) => Refused::Full,
            TrySendError::Disconnected(_) => Refused::Ended,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: usize) -> Lines {
        Lines { model: "m".into(), bytes: vec![0; bytes], rows: 1 }
    }

    #[test]
    fn the_queue_takes_no_more_than_its_bytes() {
        let (queue, receiver) = Queue::new(100);
        queue.push(lines(60)).unwrap();
        assert_eq!((queue.push(lines(41)), queue.room()), (Err(Refused::Full), 40));
        queue.push(lines(40)).unwrap();
        assert_eq!(queue.push(lines(1)), Err(Refused::Full));
        // Lines wait until they are written, and not only until they are received.
        assert!(matches!(receiver.recv(), Ok(Message::Lines(_))));
        assert_eq!(queue.room(), 0);
        queue.waiting().release(60);
        queue.push(lines(60)).unwrap();
        drop(receiver);
        queue.waiting().release(100);
        assert_eq!((queue.push(lines(1)), queue.room()), (Err(Refused::Ended), 100));
    }

    #[test]
    fn the_queue_takes_no_more_than_its_requests() {
        let (queue, _receiver) = Queue::new(usize::MAX);
        (0..MOST_WAITING).for_each(|_| queue.push(lines(1)).unwrap());
        assert_eq!(
            (queue.push(lines(1)), queue.push_end()),
            (Err(Refused::Full), Err(Refused::Full))
        );
        assert_eq!(queue.waiting().bytes(), MOST_WAITING);
    }
}
