//! The certificates of an authority and the JSON Web Tokens of an issuer. Each test makes its own
//! authority and its own issuer.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, PKCS_ED25519, SanType, SigningKey as _, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};

use crate::server::MODEL;

/// An authority that signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its private key.
pub(crate) struct Issued {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) certificate_pem: String,
    pub(crate) key: Vec<u8>,
    pub(crate) key_pem: String,
}

/// The properties of a certificate to issue.
pub(crate) struct Wanted {
    pub(crate) name: SanType,
    pub(crate) use_for: ExtendedKeyUsagePurpose,
    pub(crate) last_year: i32,
}

impl Wanted {
    /// Returns the properties of a client certificate with a SPIFFE id.
    pub(crate) fn client(name: &str) -> Self {
        let id = format!("spiffe://example.org/{name}");
        Self {
            name: SanType::URI(id.try_into().expect("an id has plain letters")),
            use_for: ExtendedKeyUsagePurpose::ClientAuth,
            last_year: 2100,
        }
    }
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Returns the certificate of the authority as PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    pub(crate) fn issue(&self, wanted: Wanted) -> Issued {
        let (params, key) = params(wanted);
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Issued::of(&certificate, &key)
    }

    /// Issues a new certificate for the server.
    pub(crate) fn server(&self) -> Issued {
        let name = SanType::DnsName("localhost".try_into().expect("a name has plain letters"));
        let use_for = ExtendedKeyUsagePurpose::ServerAuth;
        self.issue(Wanted { name, use_for, last_year: 2100 })
    }
}

impl Issued {
    fn of(certificate: &rcgen::Certificate, key: &KeyPair) -> Self {
        Self {
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
            key: key.serialize_der(),
            key_pem: key.serialize_pem(),
        }
    }

    /// Issues a certificate that is signed with its own key.
    pub(crate) fn by_itself(wanted: Wanted) -> Self {
        let (params, key) = params(wanted);
        Self::of(&params.self_signed(&key).expect("a certificate"), &key)
    }
}

fn params(wanted: Wanted) -> (CertificateParams, KeyPair) {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![wanted.name];
    params.extended_key_usages = vec![wanted.use_for];
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(wanted.last_year, 1, 1);
    (params, KeyPair::generate().expect("a key"))
}

/// An issuer of JSON Web Tokens.
pub(crate) struct Issuer(KeyPair);

fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Issuer {
    pub(crate) fn new() -> Self {
        Self(KeyPair::generate_for(&PKCS_ED25519).expect("a key"))
    }

    /// Returns the public key as a JSON Web Key.
    pub(crate) fn key(&self) -> Value {
        json!({ "kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": base64(self.0.public_key_raw()) })
    }

    /// Returns the key set of the issuer.
    pub(crate) fn keys(&self) -> String {
        json!({ "keys": [self.key()] }).to_string()
    }

    /// Returns the claims of a caller that may score.
    pub(crate) fn claims() -> Value {
        json!({
            "iss": "https://login.example.org", "aud": "zillion", "sub": "ranker",
            "exp": now() + 600, "roles": ["score"], "models": [MODEL],
        })
    }

    /// Returns a valid token.
    pub(crate) fn good(&self) -> String {
        self.sign(&json!({ "alg": "EdDSA", "kid": "ed" }), &Self::claims())
    }

    /// Returns a token in which one claim has another value. If the value is null, the claim is
    /// absent.
    pub(crate) fn with(&self, name: &str, value: Value) -> String {
        let mut claims = Self::claims();
        let object = claims.as_object_mut().expect("an object");
        match value {
            Value::Null => drop(object.remove(name)),
            value => drop(object.insert(name.to_owned(), value)),
        }
        self.sign(&json!({ "alg": "EdDSA", "kid": "ed" }), &claims)
    }

    /// Signs claims. With the algorithm HS256, the secret is the public key. This is the classic
    /// attack on a verifier that lets the token choose the algorithm.
    pub(crate) fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", base64(header.to_string()), base64(claims.to_string()));
        let signature = match header["alg"].as_str() {
            Some("EdDSA") => self.0.sign(message.as_bytes()).expect("a signature"),
            Some("HS256") => {
                let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, self.0.public_key_raw());
                ring::hmac::sign(&key, message.as_bytes()).as_ref().to_vec()
            }
            _ => Vec::new(),
        };
        format!("{message}.{}", base64(signature))
    }
}
