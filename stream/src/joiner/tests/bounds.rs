//! Tests of bounds.
