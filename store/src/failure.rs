//! The failures of requests to a store. A failure has a kind and a reason without secrets.
//!
//! The crate `object_store` has the status code of a response only in private types. So this module
//! parses the status code from the text of the error. A test compares the kinds with real
//! responses.

use std::error::Error as StdError;
use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};

use crate::stats::Outcome;

/// The maximum number of characters that a reason takes from a response.
const TEXT_LIMIT: usize = 400;

/// The failure of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) outcome: Outcome,
    /// The reason for the failure, as a text.
    pub(crate) reason: String,
}

impl Failure {
    pub(crate) fn new(outcome: Outcome, reason: impl Into<String>) -> Self {
        Self { outcome, reason: reason.into() }
    }

    /// Makes the failure of a request whose response did not arrive in time.
    pub(crate) fn timed_out(after: Duration) -> Self {
        Self::new(
            Outcome::Timeout,
            format!("no complete answer within {:.1} s", after.as_secs_f64()),
        )
    }

    /// Makes the failure for an error of `object_store`.
    pub(crate) fn of(error: &object_store::Error) -> Self {
        use object_store::Error as E;
        let (answer, transport) = (Answer::find(error), transport(error));
        let reason = match (&answer, &transport) {
            (Some(answer), _) => answer.to_string(),
            (None, Some((_, text))) => text.clone(),
            (None, None) => shorten(&error.to_string()),
        };
        // The client requests the credentials of the machine from a link-local address.
        if answer.is_none()
            && let Some((HttpErrorKind::Connect | HttpErrorKind::Timeout, text)) = &transport
            && error.to_string().contains("://169.254.")
        {
            let reason = format!(
                "no credentials are set, and this machine provides none ({text}); set the credentials of the store"
            );
            return Self { outcome: Outcome::Denied, reason };
        }
        let outcome = match error {
            E::NotFound { .. } => Outcome::Missing,
            E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. } => {
                Outcome::Exists
            }
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => Outcome::Denied,
            E::NotImplemented { .. }
            | E::NotSupported { .. }
            | E::UnknownConfigurationKey { .. } => Outcome::Refused,
            _ => match (&answer, transport) {
                (Some(answer), _) => answer.outcome(),
                (None, Some((HttpErrorKind::Timeout, _))) => Outcome::Timeout,
                // An answer that cannot be parsed is incomplete, or does not come from the store.
                (None, _) => Outcome::Connection,
            },
        };
        Self { outcome, reason }
    }

    /// Replaces each secret in the reason by `[secret]`.
    pub(crate) fn redact(mut self, secrets: &[String]) -> Self {
        for secret in secrets.iter().filter(|secret| secret.len() >= 4) {
            self.reason = self.reason.replace(secret.as_str(), "[secret]");
        }
        self
    }
}

/// A response in which the store refuses a request.
struct Answer {
    status: u16,
    /// The code by which the store names the problem.
    code: String,
    message: String,
}

impl Answer {
    /// Finds the response of the store in an error and its causes. Returns `None` if there is none.
    fn find(error: &object_store::Error) -> Option<Self> {
        // The text of each error repeats the texts of its causes, and any of these texts may
        // contain the status.
        std::iter::once(error.to_string()).chain(causes(error).map(ToString::to_string)).find_map(
            |text| {
                if let Some((_, rest)) = text.split_once("returned non-2xx status code: ")
                    && let Some(status) = rest.get(..3).and_then(|digits| digits.parse().ok())
                {
                    return Some(Self::read(status, rest));
                }
                let (_, body) = text.split_once("returned error response: ")?;
                Some(Self::read(500, body))
            },
        )
    }

    fn read(status: u16, text: &str) -> Self {
        let element = |name: &str| {
            let (_, rest) = text.split_once(&format!("<{name}>"))?;
            let (inside, _) = rest.split_once(&format!("</{name}>"))?;
            Some(shorten(inside))
        };
        let code = element("Code").unwrap_or_default();
        let message = element("Message").unwrap_or_default();
        Self { status, code, message }
    }

    fn outcome(&self) -> Outcome {
        match (self.status, self.code.as_str()) {
            // The store received an incomplete body. The cause is the network and not the request.
            (400, "RequestTimeout" | "IncompleteBody" | "BadDigest")
            | (400, "XAmzContentSHA256Mismatch") => Outcome::Connection,
            (400, "ExpiredToken" | "InvalidToken") | (401 | 403, _) => Outcome::Denied,
            (404, _) => Outcome::Missing,
            (408, _) => Outcome::Timeout,
            (429 | 503, _) | (_, "SlowDown" | "ServerBusy") => Outcome::Throttled,
            (501 | 505, _) => Outcome::Refused,
            (500.., _) => Outcome::ServerError,
            _ => Outcome::Refused,
        }
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the store responds with {}", self.status)?;
        if !self.code.is_empty() {
            write!(f, " {}", self.code)?;
        }
        match self.message.trim_end_matches('.') {
            "" => Ok(()),
            message => write!(f, ": {message}"),
        }
    }
}

/// Returns the kind and the text of a failure of the connection. The text lists the causes from the
/// outermost to the innermost. Returns `None` for other failures.
fn transport(error: &object_store::Error) -> Option<(HttpErrorKind, String)> {
    let http = causes(error).find_map(|cause| cause.downcast_ref::<HttpError>())?;
    let mut message: Vec<String> = Vec::new();
    for cause in causes(http) {
        let text = cause.to_string();
        if !message.iter().any(|before| before.contains(&text)) {
            message.push(text);
        }
    }
    Some((http.kind(), shorten(&message.join(": "))))
}

/// Yields the causes of an error, from the outermost to the innermost.
fn causes<'a>(error: &'a dyn StdError) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

fn shorten(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(TEXT_LIMIT) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use object_store::aws::AmazonS3Builder;
    use object_store::path::Path;
    use object_store::{ClientOptions, ObjectStoreExt, RetryConfig};

    use super::*;

    /// Sends a request to a server that responds with these bytes and closes the connection.
    /// Returns the failure of the request.
    fn answered(bytes: &'static str) -> Failure {
        crate::cloud::install_tls();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            let mut buffer = [0; 4096];
            while !head.windows(4).any(|w| w == b"\r\n\r\n") {
                let read = stream.read(&mut buffer).unwrap();
                head.extend_from_slice(&buffer[..read]);
            }
            stream.write_all(bytes.as_bytes()).unwrap();
        });
        let store = AmazonS3Builder::new()
            .with_bucket_name("b")
            .with_endpoint(format!("http://{address}"))
            .with_access_key_id("key")
            .with_secret_access_key("hunter22")
            .with_client_options(ClientOptions::new().with_allow_http(true))
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .build()
            .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let read = async { store.get(&Path::from("x")).await?.bytes().await };
        let error = runtime.block_on(read).unwrap_err();
        server.join().unwrap();
        Failure::of(&error)
    }

    #[test]
    fn every_answer_has_its_outcome() {
        let of = |answer| answered(answer).outcome;
        let full = "HTTP/1.1 503 Slow Down\r\nContent-Length: 74\r\n\r\n\
                    <Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>..";
        assert_eq!(
            answered(full),
            Failure::new(
                Outcome::Throttled,
                "the store responds with 503 SlowDown: Reduce your rate"
            )
        );
        assert_eq!(of("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"), Outcome::ServerError);
        assert_eq!(of("HTTP/1.1 502 Oh\r\nContent-Length: 0\r\n\r\n"), Outcome::ServerError);
        assert_eq!(of("HTTP/1.1 501 Oh\r\nContent-Length: 0\r\n\r\n"), Outcome::Refused);
        assert_eq!(of("HTTP/1.1 429 Oh\r\nContent-Length: 0\r\n\r\n"), Outcome::Throttled);
        assert_eq!(of("HTTP/1.1 408 Oh\r\nContent-Length: 0\r\n\r\n"), Outcome::Timeout);
        assert_eq!(of("HTTP/1.1 400 Oh\r\nContent-Length: 0\r\n\r\n"), Outcome::Refused);
        assert_eq!(of("HTTP/1.1 401 Oh\r\nContent-Length: 0\r\n\r\n"), Outcome::Denied);
        assert_eq!(of("HTTP/1.1 403 Oh\r\nContent-Length: 0\r\n\r\n"), Outcome::Denied);
        assert_eq!(of("HTTP/1.1 404 Oh\r\nContent-Length: 0\r\n\r\n"), Outcome::Missing);
        let incomplete = "HTTP/1.1 400 Bad\r\nContent-Length: 42\r\n\r\n\
                          <Error><Code>IncompleteBody</Code></Error>";
        assert_eq!(of(incomplete), Outcome::Connection);
        // The answer is cut off before, inside and after its head.
        assert_eq!(of(""), Outcome::Connection);
        assert_eq!(of("HTTP/1.1 200"), Outcome::Connection);
        let cut = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: \"a\"\r\n\
                   Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\nfour";
        assert_eq!(of(cut), Outcome::Connection);
        assert_eq!(of("not http at all\r\n\r\n"), Outcome::Connection);
    }

    #[test]
    fn secrets_are_redacted() {
        let failure = Failure::new(Outcome::Denied, "signature of hunter22 does not match");
        let message = failure.redact(&["hunter22".to_owned(), String::new()]).reason;
        assert_eq!(message, "signature of [secret] does not match");
    }

    #[test]
    fn long_texts_are_cut() {
        let long = "word ".repeat(1000);
        assert_eq!(shorten(&long).chars().count(), TEXT_LIMIT + 1);
        assert_eq!(shorten("a \n b"), "a b");
    }
}
