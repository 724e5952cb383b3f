//! Tests of attacks on a running server of the real binary. There are five kinds of attacks:
//! requests that cost more than their size justifies, clients that hold connections and memory,
//! load above the capacity, stops in every state, and callers without a right.
//!
//! The costs are measured from outside: the processor time and the memory of the server's process.
//! A test compares a cost with the cost of an honest request of the same size, or with a multiple
//! of the size. A slow machine therefore changes both sides. The figures of each attack are written
//! to stderr, which `cargo test -- --nocapture` shows.

mod bodies;
mod cost;
mod ending;
pub(crate) mod identity;
mod overload;
mod poison;
mod silence;
mod sockets;
mod victim;
mod wire;
