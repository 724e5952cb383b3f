//! The generated servers, but for the methods whose messages hold rows: see `build.rs`.

#![allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/servers/servers.rs"));
