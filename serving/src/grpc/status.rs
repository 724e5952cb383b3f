//! The gRPC status of failures, and the HTTP status of gRPC codes.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::error::{Kind, ServeError};
use crate::proto::google::protobuf::Any;
use crate::text::error_text;

/// The time after which a client may repeat a request that was refused because too many requests
/// wait.
const RETRY_TIME: Duration = Duration::from_secs(1);

/// The message `google.rpc.Status`, which the header `grpc-status-details-bin` holds.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// The message `google.rpc.RetryInfo` in the details.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// The message `google.protobuf.Duration` in the details.
#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Returns the status of a failure. If too many requests wait, the status has the time of the next
/// attempt in a header and in the details, because clients read one or the other.
pub(super) fn status(error: &ServeError) -> Status {
    let kind = error.kind();
    let (code, message) = (kind.grpc_code(), error_text(error));
    match kind {
        Kind::Overloaded => {
            let wait = match error {
                ServeError::Quota { wait, .. } => *wait,
                _ => RETRY_TIME,
            };
            let millis = u32::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(u32::MAX);
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-retry-pushback-ms", MetadataValue::from(millis));
            let details = retry_details(code, &message, millis);
            Status::with_details_and_metadata(code, message, details, metadata)
        }
        Kind::Internal => {
            tracing::error!("{error}");
            Status::new(code, message)
        }
        _ => Status::new(code, message),
    }
}

fn retry_details(code: Code, message: &str, millis: u32) -> Bytes {
    let (seconds, rest) = (millis / 1000, millis % 1000);
    let delay = Delay { seconds: seconds.into(), nanos: rest as i32 * 1_000_000 };
    let retry = Any {
        type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(),
        value: RetryInfo { retry_delay: Some(delay) }.encode_to_vec().into(),
    };
    let (code, message) = (code as i32, message.to_owned());
    RpcStatus { code, message, details: vec![retry] }.encode_to_vec().into()
}

impl From<ServeError> for Status {
    fn from(error: ServeError) -> Self {
        status(&error)
    }
}

/// Returns the HTTP status that corresponds to a code, so that the metrics of all protocols have
/// the same values.
pub fn http_status(code: Code) -> u16 {
    match code {
        Code::Ok => 200,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::Aborted | Code::AlreadyExists => 409,
        Code::ResourceExhausted => 413,
        Code::Cancelled => 499,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_code() {
        let of = |error: ServeError| status(&error).code();
        let model = || "m".to_owned();
        let text = String::new;
        assert_eq!(of(ServeError::Malformed(text())), Code::InvalidArgument);
        assert_eq!(of(ServeError::NotReady(text())), Code::Unavailable);
        assert_eq!(of(ServeError::UnknownModel { model: model(), serves: text() }), Code::NotFound);
        assert_eq!(
            of(ServeError::NoControl { what: "load", model: model() }),
            Code::PermissionDenied
        );
        let large = ServeError::TooLarge { what: "it", limit: 1, remedy: "send less" };
        assert_eq!(of(large), Code::ResourceExhausted);
    }

    #[test]
    fn a_status_fits_the_headers_of_clients() {
        let status = status(&ServeError::Malformed("x".repeat(3 << 20)));
        assert!((1000..1010).contains(&status.message().len()), "{}", status.message().len());
    }

    #[test]
    fn an_overload_names_the_time_of_a_retry() {
        let status = status(&ServeError::Overloaded { waiting: 7, backlog: Duration::ZERO });
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "1000");
        let details = RpcStatus::decode(status.details()).unwrap();
        assert_eq!((details.code, details.details.len()), (14, 1));
        let retry = RetryInfo::decode(&details.details[0].value[..]).unwrap();
        assert_eq!(retry.retry_delay, Some(Delay { seconds: 1, nanos: 0 }));
        // A quota is free again later than that.
        let wait = Duration::from_micros(3_600_250_001);
        let status = super::status(&ServeError::Quota { caller: "a".to_owned(), wait });
        assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "3600251");
        let details = RpcStatus::decode(status.details()).unwrap();
        let retry = RetryInfo::decode(&details.details[0].value[..]).unwrap();
        assert_eq!(retry.retry_delay, Some(Delay { seconds: 3600, nanos: 251_000_000 }));
    }
}
