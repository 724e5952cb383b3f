//! A registry of schemas in the process of the test.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde_json::json;

/// A registry of schemas of Protobuf. It ends when the value is dropped.
pub(super) struct Registry {
    pub(super) url: String,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    schemas: Mutex<BTreeMap<u32, String>>,
    /// The number of schemas that were given.
    requests: AtomicUsize,
    /// Whether each request fails.
    is_away: AtomicBool,
    ends: AtomicBool,
}

impl Registry {
    pub(super) fn start(schemas: &[(u32, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(State::default());
        let own = state.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if own.ends.load(Ordering::Relaxed) {
                    return;
                }
                // A client that has gone gets no answer.
                drop(stream.and_then(|stream| own.answer(stream)));
            }
        });
        let registry = Self { url, state, thread: Some(thread) };
        schemas.iter().for_each(|(id, text)| registry.add(*id, text));
        registry
    }

    pub(super) fn add(&self, id: u32, text: &str) {
        let mut schemas = self.state.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        schemas.insert(id, text.to_owned());
    }

    pub(super) fn set_away(&self, is_away: bool) {
        self.state.is_away.store(is_away, Ordering::Relaxed);
    }

    /// Returns the number of schemas that were given.
    pub(super) fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// Ends the registry, and returns the number of schemas that were given.
    pub(super) fn stop(self) -> usize {
        self.requests()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        // The connection wakes the thread up.
        drop(TcpStream::connect(self.url.trim_start_matches("http://")));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let (mut head, mut piece) = (Vec::new(), [0; 1024]);
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                read => head.extend_from_slice(&piece[..read]),
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default();
        let id = path.strip_prefix("/schemas/ids/").and_then(|id| id.parse::<u32>().ok());
        let schemas = self.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        let (status, body) = match id.and_then(|id| schemas.get(&id)) {
            _ if self.is_away.load(Ordering::Relaxed) => (503, json!({})),
            Some(text) => {
                self.requests.fetch_add(1, Ordering::Relaxed);
                (200, json!({ "schema": text, "schemaType": "PROTOBUF" }))
            }
            None => (404, json!({ "error_code": 40403, "message": "Schema not found" })),
        };
        let body = body.to_string();
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }
}
