//! Streams of Kafka over TLS and with a login by SASL: a broker in another process behind an end of
//! TLS in this one. The broker itself has no TLS, so that its writers use plain connections to the
//! same address.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rcgen::{ExtendedKeyUsagePurpose, SanType};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use zillion_stream::{
    Block, KafkaSettings, KafkaSource, OptionValue, Position, SecretFile, Source as _,
};

use super::peers::Broker;
use super::sasl::{Login, log_in};
use crate::attacks::identity::authority::{Authority, Issued, Wanted};
use crate::server::PATIENCE;

const TOPIC: &str = "clicks";
const COUNT: usize = 500;
/// The first byte of a connection with TLS. Requests of Kafka begin with the zeros of their length.
const HANDSHAKE: u8 = 0x16;

/// An end of TLS before a broker. It goes on until the process of the test ends.
struct TlsEnd {
    port: u16,
    /// The number of connections with TLS that were established.
    established: Arc<AtomicUsize>,
}

impl TlsEnd {
    /// Starts an end of TLS. With a login, a client must give its name and its password.
    fn start(
        listener: TcpListener,
        broker: SocketAddr,
        issued: &Issued,
        login: Option<Login>,
    ) -> Self {
        let port = listener.local_addr().expect("an address").port();
        let key = PrivateKeyDer::try_from(issued.key.clone()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the versions of the provider")
            .with_no_client_auth()
            .with_single_cert(vec![issued.certificate.clone()], key)
            .expect("a certificate with its key");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let established = Arc::new(AtomicUsize::new(0));
        let count = established.clone();
        listener.set_nonblocking(true).expect("a listener");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                while let Ok((client, _)) = listener.accept().await {
                    let (acceptor, count) = (acceptor.clone(), count.clone());
                    let login = login.clone();
                    // A connection that breaks is an error of its client.
                    tokio::spawn(async move {
                        drop(forward(client, broker, acceptor, count, login).await);
                    });
                }
            });
        });
        Self { port, established }
    }

    fn established(&self) -> usize {
        self.established.load(Ordering::Relaxed)
    }
}

/// Connects a client with the broker, with TLS or without.
async fn forward(
    mut client: TcpStream,
    broker: SocketAddr,
    acceptor: TlsAcceptor,
    established: Arc<AtomicUsize>,
    login: Option<Login>,
) -> std::io::Result<()> {
    let mut first = [0];
    client.peek(&mut first).await?;
    if first[0] != HANDSHAKE {
        let mut server = TcpStream::connect(broker).await?;
        tokio::io::copy_bidirectional(&mut client, &mut server).await?;
        return server.shutdown().await;
    }
    let mut client = acceptor.accept(client).await?;
    established.fetch_add(1, Ordering::Relaxed);
    let mut server = TcpStream::connect(broker).await?;
    if let Some(login) = login
        && !log_in(&mut client, &mut server, &login).await?
    {
        return client.shutdown().await;
    }
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// Returns the settings of a source over TLS that trusts one authority.
fn settings(address: &str, authority: &std::path::Path) -> KafkaSettings {
    let text = |text: &str| OptionValue::Text(text.to_owned());
    let file = OptionValue::File(SecretFile { file: authority.to_owned() });
    let options = [("security.protocol", text("ssl")), ("ssl.ca.pem", file)];
    KafkaSettings {
        options: options.map(|(name, value)| (name.to_owned(), value)).into(),
        request_ms: 3_000,
        ..KafkaSettings::new(&[address], &[TOPIC], 0)
    }
}

/// Reads messages until there are `count`.
fn consume(source: &mut KafkaSource, count: usize) -> Vec<String> {
    let (mut block, mut read, start) = (Block::new(), Vec::new(), Instant::now());
    while read.len() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count} messages", read.len());
        source.poll(&mut block, Duration::from_millis(100)).expect("the broker answers");
        source.take_discoveries();
        for message in block.iter() {
            read.push(String::from_utf8(message.bytes.to_vec()).expect("the text of the client"));
        }
    }
    read
}

#[test]
fn kafka_is_read_over_tls_from_the_right_broker_only() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("an address").port();
    let Some(broker) = Broker::start_behind(&format!("localhost:{port}")) else { return };
    let listens: SocketAddr = broker.listens().parse().expect("an address");
    let (own, other) = (Authority::new("own"), Authority::new("other"));
    let end = TlsEnd::start(listener, listens, &own.server(), None);
    broker.create(TOPIC, 1);
    broker.write(TOPIC, 1, 0..COUNT);
    assert_eq!(end.established(), 0, "the writers use plain connections");

    let folder = tempfile::tempdir().expect("a folder");
    let pem = |name: &str, authority: &Authority| {
        let path = folder.path().join(name);
        std::fs::write(&path, authority.pem()).expect("a file");
        path
    };
    let (own_pem, other_pem) = (pem("own.pem", &own), pem("other.pem", &other));
    let address = format!("localhost:{port}");
    let mut source = KafkaSource::open(settings(&address, &own_pem), &Position::default())
        .expect("the broker answers");
    let read = consume(&mut source, COUNT);
    assert!(read.iter().enumerate().all(|(n, text)| text.contains(&format!("\"number\": {n},"))));
    let established = end.established();
    assert!(established >= 1);

    // The wrong authority.
    let error = KafkaSource::open(settings(&address, &other_pem), &Position::default());
    let error = error.err().expect("the certificate is not trusted").to_string();
    assert!(error.contains("certificate") && error.contains(&address), "{error}");

    // The right authority, but a certificate for another host.
    let wanted = Wanted {
        name: SanType::DnsName("elsewhere".try_into().expect("a name")),
        use_for: ExtendedKeyUsagePurpose::ServerAuth,
        last_year: 2100,
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let elsewhere = TlsEnd::start(listener, listens, &own.issue(wanted), None);
    let address = format!("localhost:{}", elsewhere.port);
    let error = KafkaSource::open(settings(&address, &own_pem), &Position::default());
    let error = error.err().expect("the name is wrong").to_string();
    assert!(error.contains("certificate") && error.contains(&address), "{error}");
    assert_eq!(end.established(), established, "nothing was read from the broker");
}

#[test]
fn kafka_is_read_over_tls_with_the_right_password_only() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("an address").port();
    let address = format!("localhost:{port}");
    let Some(broker) = Broker::start_behind(&address) else { return };
    let listens: SocketAddr = broker.listens().parse().expect("an address");
    let own = Authority::new("own");
    let login = Login { name: "zillion".to_owned(), password: "hunter22".to_owned() };
    let end = TlsEnd::start(listener, listens, &own.server(), Some(login));
    broker.create(TOPIC, 1);
    broker.write(TOPIC, 1, 0..COUNT);

    let folder = tempfile::tempdir().expect("a folder");
    let authority = folder.path().join("own.pem");
    std::fs::write(&authority, own.pem()).expect("a file");
    let with_password = |password: &str| {
        let file = folder.path().join(password);
        std::fs::write(&file, password).expect("a file");
        let mut settings = settings(&address, &authority);
        let text = |text: &str| OptionValue::Text(text.to_owned());
        for (name, value) in [
            ("security.protocol", text("sasl_ssl")),
            ("sasl.mechanism", text("PLAIN")),
            ("sasl.username", text("zillion")),
            ("sasl.password", OptionValue::File(SecretFile { file })),
        ] {
            settings.options.insert(name.to_owned(), value);
        }
        KafkaSource::open(settings, &Position::default())
    };
    let mut source = with_password("hunter22").expect("the broker answers");
    assert_eq!(consume(&mut source, COUNT).len(), COUNT);
    assert!(end.established() >= 1);
    drop(source);

    let error = with_password("another").err().expect("the password is wrong").to_string();
    assert!(error.contains("uthentication") && error.contains(&address), "{error}");
    assert!(!error.contains("another"), "{error}");
}
