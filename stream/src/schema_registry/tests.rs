//! Tests of the client of a registry of schemas, on a small HTTP server.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use zillion_device::Files;

use super::*;
use crate::{Error, OptionValue, SecretFile, SecretVariable};

/// The answers to the requests for a path, with a status.
type Answer = dyn Fn(&str) -> (u16, String) + Send + Sync;

/// A server that answers each request and remembers its head.
struct Server {
    url: String,
    heads: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
}

impl Server {
    fn start(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(answer))
    }

    fn start_on(listener: TcpListener, answer: Arc<Answer>) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (heads, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let server = Self { url, heads: heads.clone(), stop: stop.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (answer, heads) = (answer.clone(), heads.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &*answer, &heads));
            }
        });
        server
    }

    fn registry(&self) -> SchemaRegistry {
        SchemaRegistry::open(self.settings()).unwrap()
    }

    fn settings(&self) -> RegistrySettings {
        RegistrySettings { outage_ms: 300, ..RegistrySettings::new(&self.url) }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The connection wakes the thread up.
        drop(TcpStream::connect(self.url.trim_start_matches("http://")));
    }
}

/// Answers the requests of one connection.
fn serve(stream: TcpStream, answer: &Answer, heads: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut stream = stream;
    loop {
        let mut head = String::new();
        while let Some(Ok(line)) = lines.next() {
            if line.is_empty() {
                break;
            }
            head.push_str(&line);
            head.push('\n');
        }
        let Some(path) = head.split(' ').nth(1) else { return };
        let (status, body) = answer(path);
        heads.lock().unwrap().push(head);
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n");
        // The client may have gone.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    }
}

fn unknown() -> (u16, String) {
    (404, r#"{"error_code": 40403, "message": "Schema not found"}"#.to_owned())
}

fn find(registry: &SchemaRegistry, id: u32) -> Result<FoundSchema, String> {
    registry.find(id, &|| false).map_err(|e| e.to_string())
}

#[test]
fn schemas_come_with_everything_to_which_they_refer() {
    let server = Server::start(|path| {
        let body = match path {
            "/schemas/ids/7" => {
                r#"{"schema": "main", "schemaType": "PROTOBUF", "other": 1, "references": [
                {"name": "a.proto", "subject": "the a", "version": 3},
                {"name": "b.proto", "subject": "b", "version": 1}]}"#
            }
            "/subjects/the%20a/versions/3" => {
                r#"{"id": 5, "schema": "text a", "references": [
                {"name": "b.proto", "subject": "b", "version": 1}]}"#
            }
            "/subjects/b/versions/1" => r#"{"schema": "text b"}"#,
            "/schemas/ids/8" => r#"{"schema": "\"long\""}"#,
            _ => return unknown(),
        };
        (200, body.to_owned())
    });
    let registry = server.registry();
    let reference =
        |name: &str, text: &str| StoredReference { name: name.into(), text: text.into() };
    let wanted = StoredSchema {
        language: "PROTOBUF".to_owned(),
        text: "main".to_owned(),
        references: vec![reference("a.proto", "text a"), reference("b.proto", "text b")],
    };
    assert_eq!(find(&registry, 7), Ok(FoundSchema::Found(wanted.clone())));
    let avro = StoredSchema {
        language: "AVRO".to_owned(),
        text: "\"long\"".to_owned(),
        references: Vec::new(),
    };
    assert_eq!(find(&registry, 8), Ok(FoundSchema::Found(avro)));
    assert_eq!(find(&registry, 9), Ok(FoundSchema::Unknown));
    assert!(server.heads()[0].contains("accept: application/json"));

    // Its file has the name of its hash.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("schemas");
    let hash = wanted.save(&Files::new().scratch(), &path).unwrap();
    assert_eq!(wanted.save(&Files::new().scratch(), &path).unwrap(), hash);
    assert_eq!((hash, StoredSchema::load(&path, hash).unwrap()), (wanted.fingerprint(), wanted));
    let file = path.join(format!("{hash:016x}.json"));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("main", "mean")).unwrap();
    let error = StoredSchema::load(&path, hash).unwrap_err().to_string();
    assert!(error.contains("restore the file"), "{error}");
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(StoredSchema::load(&path, hash), Err(Error::Device(_))));
}

#[test]
fn secrets_are_sent_and_never_shown() {
    let server = Server::start(|_| (401, "{}".to_owned()));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, "hidden\n").unwrap();
    let secret = Some(OptionValue::File(SecretFile { file }));
    let user = Some(OptionValue::Text("me".to_owned()));
    for (settings, wanted) in [
        (
            RegistrySettings { user, password: secret.clone(), ..server.settings() },
            "Basic bWU6aGlkZGVu",
        ),
        (RegistrySettings { token: secret, ..server.settings() }, "Bearer hidden"),
    ] {
        let registry = SchemaRegistry::open(settings).unwrap();
        let error = find(&registry, 1).unwrap_err();
        assert!(error.contains("401") && error.contains("`token`"), "{error}");
        assert!(!error.contains("hidden") && !format!("{registry:?}").contains("hidden"));
        let head = server.heads().pop().unwrap();
        assert!(head.contains(&format!("authorization: {wanted}")), "{head}");
    }
    // A refusal is not repeated.
    assert_eq!(server.heads().len(), 2);
}

#[test]
fn a_registry_that_is_away_for_a_while_is_waited_for() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let server = Server::start(move |_| match counted.fetch_add(1, Ordering::Relaxed) {
        0 => (503, "busy".to_owned()),
        1 => (429, String::new()),
        _ => (200, r#"{"schema": "x"}"#.to_owned()),
    });
    let settings = RegistrySettings { outage_ms: 60_000, ..server.settings() };
    let registry = SchemaRegistry::open(settings).unwrap();
    assert!(matches!(find(&registry, 1), Ok(FoundSchema::Found(_))));
    assert_eq!(calls.load(Ordering::Relaxed), 3);

    // A port at which nobody answers.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}");
    let settings = RegistrySettings { outage_ms: 200, ..RegistrySettings::new(&url) };
    let error = find(&SchemaRegistry::open(settings).unwrap(), 5).unwrap_err();
    for words in [
        &*url,
        "the schema with id 5",
        "no connection can be made",
        "0.2 seconds",
        "nothing is lost",
    ] {
        assert!(error.contains(words), "{error}");
    }
    // A run that stops does not wait.
    let registry = SchemaRegistry::open(RegistrySettings::new(&url)).unwrap();
    let calls = AtomicUsize::new(0);
    let stops = || calls.fetch_add(1, Ordering::Relaxed) > 0;
    assert_eq!(registry.find(5, &stops).unwrap(), FoundSchema::Stopped);
}

#[test]
fn wrong_answers_have_a_reason() {
    let many: Vec<String> =
        (0..200).map(|n| format!(r#"{{"name": "r{n}", "subject": "ok", "version": 1}}"#)).collect();
    let many = format!(r#"{{"schema": "x", "references": [{}]}}"#, many.join(","));
    let server = Server::start(move |path| {
        match path {
        "/schemas/ids/1" => (200, "no JSON".to_owned()),
        "/schemas/ids/2" => (404, "not here".to_owned()),
        "/schemas/ids/3" => (301, String::new()),
        "/schemas/ids/4" => (200, many.clone()),
        "/schemas/ids/5" => (200, r#"{"schema": "x", "references": [
            {"name": "r", "subject": "none", "version": 1}]}"#.to_owned()),
        "/schemas/ids/6" => (200, r#"{"schema": "x", "references": [
            {"name": "r", "subject": "ok", "version": 1}, {"name": "r", "subject": "ok", "version": 2}]}"#.to_owned()),
        "/schemas/ids/7" => (200, " ".repeat(5 << 20)),
        path if path.starts_with("/subjects/ok/") => (200, r#"{"schema": "y"}"#.to_owned()),
        _ => unknown(),
    }
    });
    let registry = server.registry();
    for (id, words) in [
        (1, "the answer is no schema"),
        (2, "it answers 404"),
        (3, "it answers 301"),
        (4, "the schema with id 4: it refers to more than 100 schemas"),
        (5, "it refers to `none`, which is unknown"),
        (6, "two references have the name `r`"),
        (7, "an answer has more than 4194304 bytes"),
    ] {
        let error = find(&registry, id).unwrap_err();
        assert!(error.contains(words), "{id}: {error}");
    }
}

#[test]
fn settings_are_checked() {
    let good = RegistrySettings::new("https://registry:8081/api");
    good.check().unwrap();
    let text = serde_json::to_string(&good).unwrap();
    assert_eq!(serde_json::from_str::<RegistrySettings>(&text).unwrap(), good);
    assert!(serde_json::from_str::<RegistrySettings>(r#"{"uri": "http://x"}"#).is_err());
    let refuse = |change: fn(&mut RegistrySettings), words: &str| {
        let mut settings = good.clone();
        change(&mut settings);
        let error = SchemaRegistry::open(settings).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains("hidden"), "{error}");
    };
    refuse(|s| s.url = "registry:8081".to_owned(), "write http://host:port");
    refuse(|s| s.url = "http://".to_owned(), "write http://host:port");
    refuse(|s| s.url = "http://a b".to_owned(), "`url` is no address");
    refuse(|s| s.url = "http://me:hidden@host".to_owned(), "set `user` and `password`");
    refuse(|s| s.url = "http://host?x".to_owned(), "remove `?`");
    let text = || Some(OptionValue::Text("hidden".to_owned()));
    let variable =
        || Some(OptionValue::Variable(SecretVariable { env: "NO_SUCH_VARIABLE".to_owned() }));
    refuse(|s| s.token = Some(OptionValue::Text("hidden".to_owned())), "`token` is a secret");
    for (user, password, token, words) in [
        (text(), text(), None, "`password` is a secret"),
        (text(), None, None, "`user` and `password` belong together"),
        (text(), variable(), variable(), "`token` and `user` are both set"),
        (None, None, variable(), "`token`: the variable `NO_SUCH_VARIABLE` is not set"),
    ] {
        let settings = RegistrySettings { user, password, token, ..good.clone() };
        let error = SchemaRegistry::open(settings).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains("hidden"), "{error}");
    }
    refuse(|s| s.outage_ms = 1, "`outage_ms` is 1, outside of 10 to");
    refuse(|s| s.ca = Some("/nowhere.pem".into()), "nowhere.pem");
    refuse(|s| (s.url, s.ca) = ("http://x".to_owned(), Some("x".into())), "`ca` has no effect");
}

#[test]
fn certificates_are_those_of_the_given_authority() {
    let folder = tempfile::tempdir().unwrap();
    let certify = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let (own, other) = (certify("localhost"), certify("localhost"));
    for (name, certificate) in [("own.pem", &own), ("other.pem", &other)] {
        std::fs::write(folder.path().join(name), certificate.cert.pem()).unwrap();
    }
    let url = start_tls(&own);
    let settings = |ca: &str| RegistrySettings {
        ca: Some(folder.path().join(ca)),
        outage_ms: 200,
        ..RegistrySettings::new(&url)
    };
    let registry = SchemaRegistry::open(settings("own.pem")).unwrap();
    assert!(matches!(find(&registry, 1), Ok(FoundSchema::Found(_))));
    let error = find(&SchemaRegistry::open(settings("other.pem")).unwrap(), 1).unwrap_err();
    assert!(error.contains("certificate") && error.contains("check `url`, `ca`"), "{error}");
    // The certificate has another name than the address.
    let address =
        RegistrySettings { url: url.replace("localhost", "127.0.0.1"), ..settings("own.pem") };
    let error = find(&SchemaRegistry::open(address).unwrap(), 1).unwrap_err();
    assert!(error.to_lowercase().contains("certificate"), "{error}");
}

/// Starts a server with a certificate that answers every request with a schema, and returns its
/// address. The thread ends with the process of the test.
fn start_tls(certified: &rcgen::CertifiedKey<rcgen::KeyPair>) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;

    let _ = rustls::crypto::ring::default_provider().install_default();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let chain = vec![certified.cert.der().clone()];
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut head = [0; 4096];
                if stream.read(&mut head).await.is_ok() {
                    let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 15\r\n\r\n{\"schema\": \"x\"}";
                    let _ = stream.write_all(answer).await;
                    let _ = stream.shutdown().await;
                }
            }
        });
    });
    format!("https://localhost:{port}")
}
