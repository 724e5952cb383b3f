//! The client of a bucket, chosen by the scheme of the URL.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;

use crate::environment::Environment;
use crate::error::Result;
use crate::location::Cloud;
use crate::options::Options;
use crate::{azure, gcs, s3};

/// The client of a bucket, as one handle for each of its abilities.
pub(crate) struct Client {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) pages: Arc<dyn PaginatedListStore>,
    pub(crate) parts: Arc<dyn MultipartStore>,
    /// A description for people who look for a problem: the endpoint, the bucket, the origin of the
    /// credentials.
    pub(crate) about: String,
    /// The values that must never be printed.
    pub(crate) secrets: Vec<String>,
}

/// Prints the client without its credentials.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("about", &self.about).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates the client of a bucket. Makes no request.
    ///
    /// # Errors
    /// Settings and credentials that do not fit together.
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
