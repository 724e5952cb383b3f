//! Parameter servers in processes of their own, which clients reach over TCP.

mod access;
mod answers;
mod checkpoints;
mod conformance;
mod equality;
mod hostile;
mod kills;
mod modes;
mod proxy;
mod raw;
mod runs;
mod servers;
mod stops;
