//! The requests that ask for scores: the network's thread receives the body. All other work is one
//! piece, which that thread does if it is small, and a task of the pool otherwise.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use tracing::Instrument as _;
use zillion_access::Principal;

use super::answers::{PredictAnswer, RankAnswer, classify, regress};
use super::body::{self, Encoding};
use super::respond::{self, HEADER_LENGTH, Reply, to_bytes};
use super::retrieve::{self, RetrieveAnswer};
use super::route::{Target, Verb};
use super::rows::{self, Form};
use super::{infer, observe};
use crate::access::{find_gathering, find_holder};
use crate::admission::Head;
use crate::budget::HeldBytes;
use crate::config::Limits;
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::host::{Host, Selector};
use crate::metrics::Stage;
use crate::network::{Api, read_lag};
use crate::queue::Wire;
use crate::request_log::Sample;
use crate::score::{Answer, check_outputs};
use crate::scored::{RowsRequest, Scored, Step};
use crate::text::shorten;
use crate::trace::{request_span, span};

/// Answers `POST /v2/models/{m}/infer` with scores.
pub(super) async fn post_infer(
    State(domain): State<Arc<Domain>>,
    target: Target,
    request: Request,
) -> Response {
    answer(&domain, target, Verb::Infer, request).await
}

/// Answers a request for scores, and counts it.
pub(super) async fn answer(
    domain: &Arc<Domain>,
    target: Target,
    verb: Verb,
    request: Request,
) -> Response {
    let began = Instant::now();
    let (extensions, headers) = (request.extensions(), request.headers());
    let path = request.uri().path();
    let caller = domain.authorize(extensions, headers, Api::Infer, path, Some(&target.model));
    let found = caller.and_then(|caller| Ok((domain.host(&target.model)?, caller)));
    // An unknown model is no label, because a client could invent any number of them.
    let known = found.as_ref().ok().map(|(host, _)| host.clone());
    let label = known.as_ref().map_or("unknown", |host| host.name());
    let span = request_span(format_args!("{} {label}", verb.protocol()), request.headers());
    let response = observe(domain, span, async {
        let reply = match found {
            Ok((host, caller)) => {
                score(domain, &host, &caller, &target.selector, verb, request).await
            }
            Err(error) => Err(error),
        };
        match reply {
            Ok(Answered { reply, held, logged }) => {
                let mut response = respond::reply(reply);
                // The bytes of the answer are in flight until the client has taken them.
                response.extensions_mut().insert(Arc::new(held));
                response.headers_mut().extend(logged);
                response
            }
            Err(error) => respond::failure(&error),
        }
    });
    let response = response.await;
    let status = response.status().as_u16();
    domain.metrics().record_request(label, verb.protocol(), status, began.elapsed());
    response
}

/// The answer to a request for scores.
struct Answered {
    reply: Reply,
    /// The claim of the answer on the bytes in flight.
    held: HeldBytes,
    /// The header with the id of the request in the request log.
    logged: Option<(HeaderName, HeaderValue)>,
}

/// Receives the body and scores it.
async fn score(
    domain: &Domain,
    host: &Arc<Host>,
    caller: &Arc<Principal>,
    selector: &Selector,
    verb: Verb,
    request: Request,
) -> Result<Answered> {
    // The version is resolved before the body is received, so that the body of a request for an
    // unknown version need not be sent.
    let chosen = domain.resolve(host, selector, request.headers())?;
    let header_length = match request.headers().get(HEADER_LENGTH) {
        None => None,
        Some(_) if verb != Verb::Infer => {
            let reason = "the header `Inference-Header-Content-Length` announces binary tensors, \
                          which only `/v2/models/<model>/infer` reads; remove the header";
            return Err(ServeError::Malformed(reason.to_owned()));
        }
        // A header that is no text is no number either.
        Some(value) => Some(value.to_str().unwrap_or("?").to_owned()),
    };
    let began = Instant::now();
    let limits = domain.limits();
    let wire = match verb {
        Verb::Infer => Wire::Tensors,
        Verb::Retrieve => Wire::Retrieval,
        _ => Wire::Rows,
    };
    let bytes = body::announced_bytes(&limits, request.headers())?;
    let holder = find_holder(request.extensions(), Some(caller))?;
    let caller = &domain.enter(caller)?;
    let booked = bytes.min(body::FIRST_BYTES);
    let lag = read_lag(request.extensions());
    let gathering = find_gathering(request.extensions());
    let head = Head {
        host,
        caller,
        wire,
        bytes,
        holder,
        booked,
        time: None,
        lag,
        gathering: gathering.as_ref(),
    };
    let mut admitted = domain.admit(&head)?;
    // A body without an announced length is counted while it arrives.
    let quota = caller.body_bytes().filter(|&quota| quota < limits.body_bytes);
    let allowed = Limits { body_bytes: quota.unwrap_or(limits.body_bytes), ..limits };
    let receive = body::receive(&allowed, &mut admitted.held, request);
    let received = receive.instrument(span!("receive")).await;
    let received = received.map_err(|error| match (error, quota) {
        (ServeError::TooLarge { what, limit, .. }, Some(_)) => {
            let remedy = "send fewer rows at a time, or raise `quota.body_bytes` of the caller";
            ServeError::TooLarge { what, limit, remedy }
        }
        (error, _) => error,
    })?;
    domain.metrics().record_stage(Stage::Receive, began.elapsed());
    let arrived = Instant::now();
    let (bytes, is_packed) = (received.bytes.len(), received.encoding != Encoding::Plain);
    let mut unpacked = admitted.held.another();
    let work = move |scored: &Scored| {
        let body = match received.encoding {
            Encoding::Plain => received.bytes.clone(),
            _ => scored.time(Stage::Decompress, || received.clone().decode(&limits))?,
        };
        if body.len() > bytes && !unpacked.grow(body.len() - bytes, limits.bytes_in_flight) {
            return Err(ServeError::Overloaded { waiting: 0, backlog: Duration::ZERO });
        }
        match verb {
            Verb::Infer => score_tensors(scored, &body, header_length.as_deref(), arrived),
            Verb::Retrieve => retrieve_items(scored, &body).map(Step::Done),
            _ => score_rows(scored, verb, &body),
        }
    };
    let (reply, sample) = domain.request(chosen, &admitted, (bytes, is_packed), work).await?;
    if reply.bytes.len() > limits.answer_bytes {
        let what = "the size of the answer in bytes";
        let remedy = "send fewer rows at a time, or raise the setting `serve.max_answer_bytes`";
        return Err(ServeError::TooLarge { what, limit: limits.answer_bytes, remedy });
    }
    let mut held = admitted.held.another();
    held.set(reply.bytes.len());
    let logged = sample.and_then(Sample::hand_over);
    Ok(Answered { reply, held, logged })
}

/// Scores the tensors of a v2 request.
fn score_tensors(
    scored: &Scored,
    body: &[u8],
    header_length: Option<&str>,
    arrived: Instant,
) -> Result<Step<Reply>> {
    let parsed = scored.time(Stage::Parse, || {
        let parsed = infer::parse(body, header_length, scored.limits())?;
        check_outputs(scored.servable(), &parsed.outputs)?;
        Ok::<_, ServeError>(parsed)
    })?;
    let (model, version) = &parsed.named;
    let answers = [scored.model().to_owned(), scored.servable().version().to_string()];
    for (what, named, answers) in [("model", model, &answers[0]), ("version", version, &answers[1])]
    {
        // Some clients send an empty version for the default one.
        if let Some(named) = named.as_ref().filter(|named| *named != answers && !named.is_empty()) {
            return Err(ServeError::Malformed(format!(
                "the path asks for {what} `{answers}`, but the body names {what} `{}`; name the \
                 same {what} in both",
                shorten(named)
            )));
        }
    }
    if let Some(limit) = parsed.timeout.filter(|&limit| arrived.elapsed() > limit) {
        return Err(ServeError::Deadline { limit });
    }
    let (rows, columns, outputs) = (parsed.rows, parsed.columns, parsed.outputs);
    let (binary, own_id) = (parsed.binary, parsed.id.as_deref().map(str::to_owned));
    let id = parsed.id.as_deref();
    scored.score_then(RowsRequest { rows, columns, outputs, id }, move |scored, answer| {
        let id = own_id.as_deref();
        scored.time(Stage::Write, || infer::reply(scored.model(), id, &answer, &binary))
    })
}

/// Scores the rows of a predict, classify, regress or rank request.
fn score_rows(scored: &Scored, verb: Verb, body: &[u8]) -> Result<Step<Reply>> {
    let form = match verb {
        Verb::Predict => Form::Predict,
        Verb::Rank => Form::Rank,
        _ => Form::Examples,
    };
    if verb == Verb::Classify && !scored.servable().has_probabilities() {
        return Err(ServeError::Malformed(
            "the model has no label of 0 or 1, so it cannot classify; use `:regress` or `:predict`"
                .to_owned(),
        ));
    }
    let classes = scored.servable().classes();
    if classes.is_some() && matches!(verb, Verb::Regress | Verb::Rank) {
        return Err(ServeError::Malformed(
            "the model has a probability for each class and no single score; use `:classify` or \
             `:predict`"
                .to_owned(),
        ));
    }
    let parsed = scored.time(Stage::Parse, || {
        let mut parsed = rows::parse(form, body, scored.limits())?;
        parsed.fit(scored.servable().encoder())?;
        Ok::<_, ServeError>(parsed)
    })?;
    let (is_columnar, top_k) = (parsed.is_columnar, parsed.top_k);
    let (rows, columns) = (parsed.rows, parsed.columns);
    let request = RowsRequest { rows, columns, outputs: Vec::new(), id: None };
    scored.score_then(request, move |scored, answer| {
        let bytes = scored.time(Stage::Write, || {
            let classes = classes.as_deref();
            write_answer(verb, (&answer, classes), is_columnar, top_k)
        })?;
        Ok(Reply { bytes, header_length: None })
    })
}

/// Finds the nearest items of the user of a retrieve request.
fn retrieve_items(scored: &Scored, body: &[u8]) -> Result<Reply> {
    let request = scored.time(Stage::Parse, || retrieve::parse(body, scored.limits()))?;
    let retrieval = scored.retrieve(request)?;
    let bytes = scored.time(Stage::Write, || match scored.servable().retrievable() {
        Some(retrievable) => to_bytes(&RetrieveAnswer::new(retrievable.items(), &retrieval)),
        None => Err(ServeError::Internal("the items of the version are gone".to_owned())),
    })?;
    Ok(Reply { bytes, header_length: None })
}

/// Writes the JSON of an answer in the form of its verb. The answer comes with the names of the
/// classes of its label, if it has some.
fn write_answer(
    verb: Verb,
    (answer, classes): (&Answer, Option<&[String]>),
    is_columnar: bool,
    top_k: Option<usize>,
) -> Result<Vec<u8>> {
    match verb {
        Verb::Rank => to_bytes(&RankAnswer::new(answer, top_k)),
        Verb::Classify => to_bytes(&classify(answer, classes)),
        Verb::Regress => to_bytes(&regress(answer)),
        _ => to_bytes(&PredictAnswer::new(answer, is_columnar)),
    }
}
