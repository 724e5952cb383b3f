//! The activity of a connection: by it a connection is closed that is silent, idle, or does not
//! take its answers.
//!
//! # Concurrency
//! The counters are written by the task of the connection, and read by the task that accepts
//! connections when it looks for the longest idle one.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::config::Limits;

/// The preface of an HTTP/2 connection, which tells it from HTTP/1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The bytes that a client must take within the time for writing. A client that takes fewer is
/// holding memory.
const PROGRESS_BYTES: u64 = 64 << 10;

/// The reason why the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The client sent no request.
    Silent,
    /// The client made no request for a long time.
    Idle,
    /// The client does not take its answers.
    Unread,
    /// All connections were taken, and this one was idle for the longest time.
    Evicted,
}

impl Expired {
    /// Returns the name of the reason in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Idle => "idle",
            Self::Unread => "unread",
            Self::Evicted => "evicted",
        }
    }
}

/// The activity of one connection.
#[derive(Debug)]
pub(crate) struct Activity {
    began: Instant,
    /// The bytes that were read.
    read: AtomicU64,
    /// The number of requests that were begun, and the number of them that are open.
    begun: AtomicU64,
    open: AtomicUsize,
    /// Whether the first bytes differ from the preface of HTTP/2.
    is_no_preface: AtomicBool,
    /// Whether the requests come over HTTP/2.
    http2: AtomicBool,
    /// The time of the first byte of a head that is not complete, in milliseconds after the
    /// beginning, plus one. 0 means that no head is coming.
    head_ms: AtomicU64,
    /// The number of answers that are being sent, the time of their last progress, and the bytes
    /// that the protocol took since then.
    sending: AtomicUsize,
    progress_ms: AtomicU64,
    handed: AtomicU64,
    /// The time of the end of the last request, in milliseconds after the beginning.
    ended_ms: AtomicU64,
    /// The time since which an answer waits for the client, in milliseconds after the beginning,
    /// plus one. 0 means that no answer waits.
    blocked_ms: AtomicU64,
    /// The bytes that the client took since then.
    taken: AtomicU64,
    close: Notify,
    /// The notice that the client is to learn of the end of the connection.
    goodbye: Notify,
}

/// An open request of a connection, until the value is dropped.
#[derive(Debug)]
pub(crate) struct OpenStream(std::sync::Arc<Activity>);

impl OpenStream {
    /// Returns the activity of the connection.
    pub(crate) fn activity(&self) -> &std::sync::Arc<Activity> {
        &self.0
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.ended_ms.store(self.0.now_ms(), Ordering::Relaxed);
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Activity {
    /// Creates the activity of a connection that begins now.
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            read: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            is_no_preface: AtomicBool::new(false),
            http2: AtomicBool::new(false),
            head_ms: AtomicU64::new(0),
            sending: AtomicUsize::new(0),
            progress_ms: AtomicU64::new(0),
            handed: AtomicU64::new(0),
            ended_ms: AtomicU64::new(0),
            blocked_ms: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            close: Notify::new(),
            goodbye: Notify::new(),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Records bytes that were read. The first ones tell HTTP/2 by its whole preface, because a
    /// head of HTTP/1 can begin like it.
    pub(crate) fn record_read(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let before = self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let left = usize::try_from(before).ok().and_then(|before| PREFACE.get(before..));
        if let Some(left) = left.filter(|left| !left.is_empty()) {
            let length = left.len().min(bytes.len());
            if bytes[..length] != left[..length] {
                self.is_no_preface.store(true, Ordering::Relaxed);
            }
            if length == left.len() && !self.is_no_preface.load(Ordering::Relaxed) {
                self.http2.store(true, Ordering::Relaxed);
            }
        }
        if self.open.load(Ordering::Relaxed) == 0 && self.head_ms.load(Ordering::Relaxed) == 0 {
            self.head_ms.store(self.now_ms() + 1, Ordering::Relaxed);
        }
    }

    /// Counts an answer as being sent until [`Activity::end_sending`] is called.
    pub(crate) fn begin_sending(&self) {
        if self.sending.fetch_add(1, Ordering::Relaxed) == 0 {
            self.handed.store(0, Ordering::Relaxed);
            self.progress_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    /// Records that the protocol took bytes of an answer, for which its client has made room. Other
    /// bytes, as the answers to pings, are no progress of an answer.
    pub(crate) fn record_handed(&self, bytes: usize) {
        let handed = self.handed.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if handed >= PROGRESS_BYTES {
            self.handed.store(0, Ordering::Relaxed);
            self.progress_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    /// Returns whether an answer is being sent.
    #[cfg(test)]
    pub(crate) fn is_sending(&self) -> bool {
        self.sending.load(Ordering::Relaxed) > 0
    }

    /// Ends the count of an answer that was being sent.
    pub(crate) fn end_sending(&self) {
        self.sending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that bytes of an answer wait for the client.
    pub(crate) fn record_blocked(&self) {
        if self.blocked_ms.load(Ordering::Relaxed) == 0 {
            self.taken.store(0, Ordering::Relaxed);
            self.blocked_ms.store(self.now_ms() + 1, Ordering::Relaxed);
        }
    }

    /// Records that the client took bytes.
    pub(crate) fn record_written(&self, bytes: usize) {
        if self.blocked_ms.load(Ordering::Relaxed) == 0 {
            return;
        }
        let taken = self.taken.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if taken >= PROGRESS_BYTES {
            self.blocked_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Records that all bytes of the answers left.
    pub(crate) fn record_flushed(&self) {
        self.blocked_ms.store(0, Ordering::Relaxed);
    }

    /// Counts a request as open until the returned value is dropped.
    pub(crate) fn begin_request(self: &std::sync::Arc<Self>, is_http2: bool) -> OpenStream {
        self.http2.store(is_http2, Ordering::Relaxed);
        self.head_ms.store(0, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenStream(self.clone())
    }

    /// Returns whether a request was begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > 0
    }

    /// Returns the time for which the connection has had no open request, or `None` if it has one.
    pub(crate) fn idle(&self) -> Option<Duration> {
        if self.open.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let since = self.ended_ms.load(Ordering::Relaxed);
        Some(Duration::from_millis(self.now_ms().saturating_sub(since)))
    }

    /// Returns whether the client speaks HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Makes [`Activity::expired`] and [`Activity::evicted`] return at once.
    pub(crate) fn evict(&self) {
        self.close.notify_one();
    }

    /// Waits until the connection is to make room for another one.
    pub(crate) async fn evicted(&self) {
        self.close.notified().await;
    }

    /// Wakes the task that waits in [`Activity::asked_goodbye`].
    pub(crate) fn ask_goodbye(&self) {
        self.goodbye.notify_one();
    }

    /// Waits until the client is to learn that the connection ends after its open requests.
    pub(crate) async fn asked_goodbye(&self) {
        self.goodbye.notified().await;
    }

    /// Returns the reason once the connection is to be closed.
    pub(crate) async fn expired(&self, limits: &Limits) -> Expired {
        loop {
            let now = self.now_ms();
            let (reason, since, limit) = self.next_limit(limits);
            let due = since.saturating_add(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
            if now >= due && reason.is_some() {
                return reason.unwrap_or(Expired::Idle);
            }
            // An open request is looked at again later.
            // A head or an answer can begin meanwhile, whose limit may come first.
            let most = limits.head_time.min(limits.write_time) / 2;
            let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX).clamp(1, 3_600_000);
            let wait = due.saturating_sub(now).clamp(1, most);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait)) => {}
                () = self.close.notified() => return Expired::Evicted,
            }
        }
    }

    /// Returns the limit that comes next: its reason, the time from which it counts, and its
    /// length.
    fn next_limit(&self, limits: &Limits) -> (Option<Expired>, u64, Duration) {
        let blocked = self.blocked_ms.load(Ordering::Relaxed);
        if blocked > 0 {
            return (Some(Expired::Unread), blocked - 1, limits.write_time);
        }
        if self.sending.load(Ordering::Relaxed) > 0 {
            // A client of HTTP/2 can leave an answer in the server without a blocked socket.
            let progress = self.progress_ms.load(Ordering::Relaxed);
            return (Some(Expired::Unread), progress, limits.write_time);
        }
        if self.open.load(Ordering::Relaxed) > 0 {
            return (None, self.now_ms(), limits.write_time.min(limits.idle_time));
        }
        let head = self.head_ms.load(Ordering::Relaxed);
        if head > 0 && !self.http2.load(Ordering::Relaxed) {
            return (Some(Expired::Silent), head - 1, limits.head_time);
        }
        if self.begun.load(Ordering::Relaxed) == 0 {
            return (Some(Expired::Silent), 0, limits.head_time);
        }
        (Some(Expired::Idle), self.ended_ms.load(Ordering::Relaxed), limits.idle_time)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn limits() -> Limits {
        let millis = Duration::from_millis;
        Limits {
            head_time: millis(30),
            idle_time: millis(60),
            write_time: millis(30),
            ..Limits::default()
        }
    }

    fn expired(activity: &Activity) -> Expired {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(activity.expired(&limits()))
    }

    #[test]
    fn silent_idle_unread_and_evicted_connections_expire() {
        let silent = Activity::new();
        silent.record_read(b"GET /");
        assert_eq!(expired(&silent), Expired::Silent);

        // A head that does not end, on a connection that had requests before.
        let half = Arc::new(Activity::new());
        drop(half.begin_request(false));
        half.record_read(b"GET /heal");
        assert_eq!(expired(&half), Expired::Silent);

        let idle = Arc::new(Activity::new());
        idle.record_read(PREFACE);
        drop(idle.begin_request(true));
        let began = Instant::now();
        assert_eq!(expired(&idle), Expired::Idle);
        assert!(began.elapsed() >= Duration::from_millis(55) && idle.idle().is_some());

        let unread = Arc::new(Activity::new());
        let open = unread.begin_request(false);
        unread.record_blocked();
        // A client that takes a few bytes holds the rest.
        unread.record_written(100);
        assert!(unread.idle().is_none());
        assert_eq!(expired(&unread), Expired::Unread);
        drop(open);

        // An answer that the client's window keeps in the server.
        let held = Arc::new(Activity::new());
        let open = held.begin_request(true);
        held.begin_sending();
        // The answers to pings are no progress, and neither are a few bytes.
        let since = || held.next_limit(&limits()).1;
        let began = since();
        std::thread::sleep(Duration::from_millis(2));
        held.record_written(1 << 20);
        held.record_handed(100);
        assert_eq!(since(), began);
        assert_eq!(expired(&held), Expired::Unread);
        held.record_handed(64 << 10);
        assert!(since() > began);
        held.end_sending();
        assert_eq!(held.next_limit(&limits()).0, None);
        drop(open);

        let evicted = Activity::new();
        evicted.evict();
        assert_eq!(expired(&evicted), Expired::Evicted);
    }

    #[test]
    fn only_the_whole_preface_is_http2() {
        let of = |pieces: &[&[u8]]| {
            let activity = Activity::new();
            pieces.iter().for_each(|piece| activity.record_read(piece));
            (activity.is_http2(), activity.next_limit(&limits()).0)
        };
        let silent = Some(Expired::Silent);
        let (front, back) = PREFACE.split_at(7);
        assert_eq!(of(&[PREFACE]), (true, silent), "a preface is no request");
        assert_eq!(of(&[front, back, b"more"]), (true, silent));
        assert_eq!(of(&[front]), (false, silent));
        assert_eq!(of(&[b"PRI / HTTP/1.1\r\n", b"X: 1\r\nX: 2\r\nX: 3"]), (false, silent));
        assert_eq!(of(&[b"GET", &PREFACE[3..]]), (false, silent));
        // The rest of a head that comes late belongs to the head.
        let activity = Arc::new(Activity::new());
        drop(activity.begin_request(false));
        activity.record_read(b"PRI / HTTP/1.1\r\nX: 1\r\nX: 2");
        assert_eq!(activity.next_limit(&limits()).0, silent);
    }

    #[test]
    fn a_client_that_takes_its_answers_is_not_closed() {
        let activity = Arc::new(Activity::new());
        let _open = activity.begin_request(false);
        activity.record_blocked();
        activity.record_written(64 << 10);
        assert_eq!(activity.next_limit(&limits()).0, None);
        activity.record_blocked();
        activity.record_flushed();
        assert_eq!(activity.next_limit(&limits()).0, None);
    }
}
