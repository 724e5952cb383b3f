//! Create-if-absent on a store whose responses can be lost. This operation decides which of two
//! writers succeeds.
//!
//! A store may carry out a request although its response is lost. If the writer then sends the
//! request again, the store answers that the object exists already. Therefore a writer that gets
//! this answer reads the object. If the object holds exactly the bytes to write, the write has
//! succeeded. If two writers write the same bytes, both succeed. This is correct, because the
//! object has the contents of both.

use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode, PutOptions, PutPayload};

use crate::failure::Failure;
use crate::remote::Shared;
use crate::stats::{Operation, Outcome};

/// The name of the object that shows whether a store supports create-if-absent.
pub(crate) const PROBE: &str = ".zillion-create-if-absent";

/// Writes an object that must not exist yet. Returns `false` if the object already exists and has
/// other bytes.
pub(crate) async fn create(shared: &Shared, path: &Path, bytes: Bytes) -> Result<bool, Failure> {
    let place = shared.place(path);
    let mut attempts = shared.policy.begin(Operation::Create);
    loop {
        let payload = PutPayload::from_bytes(bytes.clone());
        let options = PutOptions::from(PutMode::Create);
        let failure =
            match attempts.make(shared.client.objects.put_opts(&place, payload, options)).await {
                Ok(_) => {
                    shared.policy.stats.sent(bytes.len());
                    return Ok(true);
                }
                Err(failure) => failure,
            };
        let failure = match failure.outcome {
            Outcome::Exists => match shared.read(path, u64::MAX).await {
                Ok(there) => return Ok(there == bytes),
                // The store reported a conflict of two writes (409), so the object may exist or
                // not.
                Err(missing) if missing.outcome == Outcome::Missing => Failure::new(
                    Outcome::Throttled,
                    "the store reports another write of the object at the same time",
                ),
                Err(failure) => return Err(unknown_result(failure)),
            },
            _ => failure,
        };
        let may_exist = failure.outcome.is_transient();
        if let Err(given_up) = attempts.wait(failure).await {
            if !may_exist {
                return Err(given_up);
            }
            // The store may have carried out the last request too, so reading the object is worth
            // one more request.
            let look = async {
                shared.client.objects.get_opts(&place, Default::default()).await?.bytes().await
            };
            return match shared.policy.begin(Operation::Get).make(look).await {
                Ok(there) => Ok(there == bytes),
                Err(_) => Err(unknown_result(given_up)),
            };
        }
    }
}

fn unknown_result(failure: Failure) -> Failure {
    let reason = format!(
        "{}, and it is unknown whether the object was written; repeat the command, which checks \
         the object first",
        failure.reason
    );
    Failure { reason, ..failure }
}

/// Returns whether the store refuses to create an object that already exists. The object of the
/// probe is not removed, so the next probe needs only one request.
pub(crate) async fn probe(shared: &Shared) -> Result<bool, Failure> {
    let path = Path::from(PROBE);
    // The two texts must be unique, because `create` treats an object with equal bytes as its own
    // write.
    let unique = RandomState::new().hash_one((SystemTime::now(), std::process::id()));
    let text = |which: &str| Bytes::from(format!("{which} write of {unique:016x}\n"));
    Ok(!create(shared, &path, text("first")).await?
        || !create(shared, &path, text("second")).await?)
}
