//! Tests of callers without a right. The credentials of every kind are forged, expired, replayed or
//! meant for another receiver. Each listener accepts only some kinds. Every refusal has its code,
//! does not tell the reason, and is recorded in the audit log.

pub(crate) mod authority;
mod cases;
mod client;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use prost::Message as _;
use serde_json::Value;
use zillion_access::{hash_token, verify_audit_log};
use zillion_serving::proto::inference::ModelInferRequest;

use self::authority::{Authority, Issued, Issuer};
use self::cases::{Case, Expected};
use self::client::{Answer, Tls};
use super::victim::{predict_body, predict_path, publish, wait_until};
use super::wire;
use crate::harness::{Workplace, stderr, zillion};
use crate::server::{MODEL, REGISTRY};

/// The texts that refused callers see.
const UNKNOWN: &str =
    "the request has no valid credentials; send a valid token or client certificate";
const FORBIDDEN: &str = "the caller is not allowed to make this request; ask the operator of the \
                         server for a role that allows it";

/// The listeners of the server, in the order of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The listener that accepts tokens of the access file.
    Token,
    /// The listener that accepts JSON Web Tokens.
    Jwt,
    /// The listener that accepts certificates. A caller without a certificate passes the handshake.
    Mtls,
    /// The listener that accepts certificates. A caller without a certificate is refused in the
    /// handshake.
    Required,
    /// The listener that accepts all kinds of proof.
    Any,
    /// The listener that answers metrics and control. It accepts tokens and certificates.
    Admin,
}

/// A running server with the listeners of [`At`], with its files and with the keys of its callers.
struct Guarded {
    place: Workplace,
    child: Child,
    addresses: Vec<String>,
    authority: Authority,
    issuer: Issuer,
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the text of an access file with the usual tokens and the tokens in `more`.
fn access_file(more: &[(&str, &str)]) -> String {
    let token = |name: &str, token: &str, rest: &str| {
        format!("[[token]]\nname = '{name}'\nsha256 = '{}'\n{rest}\n", hash_token(token))
    };
    let certificate = |name: &str, rest: &str| {
        format!("[[certificate]]\nname = '{name}'\nsan = 'spiffe://example.org/{name}'\n{rest}\n")
    };
    let score = format!("roles = ['score']\nmodels = ['{MODEL}']");
    let mut text = [
        token("ranker", "zln_ranker", &score),
        token("reader", "zln_reader", "roles = ['read']"),
        token("stranger", "zln_stranger", "roles = ['score']\nmodels = ['other']"),
        token("former", "zln_former", "roles = ['score']\nexpires = 2020-01-01T00:00:00Z"),
        token("small", "zln_small", &format!("{score}\nquota = {{ body_bytes = 300 }}")),
        token("operator", "zln_operator", "roles = ['read', 'operate', 'metrics']"),
        certificate("ranker", &score),
        certificate("reader", "roles = ['read']"),
        certificate("stranger", "roles = ['score']\nmodels = ['other']"),
        "[jwt]\nissuer = 'https://login.example.org'\naudience = 'zillion'\nkeys = 'jwks.json'\n"
            .to_owned(),
    ]
    .concat();
    let tokens: String = more.iter().map(|(name, text)| token(name, text, &score)).collect();
    text.insert_str(0, &tokens);
    text
}

impl Guarded {
    /// Starts a server, and waits until its model answers.
    fn start() -> Self {
        Self::start_with("")
    }

    /// Starts a server with further lines of settings, and waits until its model answers.
    fn start_with(more: &str) -> Self {
        let place = publish(&[]);
        let (authority, issuer) = (Authority::new("the authority"), Issuer::new());
        Self::write_certificate(&place, &authority.server());
        place.write("clients.pem", &authority.pem());
        place.write("jwks.json", &issuer.keys());
        place.write("access.toml", &access_file(&[]));
        let path = |name: &str| place.text(name);
        let tls = format!("certificate = '{}', key = '{}'", path("server.pem"), path("server.key"));
        let clients = format!("{tls}, client_authority = '{}'", path("clients.pem"));
        let required = format!("{clients}, require_client = true");
        let public = "'infer', 'meta', 'health'";
        let mut text = format!(
            "[serve]\nmodels = ['{MODEL}']\nmodel_control = true\naccess = '{}'\naudit_log = '{}'\n{more}\n",
            path("access.toml"),
            path("audit.jsonl")
        );
        for (apis, auth, tls) in [
            (public, "'token'", &tls),
            (public, "'jwt'", &tls),
            (public, "'mtls'", &clients),
            (public, "'mtls'", &required),
            (public, "'token', 'jwt', 'mtls'", &clients),
            ("'meta', 'health', 'metrics', 'control'", "'token', 'mtls'", &clients),
        ] {
            text += &format!(
                "[[serve.listener]]\naddress = '127.0.0.1:0'\napis = [{apis}]\nauth = [{auth}]\n\
                 tls = {{ {tls} }}\n"
            );
        }
        place.write("serve.toml", &text);
        let config = place.text("serve.toml");
        let (registry, cache) = (place.text(REGISTRY), place.text("cache"));
        let arguments = ["serve", "--config", &config, "--registry", &registry, "--cache", &cache];
        let log = std::fs::File::create(place.path("server.log")).expect("a log file");
        let spawned = zillion(&arguments).stdout(Stdio::piped()).stderr(log).spawn();
        let mut child = spawned.expect("the binary runs");
        let addresses = client::read_addresses(&mut child, At::Admin as usize + 1);
        let guarded = Self { place, child, addresses, authority, issuer };
        let tls = guarded.tls(None);
        wait_until("the server is ready", || {
            let ready = client::http(guarded.at(At::Token), Some(&tls), "GET /readyz", None, b"");
            matches!(ready, Answer::Http { status: 200, .. })
        });
        guarded
    }

    fn write_certificate(place: &Workplace, issued: &Issued) {
        place.write("server.key", &issued.key_pem);
        place.write("server.pem", &issued.certificate_pem);
    }

    fn at(&self, at: At) -> &str {
        &self.addresses[at as usize]
    }

    fn tls(&self, client: Option<&Issued>) -> Tls {
        Tls::new(&self.authority, client)
    }

    /// Returns the whole lines of the audit log.
    fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.place.path("audit.jsonl")).expect("an audit log");
        // The server may be writing the last one.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Returns the one line that was written after the first `before` lines. A thread of the server
    /// writes it beside the answer.
    fn wait_for_line(&self, before: usize, told: &str) -> Value {
        wait_until("the refusal is in the audit log", || self.audit().len() > before);
        let mut lines = self.audit();
        assert_eq!(lines.len(), before + 1, "{told}: {:?}", &lines[before..]);
        lines.remove(before)
    }

    /// Sends the call of a case. Asserts the answer and the line in the audit log.
    fn check(&self, case: &Case) {
        let before = self.audit().len();
        let answer = case.send(self.at(case.at));
        let told = format!("{} over {}: {answer:?}", case.name, case.protocol());
        let (text, reason) = match case.expected {
            Expected::Allowed => {
                assert!(answer.is_allowed(), "{told}");
                return;
            }
            Expected::Broken => {
                assert!(matches!(answer, Answer::Broken), "{told}");
                let line = self.wait_for_line(before, &told);
                assert_eq!(
                    (&line["subject"], &line["outcome"]),
                    (&"tls".into(), &"handshake".into()),
                    "{told}"
                );
                assert_eq!(
                    (&line["who"], &line["from"]),
                    (&"".into(), &"127.0.0.1".into()),
                    "{told}"
                );
                return;
            }
            Expected::Absent => {
                assert_eq!(answer.code(), case.code(404, 12), "{told}");
                assert!(!answer.text().contains(&self.place.text("")), "{told}");
                let line = self.wait_for_line(before, &told);
                assert_eq!(line["outcome"], "wrong_listener", "{told}");
                return;
            }
            Expected::Unknown(reason) => {
                assert_eq!(answer.code(), case.code(401, 16), "{told}");
                (UNKNOWN, reason)
            }
            Expected::Forbidden(reason) => {
                assert_eq!(answer.code(), case.code(403, 7), "{told}");
                (FORBIDDEN, reason)
            }
        };
        // The whole text of the answer is compared, so the answer contains nothing else.
        assert_eq!(answer.text(), text, "{told}");
        let line = &self.wait_for_line(before, &told);
        assert_eq!(
            (&line["action"], &line["outcome"]),
            (&"refuse".into(), &reason.into()),
            "{told}"
        );
        assert_eq!(line["from"], "127.0.0.1", "{told}");
        let is_known = matches!(case.expected, Expected::Forbidden(_));
        assert_eq!(line["who"].as_str().is_some_and(|who| !who.is_empty()), is_known, "{told}");
        let secret = case.authorization.as_deref().and_then(|text| text.split(' ').nth(1));
        if let Some(secret) = secret.filter(|secret| secret.len() > 8) {
            assert!(!line.to_string().contains(secret), "the log repeats a credential: {told}");
        }
    }
}

#[test]
fn forged_and_misdirected_credentials_are_refused() {
    let guarded = Guarded::start();
    let cases = cases::all(&guarded.authority, &guarded.issuer);
    let refusals = cases.iter().filter(|case| !matches!(case.expected, Expected::Allowed)).count();
    assert!(refusals >= 40, "{refusals} cases");
    cases.iter().for_each(|case| guarded.check(case));
    eprintln!("{refusals} refusals, {} calls that are allowed", cases.len() - refusals);
    // The log has no lines about allowed calls, except for calls of control.
    let lines = guarded.audit();
    let controls: Vec<&Value> = lines.iter().filter(|line| line["action"] != "refuse").collect();
    assert!(!controls.is_empty(), "control actions are in the audit log");
    assert!(controls.iter().all(|line| line["who"] == "operator"), "{controls:?}");
    let report = verify_audit_log(&guarded.place.path("audit.jsonl")).expect("it can be read");
    assert_eq!((report.problem, report.torn_bytes), (None, None));
    assert_eq!(report.lines, lines.len() as u64);
    // The log of the server contains no secrets either.
    let log = std::fs::read_to_string(guarded.place.path("server.log")).expect("a log");
    assert!(!log.contains("zln_"), "{log}");
}

#[test]
fn a_quota_of_bytes_holds_however_the_body_is_sent() {
    let guarded = Guarded::start();
    let (address, tls) = (guarded.at(At::Token), guarded.tls(None));
    let line = format!("POST {}", predict_path());
    let (token, other) = (Some("Bearer zln_small"), Some("Bearer zln_ranker"));
    let small = predict_body(&[&[1]]);
    assert!(small.len() < 300, "{}", small.len());
    let large = [small.clone(), vec![b' '; 400]].concat();
    for send in [client::http, client::http_chunked] {
        let answer = send(address, Some(&tls), &line, token, &small);
        assert!(answer.is_allowed(), "{answer:?}");
        let answer = send(address, Some(&tls), &line, other, &large);
        assert!(answer.is_allowed(), "{answer:?}");
        let answer = send(address, Some(&tls), &line, token, &large);
        assert_eq!(answer.code(), Some(413), "{answer:?}");
        assert!(answer.text().contains("quota.body_bytes"), "{answer:?}");
    }
    let path = "/inference.GRPCInferenceService/ModelInfer";
    let id = |bytes: usize| ModelInferRequest {
        model_name: MODEL.to_owned(),
        id: "x".repeat(bytes),
        ..ModelInferRequest::default()
    };
    let call =
        |token, bytes| client::grpc(address, Some(&tls), path, token, &id(bytes).encode_to_vec());
    assert!(call(token, 200).is_allowed() && call(other, 400).is_allowed());
    let answer = call(token, 400);
    assert_eq!(answer.code(), Some(8), "{answer:?}");
    assert!(answer.text().contains("quota.body_bytes"), "{answer:?}");
}

#[test]
fn tokens_and_certificates_are_read_again() {
    let guarded = Guarded::start();
    let tls = guarded.tls(None);
    let ask = |token: &str| {
        let authorization = format!("Bearer {token}");
        let path = format!("GET /v2/models/{MODEL}");
        let at = guarded.at(At::Token);
        client::http(at, Some(&tls), &path, Some(&authorization), b"").code()
    };
    // The tokens allow scoring but not reading. A known token is forbidden, and an unknown token is
    // refused as unknown.
    assert_eq!((ask("zln_ranker"), ask("zln_new")), (Some(403), Some(401)));
    guarded.place.write("access.toml", &access_file(&[("new", "zln_new")]));
    wait_until("the new token is known", || ask("zln_new") == Some(403));
    // An access file that is not valid changes nothing.
    guarded.place.write("access.toml", "[[token]]\nname = ");
    wait_until("the invalid file is seen", || {
        let log = std::fs::read_to_string(guarded.place.path("server.log")).expect("a log");
        log.contains("access.toml")
    });
    assert_eq!((ask("zln_new"), ask("zln_ranker")), (Some(403), Some(403)));
    guarded.place.write("access.toml", &access_file(&[]));
    wait_until("the token is unknown again", || ask("zln_new") == Some(401));
    assert_eq!(ask("zln_ranker"), Some(403));

    // The server shows a new certificate to new connections.
    let shown = || client::server_certificate(guarded.at(At::Token), &tls);
    let (old, new) = (shown(), guarded.authority.server());
    assert_ne!(old, new.certificate.to_vec());
    Guarded::write_certificate(&guarded.place, &new);
    wait_until("the new certificate is shown", || shown() == new.certificate.to_vec());
    // The keys of an issuer can change too.
    let at = guarded.at(At::Jwt);
    let path = format!("GET /v2/models/{MODEL}");
    let of = |issuer: &Issuer| {
        let authorization = format!("Bearer {}", issuer.good());
        client::http(at, Some(&tls), &path, Some(&authorization), b"").code()
    };
    let next = Issuer::new();
    assert_eq!((of(&guarded.issuer), of(&next)), (Some(403), Some(401)));
    guarded.place.write("jwks.json", &next.keys());
    wait_until("the new key is known", || of(&next) == Some(403));
    assert_eq!(of(&guarded.issuer), Some(401));
}

#[test]
fn handshakes_that_do_not_end_keep_nobody_out() {
    let guarded = Guarded::start();
    let tls = guarded.tls(None);
    // The number of incomplete handshakes is larger than the number that the server handles at the
    // same time.
    let address = guarded.at(At::Token);
    let mut begun: Vec<wire::Kept> = (0..80).map(|_| wire::Kept::open(address)).collect();
    for kept in &mut begun {
        // This is the head of a TLS record with a ClientHello of 512 bytes. The ClientHello itself
        // never follows.
        kept.send(&[22, 3, 1, 2, 0, 1]).expect("the server reads");
    }
    let began = Instant::now();
    let live = client::http(address, Some(&tls), "GET /healthz", None, b"");
    let took = began.elapsed();
    eprintln!("a handshake beside 80 that do not end: {took:?}, {live:?}");
    assert_eq!(live.code(), Some(200), "{live:?}");
    // Each of the other handshakes has 5 s. An honest client does not wait until they end.
    assert!(took < Duration::from_millis(2500), "{took:?}");
    for kept in &mut begun {
        kept.read_to_close();
    }
}

#[test]
fn a_handshake_that_makes_room_is_closed() {
    let guarded = Guarded::start_with("max_connections = 16");
    let tls = guarded.tls(None);
    let mut begun: Vec<wire::Kept> =
        (0..60).map(|_| wire::Kept::open(guarded.at(At::Token))).collect();
    for kept in &mut begun {
        // The server may have closed the connection for a newer one.
        let _ = kept.send(&[22, 3, 1, 2, 0, 1]);
    }
    // The sockets of the others are closed at once, and not at the end of their handshakes.
    wait_until("handshakes make room", || {
        let token = Some("Bearer zln_operator");
        let answer = client::http(guarded.at(At::Admin), Some(&tls), "GET /metrics", token, b"");
        let Answer::Http { status: 200, body, .. } = answer else { return false };
        let series = "zillion_serving_closed_connections_total{reason=\"evicted\"} ";
        let count = body.lines().find_map(|line| line.strip_prefix(series)?.parse::<f64>().ok());
        count.is_some_and(|count| count >= 44.0)
    });
}

/// Starts `zillion serve` at an address that other machines can reach.
fn exposed(place: &Workplace, more: &[&str]) -> std::process::Command {
    let (registry, cache) = (place.text(REGISTRY), place.text("cache"));
    let usual = ["serve", "--registry", &registry, "--cache", &cache, "--model", MODEL];
    let mut command = zillion(&[&usual[..], more].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn an_open_server_must_be_meant() {
    let place = publish(&[]);
    let authority = Authority::new("the authority");
    Guarded::write_certificate(&place, &authority.server());
    place.write("access.toml", &access_file(&[]));
    place.write("jwks.json", &Issuer::new().keys());
    let path = |name: &str| place.text(name);
    let (access, certificate, key) = (path("access.toml"), path("server.pem"), path("server.key"));
    let open = ["--http", "0.0.0.0:0"];
    let token = ["--auth", "token", "--access", &access];
    let tls = ["--tls-certificate", &certificate, "--tls-key", &key];
    let admin = ["--admin", "127.0.0.1:0"];
    for (what, arguments, said) in [
        ("nothing", open.to_vec(), "--auth"),
        ("TLS alone", [&open[..], &tls].concat(), "--auth"),
        ("gRPC", vec!["--http", "127.0.0.1:0", "--grpc", "0.0.0.0:0"], "--auth"),
        ("administration", vec!["--http", "127.0.0.1:0", "--admin", "0.0.0.0:0"], "--auth"),
        ("every address", vec!["--http", "[::]:0"], "--auth"),
        ("control without TLS", [&open[..], &token].concat(), "--tls-certificate"),
        ("no access file", [&open[..], &tls, &["--auth", "token"]].concat(), "--access"),
        (
            "no authority",
            [&open[..], &tls, &["--auth", "mtls", "--access", &access]].concat(),
            "--tls-client-ca",
        ),
    ] {
        if arguments.contains(&"[::]:0") && std::net::TcpListener::bind("[::]:0").is_err() {
            // This machine does not support IPv6.
            continue;
        }
        let output = exposed(&place, &arguments).output().expect("the binary runs");
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{what}: {text}");
        assert!(text.contains(said), "{what}: {text}");
    }
    for arguments in [
        [&open[..], &["--insecure"]].concat(),
        [&open[..], &token, &admin].concat(),
        [&open[..], &token, &tls].concat(),
    ] {
        let mut child = exposed(&place, &arguments).spawn().expect("the binary runs");
        let addresses = client::read_addresses(&mut child, 1);
        assert!(addresses[0].starts_with("0.0.0.0:"), "{arguments:?}: {addresses:?}");
        child.kill().expect("our own child can be killed");
        child.wait().expect("our own child can be waited for");
    }
    // If there is an address for administration, the other address answers neither metrics nor
    // control.
    let arguments = ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--model-control"];
    let mut child = exposed(&place, &arguments).spawn().expect("the binary runs");
    let addresses = client::read_addresses(&mut child, 2);
    let [public, admin] = [&addresses[0], &addresses[1]];
    wait_until("the server is ready", || {
        wire::get(admin, "/v2/health/ready").is_ok_and(|reply| reply.status == 200)
    });
    for (line, of_public, of_admin) in [
        ("GET /metrics".to_owned(), 404, 200),
        ("POST /v2/repository/index".to_owned(), 404, 200),
        (format!("POST /v2/repository/models/{MODEL}/load"), 404, 200),
        (format!("POST /v1/models/{MODEL}:predict"), 400, 404),
        ("GET /healthz".to_owned(), 200, 200),
    ] {
        let status = |address: &str| wire::Kept::open(address).ask(&line, b"").map(|r| r.status);
        let found = [public, admin].map(|address| status(address).expect("an answer"));
        assert_eq!(found, [of_public, of_admin], "{line}");
    }
    child.kill().expect("our own child can be killed");
    child.wait().expect("our own child can be waited for");
}
