//! The names in a client's certificate.

use rustls::pki_types::CertificateDer;

/// The subject alternative names of a certificate that TLS has verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The URI names (a SPIFFE id is one of them) and the DNS names, in the order of the
    /// certificate, URIs first.
    pub names: Vec<String>,
}

impl CertificateNames {
    /// Reads the names of a verified certificate. A certificate that cannot be read has none.
    pub fn read(certificate: &CertificateDer<'_>) -> Self {
        let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else {
            return Self::default();
        };
        let names = certificate.valid_uri_names().chain(certificate.valid_dns_names());
        Self { names: names.map(str::to_owned).collect() }
    }
}
