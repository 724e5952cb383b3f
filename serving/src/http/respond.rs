//! The responses over HTTP: JSON, bytes, and errors in the form that all protocols share.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;

use crate::error::{Kind, Result, ServeError};
use crate::text::error_text;

/// The header with the number of bytes of a body that are its JSON.
pub(super) const HEADER_LENGTH: &str = "inference-header-content-length";

/// The body of the answer to a request that a crowded server does not take.
const OVERLOADED: &[u8] = b"{\"error\":\"the server is overloaded; try again in a moment\"}";

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
        _ => tracing::debug!(status = status.as_u16(), "refused: {}", error_text(error)),
    }
    // A refusal must cost far less than the work that it saves, so that its bytes are ready.
    if let ServeError::Overloaded { .. } = error {
        let mut response = json_bytes(status, Bytes::from_static(OVERLOADED));
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        return response;
    }
    // An error repeats texts of the request, which may be of any length.
    let body = to_bytes(&Failure { error: error_text(error) }).unwrap_or_default();
    let mut response = json_bytes(status, body);
    let (name, value) = match error {
        ServeError::Quota { wait, .. } => {
            let seconds = HeaderValue::from(wait.as_secs() + 1);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
            return response;
        }
        ServeError::Refused { refusal, .. } if refusal.is_unauthenticated() => {
            (header::WWW_AUTHENTICATE, "Bearer")
        }
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

/// Builds a response with bytes that are JSON.
pub(super) fn json_bytes(status: StatusCode, bytes: impl Into<Body>) -> Response {
    let kind = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, kind)], bytes.into()).into_response()
}

pub(super) fn to_bytes(body: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(body).map_err(|e| ServeError::Internal(e.to_string()))
}

#[cfg(test)]
mod tests {
    use axum::body::HttpBody as _;

    use super::*;

    #[test]
    fn an_overload_says_when_to_come_back() {
        let backlog = std::time::Duration::from_millis(40);
        let response = failure(&ServeError::Overloaded { waiting: 3, backlog });
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        let body: serde_json::Value = serde_json::from_slice(OVERLOADED).unwrap();
        assert!(body["error"].as_str().unwrap().contains("overloaded"));
    }

    #[test]
    fn an_error_answer_is_small() {
        let long = "\u{1}".repeat(3 << 20);
        for error in [
            ServeError::Malformed(long.clone()),
            ServeError::UnknownPath(long.clone()),
            ServeError::WrongMethod { path: long.clone(), allowed: "GET" },
            ServeError::Input(zillion_feature::RequestError {
                input: long.clone(),
                row: None,
                reason: "none".to_owned(),
            }),
        ] {
            let bytes = failure(&error).into_body().size_hint().exact();
            assert!(bytes.is_some_and(|bytes| (10..10_000).contains(&bytes)), "{bytes:?}");
        }
    }
}
