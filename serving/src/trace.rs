//! Traces of requests: the W3C trace context that a client sends, and a span for each stage.
//!
//! `tracing` makes the spans, and the process decides at its start whether they are collected. If
//! they are not, a span costs the load of a flag, and no header is read. Spans have a level below
//! that of the log and a target of their own, so that they are no part of the log.

use std::fmt;

use axum::http::{HeaderMap, HeaderName};
use opentelemetry::global;
use opentelemetry::propagation::Extractor;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Makes a span of this program's own traces.
macro_rules! span {
    ($name:literal $(, $($fields:tt)*)?) => {
        tracing::trace_span!(target: "zillion_trace", $name $(, $($fields)*)?)
    };
}

pub(crate) use span;

/// Makes the span of a request, as a child of the span that its `traceparent` names. `name` is the
/// protocol's name of the request. The metadata of gRPC is a [`HeaderMap`] too.
pub fn request_span(name: fmt::Arguments<'_>, headers: &HeaderMap) -> Span {
    let empty = tracing::field::Empty;
    let span =
        span!("request", otel.name = %name, otel.kind = "server", status = empty, inline = empty);
    if !span.is_disabled() {
        let parent = global::get_text_map_propagator(|p| p.extract(&Headers(headers)));
        // Only a span that has begun refuses a parent, and this one has not.
        let _ = span.set_parent(parent);
    }
    span
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }

    /// Returns all values of a header, because several `tracestate` headers form one list.
    fn get_all(&self, key: &str) -> Option<Vec<&str>> {
        let values: Vec<&str> =
            self.0.get_all(key).iter().filter_map(|value| value.to_str().ok()).collect();
        (!values.is_empty()).then_some(values)
    }
}
