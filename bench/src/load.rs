//! The load generator: it sends requests to a server over HTTP or gRPC, in an open loop or in a
//! closed one, and its answers can be checked.
//!
//! * [`bodies`]: the rows of a file as requests;
//! * [`grpc`]: the same rows as gRPC messages, and the decoding of gRPC answers;
//! * [`target`]: the address and the path to which requests are sent;
//! * [`open_loop`]: the times at which requests are sent, and the outcome of each request;
//! * [`closed_loop`]: streams that send the next request after the answer to the last one;
//! * [`connection`]: one keep-alive connection;
//! * [`answers`]: the answers of the server, and the check that they are correct;
//! * [`figures`]: percentiles of the whole run and of each second.

pub(crate) mod answers;
pub mod bodies;
pub(crate) mod closed_loop;
pub(crate) mod connection;
pub(crate) mod figures;
pub(crate) mod grpc;
pub(crate) mod open_loop;
pub mod target;
