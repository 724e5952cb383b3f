//! The training loop.
