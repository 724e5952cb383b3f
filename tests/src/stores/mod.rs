//! A registry in a bucket: a real S3 server in this process, a proxy that breaks what passes, and
//! the real binary between them.

mod place;
mod proxy;
mod s3;

mod crash;
mod life;
mod store;

pub(crate) use place::{BUCKET, KEY, S3Place, SECRET, environment};
pub(crate) use proxy::{Proxy, storm};
