//! A client that sends any bytes, also wrong ones.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zillion_rows::{InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

use super::proxy::{HEADER, PATIENCE, TRAILER, op, read_frame};

/// The number of weights of a row.
pub(crate) const DIM: usize = 4;

/// The fields of a header.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    pub(crate) op: u16,
    pub(crate) generation: u64,
    pub(crate) session: u64,
    pub(crate) number: u64,
    pub(crate) step: u64,
}

/// Makes a frame with right checksums.
pub(crate) fn frame(head: Head, body: &[u8]) -> Vec<u8> {
    let mut frame = header(head, body.len() as u64);
    frame.extend(body);
    frame.extend(xxh3_64_with_seed(body, head.number).to_le_bytes());
    frame
}

/// Makes a header with a right checksum for a body of any length.
pub(crate) fn header(head: Head, body: u64) -> Vec<u8> {
    let mut bytes = b"ZPS1".to_vec();
    bytes.extend(head.op.to_le_bytes());
    bytes.extend([0, 0]);
    for field in [head.generation, head.session, head.number, 0, head.step, body] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(xxh3_64_with_seed(&bytes, 0x5a50_5348).to_le_bytes());
    assert_eq!(bytes.len(), HEADER);
    bytes
}

/// Opens a connection whose reads do not hang.
pub(crate) fn connect(server: &str) -> TcpStream {
    let stream = TcpStream::connect(server).expect("the server listens");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// Sends bytes, and returns everything that the server sends until it ends the connection.
pub(crate) fn send_and_read_all(server: &str, bytes: &[u8]) -> String {
    let mut stream = connect(server);
    // The server may end the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(e) => panic!("the server does not end the connection: {e}"),
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The first message of a connection.
pub(crate) fn hello(run: &str) -> Vec<u8> {
    json!({ "wire": 3, "program": "test", "run": run, "trainer": 0 }).to_string().into_bytes()
}

/// The only trainer of a run with one table.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    head: Head,
}

/// The answer to a question: the body, or the text of the error.
pub(crate) type Answer = Result<Vec<u8>, String>;

impl Raw {
    /// Begins a run on a server that owns all slots.
    pub(crate) fn open(server: &str, run: &str) -> Self {
        let head = Head { generation: 1, session: 77, ..Head::default() };
        let mut raw = Self { stream: connect(server), head };
        raw.ask_as(Head { op: op::HELLO, session: 77, ..Head::default() }, &hello(run)).unwrap();
        let initial = InitializerSpec::Uniform { low: -1.0, high: 1.0 };
        let vector = SegmentSpec::new("vector", DIM, initial, OptimizerSpec::Sgd { lr: 0.5 });
        let open: Value = json!({
            "run": run, "job": "job", "generation": 1, "client": 5, "trainers": 1,
            "slots": [0, 4096], "tables": [TableSpec::new("items", vec![vector])],
            "follows_checkpoints": false,
        });
        let opened = raw.ask_as(Head { op: op::OPEN, ..head }, open.to_string().as_bytes());
        opened.unwrap();
        raw
    }

    /// Sends a frame of the session, and waits for its answer.
    pub(crate) fn ask(&mut self, op: u16, step: u64, body: &[u8]) -> Answer {
        self.send(op, step, body);
        self.receive()
    }

    /// Sends a frame of the session.
    pub(crate) fn send(&mut self, op: u16, step: u64, body: &[u8]) {
        self.head.number += 1;
        let frame = frame(Head { op, step, ..self.head }, body);
        self.stream.write_all(&frame).unwrap();
    }

    fn ask_as(&mut self, head: Head, body: &[u8]) -> Answer {
        self.stream.write_all(&frame(head, body)).unwrap();
        self.receive()
    }

    fn receive(&mut self) -> Answer {
        let answer = read_frame(&mut self.stream).unwrap();
        let body = &answer[HEADER..answer.len() - TRAILER];
        match u16::from_le_bytes([answer[4], answer[5]]) {
            op::ANSWER => Ok(body.to_vec()),
            op::FAILURE => Err(String::from_utf8_lossy(body).into_owned()),
            other => panic!("an answer has the operation {other}"),
        }
    }

    /// Reads the rows of keys as evaluation does.
    pub(crate) fn lookup(&mut self, keys: &[u64]) -> Vec<f32> {
        let body = self.ask(op::LOOKUP, 0, &plan(0, keys)).unwrap();
        // The number of missing keys of the table, the mark of counts, and the form of the rows
        // come first.
        let rows = &body[10..];
        assert_eq!(rows.len(), keys.len() * DIM * 4);
        rows.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

/// Makes the plan of one table.
pub(crate) fn plan(table: u16, keys: &[u64]) -> Vec<u8> {
    let mut body = 1u64.to_le_bytes().to_vec();
    body.extend(1u16.to_le_bytes());
    body.extend(table.to_le_bytes());
    body.push(0);
    body.extend((keys.len() as u32).to_le_bytes());
    keys.iter().for_each(|key| body.extend(key.to_le_bytes()));
    body
}

/// Makes the body of a pull.
pub(crate) fn pull(plan: &[u8]) -> Vec<u8> {
    let mut body = vec![0];
    body.extend(0u64.to_le_bytes());
    body.push(1);
    body.extend(plan);
    body
}

/// Makes the body of a push whose gradients wait for the end of the step.
pub(crate) fn push(plan: &[u8], gradients: &[f32]) -> Vec<u8> {
    let mut body = 1f32.to_le_bytes().to_vec();
    body.push(1);
    body.extend(0u64.to_le_bytes());
    body.push(1);
    body.extend(plan);
    // The gradients have no use, and take four bytes each.
    body.extend([0, 0]);
    gradients.iter().for_each(|value| body.extend(value.to_le_bytes()));
    body
}

/// Makes the body of the end of a step.
pub(crate) fn apply() -> Vec<u8> {
    [1f32.to_le_bytes(), 1f32.to_le_bytes()].concat()
}
