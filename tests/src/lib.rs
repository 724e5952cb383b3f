//! An empty library. The package exists for its end-to-end test binary.
