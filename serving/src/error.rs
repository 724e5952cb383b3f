//! What a request can come to instead of scores, and how the protocols say it.

use std::time::Duration;

use tonic::Code;
use zillion_feature::RequestError;

/// The result of a request.
pub type Result<T, E = ServeError> = std::result::Result<T, E>;

/// Why a request was not answered with scores.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The request cannot be understood.
    #[error("{0}")]
    Malformed(String),
    /// An input of the request does not fit the model.
    #[error(transparent)]
    Input(#[from] RequestError),
    /// There is no such model here.
    #[error("this server does not serve it; it serves {serves}: model `{model}`")]
    UnknownModel {
        /// What was asked for.
        model: String,
        /// What there is.
        serves: String,
    },
    /// There is no such model in the registry.
    #[error("the registry has no such model; it has {has}: model `{model}`")]
    NotInRegistry {
        /// What was asked for.
        model: String,
        /// What there is.
        has: String,
    },
    /// Clients may not do this here.
    #[error(
        "clients may not {what} models here: models are those that the server was started with; start it with `--model-control` to let clients choose: model `{model}`"
    )]
    NoControl {
        /// What was asked for.
        what: &'static str,
        /// The model.
        model: String,
    },
    /// The model's version is not open here.
    #[error("this server has not loaded it; it has {loaded}: version {version} of model `{model}`")]
    UnknownVersion {
        /// The model.
        model: String,
        /// The number or label that was asked for.
        version: String,
        /// What there is.
        loaded: String,
    },
    /// There is nothing at this path.
    #[error("there is nothing at this path; see /openapi.json: `{0}`")]
    UnknownPath(String),
    /// The method does not fit the path.
    #[error("this path is asked by {allowed}: `{path}`")]
    WrongMethod {
        /// The path.
        path: String,
        /// The method that it takes.
        allowed: &'static str,
    },
    /// The request is larger than this server takes.
    #[error(
        "{what} is larger than the limit of {limit}; send less at a time, or raise `{setting}`"
    )]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit.
        limit: usize,
        /// Where it is set.
        setting: &'static str,
    },
    /// More requests are waiting than this server takes.
    #[error("{waiting} requests are waiting, which is the limit; try again in a moment")]
    Overloaded {
        /// How many wait.
        waiting: usize,
    },
    /// The request's body is encoded in a way that is not known.
    #[error(
        "a body may be compressed with gzip or deflate, not otherwise: `Content-Encoding: {name}`"
    )]
    Encoding {
        /// What the request says.
        name: String,
    },
    /// The time for the request is over.
    #[error("the request waited until its time of {limit:?} was over")]
    Deadline {
        /// The time that it had.
        limit: Duration,
    },
    /// The request's body did not arrive in time.
    #[error("the request's body did not arrive within {limit:?}")]
    SlowBody {
        /// The time that it had.
        limit: Duration,
    },
    /// No version is loaded yet, or the server is stopping.
    #[error("{0}")]
    NotReady(String),
    /// The model could not score the rows.
    #[error("the model could not score it: {0}")]
    Scoring(#[source] zillion_scorer::Error),
    /// A bug, or a machine that fails.
    #[error("{0}")]
    Internal(String),
}

/// What kind of failure it is: each protocol has its own number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is wrong.
    Invalid,
    /// What it asks for is not here.
    NotFound,
    /// It is not allowed here.
    Forbidden,
    /// The path does not take this method.
    WrongMethod,
    /// It is too large.
    TooLarge,
    /// It is in no form that is known.
    Unsupported,
    /// The client sent too slowly.
    Slow,
    /// There are too many.
    Overloaded,
    /// It took too long.
    Deadline,
    /// Not now.
    Unavailable,
    /// Not the client's fault.
    Internal,
}

impl ServeError {
    /// Returns the error of a path where there is nothing; a long path is cut.
    pub(crate) fn unknown_path(path: &str) -> Self {
        Self::UnknownPath(path.chars().take(200).collect())
    }

    /// The kind of failure.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Malformed(_) | Self::Input(_) => Kind::Invalid,
            Self::UnknownModel { .. }
            | Self::NotInRegistry { .. }
            | Self::UnknownVersion { .. }
            | Self::UnknownPath(_) => Kind::NotFound,
            Self::NoControl { .. } => Kind::Forbidden,
            Self::WrongMethod { .. } => Kind::WrongMethod,
            Self::TooLarge { .. } => Kind::TooLarge,
            Self::Encoding { .. } => Kind::Unsupported,
            Self::SlowBody { .. } => Kind::Slow,
            Self::Overloaded { .. } => Kind::Overloaded,
            Self::Deadline { .. } => Kind::Deadline,
            Self::NotReady(_) => Kind::Unavailable,
            Self::Scoring(_) | Self::Internal(_) => Kind::Internal,
        }
    }
}

impl Kind {
    /// The code of a gRPC answer. Too many requests are `UNAVAILABLE`, which is what clients try again after.
    pub fn grpc_code(self) -> Code {
        match self {
            Self::Invalid => Code::InvalidArgument,
            Self::Forbidden => Code::PermissionDenied,
            Self::NotFound => Code::NotFound,
            Self::WrongMethod | Self::Unsupported => Code::Unimplemented,
            Self::TooLarge => Code::ResourceExhausted,
            Self::Overloaded | Self::Unavailable => Code::Unavailable,
            Self::Slow | Self::Deadline => Code::DeadlineExceeded,
            Self::Internal => Code::Internal,
        }
    }

    /// The status of an HTTP answer.
    pub fn http_status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::WrongMethod => 405,
            Self::Slow => 408,
            Self::TooLarge => 413,
            Self::Unsupported => 415,
            Self::Overloaded => 429,
            Self::Internal => 500,
            Self::Unavailable => 503,
            Self::Deadline => 504,
        }
    }
}
