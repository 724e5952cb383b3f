//! A line of the audit log: its fields, and the hash at its end.

use std::time::Duration;

use serde::Serialize;

/// The hash that the first line of a log records as the hash of the previous line.
pub(super) const FIRST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The text between the other fields of a line and its hash.
pub(super) const BEFORE_HASH: &str = ",\"hash\":\"";

/// The action of the first line of a file that continues another one.
pub(super) const CONTINUE: &str = "continue";

/// The largest number of bytes of a line. The longest one that is written has about 10 KiB.
pub(super) const MOST_LINE_BYTES: u64 = 64 << 10;

/// The largest number of bytes of a field that comes from outside.
const MOST_BYTES: usize = 400;

/// An event that the audit log records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditEvent<'a> {
    /// The name of the principal, or an empty text if the caller is unknown.
    pub who: &'a str,
    /// The address of the caller, or the host of the operator.
    pub from: &'a str,
    /// The action, as a verb: `load`, `unload`, `promote`, `refuse`.
    pub action: &'a str,
    /// The object of the action: the model, or the path of the request.
    pub subject: &'a str,
    /// The outcome: `done`, `failed`, or the reason for a refusal.
    pub outcome: &'a str,
    /// A further detail, such as the version.
    pub detail: &'a str,
}

/// The fields of a line except the hash, in the order in which they are written.
#[derive(Serialize)]
struct Fields<'a> {
    prev: &'a str,
    number: u64,
    at_ms: u64,
    who: &'a str,
    from: &'a str,
    action: &'a str,
    subject: &'a str,
    outcome: &'a str,
    detail: &'a str,
}

/// Formats an event as a line, and returns the line with its hash.
pub(super) fn format_line(
    number: u64,
    prev: &str,
    event: &AuditEvent<'_>,
    now: Duration,
) -> (String, String) {
    let fields = Fields {
        prev,
        number,
        at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        who: shorten(event.who),
        from: shorten(event.from),
        action: event.action,
        subject: shorten(event.subject),
        outcome: event.outcome,
        detail: shorten(event.detail),
    };
    let mut line = serde_json::to_string(&fields)
        .expect("the fields are texts and numbers, which JSON can always hold");
    line.pop();
    let hash = blake3::hash(line.as_bytes()).to_hex().to_string();
    line.push_str(BEFORE_HASH);
    line.push_str(&hash);
    line.push_str("\"}\n");
    (line, hash)
}

/// Cuts a text that comes from outside at a letter's border.
pub(super) fn shorten(text: &str) -> &str {
    let mut end = text.len().min(MOST_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
