//! The table of cases. A case has a caller, a call and a listener, and the expected outcome.

use prost::Message as _;
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::json;
use zillion_access::hash_token;
use zillion_serving::proto::inference::{ModelInferRequest, ModelMetadataRequest};
use zillion_serving::proto::inference::{RepositoryIndexRequest, RepositoryModelLoadRequest};

use super::At;
use super::authority::{Authority, Issued, Issuer, Wanted, now};
use super::client::{self, Answer, Tls};
use crate::attacks::victim::{predict_body, predict_path};
use crate::server::MODEL;

/// The expected outcome of a case, with the reason that the audit log must contain.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    Allowed,
    /// The caller is unknown. The code is 401 in HTTP or 16 in gRPC.
    Unknown(&'static str),
    /// The caller is known but has no right. The code is 403 in HTTP or 7 in gRPC.
    Forbidden(&'static str),
    /// The listener does not answer this call. The code is 404 in HTTP or 12 in gRPC.
    Absent,
    /// The connection ends without an answer.
    Broken,
}

/// A call to the server. All calls exist in HTTP. All calls except `Metrics` also exist in gRPC.
#[derive(Clone, Copy, Debug)]
enum Call {
    Score,
    Describe,
    Health,
    Metrics,
    Index,
    Load,
}

/// A caller, its call and the expected outcome.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) at: At,
    pub(super) authorization: Option<String>,
    pub(super) expected: Expected,
    tls: Option<Tls>,
    call: Call,
    is_grpc: bool,
}

impl Case {
    /// Returns the name of the protocol.
    pub(super) fn protocol(&self) -> &'static str {
        if self.is_grpc { "gRPC" } else { "HTTP" }
    }

    /// Returns the code for the protocol of the case.
    pub(super) fn code(&self, http: u16, grpc: u16) -> Option<u16> {
        Some(if self.is_grpc { grpc } else { http })
    }

    /// Sends the call of the case, and returns the answer.
    pub(super) fn send(&self, address: &str) -> Answer {
        let (tls, authorization) = (self.tls.as_ref(), self.authorization.as_deref());
        if !self.is_grpc {
            let (line, body) = self.call.of_http();
            return client::http(address, tls, &line, authorization, &body);
        }
        let (path, message) = self.call.of_grpc();
        client::grpc(address, tls, path, authorization, &message)
    }
}

impl Call {
    fn of_http(self) -> (String, Vec<u8>) {
        let repository = "POST /v2/repository";
        match self {
            Self::Score => (format!("POST {}", predict_path()), predict_body(&[&[1]])),
            Self::Describe => (format!("GET /v2/models/{MODEL}"), Vec::new()),
            Self::Health => ("GET /healthz".to_owned(), Vec::new()),
            Self::Metrics => ("GET /metrics".to_owned(), Vec::new()),
            Self::Index => (format!("{repository}/index"), Vec::new()),
            Self::Load => (format!("{repository}/models/{MODEL}/load"), Vec::new()),
        }
    }

    /// Returns the path and the message of the call in gRPC. There is no gRPC call for metrics.
    fn of_grpc(self) -> (&'static str, Vec<u8>) {
        let name = || MODEL.to_owned();
        match self {
            Self::Score => {
                let request =
                    ModelInferRequest { model_name: name(), ..ModelInferRequest::default() };
                ("/inference.GRPCInferenceService/ModelInfer", request.encode_to_vec())
            }
            Self::Describe => {
                let request =
                    ModelMetadataRequest { name: name(), ..ModelMetadataRequest::default() };
                ("/inference.GRPCInferenceService/ModelMetadata", request.encode_to_vec())
            }
            Self::Health | Self::Metrics => {
                ("/inference.GRPCInferenceService/ServerLive", Vec::new())
            }
            Self::Index => {
                let request = RepositoryIndexRequest::default();
                ("/inference.GRPCInferenceService/RepositoryIndex", request.encode_to_vec())
            }
            Self::Load => {
                let request = RepositoryModelLoadRequest {
                    model_name: name(),
                    ..RepositoryModelLoadRequest::default()
                };
                ("/inference.GRPCInferenceService/RepositoryModelLoad", request.encode_to_vec())
            }
        }
    }
}

/// The cases that have been added so far, and the authority that issues their certificates.
struct Table<'a> {
    authority: &'a Authority,
    cases: Vec<Case>,
}

impl Table<'_> {
    /// Adds a case over HTTP and over gRPC.
    fn add(
        &mut self,
        name: &str,
        at: At,
        call: Call,
        client: Option<&Issued>,
        authorization: Option<&str>,
        expected: Expected,
    ) {
        let tls = Some(Tls::new(self.authority, client));
        self.add_over(&[false, true], name, at, call, tls, authorization, expected);
    }

    #[expect(clippy::too_many_arguments, reason = "a row of a table")]
    fn add_over(
        &mut self,
        protocols: &[bool],
        name: &str,
        at: At,
        call: Call,
        tls: Option<Tls>,
        authorization: Option<&str>,
        expected: Expected,
    ) {
        for &is_grpc in protocols {
            self.cases.push(Case {
                name: format!("{name} ({call:?} at {at:?})"),
                at,
                authorization: authorization.map(str::to_owned),
                expected,
                tls: tls.clone(),
                call,
                is_grpc,
            });
        }
    }

    /// Adds a case with a value of the header `Authorization`.
    fn bearer(&mut self, name: &str, at: At, call: Call, value: &str, expected: Expected) {
        self.add(name, at, call, None, Some(value), expected);
    }

    /// Adds a case with a client certificate.
    fn certificate(&mut self, name: &str, at: At, call: Call, of: &Issued, expected: Expected) {
        self.add(name, at, call, Some(of), None, expected);
    }
}

/// Returns the cases in their order.
pub(super) fn all(authority: &Authority, issuer: &Issuer) -> Vec<Case> {
    let mut table = Table { authority, cases: Vec::new() };
    tokens(&mut table);
    json_web_tokens(&mut table, issuer);
    certificates(&mut table);
    calls(&mut table, issuer);
    connections(&mut table);
    table.cases
}

fn tokens(table: &mut Table<'_>) {
    use Call::{Describe, Score};
    use Expected::{Allowed, Forbidden, Unknown};
    let at = At::Token;
    table.add("no credentials", at, Score, None, None, Unknown("no_credentials"));
    table.add("no credentials", at, Describe, None, None, Unknown("no_credentials"));
    let hash = format!("Bearer {}", hash_token("zln_ranker"));
    let long = format!("Bearer {}", "x".repeat(9000));
    for (name, value, expected) in [
        ("a known token", "Bearer zln_ranker", Allowed),
        ("another case of the scheme", "bearer zln_ranker", Allowed),
        ("an unknown token", "Bearer zln_nobody", Unknown("unknown_token")),
        ("another case of a token", "Bearer ZLN_ranker", Unknown("unknown_token")),
        ("a token with more behind it", "Bearer zln_ranker,x", Unknown("unknown_token")),
        ("the hash of a token", &hash, Unknown("unknown_token")),
        ("an expired token", "Bearer zln_former", Unknown("expired")),
        ("another scheme", "Basic zln_ranker", Unknown("wrong_kind")),
        ("no scheme", "zln_ranker", Unknown("malformed")),
        ("an empty token", "Bearer  ", Unknown("malformed")),
        ("a very long token", &long, Unknown("malformed")),
        ("another role", "Bearer zln_reader", Forbidden("no_role")),
        ("another model", "Bearer zln_stranger", Forbidden("no_model")),
    ] {
        table.bearer(name, at, Score, value, expected);
    }
    table.bearer("another role", at, Describe, "Bearer zln_ranker", Forbidden("no_role"));
    table.bearer("a reader", at, Describe, "Bearer zln_reader", Allowed);
}

fn json_web_tokens(table: &mut Table<'_>, issuer: &Issuer) {
    use Expected::{Allowed, Forbidden, Unknown};
    let other = Issuer::new();
    let claims = Issuer::claims;
    let with_header = |header| issuer.sign(&header, &claims());
    let good = issuer.good();
    let (message, signature) = good.rsplit_once('.').expect("three parts");
    let changed = issuer.with("sub", json!("root"));
    let changed = format!("{}.{signature}", changed.rsplit_once('.').expect("three parts").0);
    let later = now() + 600;
    for (name, token, expected) in [
        ("a good token", good.clone(), Allowed),
        ("no algorithm", with_header(json!({ "alg": "none" })), Unknown("malformed")),
        (
            "no algorithm, with a key",
            with_header(json!({ "alg": "none", "kid": "ed" })),
            Unknown("malformed"),
        ),
        (
            "the public key as a secret",
            with_header(json!({ "alg": "HS256", "kid": "ed" })),
            Unknown("wrong_algorithm"),
        ),
        (
            "another algorithm for the key",
            with_header(json!({ "alg": "RS256", "kid": "ed" })),
            Unknown("unknown_key"),
        ),
        (
            "an unknown key",
            with_header(json!({ "alg": "EdDSA", "kid": "x" })),
            Unknown("unknown_key"),
        ),
        (
            "a path as the key",
            with_header(json!({ "alg": "EdDSA", "kid": "../../../../dev/null" })),
            Unknown("unknown_key"),
        ),
        (
            "a key that the token brings",
            other.sign(&json!({ "alg": "EdDSA", "jwk": other.key() }), &claims()),
            Unknown("wrong_signature"),
        ),
        ("another issuer's key", other.good(), Unknown("wrong_signature")),
        ("changed claims", changed, Unknown("wrong_signature")),
        ("no signature", format!("{message}."), Unknown("wrong_signature")),
        ("two parts", message.to_owned(), Unknown("malformed")),
        ("no parts", "a.b.c".to_owned(), Unknown("malformed")),
        ("an opaque token", "zln_ranker".to_owned(), Unknown("wrong_kind")),
        ("another issuer", issuer.with("iss", json!("https://x")), Unknown("wrong_issuer")),
        ("another audience", issuer.with("aud", json!("x")), Unknown("wrong_audience")),
        ("an expired token", issuer.with("exp", json!(now() - 3600)), Unknown("expired")),
        ("a token of later", issuer.with("nbf", json!(later)), Unknown("not_yet_valid")),
        ("no end", issuer.with("exp", json!(null)), Unknown("missing_claim")),
        ("no subject", issuer.with("sub", json!(null)), Unknown("missing_claim")),
        ("no issuer", issuer.with("iss", json!(null)), Unknown("missing_claim")),
        ("no audience", issuer.with("aud", json!(null)), Unknown("missing_claim")),
        ("no roles", issuer.with("roles", json!(null)), Unknown("missing_claim")),
        ("another role", issuer.with("roles", json!(["read"])), Forbidden("no_role")),
        ("another service's role", issuer.with("roles", json!(["admin"])), Forbidden("no_role")),
        ("another model", issuer.with("models", json!(["other"])), Forbidden("no_model")),
        ("no model", issuer.with("models", json!([])), Forbidden("no_model")),
    ] {
        table.bearer(name, At::Jwt, Call::Score, &format!("Bearer {token}"), expected);
    }
    let wrong = Unknown("wrong_kind");
    table.bearer("a JWT for tokens", At::Token, Call::Score, &format!("Bearer {good}"), wrong);
    table.bearer("a JWT for all", At::Any, Call::Score, &format!("Bearer {good}"), Allowed);
}

fn certificates(table: &mut Table<'_>) {
    use Call::{Describe, Score};
    use Expected::{Allowed, Broken, Forbidden, Unknown};
    let authority = table.authority;
    let of = |name: &str| authority.issue(Wanted::client(name));
    let ranker = of("ranker");
    let expired = authority.issue(Wanted { last_year: 2020, ..Wanted::client("ranker") });
    let use_for = ExtendedKeyUsagePurpose::ServerAuth;
    let of_server = authority.issue(Wanted { use_for, ..Wanted::client("ranker") });
    // One certificate is from another authority with the same name, and one certificate has no
    // authority.
    let foreign = Authority::new("the authority").issue(Wanted::client("ranker"));
    let alone = Issued::by_itself(Wanted::client("ranker"));
    for at in [At::Mtls, At::Required, At::Any] {
        table.certificate("a known certificate", at, Score, &ranker, Allowed);
        for (name, certificate, expected) in [
            ("an unknown certificate", &of("nobody"), Unknown("unknown_certificate")),
            ("another role", &of("reader"), Forbidden("no_role")),
            ("another model", &of("stranger"), Forbidden("no_model")),
            ("an expired certificate", &expired, Broken),
            ("a server's certificate", &of_server, Broken),
            ("another authority", &foreign, Broken),
            ("no authority", &alone, Broken),
        ] {
            table.certificate(name, at, Score, certificate, expected);
        }
    }
    table.certificate("a reader", At::Mtls, Describe, &of("reader"), Allowed);
    table.add("no certificate", At::Mtls, Score, None, None, Unknown("no_credentials"));
    table.add("no certificate", At::Required, Score, None, None, Broken);
    let token = Some("Bearer zln_ranker");
    table.add("a token instead", At::Mtls, Score, None, token, Unknown("wrong_kind"));
    table.add("a token instead", At::Required, Score, None, token, Broken);
    // If a request has a token and a certificate, the token counts, and it must be valid.
    let (ranker, wrong) = (Some(&ranker), Some("Bearer zln_nobody"));
    table.add("a token beside", At::Mtls, Score, ranker, token, Unknown("wrong_kind"));
    table.add("a wrong token beside", At::Any, Score, ranker, wrong, Unknown("unknown_token"));
    let reader = Some("Bearer zln_reader");
    table.add("a token of less right", At::Any, Score, ranker, reader, Forbidden("no_role"));
    // A listener for tokens does not ask for a certificate, so the server receives none.
    table.add("a certificate instead", At::Token, Score, ranker, None, Unknown("no_credentials"));
}

fn calls(table: &mut Table<'_>, issuer: &Issuer) {
    use Call::{Describe, Health, Index, Load, Metrics, Score};
    use Expected::{Absent, Allowed, Forbidden, Unknown};
    let operator = "Bearer zln_operator";
    for at in [At::Token, At::Jwt, At::Mtls, At::Any, At::Admin] {
        table.add("anybody", at, Health, None, None, Allowed);
    }
    for call in [Index, Load] {
        // If the listener does not answer the call, the rights of the caller do not matter.
        table.bearer("control in public", At::Token, call, operator, Absent);
        table.bearer("control in public", At::Any, call, operator, Absent);
        table.add("control in public", At::Token, call, None, None, Absent);
        let all = issuer.with("roles", json!(["operate", "read", "metrics", "score"]));
        table.bearer("control in public", At::Jwt, call, &format!("Bearer {all}"), Absent);
        table.add("no credentials", At::Admin, call, None, None, Unknown("no_credentials"));
        for (name, token, expected) in [
            ("an operator", operator, Allowed),
            ("a ranker", "Bearer zln_ranker", Forbidden("no_role")),
            ("a reader", "Bearer zln_reader", Forbidden("no_role")),
            ("an unknown token", "Bearer zln_nobody", Unknown("unknown_token")),
        ] {
            table.bearer(name, At::Admin, call, token, expected);
        }
    }
    table.bearer("scores from administration", At::Admin, Score, "Bearer zln_ranker", Absent);
    table.bearer("an operator", At::Admin, Describe, operator, Allowed);
    table.bearer("an operator", At::Token, Score, operator, Forbidden("no_role"));
    let tls = || Some(Tls::new(table.authority, None));
    for (name, at, token, expected) in [
        ("metrics in public", At::Token, Some(operator), Absent),
        ("metrics in public", At::Any, None, Absent),
        ("no credentials", At::Admin, None, Unknown("no_credentials")),
        ("a ranker", At::Admin, Some("Bearer zln_ranker"), Forbidden("no_role")),
        ("an operator", At::Admin, Some(operator), Allowed),
    ] {
        let tls = tls();
        table.add_over(&[false], name, at, Metrics, tls, token, expected);
    }
}

fn connections(table: &mut Table<'_>) {
    let token = Some("Bearer zln_ranker");
    for at in [At::Token, At::Required, At::Admin] {
        let plain = Expected::Broken;
        table.add_over(&[false, true], "no TLS", at, Call::Health, None, token, plain);
    }
}
