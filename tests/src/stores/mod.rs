//! Tests of registries and of data in buckets. The real binary uses a real S3 server in this
//! process, through a proxy that injects faults.

mod place;
mod proxy;
mod s3;

mod batches;
mod crash;
mod data;
mod life;
mod store;

pub(crate) use place::{BUCKET, KEY, S3Place, SECRET, URL, environment};
pub(crate) use proxy::{Fault, Proxy, storm};
pub(crate) use s3::{Create, S3Server};
