//! The errors of a request, and the code that each protocol has for them.

use std::time::Duration;

use tonic::Code;
use zillion_access::Refusal;
use zillion_feature::RequestError;

/// The result of a request.
pub type Result<T, E = ServeError> = std::result::Result<T, E>;

/// The largest number of unpacked bytes for each byte of a compressed body, besides 1 MiB.
pub(crate) const UNPACKED_RATIO: usize = 8;

/// The reason why the server did not answer a request with scores.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A request that cannot be understood.
    #[error("{0}")]
    Malformed(String),
    /// An input of the request that does not fit the model.
    #[error(transparent)]
    Input(#[from] RequestError),
    /// A model that this server does not serve.
    #[error("unknown model `{model}` (served here: {serves}); correct the name")]
    UnknownModel {
        /// The name in the request.
        model: String,
        /// The names of the models that are served.
        serves: String,
    },
    /// A model that the registry does not have.
    #[error(
        "unknown model `{model}` (in the registry: {has}); correct the name, or publish the model"
    )]
    NotInRegistry {
        /// The name in the request.
        model: String,
        /// The names of the models in the registry.
        has: String,
    },
    /// An operation on models that clients of this server may not request.
    #[error(
        "cannot {what} model `{model}`: this server does not let clients choose its models; turn \
         on the setting `serve.model_control` to allow it"
    )]
    NoControl {
        /// The verb of the operation.
        what: &'static str,
        /// The name of the model.
        model: String,
    },
    /// A version of the model that is not loaded here.
    #[error(
        "version {version} of model `{model}` is not loaded here (loaded: {loaded}); request a \
         loaded version"
    )]
    UnknownVersion {
        /// The name of the model.
        model: String,
        /// The number or the label in the request.
        version: String,
        /// The numbers of the loaded versions.
        loaded: String,
    },
    /// A path that belongs to no protocol.
    #[error("unknown path `{0}`; use a path of `/openapi.json`")]
    UnknownPath(String),
    /// A method that the path does not support.
    #[error("path `{path}` does not support this method; use {allowed}")]
    WrongMethod {
        /// The path of the request.
        path: String,
        /// The method that the path supports.
        allowed: &'static str,
    },
    /// A request that exceeds a limit of size.
    #[error("{what} is larger than the limit of {limit}; {remedy}")]
    TooLarge {
        /// The part of the request that is too large.
        what: &'static str,
        /// The limit that the request exceeds.
        limit: usize,
        /// The remedy, such as the setting that raises the limit.
        remedy: &'static str,
    },
    /// A compressed body that unpacks to much more than it weighs.
    #[error(
        "the decompressed body has more than {limit} bytes, the limit for its compressed size (1 \
         MiB plus {UNPACKED_RATIO} times that size); send fewer rows at a time, or send the body \
         uncompressed"
    )]
    Unpacked {
        /// The largest number of unpacked bytes.
        limit: usize,
    },
    /// A request that arrived while too many others were waiting.
    #[error(
        "the server is overloaded: {waiting} requests are waiting, with an estimated {} ms of \
         work; try again in a moment",
        backlog.as_millis()
    )]
    Overloaded {
        /// The number of requests that wait.
        waiting: usize,
        /// The estimated time for the work of the waiting requests.
        backlog: Duration,
    },
    /// A request above the quota of its principal.
    #[error("the quota of `{caller}` is used up; try again in {} ms", wait.as_millis())]
    Quota {
        /// The name of the principal.
        caller: String,
        /// The time after which the principal may try again.
        wait: Duration,
    },
    /// A caller that is unknown, or may not make the call. The reason stands in the audit log.
    #[error("{}", refused_text(*refusal))]
    Refused {
        /// The reason, which the caller does not see.
        refusal: Refusal,
        /// The name of the principal, or an empty text if the caller is unknown.
        caller: String,
    },
    /// A body in an unknown encoding.
    #[error(
        "unknown `Content-Encoding: {name}`; compress the body with gzip or deflate, or send it \
         uncompressed"
    )]
    Encoding {
        /// The encoding that the request names.
        name: String,
    },
    /// A request that was not answered in time.
    #[error(
        "the request was not answered within its time limit of {limit:?}; send fewer rows at a \
         time, or raise the time limit of the request"
    )]
    Deadline {
        /// The time that the request had.
        limit: Duration,
    },
    /// A body that did not arrive in time.
    #[error(
        "the body of the request did not arrive within {limit:?}; send it faster, or raise the \
         setting `serve.receive_ms`"
    )]
    SlowBody {
        /// The time that the body had.
        limit: Duration,
    },
    /// A model without a loaded version, or a server that is stopping.
    #[error("{0}")]
    NotReady(String),
    /// A model that could not score the rows.
    #[error("the model could not score the rows of the request: {0}")]
    Scoring(#[source] zillion_scorer::Error),
    /// A bug, or a failure of the machine.
    #[error("{0}")]
    Internal(String),
}

/// Returns the text that a refused caller sees, which says nothing about the reason.
fn refused_text(refusal: Refusal) -> &'static str {
    match refusal.is_unauthenticated() {
        true => "the request has no valid credentials; send a valid token or client certificate",
        false => {
            "the caller is not allowed to make this request; ask the operator of the server for a \
             role that allows it"
        }
    }
}

/// The kind of a failure. Each protocol has its own code for a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is wrong.
    Invalid,
    /// The caller is unknown.
    Unauthenticated,
    /// The request asks for something that this server does not have.
    NotFound,
    /// The request asks for something that this server does not allow.
    Forbidden,
    /// The path does not support this method.
    WrongMethod,
    /// The request exceeds a limit of size.
    TooLarge,
    /// The request is in an unknown encoding.
    Unsupported,
    /// The client sent its request too slowly.
    Slow,
    /// The server has too many requests.
    Overloaded,
    /// The request took too much time.
    Deadline,
    /// The server cannot answer at the moment.
    Unavailable,
    /// The server failed through no fault of the client.
    Internal,
}

impl ServeError {
    /// Returns the error for an unknown path. A long path is cut to 200 characters.
    pub(crate) fn unknown_path(path: &str) -> Self {
        Self::UnknownPath(path.chars().take(200).collect())
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Malformed(_) | Self::Input(_) => Kind::Invalid,
            Self::UnknownModel { .. }
            | Self::NotInRegistry { .. }
            | Self::UnknownVersion { .. }
            | Self::UnknownPath(_) => Kind::NotFound,
            Self::NoControl { .. } => Kind::Forbidden,
            Self::WrongMethod { .. } => Kind::WrongMethod,
            Self::TooLarge { .. } | Self::Unpacked { .. } => Kind::TooLarge,
            Self::Encoding { .. } => Kind::Unsupported,
            Self::SlowBody { .. } => Kind::Slow,
            Self::Overloaded { .. } | Self::Quota { .. } => Kind::Overloaded,
            Self::Refused { refusal, .. } if refusal.is_unauthenticated() => Kind::Unauthenticated,
            Self::Refused { .. } => Kind::Forbidden,
            Self::Deadline { .. } => Kind::Deadline,
            Self::NotReady(_) | Self::Scoring(zillion_scorer::Error::Damaged { .. }) => {
                Kind::Unavailable
            }
            Self::Scoring(_) | Self::Internal(_) => Kind::Internal,
        }
    }
}

impl Kind {
    /// Returns the code of a gRPC answer. An overload is `UNAVAILABLE`, because clients repeat a
    /// call after this code.
    pub fn grpc_code(self) -> Code {
        self.codes().0
    }

    /// Returns the status of an HTTP answer.
    pub fn http_status(self) -> u16 {
        self.codes().1
    }

    fn codes(self) -> (Code, u16) {
        match self {
            Self::Invalid => (Code::InvalidArgument, 400),
            Self::Unauthenticated => (Code::Unauthenticated, 401),
            Self::Forbidden => (Code::PermissionDenied, 403),
            Self::NotFound => (Code::NotFound, 404),
            Self::WrongMethod => (Code::Unimplemented, 405),
            Self::Slow => (Code::DeadlineExceeded, 408),
            Self::TooLarge => (Code::ResourceExhausted, 413),
            Self::Unsupported => (Code::Unimplemented, 415),
            Self::Overloaded => (Code::Unavailable, 429),
            Self::Internal => (Code::Internal, 500),
            Self::Unavailable => (Code::Unavailable, 503),
            Self::Deadline => (Code::DeadlineExceeded, 504),
        }
    }
}
