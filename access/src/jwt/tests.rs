//! Tests of JSON Web Tokens. Each test creates the keys that sign its tokens.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;

use super::*;

const NOW: u64 = 1_800_000_000;

struct Issuer {
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random);
        Self { ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap(), ec: ec.unwrap() }
    }

    /// Returns the key set of the issuer.
    fn keys(&self) -> String {
        let point = self.ec.public_key().as_ref();
        json!({ "keys": [
            { "kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": base64(self.ed.public_key()) },
            { "kty": "EC", "crv": "P-256", "kid": "ec", "x": base64(&point[1..33]), "y": base64(&point[33..]) },
            { "kty": "oct", "kid": "secret", "k": base64("secret") },
        ]})
        .to_string()
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", base64(header.to_string()), base64(claims.to_string()));
        let signature = match header["alg"].as_str() {
            Some("EdDSA") => self.ed.sign(message.as_bytes()).as_ref().to_vec(),
            Some("ES256") => {
                self.ec.sign(&SystemRandom::new(), message.as_bytes()).unwrap().as_ref().to_vec()
            }
            Some("HS256") => {
                // This is a known attack: an HMAC whose secret is the public key.
                let key =
                    ring::hmac::Key::new(ring::hmac::HMAC_SHA256, self.ed.public_key().as_ref());
                ring::hmac::sign(&key, message.as_bytes()).as_ref().to_vec()
            }
            _ => Vec::new(),
        };
        format!("{message}.{}", base64(signature))
    }
}

fn verifier(issuer: &Issuer) -> JwtVerifier {
    verifier_of(&issuer.keys())
}

fn verifier_of(keys: &str) -> JwtVerifier {
    let settings = "issuer = 'https://i'\naudience = 'zillion'\nkeys = 'jwks.json'\n";
    let settings = toml::from_str(settings).unwrap();
    JwtVerifier::new(settings, keys, Path::new("jwks.json"), Path::new("a.toml")).unwrap()
}

fn claims() -> Value {
    json!({
        "iss": "https://i", "aud": "zillion", "sub": "ranker", "exp": NOW + 300,
        "roles": ["score", "somebody-elses-role"], "models": ["ctr"],
    })
}

#[test]
fn valid_tokens_prove_their_subject() {
    let issuer = Issuer::new();
    let verifier = verifier(&issuer);
    for header in [
        json!({ "alg": "EdDSA", "kid": "ed" }),
        json!({ "alg": "EdDSA" }),
        json!({ "alg": "ES256", "kid": "ec", "typ": "JWT" }),
    ] {
        let caller = verifier.verify(&issuer.sign(&header, &claims()), NOW).unwrap();
        assert_eq!((caller.name.as_str(), caller.roles), ("jwt:ranker", [Role::Score].into()));
        assert_eq!(caller.models, Models::Only(["ctr".to_owned()].into()));
    }
    let mut spaced = claims();
    spaced["roles"] = json!("read metrics");
    spaced["aud"] = json!(["other", "zillion"]);
    spaced.as_object_mut().unwrap().remove("models");
    let token = issuer.sign(&json!({ "alg": "EdDSA", "kid": "ed" }), &spaced);
    let caller = verifier.verify(&token, NOW).unwrap();
    assert_eq!((caller.roles, caller.models), ([Role::Read, Role::Metrics].into(), Models::All));
}

#[test]
fn forged_and_outdated_tokens_are_refused() {
    let issuer = Issuer::new();
    let verifier = verifier(&issuer);
    let ed = json!({ "alg": "EdDSA", "kid": "ed" });
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value,
        }
        issuer.sign(&ed, &claims)
    };
    let good = issuer.sign(&ed, &claims());
    let (message, signature) = good.rsplit_once('.').unwrap();
    let head = message.split_once('.').unwrap().0;
    let other_claims = base64(json!({ "sub": "root" }).to_string());
    for (what, token, refusal) in [
        ("another key", Issuer::new().sign(&ed, &claims()), Refusal::WrongSignature),
        ("other claims", format!("{head}.{other_claims}.{signature}"), Refusal::WrongSignature),
        ("no signature", format!("{message}."), Refusal::WrongSignature),
        ("two parts", message.to_owned(), Refusal::Malformed),
        ("four parts", format!("{good}.x"), Refusal::Malformed),
        ("none", issuer.sign(&json!({ "alg": "none" }), &claims()), Refusal::Malformed),
        (
            "None",
            issuer.sign(&json!({ "alg": "None", "kid": "ed" }), &claims()),
            Refusal::Malformed,
        ),
        (
            "hmac",
            issuer.sign(&json!({ "alg": "HS256", "kid": "ed" }), &claims()),
            Refusal::WrongAlgorithm,
        ),
        (
            "secret key",
            issuer.sign(&json!({ "alg": "EdDSA", "kid": "secret" }), &claims()),
            Refusal::UnknownKey,
        ),
        (
            "key of another kind",
            issuer.sign(&json!({ "alg": "EdDSA", "kid": "ec" }), &claims()),
            Refusal::UnknownKey,
        ),
        (
            "unknown key",
            issuer.sign(&json!({ "alg": "EdDSA", "kid": "x" }), &claims()),
            Refusal::UnknownKey,
        ),
        (
            "an extension that must be understood",
            issuer.sign(&json!({ "alg": "EdDSA", "kid": "ed", "crit": ["exp"] }), &claims()),
            Refusal::Malformed,
        ),
        ("expired", with("exp", json!(NOW - 60)), Refusal::Expired),
        ("no end", with("exp", Value::Null), Refusal::MissingClaim),
        ("end is a text", with("exp", json!("2030")), Refusal::MissingClaim),
        ("not yet", with("nbf", json!(NOW + 61)), Refusal::NotYetValid),
        ("begin is a text", with("nbf", json!("soon")), Refusal::Malformed),
        ("issuer", with("iss", json!("https://j")), Refusal::WrongIssuer),
        ("no issuer", with("iss", Value::Null), Refusal::MissingClaim),
        ("audience", with("aud", json!("other")), Refusal::WrongAudience),
        ("no audience", with("aud", Value::Null), Refusal::MissingClaim),
        ("no subject", with("sub", Value::Null), Refusal::MissingClaim),
        ("a subject of two lines", with("sub", json!("a\nb")), Refusal::Malformed),
        ("no roles", with("roles", Value::Null), Refusal::MissingClaim),
        ("roles of another type", with("roles", json!([1])), Refusal::Malformed),
    ] {
        assert_eq!(verifier.verify(&token, NOW).unwrap_err(), refusal, "{what}");
    }
    // Clocks may differ by a minute.
    assert!(verifier.verify(&with("exp", json!(NOW - 59)), NOW).is_ok());
    assert!(verifier.verify(&with("nbf", json!(NOW + 60)), NOW).is_ok());
}

#[test]
fn keys_do_only_what_their_set_says() {
    let issuer = Issuer::new();
    let with = |key: usize, name: &str, value: Value| {
        let mut set: Value = serde_json::from_str(&issuer.keys()).unwrap();
        set["keys"][key][name] = value;
        set.to_string()
    };
    let token = issuer.sign(&json!({ "alg": "EdDSA", "kid": "ed" }), &claims());
    for (keys, expected) in [
        (with(0, "use", json!("sig")), None),
        (with(0, "use", json!("enc")), Some(Refusal::UnknownKey)),
        (with(0, "key_ops", json!(["verify"])), None),
        (with(0, "key_ops", json!(["encrypt"])), Some(Refusal::UnknownKey)),
        (with(0, "alg", json!("EdDSA")), None),
        (with(0, "alg", json!("ES256")), Some(Refusal::UnknownKey)),
    ] {
        let found = verifier_of(&keys).verify(&token, NOW).err();
        assert_eq!(found, expected, "{keys}");
    }
}

#[test]
fn a_token_without_a_key_id_is_tried_with_every_key() {
    let issuers: Vec<Issuer> = (0..3).map(|_| Issuer::new()).collect();
    let keys: Vec<Value> = issuers
        .iter()
        .flat_map(|issuer| {
            let set: Value = serde_json::from_str(&issuer.keys()).unwrap();
            set["keys"].as_array().unwrap().clone()
        })
        .collect();
    let verifier = verifier_of(&json!({ "keys": keys }).to_string());
    for issuer in &issuers {
        for header in [json!({ "alg": "EdDSA" }), json!({ "alg": "EdDSA", "kid": "ed" })] {
            let caller = verifier.verify(&issuer.sign(&header, &claims()), NOW).unwrap();
            assert_eq!(caller.name, "jwt:ranker");
        }
    }
    let other = Issuer::new().sign(&json!({ "alg": "EdDSA" }), &claims());
    assert_eq!(verifier.verify(&other, NOW).unwrap_err(), Refusal::WrongSignature);
}

#[test]
fn mistakes_in_the_settings_are_named() {
    let refused = |settings: &str, keys: &str| {
        let settings = format!("issuer = 'i'\naudience = 'a'\nkeys = 'k'\n{settings}");
        let settings = toml::from_str(&settings).unwrap();
        JwtVerifier::new(settings, keys, Path::new("k"), Path::new("a.toml"))
            .unwrap_err()
            .to_string()
    };
    let keys = Issuer::new().keys();
    assert!(refused("algorithms = ['HS256']", &keys).contains("`HS256` is not allowed"));
    assert!(refused("algorithms = ['none']", &keys).contains("`none` is not allowed"));
    assert!(refused("algorithms = []", &keys).contains("`algorithms` is empty"));
    assert!(refused("", "{}").contains("not a JSON Web Key Set"));
    let secret = r#"{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}"#;
    assert!(refused("", secret).contains("no public key"));
}
