//! What a row means: schema, keys, ragged columns, batches, lookup plans.
