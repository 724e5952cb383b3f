//! The log as JSON: one object for each event, on its own line.
//!
//! ```json
//! {"timestamp":"2026-01-02T03:04:05.678901Z","level":"INFO","target":"zillion_serving::loader",
//!  "message":"this version answers now","fields":{"model":"clicks","version":7}}
//! ```
//!
//! Inside a trace, the fields `trace_id` and `span_id` have the ids of the trace and of the span,
//! in the form that the collector uses.

use std::fmt;
use std::io::Write as _;

use opentelemetry::Context as TraceContext;
use opentelemetry::trace::TraceContextExt as _;
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::{Context, Layer};

/// A layer that writes events to stderr as lines of JSON.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = line(event, &now(), &TraceContext::current());
        line.push(b'\n');
        // If the log cannot be written, this failure cannot be reported either.
        let _ = std::io::stderr().lock().write_all(&line);
    }
}

fn now() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

fn line(event: &Event<'_>, timestamp: &str, trace: &TraceContext) -> Vec<u8> {
    let mut fields = Fields::default();
    event.record(&mut fields);
    let metadata = event.metadata();
    let span = trace.span();
    let span = Some(span.span_context()).filter(|span| span.is_valid());
    let line = Line {
        timestamp,
        level: metadata.level().as_str(),
        target: metadata.target(),
        message: fields.message,
        fields: fields.others,
        trace_id: span.map(|span| span.trace_id().to_string()),
        span_id: span.map(|span| span.span_id().to_string()),
    };
    // A line with text keys and plain values can always be written as JSON.
    serde_json::to_vec(&line).unwrap_or_default()
}

/// The fields of a line, in the order in which they are written.
#[derive(Serialize)]
struct Line<'a> {
    timestamp: &'a str,
    level: &'a str,
    target: &'a str,
    message: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    fields: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    span_id: Option<String>,
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn set(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => drop(self.others.insert(name.to_owned(), value)),
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no NaN and no infinity, so these are written as text.
        let number = serde_json::Number::from_f64(value).map(Value::Number);
        self.set(field, number.unwrap_or_else(|| value.to_string().into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.set(field, value.to_string().into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// A writer that keeps the lines of the log in memory.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<Vec<u8>>>>);

    impl<S: Subscriber> Layer<S> for Kept {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let context = SpanContext::new(
                TraceId::from(0xabc_u128),
                SpanId::from(0xde_u64),
                TraceFlags::SAMPLED,
                true,
                TraceState::default(),
            );
            let trace = TraceContext::new().with_remote_span_context(context);
            self.0.lock().unwrap().push(line(event, "then", &trace));
            self.0.lock().unwrap().push(line(event, &now(), &TraceContext::new()));
        }
    }

    #[test]
    fn an_event_is_one_line_of_json() {
        let kept = Kept::default();
        let subscriber = tracing_subscriber::registry().with(kept.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(model = "m", version = 7u64, x = f64::NAN, "two\nlines \"quoted\"");
        });
        let lines = kept.0.lock().unwrap();
        assert!(lines.iter().all(|line| !line.contains(&b'\n')));
        let object: Value = serde_json::from_slice(&lines[0]).unwrap();
        let wanted = serde_json::json!({
            "timestamp": "then", "level": "WARN", "target": "zillion_cli::telemetry::json::tests",
            "message": "two\nlines \"quoted\"", "fields": {"model": "m", "version": 7, "x": "NaN"},
            "trace_id": "00000000000000000000000000000abc", "span_id": "00000000000000de",
        });
        assert_eq!(object, wanted);
        let outside: Value = serde_json::from_slice(&lines[1]).unwrap();
        assert!(outside.get("trace_id").is_none());
        let at = outside["timestamp"].as_str().unwrap();
        assert!(at.len() > 20 && at.ends_with('Z') && at.as_bytes()[10] == b'T', "{at}");
    }
}
