//! An object of a bucket that is read in ranges, and the requests that read it.
//!
//! # Invariants
//! All ranges of an [`Object`] belong to one state of the object. A request names the entity tag of
//! this state (`If-Match`), and the response must have the same tag and the same size. A store that
//! ignores the condition is therefore noticed too.

use std::ops::Range;
use std::time::SystemTime;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};

use crate::error::Error;
use crate::failure::Failure;
use crate::remote::Shared;
use crate::stats::{Operation, Outcome};

/// One state of an object of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The name of the object in its bucket.
    pub key: String,
    /// The size of the object in bytes.
    pub bytes: u64,
    /// The time of the last write to the object.
    pub modified: SystemTime,
    /// The entity tag by which the store names this state of the object. It is `None` if a listing
    /// did not contain it.
    pub tag: Option<String>,
}

/// The failure of a request for a range of an object.
#[derive(Debug)]
pub(crate) enum RangeFailure {
    /// The object has another state now.
    Changed(&'static str),
    Failed(Failure),
}

impl RangeFailure {
    /// Makes the error about the object.
    pub(crate) fn error(self, shared: &Shared, object: &Object) -> Error {
        match self {
            Self::Changed(change) => Error::Changed { path: object.key.clone(), change },
            Self::Failed(failure) => shared.error("read", &object.key, failure),
        }
    }
}

impl Object {
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        Self {
            key: meta.location.to_string(),
            bytes: meta.size,
            modified: meta.last_modified.into(),
            tag: meta.e_tag.clone(),
        }
    }

    /// Returns whether the response of a store is about this state of the object.
    fn is_state_of(&self, meta: &ObjectMeta) -> bool {
        let same_tag = match (&self.tag, &meta.e_tag) {
            (Some(known), Some(found)) => strip_marks(known) == strip_marks(found),
            (None, _) | (_, None) => true,
        };
        same_tag && self.bytes == meta.size
    }
}

/// Returns an entity tag without its quotes and without the mark of a weak tag. Stores differ in
/// the form that they use in listings and in responses.
fn strip_marks(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

/// Reads a range of an object. The range must not be empty. Transient failures are tried again.
pub(crate) async fn read_range(
    shared: &Shared,
    object: &Object,
    range: Range<u64>,
) -> Result<Bytes, RangeFailure> {
    let refuse = |reason: String| RangeFailure::Failed(Failure::new(Outcome::Refused, reason));
    let path = Path::parse(&object.key).map_err(|e| refuse(e.to_string()))?;
    let path = shared.place(&path);
    let objects = &shared.client.objects;
    let read = || async {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: object.tag.clone(),
            ..GetOptions::default()
        };
        let answer = objects.get_opts(&path, options).await?;
        // The body of another state is not received.
        if !object.is_state_of(&answer.meta) {
            return Ok(None);
        }
        Ok(Some(answer.bytes().await?))
    };
    let bytes = match shared.policy.retry(Operation::Get, read).await {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(RangeFailure::Changed("was replaced")),
        // The only condition of the request is the entity tag.
        Err(failure) if failure.outcome == Outcome::Exists => {
            return Err(RangeFailure::Changed("was replaced"));
        }
        Err(failure) if failure.outcome == Outcome::Missing => {
            return Err(RangeFailure::Changed("was removed"));
        }
        Err(failure) => return Err(RangeFailure::Failed(failure)),
    };
    shared.policy.stats.received(bytes.len());
    let wanted = range.end - range.start;
    if bytes.len() as u64 != wanted {
        let found = bytes.len();
        return Err(refuse(format!(
            "the store answered a request for {wanted} bytes with {found} bytes; check the proxies \
             between this machine and the store"
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_recognised_by_tag_and_size() {
        let meta = |size, tag: Option<&str>| ObjectMeta {
            location: Path::from("a"),
            last_modified: Default::default(),
            size,
            e_tag: tag.map(str::to_owned),
            version: None,
        };
        let object = Object::of(&meta(5, Some("\"x\"")));
        assert!(object.is_state_of(&meta(5, Some("x"))));
        assert!(object.is_state_of(&meta(5, None)));
        assert!(!object.is_state_of(&meta(5, Some("\"y\""))));
        assert!(!object.is_state_of(&meta(6, Some("\"x\""))));
        assert!(Object::of(&meta(5, None)).is_state_of(&meta(5, Some("y"))));
    }
}
