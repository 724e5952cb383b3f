//! Sparse embedding tables.
