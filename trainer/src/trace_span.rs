//! Trace spans of the work that a run does beside its steps.

/// Makes a span of this program's own traces. It costs an atomic load where no collector is
/// installed: these spans are below every level that people read.
macro_rules! span {
    ($name:literal $(, $field:ident = $value:expr)* $(,)?) => {
        tracing::trace_span!(target: "zillion_trace", $name $(, $field = $value)*)
    };
}

pub(crate) use span;
