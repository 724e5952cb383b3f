//! A proxy before the imitated brokers, behind which other brokers can take their place. So a topic
//! gets more partitions while a source reads, which the imitated brokers themselves cannot do.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;

/// The bytes before the port in the answers of the brokers.
const HOST: &[u8] = b"127.0.0.1";

/// A proxy with one address for brokers that change.
struct Proxy {
    address: String,
    port: Arc<Mutex<u16>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(cluster: &Cluster) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let port = Arc::new(Mutex::new(port_of(cluster)));
        let open = Arc::new(Mutex::new(Vec::new()));
        let (target, connections) = (port.clone(), open.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(|client| client.ok()) {
                let port = *target.lock().unwrap();
                let Ok(broker) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let copies = (client.try_clone().unwrap(), broker.try_clone().unwrap());
                connections.lock().unwrap().push(client.try_clone().unwrap());
                std::thread::spawn(move || copy(copies.0, copies.1, None));
                std::thread::spawn(move || copy(broker, client, Some((port, own))));
            }
        });
        Self { address: format!("127.0.0.1:{own}"), port, open }
    }

    /// Puts other brokers behind the address, and closes all connections.
    fn switch(&self, cluster: &Cluster) {
        *self.port.lock().unwrap() = port_of(cluster);
        for connection in self.open.lock().unwrap().drain(..) {
            // The client may have closed it.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn port_of(cluster: &Cluster) -> u16 {
    let address = cluster.mock.bootstrap_servers();
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// Copies bytes to the end. With `ports`, the port of the broker in its answers is replaced.
fn copy(mut from: TcpStream, mut to: TcpStream, ports: Option<(u16, u16)>) {
    let mut bytes = vec![0; 1 << 20];
    while let Ok(count) = from.read(&mut bytes) {
        if count == 0 {
            break;
        }
        if let Some((old, new)) = ports {
            let wanted = [HOST, &u32::from(old).to_be_bytes()].concat();
            for at in 0..(count + 1).saturating_sub(wanted.len()) {
                if bytes[at..].starts_with(&wanted) {
                    let place = at + HOST.len()..at + wanted.len();
                    bytes[place].copy_from_slice(&u32::from(new).to_be_bytes());
                }
            }
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn partitions_that_are_added_while_a_source_reads_are_found() {
    let before = Cluster::new(1, 1);
    before.put(0, &["a"]);
    let proxy = Proxy::start(&before);
    let brokers = vec![proxy.address.clone()];
    let settings = KafkaSettings { brokers, ..before.settings() };
    let mut source = KafkaSource::open(settings, &Position::default()).unwrap();
    assert_eq!(take(&mut source, 1).unwrap(), [(0, 0, "a".to_owned())]);
    assert_eq!(source.take_discoveries(), [partitions(&["t/0"], &[0])]);

    let after = Cluster::new(1, 3);
    after.put(0, &["a", "b"]);
    after.put(2, &["c", "d"]);
    proxy.switch(&after);
    let read = take(&mut source, 3).unwrap();
    assert_eq!(of_partition(&read, 0), [(1, "b")]);
    assert_eq!(of_partition(&read, 2), [(0, "c"), (1, "d")]);
    assert_eq!(source.take_discoveries(), [partitions(&["t/0", "t/1", "t/2"], &[0, 0])]);
}
