//! A store in a bucket.
//!
//! Every operation is a future that runs on the store's own thread and counts its attempts. The
//! caller waits for the result. A write of one request or of many parts becomes visible as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::listing::{Listed, Listing};
use crate::network::Network;
use crate::retry::RetryPolicy;
use crate::stats::{Operation, Outcome};
use crate::stop::StoreStop;
use crate::{create, upload};

/// A store in a bucket. It has one thread that sends the requests.
pub(crate) struct Remote {
    pub(crate) shared: Arc<Shared>,
    pub(crate) network: Network,
}

/// The state that all operations of a store share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) prefix: Path,
    pub(crate) policy: RetryPolicy,
    /// The permits for write and head requests. They limit the number of such requests at the same
    /// time.
    pub(crate) permits: Semaphore,
}

impl Remote {
    pub(crate) fn new(client: Client, prefix: Path, policy: RetryPolicy) -> std::io::Result<Self> {
        let permits = Semaphore::new(policy.options.at_once);
        let shared = Arc::new(Shared { client, prefix, policy, permits });
        Ok(Self { shared, network: Network::start("zillion-store")? })
    }

    /// Runs an operation on an object or a folder, and waits for its result.
    fn run<T: Send + 'static, F: Future<Output = Result<T, Failure>> + Send + 'static>(
        &self,
        action: &'static str,
        path: Path,
        stop: &StoreStop,
        operation: impl FnOnce(Arc<Shared>, Path) -> F,
    ) -> Result<T> {
        let done = self.attempt(stop, operation(self.shared.clone(), path.clone()));
        done.map_err(|failure| self.error(action, path.as_ref(), failure))
    }

    /// Runs an operation on several objects at the same time. Returns the results in the order of
    /// the objects. The first failure cancels the remaining operations.
    pub(crate) fn run_all<
        I,
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    >(
        &self,
        action: &'static str,
        objects: Vec<(Path, I)>,
        stop: &StoreStop,
        operation: impl Fn(Arc<Shared>, Path, I) -> F,
    ) -> Result<Vec<T>> {
        let start = |(index, (path, input)): (usize, (Path, I))| {
            let (name, task) = (path.to_string(), operation(self.shared.clone(), path, input));
            async move { task.await.map(|done| (index, done)).map_err(|failed| (name, failed)) }
        };
        let tasks: Vec<_> = objects.into_iter().enumerate().map(start).collect();
        let done = self.attempt(stop, async move {
            let mut results: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
            // Tasks need few resources, and the permits limit the number of open requests. When the
            // set is dropped, all its tasks end.
            let mut open: JoinSet<_> = tasks.into_iter().collect();
            while let Some(done) = open.join_next().await {
                let stopped = |e: JoinError| Failure::new(Outcome::Refused, e.to_string());
                match done.unwrap_or_else(|e| Err((String::new(), stopped(e)))) {
                    Ok((index, done)) => results[index] = Some(done),
                    Err(failed) => return Ok(Err(failed)),
                }
            }
            Ok(Ok(results.into_iter().flatten().collect()))
        });
        let done = done.unwrap_or_else(|failure| Err((String::new(), failure)));
        done.map_err(|(name, failure)| self.error(action, &name, failure))
    }

    /// Runs an operation and waits for its result. Returns the failure itself, not an [`Error`].
    pub(crate) fn attempt<T: Send + 'static>(
        &self,
        stop: &StoreStop,
        operation: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let stopped = || {
            Failure::new(
                Outcome::Timeout,
                "the process is stopping and does not wait for the store; start it again",
            )
        };
        if stop.is_over() {
            return Err(stopped());
        }
        let stop = stop.clone();
        let done = self.network.wait(async move {
            tokio::select! {
                biased;
                done = operation => done,
                () = stop.over() => Err(stopped()),
            }
        });
        done.unwrap_or_else(|| {
            Err(Failure::new(Outcome::Refused, "the thread of the store panicked; report this bug"))
        })
    }

    pub(crate) fn error(&self, action: &'static str, name: &str, failure: Failure) -> Error {
        self.shared.error(action, name, failure)
    }

    /// Checks that the bucket exists, and that the credentials permit a listing of the bucket.
    pub(crate) fn check(&self, url: &str, stop: &StoreStop) -> Result<()> {
        let shared = self.shared.clone();
        let listed = self
            .attempt(stop, async move { shared.page(&Path::ROOT, Some(1), None).await.map(drop) });
        listed.map_err(|failure| self.shared.open_error(url, failure))
    }

    pub(crate) fn create(&self, path: Path, bytes: Bytes, stop: &StoreStop) -> Result<bool> {
        self.run("create", path, stop, |shared, path| async move {
            create::create(&shared, &path, bytes).await
        })
    }

    /// Checks that the store supports create-if-absent. Publishers need this operation.
    pub(crate) fn check_create(&self, stop: &StoreStop) -> Result<()> {
        let probe = Path::from(create::PROBE);
        let is_honoured = self
            .run("check", probe, stop, |shared, _| async move { create::probe(&shared).await })?;
        match is_honoured {
            true => Ok(()),
            false => Err(Error::StoreOpen {
                url: self.shared.client.about.clone(),
                reason: "the store ignores `If-None-Match: *`, so two publishers could publish \
                         the same version; use a store that supports this header (Amazon S3, or \
                         newer releases of MinIO and Ceph)"
                    .to_owned(),
            }),
        }
    }

    pub(crate) fn put(&self, path: Path, bytes: Bytes, stop: &StoreStop) -> Result<()> {
        let write = |shared: Arc<Shared>, path| async move { shared.write(&path, bytes).await };
        self.run("write", path, stop, write)
    }

    pub(crate) fn put_all(&self, objects: Vec<(Path, Bytes)>, stop: &StoreStop) -> Result<()> {
        let write =
            |shared: Arc<Shared>, path, bytes| async move { shared.write(&path, bytes).await };
        self.run_all("write", objects, stop, write).map(drop)
    }

    pub(crate) fn get(&self, path: Path, most: u64, stop: &StoreStop) -> Result<Option<Bytes>> {
        self.run("read", path, stop, move |shared, path| async move {
            none_if_missing(shared.read(&path, most).await)
        })
    }

    pub(crate) fn head(&self, path: Path, stop: &StoreStop) -> Result<Option<Listed>> {
        self.run("inspect", path, stop, |shared, path| async move {
            none_if_missing(shared.head(&path).await)
        })
    }

    /// Returns the sizes and the times of the last write of several objects, in the order of
    /// `paths`. The entry of a missing object is `None`.
    pub(crate) fn heads(&self, paths: Vec<Path>, stop: &StoreStop) -> Result<Vec<Option<Listed>>> {
        let paths = paths.into_iter().map(|path| (path, ())).collect();
        self.run_all("inspect", paths, stop, |shared, path, ()| async move {
            let _permit = shared.permit().await;
            none_if_missing(shared.head(&path).await)
        })
    }

    pub(crate) fn list(&self, path: Path, stop: &StoreStop) -> Result<Listing> {
        self.run("list", path, stop, |shared, path| async move { shared.list(&path).await })
    }

    pub(crate) fn delete(&self, path: Path, stop: &StoreStop) -> Result<()> {
        self.run("remove", path, stop, |shared, path| async move {
            let path = shared.place(&path);
            let objects = &shared.client.objects;
            let removed = shared.policy.retry(Operation::Delete, || objects.delete(&path)).await;
            none_if_missing(removed).map(drop)
        })
    }
}

impl Shared {
    /// Makes the error of an operation on an object.
    pub(crate) fn error(&self, action: &'static str, name: &str, failure: Failure) -> Error {
        let mut reason = failure.reason;
        if failure.outcome == Outcome::Denied {
            reason = format!(
                "{reason}; check that the credentials allow this operation ({})",
                self.client.about
            );
        }
        Error::Store { action, path: name.to_owned(), reason }
    }

    /// Makes the error of a bucket that cannot be listed.
    pub(crate) fn open_error(&self, url: &str, failure: Failure) -> Error {
        let advice = match failure.outcome {
            Outcome::Missing => "create the bucket, or correct its name",
            Outcome::Denied => {
                "check that the credentials are right and may list the bucket (docs/STORES.md has the permissions)"
            }
            Outcome::Connection | Outcome::Timeout => {
                "check the endpoint, the network and the proxy settings"
            }
            Outcome::Refused | Outcome::Exists => {
                "check the region, the endpoint and the name of the bucket"
            }
            Outcome::Ok | Outcome::Throttled | Outcome::ServerError => {
                "the store is overloaded or fails; try again later"
            }
        };
        let reason = format!("{}; {advice} ({})", failure.reason, self.client.about);
        Error::StoreOpen { url: url.to_owned(), reason }
    }

    /// Returns the path of an object in the bucket: the prefix of the store and the path in the
    /// store.
    pub(crate) fn place(&self, path: &Path) -> Path {
        self.prefix.parts().chain(path.parts()).collect()
    }

    /// Reads an object of at most `most` bytes.
    pub(crate) async fn read(&self, path: &Path, most: u64) -> Result<Bytes, Failure> {
        let path = self.place(path);
        let objects = &self.client.objects;
        let read = || async {
            let answer = objects.get(&path).await?;
            let size = answer.meta.size;
            // If the object is too large, its body is not read.
            let bytes = if size > most { None } else { Some(answer.bytes().await?) };
            Ok((size, bytes))
        };
        let (size, bytes) = self.policy.retry(Operation::Get, read).await?;
        let bytes = bytes.ok_or_else(|| Failure::new(Outcome::Refused, too_large(size, most)))?;
        self.policy.stats.received(bytes.len());
        Ok(bytes)
    }

    pub(crate) async fn head(&self, path: &Path) -> Result<Listed, Failure> {
        let path = self.place(path);
        let objects = &self.client.objects;
        let seen = self.policy.retry(Operation::Head, || objects.head(&path)).await;
        seen.map(|meta| Listed::of(&meta))
    }

    /// Writes an object. If the object exists, replaces it.
    async fn write(self: &Arc<Self>, path: &Path, bytes: Bytes) -> Result<(), Failure> {
        if bytes.len() >= self.policy.options.multipart_bytes {
            return upload::upload(self, path, bytes).await;
        }
        let _permit = self.permit().await;
        let path = self.place(path);
        let objects = &self.client.objects;
        let put = || objects.put(&path, PutPayload::from_bytes(bytes.clone()));
        self.policy.retry(Operation::Put, put).await?;
        self.policy.stats.sent(bytes.len());
        Ok(())
    }

    /// Waits for a permit to send one write request. The result is never `None`, because
    /// the semaphore is never closed.
    pub(crate) async fn permit(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.permits.acquire().await.ok()
    }

    /// Returns one page of a listing. Also returns the token of the next page, or `None` after the
    /// last page.
    async fn page(
        &self,
        folder: &Path,
        limit: Option<usize>,
        token: Option<String>,
    ) -> Result<(object_store::ListResult, Option<String>), Failure> {
        let folder = self.place(folder);
        let prefix = (!folder.as_ref().is_empty()).then(|| format!("{folder}/"));
        let pages = &self.client.pages;
        let list = || {
            let asked = PaginatedListOptions {
                delimiter: Some("/".into()),
                max_keys: limit,
                page_token: token.clone(),
                ..PaginatedListOptions::default()
            };
            pages.list_paginated(prefix.as_deref(), asked)
        };
        let mut page = self.policy.retry(Operation::List, list).await?;
        // The web consoles of stores implement "new folder" by an empty object with the name of the
        // folder.
        page.result.objects.retain(|object| object.location != folder);
        Ok((page.result, page.page_token))
    }

    /// Returns the complete listing of a folder.
    async fn list(&self, folder: &Path) -> Result<Listing, Failure> {
        let mut folders = BTreeSet::new();
        let mut objects = Vec::new();
        let mut token = None;
        loop {
            let (page, next) = self.page(folder, None, token).await?;
            let page = Listing::of(&page);
            folders.extend(page.folders);
            objects.extend(page.objects);
            match next {
                Some(next) => token = Some(next),
                None => break,
            }
        }
        objects.sort_unstable_by(|a: &Listed, b| a.name.cmp(&b.name));
        Ok(Listing { folders: folders.into_iter().collect(), objects })
    }
}

/// Converts the failure for a missing object into `None`.
pub(crate) fn none_if_missing<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Err(failure) if failure.outcome == Outcome::Missing => Ok(None),
        answer => answer.map(Some),
    }
}

/// The maximum time that a server waits for its store while the server stops.
pub const LAST_WORDS: Duration = Duration::from_secs(1);

/// Describes an object that is too large to be read as a whole.
pub(crate) fn too_large(bytes: u64, most: u64) -> String {
    format!("the object has {bytes} bytes, but at most {most} bytes are expected; publish it again")
}
