//! The client of a bucket. The scheme of the URL determines its protocol.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;

use crate::environment::Environment;
use crate::error::Result;
use crate::location::Cloud;
use crate::options::Options;
use crate::{azure, gcs, s3};

/// The client of a bucket. It has one handle for each kind of request.
pub(crate) struct Client {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) pages: Arc<dyn PaginatedListStore>,
    pub(crate) parts: Arc<dyn MultipartStore>,
    /// The description of the connection for error texts: the endpoint, the bucket, and the origin
    /// of the credentials.
    pub(crate) about: String,
    /// The secret values, which no message may contain.
    pub(crate) secrets: Vec<String>,
}

/// Writes the client without its credentials.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("about", &self.about).finish_non_exhaustive()
    }
}

impl Client {
    /// Makes the client of a bucket from one object that supports all kinds of requests.
    pub(crate) fn of(
        store: impl ObjectStore + PaginatedListStore + MultipartStore,
        about: String,
        secrets: Vec<String>,
    ) -> Self {
        let store = Arc::new(store);
        Self { objects: store.clone(), pages: store.clone(), parts: store, about, secrets }
    }

    /// Creates the client of a bucket. This sends no request.
    ///
    /// # Errors
    /// Returns an error if settings or credentials contradict each other.
    pub(crate) fn new(
        cloud: Cloud,
        bucket: &str,
        account: Option<&str>,
        environment: &Environment,
        options: &Options,
    ) -> Result<Self> {
        match cloud {
            Cloud::S3 => s3::Setup::resolve(environment)?.client(bucket, options),
            Cloud::Gcs => gcs::client(bucket, environment, options),
            Cloud::Azure => azure::client(bucket, account, environment, options),
        }
    }
}
