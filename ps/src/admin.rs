//! The administration of servers over gRPC: the interface, and its client.

mod client;

/// The messages, the client and the server of the interface, generated from
/// `proto/zillion/ps/v1/admin.proto`.
pub mod proto {
    #![allow(
        missing_docs,
        unreachable_pub,
        unused_qualifications,
        clippy::all,
        rustdoc::all,
        reason = "generated"
    )]

    include!(concat!(env!("OUT_DIR"), "/admin.rs"));

    pub use zillion::ps::v1::*;
}

pub use client::AdminClient;
