//! Attacks on a running server of the real binary: requests that cost more than they weigh, clients
//! that hold connections and memory, load above the capacity, stops in every state, and callers
//! without a right.
//!
//! Costs are measured from outside: processor time and memory of the server's process. A test
//! compares a cost with that of an honest request of the same size, or with a multiple of the size,
//! so that a slow machine changes neither side alone. The figures of each attack are written to
//! stderr, which `cargo test -- --nocapture` shows.

mod bodies;
mod cost;
mod ending;
mod identity;
mod overload;
mod silence;
mod sockets;
mod victim;
mod wire;
