//! Object stores with a blocking interface. A store is a folder of this machine or a bucket in a
//! cloud.
//!
//! The crate `object_store` accesses folders and clouds. This crate adds a blocking interface (the
//! engines are synchronous), durable local writes, names that cannot leave the store, and counted
//! retries. Settings and credentials come from one [`Environment`] value. A hook runs before and
//! after every change, so that a test can kill the process there.
//!
//! A [`Bucket`] reads the objects of other programs, such as training data: in ranges that are
//! bound to one state of the object.
//!
//! The crate has no cache and does not interpret the contents of the objects.
//!
//! ```
//! use zillion_device::Files;
//! use zillion_store::Store;
//!
//! # fn main() -> zillion_store::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("zillion-store-doc-{}", std::process::id()));
//! let store = Store::create_at(&folder.display().to_string(), Files::new())?;
//! assert!(store.create("models/a", "first".into())?);
//! assert!(!store.create("models/a", "second".into())?, "the object exists already");
//! assert_eq!(store.get("models/a")?.as_deref(), Some(&b"first"[..]));
//! # let _ = std::fs::remove_dir_all(folder);
//! # Ok(())
//! # }
//! ```

mod azure;
mod bucket;
mod client;
mod cloud;
mod create;
mod environment;
mod error;
mod failure;
mod fetch;
mod gcs;
mod ini;
mod listing;
mod local;
mod location;
mod network;
mod object;
mod object_stream;
mod options;
mod profile;
mod remote;
mod retry;
mod s3;
mod stats;
mod stop;
mod store;
mod upload;

pub use bucket::{Bucket, Depth, Objects};
pub use environment::Environment;
pub use error::{Error, Result};
pub use fetch::Fetch;
pub use listing::{Listed, Listing, fan_out};
pub use location::{Cloud, Location, is_bucket, split_object_url};
pub use network::Network;
pub use object::Object;
pub use object_stream::ObjectStream;
pub use options::STORE_SETTINGS;
pub use remote::LAST_WORDS;
pub use stats::{Operation, Outcome, StoreStats, StoreSums};
pub use stop::StoreStop;
pub use store::Store;
