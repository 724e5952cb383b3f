//! The `zillion` binary.

fn main() {}
