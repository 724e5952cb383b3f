//! Parameter servers in processes of their own, which clients reach over TCP.

mod access;
mod conformance;
mod servers;
