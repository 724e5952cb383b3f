//! A test that counts the allocations of a request on a server that is warm: those of the engine
//! alone, and those of a whole request over HTTP and over gRPC.
//!
//! The bounds are the measured counts and some room for other versions of the libraries. A change
//! that allocates a few times for each input, or once for each row, exceeds them.

mod server;

use std::net::TcpStream;

use server::{Http2, Server, http_ask, http_request};
use zillion_bench::example::{MODEL, requests};
use zillion_device::CountingAllocator;
use zillion_serving::Selector;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The rows of the table.
const ROWS: u64 = 1000;

/// The number of requests of a count.
const REQUESTS: usize = 16;

/// The largest numbers of allocations of a request with this number of rows: of the engine, of a
/// call of gRPC, and of a v2 request in JSON.
const MOST: [(usize, [u64; 3]); 2] = [(1, [200, 300, 340]), (1000, [300, 400, 400])];

/// Returns the number of allocations of each of [`REQUESTS`] requests that `work` makes. It is the
/// smallest of several runs, because other threads may allocate during one of them.
fn count(mut work: impl FnMut()) -> u64 {
    let counts = (0..10).map(|_| {
        let before = ALLOCATOR.count();
        work();
        ALLOCATOR.count() - before
    });
    counts.min().expect("there are ten runs").div_ceil(REQUESTS as u64)
}

#[test]
fn a_request_allocates_little() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), ROWS);
    let version = server.domain.host(MODEL).expect("the model").resolve(&Selector::Default);
    let servable = version.expect("a version").servable;
    for (rows, most) in MOST {
        let examples = requests(ROWS, rows, REQUESTS).expect("requests");
        let of_engine = count(|| {
            for example in &examples {
                drop(servable.score(rows, &example.columns).expect("scores"));
            }
        });
        let mut connection = Http2::connect(server.address);
        let mut sizes = [0; REQUESTS];
        let of_grpc = count(|| {
            for (at, example) in examples.iter().enumerate() {
                let message = std::iter::once(&example.message[..]);
                connection.call(message, |_, answer| sizes[at] = answer.len());
            }
        });
        assert!(sizes.iter().all(|&size| size > 4 * rows), "{sizes:?}");
        let mut stream = TcpStream::connect(server.address).expect("a connection");
        let mut buffer = vec![0; 1 << 20];
        let bodies: Vec<Vec<u8>> = examples.iter().map(http_request).collect();
        let of_http = count(|| {
            bodies.iter().for_each(|body| http_ask(&mut stream, body, &mut buffer));
        });
        let counts = [of_engine, of_grpc, of_http];
        for (count, most) in counts.into_iter().zip(most) {
            assert!((1..=most).contains(&count), "{rows} rows: {counts:?}, and at most {most}");
        }
    }
}
