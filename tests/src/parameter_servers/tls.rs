//! Servers that speak TLS: training over TLS, and clients whose certificates or whose view of the
//! server's certificate is wrong.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rcgen::{ExtendedKeyUsagePurpose, SanType};
use zillion_ps::conformance::specs;
use zillion_ps::{ClientTls, ClientTlsFiles, RemoteClient, RemoteOptions, TableOptions};

use super::proxy::PATIENCE;
use super::raw::{Head, connect, frame, hello, send_and_read_all};
use super::runs::{addresses, outcome, place_with_everything, start_all, train_alone};
use super::servers::{ServerProcess, options};
use crate::attacks::identity::authority::{Authority, Issued, Wanted};
use crate::harness::{stderr, stdout, zillion};

/// The certificates of a cluster, in files.
struct Certificates {
    folder: tempfile::TempDir,
    servers: Authority,
    clients: Authority,
}

impl Certificates {
    /// Makes the authorities of servers and clients, and a certificate of each.
    fn new() -> Self {
        let certificates = Self {
            folder: tempfile::tempdir().unwrap(),
            servers: Authority::new("authority of servers"),
            clients: Authority::new("authority of clients"),
        };
        certificates.write("servers.pem", &certificates.servers.pem());
        certificates.write("clients.pem", &certificates.clients.pem());
        let server = certificates.servers.issue(Self::server_name());
        certificates.write_issued("server", &server);
        let client = certificates.clients.issue(Wanted::client("trainer"));
        certificates.write_issued("client", &client);
        certificates
    }

    /// Returns the properties of a server's certificate for the address of the tests.
    fn server_name() -> Wanted {
        let name = SanType::IpAddress([127, 0, 0, 1].into());
        Wanted { name, use_for: ExtendedKeyUsagePurpose::ServerAuth, last_year: 2100 }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn write_issued(&self, name: &str, issued: &Issued) {
        self.write(&format!("{name}.pem"), &issued.certificate_pem);
        self.write(&format!("{name}.key"), &issued.key_pem);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Returns the arguments of a server that asks clients for certificates.
    fn server(&self) -> Vec<String> {
        let files = [
            ("--tls-cert", "server.pem"),
            ("--tls-key", "server.key"),
            ("--tls-client-ca", "clients.pem"),
        ];
        files.iter().flat_map(|(name, file)| [(*name).to_owned(), self.text(file)]).collect()
    }

    /// Returns the arguments of a command or, with `prefix`, of a trainer.
    fn client(&self, prefix: &str) -> Vec<String> {
        let files =
            [("tls-ca", "servers.pem"), ("tls-cert", "client.pem"), ("tls-key", "client.key")];
        files
            .iter()
            .flat_map(|(name, file)| [format!("--{prefix}{name}"), self.text(file)])
            .collect()
    }
}

fn borrowed(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

#[test]
fn training_over_tls_gives_the_bytes_of_one_process() {
    let certificates = Certificates::new();
    let place = place_with_everything();
    train_alone(&place, "alone", &["--set", "train.accumulate=2"]);
    let servers = ServerProcess::start_group(&place.path(""), 2, &borrowed(&certificates.server()));
    let trainers =
        start_all(&place, "over", &addresses(&servers), 2, &borrowed(&certificates.client("ps-")));
    for trainer in trainers {
        let report = trainer.end().succeeded();
        assert!(report["rewinds"].is_null(), "{report}");
    }
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));

    // The commands of operators go through the same door.
    let at = servers[0].address.clone();
    let command = |more: &[&str]| {
        let output = zillion(&[&["ps"], more].concat()).output().unwrap();
        (output.status.success(), format!("{}{}", stdout(&output), stderr(&output)))
    };
    let client = certificates.client("");
    let client = borrowed(&client);
    let (succeeds, said) = command(&[&["status", &at][..], &client].concat());
    assert!(succeeds && said.contains("run over"), "{said}");
    let (_, said) = command(&[&["checkpoint", &at][..], &client].concat());
    assert!(said.contains("no run is open"), "{said}");
    for name in ["status", "checkpoint"] {
        let (succeeds, said) = command(&[name, &at, "--tls-ca", &certificates.text("servers.pem")]);
        assert!(!succeeds && said.contains("asks for a client certificate"), "{name}: {said}");
        let (succeeds, said) = command(&[name, &at]);
        assert!(!succeeds, "{name}: {said}");
    }
}

/// The certificates by which a client opens tables, and a part of the error that it gets.
struct Case<'a> {
    name: &'a str,
    authority: Option<&'a str>,
    identity: Option<&'a str>,
    client_says: &'a str,
    server_says: &'a str,
}

/// Returns the TLS settings of a client in a case.
fn case_tls(certificates: &Certificates, case: &Case<'_>) -> Option<ClientTls> {
    let identity = |name: &str| {
        (certificates.path(&format!("{name}.pem")), certificates.path(&format!("{name}.key")))
    };
    case.authority.map(|authority| {
        let authority = certificates.path(authority);
        let identity = case.identity.map(identity);
        ClientTls::open(ClientTlsFiles { authority, identity }).unwrap()
    })
}

/// Opens tables, which must fail, and returns the error.
fn open(certificates: &Certificates, case: &Case<'_>, server: &str, store: &Path) -> String {
    let tls = case_tls(certificates, case);
    let options = RemoteOptions {
        tls,
        // A client that tries again until its patience ends would make the test fail.
        patience: Duration::from_secs(300),
        ..options(vec![server.to_owned()], "run", store)
    };
    let opened = RemoteClient::open(options, TableOptions::new(specs(), 1.try_into().unwrap()));
    opened.expect_err(case.name).to_string()
}

/// Waits until the server has written its view of a case to its log.
fn wait_for(log: &Path, case: &Case<'_>) {
    let began = Instant::now();
    loop {
        let said = std::fs::read_to_string(log).unwrap();
        if said.contains(case.server_says) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{}: {said}", case.name);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn clients_with_wrong_certificates_are_refused_with_the_reason() {
    let certificates = Certificates::new();
    let strangers = Authority::new("strangers");
    certificates.write("strangers.pem", &strangers.pem());
    certificates.write_issued("stranger", &strangers.issue(Wanted::client("trainer")));
    let expired = Wanted { last_year: 2001, ..Wanted::client("trainer") };
    certificates.write_issued("expired", &certificates.clients.issue(expired));
    let store = tempfile::tempdir().unwrap();
    let log = store.path().join("log");
    let server =
        ServerProcess::start_with_log(store.path(), &borrowed(&certificates.server()), &log);
    for case in [
        Case {
            name: "no certificate",
            authority: Some("servers.pem"),
            identity: None,
            client_says: "asks for a client certificate; set `ps.tls_cert`",
            server_says: "peer sent no certificates",
        },
        Case {
            name: "a certificate of another authority",
            authority: Some("servers.pem"),
            identity: Some("stranger"),
            client_says: "refuses the certificate",
            server_says: "UnknownIssuer",
        },
        Case {
            name: "an expired certificate",
            authority: Some("servers.pem"),
            identity: Some("expired"),
            client_says: "CertificateExpired",
            server_says: "certificate expired",
        },
        Case {
            name: "another authority of the server",
            authority: Some("strangers.pem"),
            identity: Some("client"),
            client_says: "the certificate of the server is refused",
            server_says: "UnknownCA",
        },
        Case {
            name: "no TLS",
            authority: None,
            identity: None,
            client_says: "takes only connections over TLS",
            server_says: "the client does not speak TLS",
        },
    ] {
        let error = open(&certificates, &case, &server.address, store.path());
        assert!(error.contains(case.client_says), "{}: {error}", case.name);
        wait_for(&log, &case);
    }
    // Bytes that are neither TLS nor a frame end only their own connection.
    send_and_read_all(&server.address, b"GET / HTTP/1.1\r\n\r\n");
    send_and_read_all(&server.address, &[0x16, 3, 1, 0xff, 0xff, 1, 2, 3]);
    let right = Case {
        name: "a plaintext server",
        authority: Some("servers.pem"),
        identity: Some("client"),
        client_says: "does not speak TLS",
        server_says: "",
    };
    let plain = ServerProcess::start(store.path(), &[]);
    let error = open(&certificates, &right, &plain.address, store.path());
    assert!(error.contains(right.client_says), "{error}");
}

#[test]
fn a_server_whose_certificate_has_another_name_is_refused() {
    let certificates = Certificates::new();
    certificates.write_issued("server", &certificates.servers.server());
    let store = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(store.path(), &borrowed(&certificates.server()));
    let case = Case {
        name: "another name",
        authority: Some("servers.pem"),
        identity: Some("client"),
        client_says: "address the server by a name of its certificate",
        server_says: "",
    };
    let error = open(&certificates, &case, &server.address, store.path());
    assert!(error.contains(case.client_says) && error.contains("localhost"), "{error}");

    // The server reads a new certificate without a restart.
    certificates.write_issued("server", &certificates.servers.issue(Certificates::server_name()));
    let tls = case_tls(&certificates, &case);
    let options =
        RemoteOptions { tls, ..options(vec![server.address.clone()], "run", store.path()) };
    RemoteClient::open(options, TableOptions::new(specs(), 1.try_into().unwrap())).unwrap();
}

#[test]
fn client_certificates_allow_an_address_that_others_reach() {
    let certificates = Certificates::new();
    let store = tempfile::tempdir().unwrap();
    let with_clients = certificates.server();
    let mut server =
        ServerProcess::start_at(store.path(), "0.0.0.0:0", &borrowed(&with_clients), None);
    assert!(server.is_running());
    // A server that asks for no certificates is open to all.
    let without = &borrowed(&with_clients)[..4];
    let mut command = zillion(&["ps", "serve", "--listen", "0.0.0.0:0", "--store"]);
    let output = command.arg(store.path()).args(without).output().unwrap();
    let text = stderr(&output);
    assert!(!output.status.success() && text.contains("no authority of client"), "{text}");
}

#[test]
fn a_handshake_that_does_not_come_ends_its_connection() {
    let certificates = Certificates::new();
    let store = tempfile::tempdir().unwrap();
    let mut server = ServerProcess::start(store.path(), &borrowed(&certificates.server()));
    let mut silent = connect(&server.address);
    // The server ends the connection, or the read ends with the patience of the test.
    let mut said = Vec::new();
    std::io::Read::read_to_end(&mut silent, &mut said).expect("the server ends the connection");
    // A frame that is sent as it is gets a frame that says why.
    let greeting = frame(Head { op: super::proxy::op::HELLO, ..Head::default() }, &hello("run"));
    let said = send_and_read_all(&server.address, &greeting);
    assert!(said.contains("only connections over TLS"), "{said}");
    assert!(server.is_running());
}
