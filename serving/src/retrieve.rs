//! The work of a request for the nearest items of a user.
//!
//! A request is one row with the inputs of the user's tower, for quotas and metrics too. The
//! request log and shadow versions leave it out, because they have rows with the features of an
//! item.

use std::time::Instant;

use zillion_feature::{RawColumns, RawValue, RequestError};
use zillion_registry::VersionId;
use zillion_scorer::{Choice, Found, ItemVectors};

use crate::error::{Result, ServeError};
use crate::metrics::Stage;
use crate::scored::Scored;
use crate::statistics::Spent;

/// The number of items of an answer if the request names none.
pub(crate) const DEFAULT_K: usize = 10;

/// A request for the nearest items of a user.
#[derive(Debug)]
pub(crate) struct RetrieveRequest<'a> {
    /// The inputs of the user.
    pub(crate) columns: RawColumns<'a>,
    /// The inputs that have a text outside of a list.
    pub(crate) bare_texts: Vec<String>,
    /// The largest number of items.
    pub(crate) k: usize,
    /// The ids of the only items that may be returned, or `None` if all items may be.
    pub(crate) only: Option<Vec<RawValue<'a>>>,
    /// The ids of items that may not be returned.
    pub(crate) exclude: Vec<RawValue<'a>>,
    /// Whether the search must be exact, or `None` if the number of items decides.
    pub(crate) exact: Option<bool>,
}

/// The nearest items of a user.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Retrieval {
    /// The number of the version that answered.
    pub(crate) version: VersionId,
    /// The items, the best first.
    pub(crate) found: Vec<Found>,
    /// The number of ids in the lists of the request that the version has no item for.
    pub(crate) unknown_ids: usize,
    /// Whether the search was exact.
    pub(crate) is_exact: bool,
}

impl Scored {
    /// Finds the nearest items of a user, until the time of the request is over.
    ///
    /// # Errors
    /// Returns an error if the version has no items, if the request asks for more items than the
    /// limits allow, if its inputs or ids do not fit the model, or if its time is over.
    pub(crate) fn retrieve(&self, request: RetrieveRequest<'_>) -> Result<Retrieval> {
        let servable = self.servable();
        let Some(retrievable) = servable.retrievable() else {
            let version = servable.version();
            return Err(ServeError::Malformed(format!(
                "version {version} of model `{}` has no items to retrieve; publish it with a \
                 catalogue of items (`publish.items`)",
                self.model()
            )));
        };
        if request.k > self.limits.retrieved {
            return Err(ServeError::TooLarge {
                what: "the number of items to retrieve",
                limit: self.limits.retrieved,
                remedy: "send a smaller `k`, or raise the setting `serve.max_retrieved`",
            });
        }
        self.caller.take_rows(1)?;
        refuse_bare_texts(retrievable.encoder().inputs(), &request.bare_texts)?;
        let deadline = self.deadline;
        let is_late = || Instant::now() >= deadline;
        let (retrieved, unknown_ids) = self.time(Stage::Score, || {
            let mut unknown = 0;
            let items = retrievable.items();
            let mut find = |list, ids: &[_]| find_all(items, list, ids, &mut unknown);
            let only = request.only.as_deref().map(|ids| find("only", ids)).transpose()?;
            let exclude = find("exclude", &request.exclude)?;
            let choice = Choice { only, exclude };
            let (k, exact, columns) = (request.k, request.exact, &request.columns);
            let retrieved = servable.retrieve(columns, k, exact, choice, Some(&is_late));
            let retrieved = retrieved.map_err(|error| self.describe_failure(error))?;
            Ok::<_, ServeError>((retrieved, unknown))
        })?;
        let name = self.version.host.name();
        self.metrics.record_scores(name, 1, 0, retrieved.missing_side_rows);
        let spent = self.spent.get();
        let (rows, executions) = (spent.rows + 1, spent.executions + 1);
        self.spent.set(Spent { rows, executions, ..spent });
        let (version, is_exact) = (servable.version(), retrieved.is_exact);
        Ok(Retrieval { version, found: retrieved.found, unknown_ids, is_exact })
    }
}

/// Returns the positions of the items with these ids, and counts those that no item has.
fn find_all(
    items: &ItemVectors,
    list: &str,
    ids: &[RawValue<'_>],
    unknown: &mut usize,
) -> Result<Vec<u32>> {
    let mut found = Vec::with_capacity(ids.len());
    for (row, id) in ids.iter().enumerate() {
        let position = items.find(id).map_err(|reason| {
            let (input, reason) = (list.to_owned(), reason.to_owned());
            ServeError::Input(RequestError { input, row: Some(row), reason })
        })?;
        match position {
            Some(position) => found.push(position),
            None => *unknown += 1,
        }
    }
    Ok(found)
}

/// Refuses a text in the place of a list of texts, as for rows of other requests.
fn refuse_bare_texts<'a>(
    mut inputs: impl Iterator<Item = &'a zillion_feature::InputSpec>,
    bare_texts: &[String],
) -> Result<()> {
    let is_bare = |name: &String| bare_texts.contains(name);
    match inputs.find(|input| input.is_list && (is_bare(&input.name) || is_bare(&input.column))) {
        None => Ok(()),
        Some(input) => Err(ServeError::Input(RequestError {
            input: input.name.clone(),
            row: None,
            reason: "the value is one text, but the input takes a list of texts; send a list of \
                     texts"
                .to_owned(),
        })),
    }
}
