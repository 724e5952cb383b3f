//! Create-if-absent on a store that may lose its answers: the one operation that decides between
//! writers.
//!
//! A request whose answer was lost may have been carried out. Made again, it is told that somebody
//! was there already; that somebody was ourselves. So whoever is told so reads what is there: if it
//! is what he wanted to write, he has written it. Two writers of the very same bytes are both told
//! that it was they, and both are right: what they want to be there is there.

use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode, PutOptions, PutPayload};

use crate::failure::Failure;
use crate::remote::Shared;
use crate::stats::{Operation, Outcome};

/// The object that shows whether a store honours create-if-absent.
pub(crate) const PROBE: &str = ".zillion-create-if-absent";

/// Writes an object that must not be there yet. `false`: somebody else's is there.
pub(crate) async fn create(shared: &Shared, path: &Path, bytes: Bytes) -> Result<bool, Failure> {
    let place = shared.place(path);
    let mut tries = shared.patience.begin(Operation::Create);
    loop {
        let payload = PutPayload::from_bytes(bytes.clone());
        let options = PutOptions::from(PutMode::Create);
        let failure =
            match tries.make(shared.client.objects.put_opts(&place, payload, options)).await {
                Ok(_) => {
                    shared.patience.stats.sent(bytes.len());
                    return Ok(true);
                }
                Err(failure) => failure,
            };
        let failure = match failure.outcome {
            Outcome::Exists => match shared.read(path).await {
                Ok(there) => return Ok(there == bytes),
                // Two writes that collided (409): neither may be there.
                Err(missing) if missing.outcome == Outcome::Missing => Failure::new(
                    Outcome::Throttled,
                    "the store answers that others write the object at the same time",
                ),
                Err(failure) => return Err(unknown(failure)),
            },
            _ => failure,
        };
        let may_be_there = failure.outcome.may_pass();
        if let Err(given_up) = tries.rest(failure).await {
            if !may_be_there {
                return Err(given_up);
            }
            // The last request may have been carried out as well; one look is worth it.
            let look = async {
                shared.client.objects.get_opts(&place, Default::default()).await?.bytes().await
            };
            return match shared.patience.begin(Operation::Get).make(look).await {
                Ok(there) => Ok(there == bytes),
                Err(_) => Err(unknown(given_up)),
            };
        }
    }
}

fn unknown(failure: Failure) -> Failure {
    let reason = format!(
        "{}; it is unknown whether the object was written: repeat the command, which finds out",
        failure.reason
    );
    Failure { reason, ..failure }
}

/// Whether the store refuses to create what is there. The object stays for the next one who asks:
/// it then takes one request.
pub(crate) async fn probe(shared: &Shared) -> Result<bool, Failure> {
    let path = Path::from(PROBE);
    // Two texts that nobody else writes: `create` takes what equals its own for its own.
    let unique = RandomState::new().hash_one((SystemTime::now(), std::process::id()));
    let text = |which: &str| Bytes::from(format!("{which} write of {unique:016x}\n"));
    Ok(!create(shared, &path, text("first")).await?
        || !create(shared, &path, text("second")).await?)
}
