//! The target of requests: the address of a server and the path of a model.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use hyper::Uri;
use zillion_registry::VersionId;

use crate::args::Protocol;

/// The address of a server, with a path on this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The host and the port to connect to.
    pub(crate) address: String,
    /// The host in the form of the URL, for the `Host` header of requests.
    pub(crate) host: String,
    pub(crate) path: String,
    /// Whether requests are sent as gRPC frames over HTTP/2. If not, they are sent as JSON over
    /// HTTP/1.1.
    pub(crate) is_grpc: bool,
    /// The settings of TLS, or `None` for connections without TLS.
    pub(crate) tls: Option<Tls>,
}

/// The settings of TLS for connections to a target. Two values are equal if they are the same
/// object.
#[derive(Clone, Debug)]
pub(crate) struct Tls(pub(crate) Arc<rustls::ClientConfig>);

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Tls {}

impl Target {
    /// Creates a target of HTTP/1.1 requests over TLS. `url` begins with `https://` and has a port.
    pub(crate) fn new_tls(
        url: &str,
        model: &str,
        version: Option<VersionId>,
        protocol: Protocol,
        tls: Tls,
    ) -> Result<Self> {
        let plain = url.replacen("https://", "http://", 1);
        Ok(Self { tls: Some(tls), ..Self::new(&plain, model, version, protocol)? })
    }

    pub(crate) fn new(
        url: &str,
        model: &str,
        version: Option<VersionId>,
        protocol: Protocol,
    ) -> Result<Self> {
        let uri = Uri::from_str(url).with_context(|| {
            format!("`--url {url}` is not a URL; give one such as http://127.0.0.1:8080")
        })?;
        if uri.scheme_str() != Some("http") {
            bail!(
                "`--url {url}` does not begin with http://; give a URL such as http://127.0.0.1:8080"
            );
        }
        let Some(authority) = uri.authority() else {
            bail!("`--url {url}` names no host; give a URL such as http://127.0.0.1:8080");
        };
        let (name, port) = (authority.host(), authority.port_u16().unwrap_or(80));
        let prefix = uri.path().trim_end_matches('/');
        let version = version.map_or_else(String::new, |v| format!("/versions/{v}"));
        let path = match protocol {
            Protocol::V2 => format!("{prefix}/v2/models/{model}{version}/infer"),
            Protocol::Predict => format!("{prefix}/v1/models/{model}{version}:predict"),
            Protocol::Rank => format!("{prefix}/v1/models/{model}{version}:rank"),
            // The message contains the model and the version, so the path does not.
            Protocol::Grpc => "/inference.GRPCInferenceService/ModelInfer".to_owned(),
        };
        if protocol == Protocol::Grpc && !prefix.is_empty() {
            bail!("`--url {url}` has a path, but gRPC has its own paths; remove `{prefix}`");
        }
        Ok(Self {
            address: format!("{name}:{port}"),
            host: authority.as_str().to_owned(),
            path,
            is_grpc: protocol == Protocol::Grpc,
            tls: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_protocols() {
        let of = |url: &str, version: Option<u64>, protocol| {
            Target::new(url, "m", version.map(VersionId), protocol).map(|t| (t.address, t.path))
        };
        let text = |(a, p): (&str, &str)| (a.to_owned(), p.to_owned());
        let here = "127.0.0.1:8080";
        assert_eq!(
            of("http://127.0.0.1:8080", None, Protocol::V2).unwrap(),
            text((here, "/v2/models/m/infer"))
        );
        assert_eq!(
            of("http://127.0.0.1:8080/", Some(7), Protocol::Predict).unwrap(),
            text((here, "/v1/models/m/versions/7:predict"))
        );
        assert_eq!(
            of("http://host/below/", Some(7), Protocol::Rank).unwrap(),
            text(("host:80", "/below/v1/models/m/versions/7:rank"))
        );
        assert_eq!(
            of("http://127.0.0.1:8080", Some(7), Protocol::Grpc).unwrap(),
            text((here, "/inference.GRPCInferenceService/ModelInfer"))
        );
        assert!(of("http://host/below", None, Protocol::Grpc).is_err());
        for wrong in ["https://host", "host:80", "/path", "http//", ""] {
            assert!(of(wrong, None, Protocol::V2).is_err(), "{wrong}");
        }
    }
}
