//! The targets of the crate `access`: access files, key sets, tokens, keys and audit logs.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use tempfile::TempDir;
use zillion_access::{
    AuditEvent, AuditLog, CertificateNames, Credentials, Identities, Role, SigningKey, TrustedKeys,
    hash_token, verify_audit_log,
};
use zillion_device::Files;

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 5] = [&ACCESS_FILES, &KEY_SETS, &TOKENS, &KEY_FILES, &AUDIT_LOGS];

/// The reader of access files.
pub const ACCESS_FILES: Target = Target {
    name: "access_files",
    read: |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let identities = Identities::parse(text, Path::new("absent/access.toml"));
        let Ok(identities) = identities else { return false };
        let names = CertificateNames { names: vec!["spiffe://example.org/operator".to_owned()] };
        for credentials in [
            Credentials::bearer("zln_secret"),
            Credentials { bearer: None, certificate: Some(&names) },
        ] {
            if let Ok(caller) = identities.identify(&credentials, NOW) {
                let _ = caller.check(Role::Score, Some("ctr"));
            }
        }
        true
    },
    seeds: || {
        let token = format!(
            "[[token]]\nname = 'ranker'\nsha256 = '{}'\nroles = ['score', 'read']\n\
             models = ['ctr']\nexpires = 2030-01-01T00:00:00+01:30\n\
             quota = {{ concurrent = 64, rows_per_second = 1e5, rows = 100, body_bytes = 9 }}\n",
            hash_token("zln_secret")
        );
        let certificate = "[[certificate]]\nname = 'operator'\n\
                           san = 'spiffe://example.org/operator'\nroles = ['operate']\n";
        vec![token.clone().into_bytes(), format!("{token}\n{certificate}").into_bytes()]
    },
};

/// The reader of key sets (RFC 7517).
pub const KEY_SETS: Target = Target {
    name: "key_sets",
    read: |bytes| {
        let Ok(identities) = identities_of(bytes) else { return false };
        let _ = identities.identify(&Credentials::bearer(&sign(CLAIMS)), NOW);
        true
    },
    seeds: || vec![key_set().into_bytes(), KEY_SET_OF_MANY.as_bytes().to_vec()],
};

/// The verifier of bearer tokens. If the input is a JSON object, it is used as the claims of a
/// token that the issuer signs.
pub const TOKENS: Target = Target {
    name: "tokens",
    read: |bytes| {
        static IDENTITIES: LazyLock<Identities> = LazyLock::new(|| {
            identities_of(key_set().as_bytes()).expect("the key set of the issuer is valid")
        });
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let signed = text.starts_with('{').then(|| sign(text));
        let token = signed.as_deref().unwrap_or(text);
        IDENTITIES.identify(&Credentials::bearer(token), NOW).is_ok()
    },
    seeds: || vec![CLAIMS.as_bytes().to_vec(), sign(CLAIMS).into_bytes()],
};

/// The readers of private and public keys in PEM.
pub const KEY_FILES: Target = Target {
    name: "key_files",
    read: |bytes| {
        let folder = folder();
        let path = folder.path().join("key.pub");
        fs::write(&path, bytes).expect("a file can be written");
        let is_private = SigningKey::load(&path).is_ok();
        is_private || TrustedKeys::load(folder.path()).is_ok()
    },
    seeds: || {
        let folder = folder();
        let [private, public] = ["key", "key.pub"].map(|name| folder.path().join(name));
        SigningKey::create(&private, &public, &Files::new()).expect("keys can be created");
        [private, public].map(|path| fs::read(path).expect("the key was written")).into()
    },
};

/// The verifier of audit logs.
pub const AUDIT_LOGS: Target = Target {
    name: "audit_logs",
    read: |bytes| {
        let folder = folder();
        let path = folder.path().join("audit.jsonl");
        fs::write(&path, bytes).expect("a file can be written");
        let report = verify_audit_log(&path).expect("the file can be read");
        let is_open = AuditLog::open(&path, Duration::from_secs(NOW)).is_ok();
        assert_eq!(is_open, report.problem.is_none(), "a log opens if and only if it is whole");
        is_open && report.torn_bytes.is_none()
    },
    seeds: || {
        let folder = folder();
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path, Duration::from_secs(NOW)).expect("a log can be opened");
        for subject in ["a", "model \"b\"", "\u{1f600},\"hash\":\""] {
            let event = AuditEvent { action: "load", subject, ..AuditEvent::default() };
            log.write(&event, Duration::from_secs(NOW)).expect("a log can be written");
        }
        vec![fs::read(&path).expect("the log was written")]
    },
};

/// The time of all checks, in seconds since 1970.
const NOW: u64 = 1_800_000_000;

const CLAIMS: &str = r#"{"iss": "https://i", "aud": ["zillion"], "sub": "ranker", "exp": 1800000060,
 "nbf": 1799999999.5, "roles": "score read other", "models": ["ctr", "cvr"]}"#;

/// A key set with several kinds of keys that the issuer does not use.
const KEY_SET_OF_MANY: &str = r#"{"keys": [
 {"kty": "RSA", "kid": "r", "n": "zJ0x1p0S0hQ2x5u2yXbqkVtVx5b0s2n4oQ8a3V1W2aM", "e": "AQAB"},
 {"kty": "EC", "crv": "P-256", "kid": "e", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
  "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0", "use": "sig", "alg": "ES256"},
 {"kty": "oct", "kid": "s", "k": "c2VjcmV0"}]}"#;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

/// The private key of the issuer, which is the same in every run.
fn issuer() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("any 32 bytes are a private key")
}

/// Returns the key set of the issuer.
fn key_set() -> String {
    let public = URL_SAFE_NO_PAD.encode(issuer().public_key());
    format!(r#"{{"keys": [{{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "{public}"}}]}}"#)
}

/// Signs claims in the way of the issuer, and returns the token.
fn sign(claims: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"EdDSA","kid":"k","typ":"JWT"}"#);
    let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
    let signature = URL_SAFE_NO_PAD.encode(issuer().sign(message.as_bytes()));
    format!("{message}.{signature}")
}

/// Returns the identities that an access file with this key set defines.
fn identities_of(keys: &[u8]) -> zillion_access::Result<Identities> {
    let folder = folder();
    let path = folder.path().join("access.toml");
    let file = "[jwt]\nissuer = 'https://i'\naudience = 'zillion'\nkeys = 'keys.json'\n";
    fs::write(folder.path().join("keys.json"), keys).expect("a file can be written");
    fs::write(&path, file).expect("a file can be written");
    Identities::load(&path)
}
