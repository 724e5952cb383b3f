//! The messages and clients of the gRPC interfaces that the server offers, generated from
//! `serving/proto/`: package `inference` is Triton's and KServe's, `tensorflow` and
//! `tensorflow.serving` are TensorFlow Serving's, and `zillion.v1` is our own.

#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    rustdoc::all,
    reason = "generated"
)]

include!(concat!(env!("OUT_DIR"), "/messages.rs"));

/// The trait that reads and writes messages.
pub use prost::Message;
pub use tonic_health::pb as health;
pub use tonic_reflection::pb as reflection;

/// The descriptors of all messages and services, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
