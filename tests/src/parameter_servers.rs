//! Parameter servers in processes of their own, which clients reach over TCP.

mod access;
mod answers;
mod buckets;
mod checkpoints;
mod clock;
mod conformance;
mod cut_kills;
mod debian;
mod drill;
mod equality;
mod etcd;
mod etcd_members;
pub(crate) mod etcd_process;
mod flat;
mod hostile;
mod kills;
mod modes;
mod operators;
mod proxy;
mod raw;
mod runs;
mod servers;
mod sites;
mod stops;
mod tls;
mod versions;
