//! Files to batches.
