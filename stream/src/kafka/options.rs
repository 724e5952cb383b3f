//! The settings of librdkafka that a job may change, and the reasons why it may not change others.
//!
//! A secret is never part of the settings: they name the file or the variable of the environment
//! that has it. So no error and no log can contain it.

use std::collections::BTreeMap;

use super::settings::refuse;
use crate::error::Result;
use crate::option_value::OptionValue;

/// The settings that may be changed: those about connections, security and names.
const ALLOWED: [&str; 29] = [
    "broker.address.family",
    "broker.address.ttl",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "enable.ssl.certificate.verification",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "socket.receive.buffer.bytes",
    "socket.timeout.ms",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.cipher.suites",
    "ssl.crl.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.sigalgs.list",
];

/// The settings whose values must not be in a job.
const SECRETS: [&str; 3] = ["sasl.password", "ssl.key.password", "ssl.key.pem"];

/// The settings that would break exactness or a bound, with the reason.
const REFUSED: [(&[&str], &str); 9] = [
    (
        &["enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store"],
        "offsets are in the checkpoint and in the log of decisions only",
    ),
    (
        &["group.id", "group.instance.id", "group.protocol", "partition.assignment.strategy"],
        "the stream joins no group, because a group moves partitions between its members",
    ),
    (&["auto.offset.reset"], "messages that do not exist any more are an error and never a jump"),
    (&["isolation.level"], "messages of open or aborted transactions must not be learned from"),
    (&["check.crcs"], "the checksums of messages are always checked"),
    (&["enable.partition.eof"], "a replay needs the ends of partitions"),
    (
        &[
            "queued.min.messages",
            "queued.max.messages.kbytes",
            "fetch.message.max.bytes",
            "max.partition.fetch.bytes",
            "fetch.max.bytes",
            "receive.message.max.bytes",
            "message.max.bytes",
            "fetch.wait.max.ms",
        ],
        "the bounds of memory have settings of their own: `queue_bytes`, `queue_messages`, \
         `fetch_bytes`, `fetch_wait_ms`, `max_message_bytes`",
    ),
    (
        &["bootstrap.servers", "metadata.broker.list"],
        "the brokers have a setting of their own, `brokers`",
    ),
    (
        &["topic.metadata.refresh.interval.ms", "statistics.interval.ms"],
        "the time between two looks for partitions has a setting of its own, `discovery_ms`",
    ),
];

/// Checks the names of options, and that no secret is among their values.
///
/// # Errors
/// Returns an error with the reason if an option is not allowed.
pub(super) fn check(options: &BTreeMap<String, OptionValue>) -> Result<()> {
    for (name, value) in options {
        let refused = REFUSED.iter().find(|(names, _)| names.contains(&name.as_str()));
        if let Some((_, reason)) = refused {
            let problem = format!("option `{name}` must not be changed: {reason}");
            return Err(refuse(problem, "remove the option"));
        }
        if !ALLOWED.contains(&name.as_str()) {
            let problem = format!("option `{name}` is not allowed ({})", ALLOWED.join(", "));
            return Err(refuse(problem, "remove the option, or correct its name"));
        }
        if SECRETS.contains(&name.as_str()) && matches!(value, OptionValue::Text(_)) {
            let problem = format!("option `{name}` is a secret and must not be in the job");
            return Err(refuse(problem, "write { file = \"...\" } or { env = \"...\" }"));
        }
    }
    Ok(())
}
