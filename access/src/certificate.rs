//! The names in a client's certificate.

use rustls::pki_types::CertificateDer;

/// The subject alternative names of a certificate that TLS has verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The URI names (such as a SPIFFE id) and then the DNS names, each in the order of the
    /// certificate.
    pub names: Vec<String>,
}

impl CertificateNames {
    /// Reads the names of a verified certificate. The result has no names if the certificate cannot
    /// be parsed.
    pub fn read(certificate: &CertificateDer<'_>) -> Self {
        let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else {
            return Self::default();
        };
        let names = certificate.valid_uri_names().chain(certificate.valid_dns_names());
        Self { names: names.map(str::to_owned).collect() }
    }
}
