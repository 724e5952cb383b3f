//! The load on a server over HTTP or gRPC, in an open loop, with answers that can be checked.
//!
//! * [`bodies`]: rows of a file as requests;
//! * [`grpc`]: the same rows as a gRPC message, and the decoding of gRPC answers;
//! * [`target`]: the address and the path that requests are sent to;
//! * [`open_loop`]: the times at which requests are sent, and the outcome of each;
//! * [`connection`]: one keep-alive connection;
//! * [`answers`]: the answers of the server, and the check that they are right;
//! * [`figures`]: percentiles of the whole run and of each second.

pub(crate) mod answers;
pub mod bodies;
pub(crate) mod connection;
pub(crate) mod figures;
pub(crate) mod grpc;
pub(crate) mod open_loop;
pub mod target;
