//! The responses over HTTP: JSON, bytes, and errors in the form that all protocols share.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::error::{Kind, Result, ServeError};

/// The header with the number of bytes of a body that are its JSON.
pub(super) const HEADER_LENGTH: &str = "inference-header-content-length";

/// The body of an answer, and the length of its JSON if other bytes follow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    /// The number of bytes that are JSON, if others follow.
    pub(crate) header_length: Option<usize>,
}

impl IntoResponse for ServeError {
    fn into_response(self) -> Response {
        failure(&self)
    }
}

/// Builds the response for an error, and logs the error.
pub(super) fn failure(error: &ServeError) -> Response {
    #[derive(Serialize)]
    struct Failure {
        error: String,
    }
    let kind = error.kind();
    let status =
        StatusCode::from_u16(kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match kind {
        Kind::Internal => tracing::error!("{error}"),
        // The client has received the reason. An operator who looks for the reasons of many
        // refusals turns on the debug log.
        _ => tracing::debug!(status = status.as_u16(), "refused: {error}"),
    }
    let body = to_bytes(&Failure { error: error.to_string() }).unwrap_or_default();
    let mut response = json_bytes(status, body);
    let (name, value) = match error {
        ServeError::Overloaded { .. } => (header::RETRY_AFTER, "1"),
        ServeError::WrongMethod { allowed: "GET", .. } => (header::ALLOW, "GET, HEAD"),
        ServeError::WrongMethod { allowed, .. } => (header::ALLOW, *allowed),
        ServeError::Encoding { .. } => (header::ACCEPT_ENCODING, "gzip, deflate"),
        // The rest of such a body is not read.
        ServeError::TooLarge { .. } | ServeError::SlowBody { .. } => (header::CONNECTION, "close"),
        _ => return response,
    };
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

/// Builds a response with a body of JSON.
pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match to_bytes(body) {
        Ok(bytes) => json_bytes(status, bytes),
        Err(error) => failure(&error),
    }
}

/// Builds the response for an answer.
pub(super) fn reply(reply: Reply) -> Response {
    let Some(length) = reply.header_length else { return json_bytes(StatusCode::OK, reply.bytes) };
    let kind = HeaderValue::from_static("application/octet-stream");
    let headers = [
        (header::CONTENT_TYPE, kind),
        (HeaderName::from_static(HEADER_LENGTH), HeaderValue::from(length)),
    ];
    (headers, Body::from(reply.bytes)).into_response()
}

fn json_bytes(status: StatusCode, bytes: Vec<u8>) -> Response {
    let kind = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, kind)], Body::from(bytes)).into_response()
}

pub(super) fn to_bytes(body: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(body).map_err(|e| ServeError::Internal(e.to_string()))
}
