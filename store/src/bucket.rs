//! A bucket whose objects other programs have written, such as training data.
//!
//! A [`Store`](crate::Store) keeps the objects of Zillion below one prefix. A bucket is only read:
//! it lists objects by any prefix, and reads ranges that are bound to one state of an object.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;

use crate::client::Client;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::location::Location;
use crate::object::{Object, read_range};
use crate::object_stream::ObjectStream;
use crate::options::Options;
use crate::remote::{Remote, Shared, none_if_missing};
use crate::retry::RetryPolicy;
use crate::stats::{Operation, StoreStats};
use crate::stop::StoreStop;

/// A bucket that is read. Clones are cheap and share the connections.
#[derive(Clone)]
pub struct Bucket {
    remote: Arc<Remote>,
    url: String,
}

/// The objects that a listing includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The objects without a further slash behind the prefix, and the folders beside them.
    One,
    /// All objects whose names begin with the prefix.
    All,
}

/// The objects whose names begin with a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// The objects, sorted by their names.
    pub objects: Vec<Object>,
    /// The names of the folders without a slash at their end, sorted. The list is empty for
    /// [`Depth::All`].
    pub folders: Vec<String>,
}

impl Bucket {
    /// Makes the handle of a bucket from its URL, such as `s3://bucket`. This sends no request.
    ///
    /// # Errors
    /// Returns an error if the URL names no bucket or a prefix in a bucket, or if settings or
    /// credentials contradict each other.
    pub fn attach(environment: &Environment, url: &str) -> Result<Self> {
        let Location::Bucket { cloud, bucket, account, prefix } = Location::parse(url)? else {
            let reason = "it names a folder of this machine, and not a bucket".to_owned();
            return Err(Error::UnknownStore { url: url.to_owned(), reason });
        };
        let options = Options::of(environment)?;
        let client = Client::new(cloud, &bucket, account.as_deref(), environment, &options)?;
        let policy = RetryPolicy::new(options, client.secrets.clone());
        let remote = Remote::new(client, prefix, policy)
            .map_err(|e| Error::StoreOpen { url: url.to_owned(), reason: e.to_string() })?;
        Ok(Self { remote: Arc::new(remote), url: url.to_owned() })
    }

    /// Returns the URL of the bucket.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the counters of the bucket, which all clones share.
    pub fn stats(&self) -> &StoreStats {
        &self.remote.shared.policy.stats
    }

    /// Returns the number of bytes that a reader of this bucket may keep in memory.
    pub fn cache_bytes(&self) -> usize {
        self.remote.shared.policy.options.cache_bytes
    }

    /// Returns the largest number of bytes that one request should read.
    pub fn range_bytes(&self) -> usize {
        self.remote.shared.policy.options.fetch_bytes
    }

    /// Returns the current states of several objects, in the order of `keys`. The entry of a
    /// missing object is `None`.
    ///
    /// # Errors
    /// Returns an error if a name is invalid or the store refuses one of the requests.
    pub fn heads(&self, keys: &[String]) -> Result<Vec<Option<Object>>> {
        let parse = |key: &String| {
            let refused = |e: object_store::path::Error| Error::Store {
                action: "name",
                path: key.clone(),
                reason: e.to_string(),
            };
            Path::parse(key).map(|path| (path, ())).map_err(refused)
        };
        let paths = keys.iter().map(parse).collect::<Result<_>>()?;
        let head = |shared: Arc<Shared>, path: Path, ()| async move {
            let _permit = shared.permit().await;
            let (objects, place) = (&shared.client.objects, shared.place(&path));
            let found = shared.policy.retry(Operation::Head, || objects.head(&place)).await;
            none_if_missing(found.map(|meta| Object::of(&meta)))
        };
        self.remote.run_all("inspect", paths, &StoreStop::default(), head)
    }

    /// Lists the objects whose names begin with `prefix`, which need not end with a slash.
    ///
    /// # Errors
    /// Returns an error if the bucket does not exist or cannot be listed.
    pub fn list(&self, prefix: &str, depth: Depth) -> Result<Objects> {
        let (shared, prefix) = (self.remote.shared.clone(), prefix.to_owned());
        let listed = self
            .remote
            .attempt(&StoreStop::default(), async move { list(&shared, &prefix, depth).await });
        listed.map_err(|failure| self.remote.shared.open_error(&self.url, failure))
    }

    /// Begins to read a range of an object, which must not be empty. `done` gets the bytes on the
    /// thread of the store, so it must be fast and must not wait. If the bucket is dropped first,
    /// `done` is dropped and not called.
    pub fn read_then(
        &self,
        object: &Arc<Object>,
        range: Range<u64>,
        done: impl FnOnce(Result<Bytes>) + Send + 'static,
    ) {
        let (shared, object) = (self.remote.shared.clone(), object.clone());
        self.remote.network.handle().spawn(async move {
            let _permit = shared.permit().await;
            let read = read_range(&shared, &object, range).await;
            done(read.map_err(|failure| failure.error(&shared, &object)));
        });
    }

    /// Begins to read an object from its first byte to its last.
    pub fn stream(&self, object: &Arc<Object>) -> ObjectStream {
        ObjectStream::begin(self.remote.clone(), object.clone())
    }
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bucket").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Returns all pages of a listing.
async fn list(shared: &Shared, prefix: &str, depth: Depth) -> Result<Objects, Failure> {
    let prefix = (!prefix.is_empty()).then_some(prefix);
    let mut folders = BTreeSet::new();
    let mut objects = Vec::new();
    let mut token = None;
    loop {
        let page = || {
            let asked = PaginatedListOptions {
                delimiter: (depth == Depth::One).then(|| "/".into()),
                page_token: token.clone(),
                ..PaginatedListOptions::default()
            };
            shared.client.pages.list_paginated(prefix, asked)
        };
        let page = shared.policy.retry(Operation::List, page).await?;
        folders.extend(page.result.common_prefixes.iter().map(ToString::to_string));
        objects.extend(page.result.objects.iter().map(Object::of));
        match page.page_token {
            Some(next) => token = Some(next),
            None => break,
        }
    }
    objects.sort_unstable_by(|a: &Object, b| a.key.cmp(&b.key));
    Ok(Objects { objects, folders: folders.into_iter().collect() })
}
