//! Spans of what a run does beside its steps, for whoever collects traces.

/// A span of this program's own traces. It costs an atomic load where nobody collects them: they are below every
/// level that people read.
macro_rules! span {
    ($name:literal $(, $field:ident = $value:expr)* $(,)?) => {
        tracing::trace_span!(target: "zillion_trace", $name $(, $field = $value)*)
    };
}

pub(crate) use span;
