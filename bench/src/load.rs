//! Load on a server over HTTP or gRPC, in an open loop, with answers that can be checked.
//!
//! * [`bodies`]: rows of a file as requests;
//! * [`grpc`]: the same rows as a message, and answers that are one;
//! * [`target`]: where they go;
//! * [`open_loop`]: when they go, and what each came to;
//! * [`connection`]: one keep-alive connection;
//! * [`answers`]: what the server said, and whether it is right;
//! * [`figures`]: percentiles, of everything and second by second.

pub(crate) mod answers;
pub mod bodies;
pub(crate) mod connection;
pub(crate) mod figures;
pub(crate) mod grpc;
pub(crate) mod open_loop;
pub mod target;
