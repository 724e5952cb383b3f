//! The upload of a large object in parts. Several parts are sent at the same time, directly from
//! the mapped file. The last request makes the whole object visible.
//!
//! If an upload fails, it is cancelled at the store. If the process is killed, the parts stay in
//! the store. They are invisible and cost money until the lifecycle rule of the bucket removes them
//! (docs/STORES.md). Zillion cannot remove them, because stores do not list unfinished uploads to
//! it.

use std::sync::Arc;

use bytes::Bytes;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{MultipartId, PutPayload};
use tokio::task::JoinSet;

use crate::failure::Failure;
use crate::remote::Shared;
use crate::stats::{Operation, Outcome};

/// The maximum number of parts of an object. This is the limit of S3.
const MOST_PARTS: usize = 10_000;

pub(crate) async fn upload(shared: &Arc<Shared>, path: &Path, bytes: Bytes) -> Result<(), Failure> {
    let place = shared.place(path);
    let store = &shared.client.parts;
    let id = shared.policy.retry(Operation::Upload, || store.create_multipart(&place)).await?;
    let written = match parts(shared, &place, &id, &bytes).await {
        Ok(parts) => complete(shared, path, &id, parts, bytes.len() as u64).await,
        Err(failure) => Err(failure),
    };
    if written.is_err() {
        // One request is enough, because the lifecycle rule of the bucket removes the parts that
        // remain.
        let mut attempts = shared.policy.begin(Operation::Upload);
        let _ = attempts.make(store.abort_multipart(&place, &id)).await;
    }
    written
}

/// Uploads all parts. Returns the ids of the parts in their order.
async fn parts(
    shared: &Arc<Shared>,
    place: &Path,
    id: &MultipartId,
    bytes: &Bytes,
) -> Result<Vec<PartId>, Failure> {
    let part_bytes = shared.policy.options.part_bytes.max(bytes.len().div_ceil(MOST_PARTS));
    let count = bytes.len().div_ceil(part_bytes);
    let mut open = JoinSet::new();
    for index in 0..count {
        let (shared, place, id) = (shared.clone(), place.clone(), id.clone());
        let part = bytes.slice(index * part_bytes..bytes.len().min((index + 1) * part_bytes));
        open.spawn(async move {
            let _permit = shared.permit().await;
            let store = &shared.client.parts;
            let put = || store.put_part(&place, &id, index, PutPayload::from_bytes(part.clone()));
            let put = shared.policy.retry(Operation::Upload, put).await?;
            shared.policy.stats.sent(part.len());
            Ok((index, put))
        });
    }
    let mut parts: Vec<Option<PartId>> = vec![None; count];
    while let Some(put) = open.join_next().await {
        let stopped = |e: tokio::task::JoinError| Failure::new(Outcome::Refused, e.to_string());
        // An error drops the set, which cancels the uploads of the other parts.
        let (index, part) = put.map_err(stopped)??;
        parts[index] = Some(part);
    }
    Ok(parts.into_iter().flatten().collect())
}

/// Completes the upload. After this request, the object is visible.
async fn complete(
    shared: &Shared,
    path: &Path,
    id: &MultipartId,
    parts: Vec<PartId>,
    bytes: u64,
) -> Result<(), Failure> {
    let place = shared.place(path);
    let store = &shared.client.parts;
    let done = || store.complete_multipart(&place, id, parts.clone());
    let failure = match shared.policy.retry(Operation::Upload, done).await {
        Ok(_) => return Ok(()),
        Err(failure) => failure,
    };
    // If the answer to an earlier request was lost, the store does not know the upload any more.
    match shared.head(path).await {
        Ok(there) if there.bytes == bytes => Ok(()),
        _ => Err(failure),
    }
}
