//! Parameter servers in processes of their own, which clients reach over TCP.

mod access;
mod answers;
mod checkpoints;
mod conformance;
mod drill;
mod equality;
mod etcd;
pub(crate) mod etcd_process;
mod hostile;
mod kills;
mod proxy;
mod raw;
mod runs;
mod servers;
mod stops;
