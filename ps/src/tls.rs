//! TLS between trainers, commands and servers.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, Error as TlsError, InvalidMessage};
use zillion_access::{ClientTlsFiles, Reloading};

use crate::error::{Result, start_error};

/// The TLS settings of a client. They are read again when their files have changed.
#[derive(Clone)]
pub struct ClientTls(Arc<Reloading<Arc<ClientConfig>, zillion_access::Error>>);

impl ClientTls {
    /// Reads the settings from their files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if the key does not belong to the certificate.
    pub fn open(files: ClientTlsFiles) -> Result<Self> {
        let load = move || Ok((files.load()?, files.paths()));
        let loaded = Reloading::new(load).map_err(|e: zillion_access::Error| {
            start_error(format!("the TLS settings of the client (`ps.tls_ca`): {e}"))
        })?;
        Ok(Self(Arc::new(loaded)))
    }

    /// Returns the settings of the files as they are now. Settings that cannot be read leave those
    /// from before.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        if let Err(error) = self.0.refresh() {
            tracing::warn!("the TLS settings stay as they were: {error}");
        }
        Arc::clone(&*self.0.get())
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTls(..)")
    }
}

/// Returns the name that the certificate of a server must have: the host of its address.
///
/// # Errors
/// Returns an error if the host is not a name or an address.
pub(crate) fn server_name(server: &str) -> io::Result<ServerName<'static>> {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(|e| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("`{host}` is not a host ({e})"))
    })
}

/// Returns the problem and the remedy if an error of a connection comes from TLS. Another attempt
/// would end in the same way.
pub(crate) fn tls_problem(error: &io::Error) -> Option<String> {
    let tls = error.get_ref()?.downcast_ref::<TlsError>()?;
    Some(match tls {
        TlsError::AlertReceived(_) => return alert_problem(&tls.to_string()),
        TlsError::InvalidCertificate(_) => format!(
            "the certificate of the server is refused ({tls}); give the authority that has signed \
             it (`ps.tls_ca`), and address the server by a name of its certificate"
        ),
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the server does not speak TLS; start it with a certificate, or remove `ps.tls_ca`"
                .to_owned()
        }
        other => format!("the TLS connection fails ({other}); look at the log of the server"),
    })
}

/// Returns the problem and the remedy if the text of an error says that the server has refused the
/// TLS connection. Layers between a connection and a call keep only this text.
pub(crate) fn alert_problem(text: &str) -> Option<String> {
    let (_, alert) = text.split_once("received fatal alert: ")?;
    Some(match alert {
        "CertificateRequired" => {
            "the server asks for a client certificate; set `ps.tls_cert` and `ps.tls_key`"
                .to_owned()
        }
        _ => format!(
            "the server refuses the certificate or the settings of this client ({alert}); give a \
             certificate that is valid now and that an authority of the server has signed \
             (`ps.tls_cert`)"
        ),
    })
}

#[cfg(test)]
mod tests {
    use rustls::AlertDescription;

    use super::*;

    #[test]
    fn the_alert_of_a_server_is_found_in_the_text_of_an_error() {
        for (alert, expected) in [
            (AlertDescription::CertificateRequired, "asks for a client certificate"),
            (AlertDescription::CertificateExpired, "(CertificateExpired)"),
        ] {
            let error = io::Error::other(TlsError::AlertReceived(alert));
            let problem = tls_problem(&error).unwrap();
            assert!(problem.contains(expected), "{problem}");
            assert_eq!(alert_problem(&format!("a call failed: {error}")), Some(problem));
        }
        assert_eq!(tls_problem(&io::ErrorKind::NotFound.into()), None);
        assert_eq!(alert_problem("the server is busy"), None);
    }

    #[test]
    fn the_name_of_a_server_is_its_host() {
        for (server, host) in
            [("a.example:1", "a.example"), ("10.0.0.1:1", "10.0.0.1"), ("[::1]:1", "::1")]
        {
            assert_eq!(server_name(server).unwrap(), ServerName::try_from(host).unwrap());
        }
        assert!(server_name("no host:1").is_err());
    }
}
