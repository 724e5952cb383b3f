//! Trace spans of a run's work outside of its steps.

/// Makes a trace span for the collector of traces. Without a collector, a span costs one atomic
/// load. The spans have the level TRACE, so logs do not show them.
macro_rules! span {
    ($name:literal $(, $field:ident = $value:expr)* $(,)?) => {
        tracing::trace_span!(target: "zillion_trace", $name $(, $field = $value)*)
    };
}

pub(crate) use span;
