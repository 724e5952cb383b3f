//! The buckets in which data files lie, and their files.
//!
//! The URL of a file serves as its path, such as `s3://clicks/day=1/part-0.parquet`. A file is
//! bound to the state of its object when it was listed: an object that is replaced while it is read
//! is an error.
//!
//! # Concurrency
//! All clones of a [`Stores`] share their buckets and the bytes in memory. A lock protects each of
//! the two tables and is held while a bucket is attached, which sends no request.

mod blocks;
mod listing;
mod object_file;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zillion_store::{Bucket, Environment, Object, StoreSums, split_object_url};

use crate::error::{ReaderError, Result};
use blocks::Blocks;
pub(crate) use object_file::ObjectFile;

/// The buckets that data files are read from. A bucket is opened when the first file in it is
/// named. The default reads credentials and settings from the environment of the process.
#[derive(Clone, Default)]
pub struct Stores {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The environment, or `None` for that of the process.
    environment: Option<Environment>,
    buckets: Mutex<BTreeMap<String, Arc<Blocks>>>,
    files: Mutex<Files>,
}

/// The files that have been listed, by their URLs.
#[derive(Default)]
struct Files {
    by_url: HashMap<String, Arc<ObjectFile>>,
    /// The number of objects so far. An object that changes gets a new number.
    count: u64,
}

/// All handles are equal, because two configurations that differ only in their open connections
/// read the same data.
impl PartialEq for Stores {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores").finish_non_exhaustive()
    }
}

/// Returns the URL of a file in a bucket, or `None` for the path of a file of this machine.
pub(crate) fn url_of(path: &Path) -> Option<&str> {
    let text = path.to_str()?;
    let (scheme, _) = text.split_once("://")?;
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric());
    (is_scheme && scheme != "file").then_some(text)
}

impl Stores {
    /// Makes handles of buckets whose credentials and settings come from `environment`.
    pub fn in_environment(environment: Environment) -> Self {
        let shared = Shared { environment: Some(environment), ..Shared::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the sums of the counters of all buckets.
    pub fn sums(&self) -> StoreSums {
        let buckets = self.shared.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = StoreSums::default();
        for blocks in buckets.values() {
            let sums = blocks.bucket().stats().sums();
            all.requests += sums.requests;
            all.retries += sums.retries;
            all.failures += sums.failures;
            all.backoff_seconds += sums.backoff_seconds;
            all.sent_bytes += sums.sent_bytes;
            all.received_bytes += sums.received_bytes;
        }
        all
    }

    /// Splits a URL into its bucket and the rest, and attaches the bucket.
    fn attach<'a>(&self, url: &'a str) -> Result<(Arc<Blocks>, &'a str, &'a str)> {
        // The URL may hold a secret by mistake. The reason names it without the secret.
        let failed = |reason: String| ReaderError::setting("data", reason);
        let no_url = || failed("a path without `://` is no URL; correct the path".to_owned());
        let (bucket, rest) = split_object_url(url).ok_or_else(no_url)?;
        let mut buckets = self.shared.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = buckets.get(bucket) {
            return Ok((known.clone(), bucket, rest));
        }
        let attached = match &self.shared.environment {
            Some(environment) => Bucket::attach(environment, bucket),
            None => Bucket::attach(&Environment::process(), bucket),
        };
        let blocks = Arc::new(Blocks::new(attached.map_err(|e| failed(e.to_string()))?));
        buckets.insert(bucket.to_owned(), blocks.clone());
        Ok((blocks, bucket, rest))
    }

    /// Remembers the state of a file. If the state is known already, the file stays the same.
    fn remember(&self, url: &str, mut object: Object, blocks: &Arc<Blocks>) -> Arc<ObjectFile> {
        object.tag = object.tag.map(quote);
        let mut files = self.files();
        let known = files.by_url.get(url);
        if let Some(known) = known.filter(|known| is_same_state(known.object(), &object)) {
            return known.clone();
        }
        files.count += 1;
        let file = ObjectFile::new(Path::new(url), files.count, object, blocks.clone());
        let file = Arc::new(file);
        files.by_url.insert(url.to_owned(), file.clone());
        file
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.shared.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a file that has been listed or inspected.
    fn find(&self, url: &str) -> Option<Arc<ObjectFile>> {
        self.files().by_url.get(url).cloned()
    }

    /// Asks for the states of files, several at the same time. Local files among the paths are left
    /// out. Files that do not exist are forgotten.
    ///
    /// # Errors
    /// Returns an error if a bucket cannot be attached or the store refuses a request.
    pub(crate) fn inspect<'a>(&self, paths: impl Iterator<Item = &'a Path>) -> Result<()> {
        let mut by_bucket: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for url in paths.filter_map(url_of) {
            by_bucket.entry(self.attach(url)?.1).or_default().push(url);
        }
        for (bucket, urls) in by_bucket {
            let mut keys = Vec::with_capacity(urls.len());
            for url in &urls {
                keys.push(self.attach(url)?.2.to_owned());
            }
            let (blocks, ..) = self.attach(bucket)?;
            let failed = ReaderError::io("inspect the files of the bucket", Path::new(bucket));
            let found = blocks.bucket().heads(&keys).map_err(|e| failed(io::Error::other(e)))?;
            for (url, object) in urls.into_iter().zip(found) {
                match object {
                    Some(object) => drop(self.remember(url, object, &blocks)),
                    None => drop(self.files().by_url.remove(url)),
                }
            }
        }
        Ok(())
    }

    /// Asks for the states of those files whose listing had no entity tags, and of files that have
    /// not been listed.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Stores::inspect`].
    pub(crate) fn bind(&self, paths: &[PathBuf]) -> Result<()> {
        let is_bound = |url| self.find(url).is_some_and(|file| file.object().tag.is_some());
        let unbound = paths.iter().map(PathBuf::as_path);
        self.inspect(unbound.filter(|path| url_of(path).is_some_and(|url| !is_bound(url))))
    }

    /// Returns the file at a path, or `None` for a file of this machine. The file is bound to the
    /// state in which it was listed last, or to its current state if it was not listed.
    ///
    /// # Errors
    /// Returns an error if the file does not exist, or if the store refuses a request.
    pub(crate) fn open(&self, path: &Path) -> Result<Option<Arc<ObjectFile>>> {
        let Some(url) = url_of(path) else { return Ok(None) };
        let bound = self.find(url).filter(|file| file.object().tag.is_some());
        if bound.is_some() {
            return Ok(bound);
        }
        self.inspect(std::iter::once(path))?;
        let missing =
            || io::Error::new(io::ErrorKind::NotFound, "there is no such object; correct the URL");
        let found = self.find(url);
        found.map(Some).ok_or_else(|| ReaderError::io("open the file", path)(missing()))
    }
}

/// Returns an entity tag in the form of HTTP. Listings of Azure have tags without quotes.
fn quote(tag: String) -> String {
    match tag.contains('"') {
        true => tag,
        false => format!("\"{tag}\""),
    }
}

/// Returns whether two answers of a store are about the same state of an object. A listing may lack
/// the entity tag.
fn is_same_state(known: &Object, found: &Object) -> bool {
    let same = match (&known.tag, &found.tag) {
        (Some(known), Some(found)) => known == found,
        (Some(_), None) => known.modified == found.modified,
        (None, _) => false,
    };
    same && known.bytes == found.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_paths() {
        for url in ["s3://b/a.csv", "gs://b", "az://c/x/*.parquet", "http://x/y"] {
            assert_eq!(url_of(Path::new(url)), Some(url));
        }
        for path in ["a/b.csv", "/s3/x", "file:///a", "s3:/b", "./a://b", "://x"] {
            assert_eq!(url_of(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn an_invalid_url_is_a_setting_with_a_remedy() {
        let stores = Stores::in_environment(Environment::default());
        for (url, reason) in [
            ("http://host/a.csv", "kind of store is unknown"),
            ("s3:///a.csv", "bucket's name"),
            ("s3://key:secret@b/a.csv", "do not belong in the URL"),
        ] {
            let error = stores.open(Path::new(url)).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("secret@"), "{url}: {error}");
        }
    }
}
