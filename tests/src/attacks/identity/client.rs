//! The clients of the listeners. They use HTTP/1 or gRPC, with or without TLS, and with or without
//! a certificate.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;

use super::authority::{Authority, Issued};
use crate::attacks::wire;
use crate::server::PATIENCE;

/// The TLS settings of a client.
#[derive(Clone)]
pub(super) struct Tls(ClientConfig);

impl Tls {
    /// Creates the settings of a client that trusts an authority. If `client` is given, the client
    /// shows this certificate.
    pub(super) fn new(authority: &Authority, client: Option<&Issued>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.der()).expect("a certificate of an authority");
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has these versions")
            .with_root_certificates(roots);
        Self(match client {
            None => builder.with_no_client_auth(),
            Some(issued) => {
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(issued.key.clone()));
                builder
                    .with_client_auth_cert(vec![issued.certificate.clone()], key)
                    .expect("the key belongs to the certificate")
            }
        })
    }

    async fn connect(
        &self,
        address: &str,
        protocol: &[u8],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = self.0.clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost").expect("a name has plain letters");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}

/// The answer to a call.
#[derive(Debug)]
pub(super) enum Answer {
    Http {
        status: u16,
        body: String,
    },
    Grpc {
        code: Code,
        message: String,
    },
    /// The connection ended without an answer.
    Broken,
}

impl Answer {
    /// Returns the status of HTTP or the code of gRPC, or `None` if there is no answer.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Http { status, .. } => Some(*status),
            Self::Grpc { code, .. } => Some(*code as u16),
            Self::Broken => None,
        }
    }

    /// Returns whether the server passed the call to its handler.
    pub(super) fn is_allowed(&self) -> bool {
        match self {
            Self::Http { status, .. } => *status == 200,
            // Only the handler can find that a message has no inputs.
            Self::Grpc { code, .. } => matches!(code, Code::Ok | Code::InvalidArgument),
            Self::Broken => false,
        }
    }

    /// Returns the text of an error answer.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Http { body, .. } => {
                let fields: Value = serde_json::from_str(body).unwrap_or_default();
                let is_alone = fields.as_object().is_some_and(|fields| fields.len() == 1);
                let error = fields["error"].as_str().filter(|_| is_alone);
                error.map_or_else(|| body.clone(), str::to_owned)
            }
            Self::Grpc { message, .. } => message.clone(),
            Self::Broken => String::new(),
        }
    }
}

/// Sends a request over a new connection, and returns the answer. The connection uses TLS if `tls`
/// is given.
pub(super) fn http(
    address: &str,
    tls: Option<&Tls>,
    line: &str,
    authorization: Option<&str>,
    body: &[u8],
) -> Answer {
    let length = format!("Content-Length: {}", body.len());
    exchange(address, tls, line, authorization, &length, body)
}

/// Sends a request as [`http`] does, with a body whose length stands nowhere before its end.
pub(super) fn http_chunked(
    address: &str,
    tls: Option<&Tls>,
    line: &str,
    authorization: Option<&str>,
    body: &[u8],
) -> Answer {
    let chunk = format!("{:x}\r\n", body.len());
    let body = [chunk.as_bytes(), body, b"\r\n0\r\n\r\n"].concat();
    exchange(address, tls, line, authorization, "Transfer-Encoding: chunked", &body)
}

fn exchange(
    address: &str,
    tls: Option<&Tls>,
    line: &str,
    authorization: Option<&str>,
    framing: &str,
    body: &[u8],
) -> Answer {
    let authorization =
        authorization.map_or_else(String::new, |text| format!("Authorization: {text}\r\n"));
    let head = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{authorization}{framing}\r\n\r\n"
    );
    let request = [head.as_bytes(), body].concat();
    wire::run(PATIENCE, async {
        let mut answer = Vec::new();
        match tls {
            None => {
                let mut stream = TcpStream::connect(address).await.expect("a connection");
                let _ = stream.write_all(&request).await;
                let _ = stream.read_to_end(&mut answer).await;
            }
            Some(tls) => {
                let Ok(mut stream) = tls.connect(address, b"http/1.1").await else {
                    return Answer::Broken;
                };
                let _ = stream.write_all(&request).await;
                let _ = stream.flush().await;
                // The client learns here that its certificate was refused, because the client's
                // part of the handshake ends before the server checks the certificate.
                let _ = stream.read_to_end(&mut answer).await;
            }
        }
        let text = String::from_utf8_lossy(&answer).into_owned();
        let parsed = text.strip_prefix("HTTP/1.1 ").and_then(|rest| {
            let status = rest.split(' ').next()?.parse().ok()?;
            Some(Answer::Http { status, body: text.split_once("\r\n\r\n")?.1.to_owned() })
        });
        parsed.unwrap_or(Answer::Broken)
    })
}

/// Calls a gRPC method over a new connection, and returns the answer.
pub(super) fn grpc(
    address: &str,
    tls: Option<&Tls>,
    path: &str,
    authorization: Option<&str>,
    message: &[u8],
) -> Answer {
    wire::run(PATIENCE, async {
        let called = match tls {
            None => {
                let stream = TcpStream::connect(address).await.expect("a connection");
                wire::call_over(stream, path, message, authorization).await
            }
            Some(tls) => match tls.connect(address, b"h2").await {
                Ok(stream) => wire::call_over(stream, path, message, authorization).await,
                Err(_) => return Answer::Broken,
            },
        };
        called.map_or(Answer::Broken, |(code, message)| Answer::Grpc { code, message })
    })
}

/// Returns the certificate that the server shows to a new connection.
pub(super) fn server_certificate(address: &str, tls: &Tls) -> Vec<u8> {
    wire::run(PATIENCE, async {
        let stream = tls.connect(address, b"http/1.1").await.expect("a connection");
        let certificates = stream.get_ref().1.peer_certificates().expect("a certificate");
        certificates[0].to_vec()
    })
}

/// Reads the addresses that a server announces on stdout.
pub(super) fn read_addresses(child: &mut Child, count: usize) -> Vec<String> {
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let addresses = lines.take(count).map(|line| {
        let line = line.expect("stdout is text");
        let address = line.rsplit(['/', ' ']).next().unwrap_or_default();
        address.to_owned()
    });
    let addresses: Vec<String> = addresses.collect();
    assert_eq!(addresses.len(), count, "the server ended: {addresses:?}");
    addresses
}
