//! Tests of cases.
