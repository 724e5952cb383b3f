//! The parameter service: its contracts and its local implementation.
