//! An empty library; the package exists for its end-to-end test binary.
