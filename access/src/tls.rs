//! The TLS settings of a listener: its certificate, its key, and the authorities that sign the
//! certificates of clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection};

use crate::certificate::CertificateNames;
use crate::error::{Error, Result};

/// The protocols that a listener offers, in the order of preference.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The files with the TLS settings of a listener, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server, followed by the certificates between it and the root.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The certificates of the authorities that sign the certificates of clients. If it is `None`,
    /// the server does not ask clients for a certificate.
    pub client_authority: Option<PathBuf>,
    /// Whether the server refuses, in the handshake, a client without a certificate.
    pub require_client: bool,
}

impl TlsFiles {
    /// Reads the files and returns the TLS settings.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or if the key does not belong to the certificate.
    pub fn load(&self) -> Result<Arc<ServerConfig>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::invalid(&self.certificate, e.to_string()))?;
        let builder = match &self.client_authority {
            None if self.require_client => {
                let reason = "`require_client` needs the authority that signs clients' \
                              certificates; set `client_authority`";
                return Err(Error::invalid(&self.certificate, reason));
            }
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let roots = Arc::new(roots(authority)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = match self.require_client {
                    true => verifier,
                    false => verifier.allow_unauthenticated(),
                };
                let verifier =
                    verifier.build().map_err(|e| Error::invalid(authority, e.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let key = private_key(&self.key)?;
        let mut config = builder
            .with_single_cert(certificates(&self.certificate)?, key)
            .map_err(|e| Error::invalid(&self.certificate, e.to_string()))?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        // A client that connects again presents a ticket, so the server does not store sessions.
        config.ticketer = rustls::crypto::ring::Ticketer::new()
            .map_err(|e| Error::invalid(&self.certificate, e.to_string()))?;
        Ok(Arc::new(config))
    }

    /// Lists the paths of the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.certificate.clone(), self.key.clone()];
        paths.extend(self.client_authority.clone());
        paths
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let invalid = |e: String| {
        Error::invalid(
            path,
            format!("the certificates cannot be read ({e}); name a file with certificates in PEM"),
        )
    };
    let all = CertificateDer::pem_file_iter(path).map_err(|e| invalid(e.to_string()))?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(|e| invalid(e.to_string()))?;
    match all.is_empty() {
        true => Err(invalid("it has no `BEGIN CERTIFICATE`".to_owned())),
        false => Ok(all),
    }
}

/// The files with the TLS settings of a client, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// The certificates of the authorities that sign the certificates of servers.
    pub authority: PathBuf,
    /// The certificate of the client and its private key; `None` if the client shows none.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl ClientTlsFiles {
    /// Reads the files and returns the TLS settings.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or if the key does not belong to the certificate.
    pub fn load(&self) -> Result<Arc<ClientConfig>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::invalid(&self.authority, e.to_string()))?
            .with_root_certificates(roots(&self.authority)?);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|e| Error::invalid(certificate, e.to_string()))?,
        };
        Ok(Arc::new(config))
    }

    /// Lists the paths of the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.authority.clone()];
        if let Some((certificate, key)) = &self.identity {
            paths.extend([certificate.clone(), key.clone()]);
        }
        paths
    }
}

fn roots(authority: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for root in certificates(authority)? {
        roots.add(root).map_err(|e| Error::invalid(authority, e.to_string()))?;
    }
    Ok(roots)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).map_err(|e| {
        let problem = "the private key cannot be read";
        let remedy = "name a file with a private key in PEM";
        Error::invalid(path, format!("{problem} ({e}); {remedy}"))
    })
}

/// Returns the names in the client's certificate, or `None` if the client has not sent a
/// certificate.
pub fn client_names(connection: &ServerConnection) -> Option<CertificateNames> {
    connection.peer_certificates()?.first().map(CertificateNames::read)
}
