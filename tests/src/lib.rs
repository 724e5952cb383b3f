//! An empty library. The package exists only for its binary of end-to-end tests.
