//! A minimal collector that receives traces by OTLP over HTTP on a free port.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use prost::Message;

/// A span that the collector received.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) service: String,
    pub(super) name: String,
    pub(super) trace: String,
    pub(super) id: String,
    /// The id of the parent span. The text is empty if the span has no parent.
    pub(super) parent: String,
    pub(super) state: String,
    pub(super) kind: i32,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// A running collector. It stops when the value is dropped.
pub(super) struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (spans, stop) = (Arc::<Mutex<Vec<Span>>>::default(), Arc::<AtomicBool>::default());
        let (kept, stopped) = (spans.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // There is only one exporter at a time. A process closes its connection when it
                // ends.
                receive(stream.expect("a connection"), &kept);
            }
        });
        Self { address, spans, stop, thread: Some(thread) }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all spans that the collector has received.
    pub(super) fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The connection wakes the thread, which then sees that it must end.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, spans are missing and the test fails.
            let _ = thread.join();
        }
    }
}

/// Reads the requests of a connection, stores their spans and sends the responses.
fn receive(stream: TcpStream, spans: &Mutex<Vec<Span>>) {
    let mut answers = stream.try_clone().expect("a second handle");
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
        let lower = head.to_ascii_lowercase();
        assert!(lower.contains("content-type: application/x-protobuf"), "{head}");
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.and_then(|length| length.trim().parse().ok()).expect("a length");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("the whole body");
        let request = Request::decode(&body[..]).expect("a request of OTLP");
        spans.lock().unwrap_or_else(PoisonError::into_inner).extend(request.spans());
        let answer =
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
        answers.write_all(answer.as_bytes()).expect("the exporter reads");
    }
}

/// The fields of `ExportTraceServiceRequest` that the tests read. The numbers are those of OTLP.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<WireSpan>,
}

#[derive(Clone, PartialEq, Message)]
struct WireSpan {
    #[prost(bytes = "vec", tag = "1")]
    trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    id: Vec<u8>,
    #[prost(string, tag = "3")]
    state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start: u64,
    #[prost(fixed64, tag = "8")]
    end: u64,
}

impl Request {
    fn spans(self) -> Vec<Span> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut all = Vec::new();
        for resource in self.resources {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let service = attributes.into_iter().find(|pair| pair.key == "service.name");
            let service = service.and_then(|pair| pair.value?.text).unwrap_or_default();
            for span in resource.scopes.into_iter().flat_map(|scope| scope.spans) {
                all.push(Span {
                    service: service.clone(),
                    name: span.name,
                    trace: hex(&span.trace),
                    id: hex(&span.id),
                    parent: hex(&span.parent),
                    state: span.state,
                    kind: span.kind,
                    start: span.start,
                    end: span.end,
                });
            }
        }
        all
    }
}
