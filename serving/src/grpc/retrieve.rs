//! The call `Retrieve`: the inputs of a user to the nearest items.
//!
//! The inputs of the user are a message of `ModelInfer` inside of the request, and are read by the
//! reader of that call. The ids are counted before memory is taken for them.

use bytes::Bytes;
use zillion_feature::{Encoder, RawValue};
use zillion_scorer::ItemVectors;

use super::framed::Framed;
use super::infer::{self, Infer};
use super::lists::{Coding, List};
use super::scan::{self, Field, malformed};
use super::{Scores, Target};
use crate::config::Limits;
use crate::error::{Result, ServeError};
use crate::metrics::Stage;
use crate::proto::zillion::v1::{ItemIds, RetrieveResponse};
use crate::queue::Wire;
use crate::retrieve::{DEFAULT_K, Retrieval, RetrieveRequest};
use crate::scored::{Scored, Step};
use crate::tensor::too_many_values;

/// The call `Retrieve` of the service for retrieval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retrieve;

/// The name of the message in errors.
const MESSAGE: &str = "RetrieveRequest";
/// The name of the message with ids in errors.
const IDS: &str = "ItemIds";

impl Scores for Retrieve {
    fn protocol(self) -> &'static str {
        "grpc_retrieve"
    }

    fn wire(self) -> Wire {
        Wire::Retrieval
    }

    fn target(self, message: &Bytes) -> Result<Target> {
        let mut user = None;
        for field in scan::fields(MESSAGE, message, scan::MOST_FIELDS) {
            if let (1, Field::Bytes(bytes)) = field? {
                set_user(&mut user, bytes)?;
            }
        }
        Infer.target(&message.slice_ref(user.ok_or_else(no_user)?))
    }

    fn score(self, scored: &Scored, message: Bytes) -> Result<Step<Framed>> {
        let parsing = scored.begin(Stage::Parse);
        let retrievable = scored.servable().retrievable();
        let encoder = retrievable.map(|retrievable| retrievable.encoder());
        let (id, request) = parse(&message, scored.limits(), encoder)?;
        drop(parsing);
        let retrieval = scored.retrieve(request)?;
        let Some(retrievable) = retrievable else {
            return Err(ServeError::Internal("the items of the version are gone".to_owned()));
        };
        Ok(Step::Done(scored.time(Stage::Write, || {
            Framed::of(&response(scored.model(), id, retrievable.items(), &retrieval))
        })))
    }
}

fn no_user() -> ServeError {
    ServeError::Malformed(
        "a retrieve request has no `user`; send the model and the inputs of the user in it"
            .to_owned(),
    )
}

/// Sets the message with the inputs of the user, which a request has once.
fn set_user<'a>(user: &mut Option<&'a [u8]>, bytes: &'a [u8]) -> Result<()> {
    match user.replace(bytes) {
        None => Ok(()),
        Some(_) => {
            Err(ServeError::Malformed("the field `user` appears twice; send it once".to_owned()))
        }
    }
}

/// Reads a request, and the id of the request. Ids and values are counted against the limits before
/// memory is taken for them.
fn parse<'a>(
    message: &'a [u8],
    limits: &Limits,
    encoder: Option<&Encoder>,
) -> Result<(&'a str, RetrieveRequest<'a>)> {
    let (mut user, mut k, mut exact) = (None, None, None);
    let (mut only, mut exclude) = (Vec::new(), Vec::new());
    for field in scan::fields(MESSAGE, message, scan::MOST_FIELDS) {
        match field? {
            (1, Field::Bytes(bytes)) => set_user(&mut user, bytes)?,
            (2, Field::Number(number)) => k = Some(number as u32),
            (3, Field::Bytes(ids)) => only.push(ids),
            (4, Field::Bytes(ids)) => exclude.push(ids),
            (5, Field::Number(number)) => exact = Some(number != 0),
            (1..=5, _) => return Err(malformed(MESSAGE)),
            _ => {}
        }
    }
    let k = match k {
        Some(0) => {
            return Err(ServeError::Malformed(
                "`k` is 0; send an integer of at least 1".to_owned(),
            ));
        }
        k => k.map_or(DEFAULT_K, |k| k as usize),
    };
    let counts = [count_ids(&only)?, count_ids(&exclude)?];
    let left = counts.iter().flatten().try_fold(limits.values, |left, &ids| left.checked_sub(ids));
    let left = left.ok_or_else(|| too_many_values(limits))?;
    let parsed = infer::parse(user.ok_or_else(no_user)?, limits, encoder)?;
    if parsed.columns.values().map(|column| column.values.len()).sum::<usize>() > left {
        return Err(too_many_values(limits));
    }
    if parsed.rows != 1 {
        return Err(ServeError::Malformed(format!(
            "the inputs of `user` have {} rows; send those of one user",
            parsed.rows
        )));
    }
    if !parsed.outputs.is_empty() {
        return Err(ServeError::Malformed(
            "`user` names outputs, but a retrieve request has none; remove `outputs`".to_owned(),
        ));
    }
    let is_chosen = !only.is_empty();
    let only = read_ids("only", &only, counts[0])?;
    let exclude = read_ids("exclude", &exclude, counts[1])?;
    let (columns, bare_texts) = (parsed.columns, Vec::new());
    let only = is_chosen.then_some(only);
    Ok((parsed.id, RetrieveRequest { columns, bare_texts, k, only, exclude, exact }))
}

/// Returns the three lists of ids in the pieces of a message: numbers, numbers without a sign, and
/// texts.
fn lists<'p, 'a>(pieces: &'p [&'a [u8]]) -> [List<'p, 'a>; 3] {
    let list = |number, coding| List { what: IDS, pieces, number, coding };
    [list(1, Coding::Varint), list(2, Coding::Varint), list(3, Coding::Text)]
}

fn count_ids(pieces: &[&[u8]]) -> Result<[usize; 3]> {
    let [ints, uints, texts] = lists(pieces);
    Ok([ints.count()?, uints.count()?, texts.count()?])
}

/// Reads the ids of a list, of which at most one of the three forms has some.
fn read_ids<'a>(
    name: &str,
    pieces: &[&'a [u8]],
    [ints, uints, texts]: [usize; 3],
) -> Result<Vec<RawValue<'a>>> {
    if [ints, uints, texts].iter().filter(|&&count| count > 0).count() > 1 {
        return Err(ServeError::Malformed(format!(
            "`{name}` has ids in several lists; send them in the list of one type"
        )));
    }
    let [of_ints, of_uints, of_texts] = lists(pieces);
    if ints > 0 {
        return of_ints.numbers(ints, |id| RawValue::Int(id as i64));
    }
    if uints > 0 {
        return of_uints.numbers(uints, RawValue::Uint);
    }
    let mut ids = Vec::with_capacity(texts);
    of_texts.each_text(|text| {
        let text = std::str::from_utf8(text).map_err(|_| malformed(IDS))?;
        ids.push(RawValue::Text(text.into()));
        Ok(())
    })?;
    Ok(ids)
}

fn response(model: &str, id: &str, items: &ItemVectors, retrieval: &Retrieval) -> RetrieveResponse {
    let mut ids = ItemIds::default();
    for found in &retrieval.found {
        match items.ids().get(found.item as usize) {
            RawValue::Int(id) => ids.ints.push(id),
            RawValue::Uint(id) => ids.uints.push(id),
            RawValue::Text(text) => ids.texts.push(text.into_owned()),
            // The search returns positions of the items.
            _ => {}
        }
    }
    RetrieveResponse {
        model_name: model.to_owned(),
        model_version: retrieval.version.to_string(),
        id: id.to_owned(),
        items: Some(ids),
        scores: retrieval.found.iter().map(|found| found.score).collect(),
        unknown_ids: retrieval.unknown_ids as u64,
        exact: retrieval.is_exact,
    }
}

/// Reads the head and the parts of a message, and returns whether both can be read.
pub(super) fn accepts(message: &Bytes) -> bool {
    let has_parts = parse(message, &Limits::default(), None).is_ok();
    Retrieve.target(message).is_ok() && has_parts
}

#[cfg(test)]
mod tests;
