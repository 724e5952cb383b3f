//! The targets of the crate `stream`: answers of a registry of schemas, and the schemas that a run
//! keeps.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{LazyLock, Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_64;
use zillion_device::Files;
use zillion_stream::{
    FoundSchema, RegistrySettings, SchemaRegistry, StoredReference, StoredSchema,
};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 2] = [&REGISTRY_ANSWERS, &STORED_SCHEMAS];

/// The text between the answer for a schema and the answer for all schemas to which it refers.
const NEXT: &str = "\n---\n";

/// The bodies that the registry answers: for a schema, and for a reference.
static BODIES: Mutex<[Vec<u8>; 2]> = Mutex::new([Vec::new(), Vec::new()]);

/// The client of answers of a registry. The client asks a server of this process over HTTP, as it
/// asks any registry, and follows the references of the answer.
pub const REGISTRY_ANSWERS: Target = Target {
    name: "registry_answers",
    read: |bytes| {
        static CLIENT: LazyLock<Mutex<SchemaRegistry>> = LazyLock::new(|| {
            let settings = RegistrySettings {
                outage_ms: 10,
                ..RegistrySettings::new(format!("http://{}", start_registry()))
            };
            Mutex::new(SchemaRegistry::open(settings).expect("the settings are valid"))
        });
        let client = CLIENT.lock().unwrap_or_else(PoisonError::into_inner);
        let at = bytes.windows(NEXT.len()).position(|part| part == NEXT.as_bytes());
        let at = at.unwrap_or(bytes.len());
        let behind = bytes.get(at + NEXT.len()..).unwrap_or_default();
        *BODIES.lock().unwrap_or_else(PoisonError::into_inner) =
            [bytes[..at].to_vec(), behind.to_vec()];
        matches!(client.find(1, &|| false), Ok(FoundSchema::Found(_)))
    },
    seeds: || {
        let reference = r#"{"name": "city.proto", "subject": "city", "version": 3}"#;
        let main = format!(
            r#"{{"schema": "message Row {{}}", "schemaType": "PROTOBUF", "references": [{reference}]}}"#
        );
        let city = r#"{"subject": "city", "version": 3, "id": 2, "schema": "message City {}"}"#;
        vec![format!("{main}{NEXT}{city}").into_bytes(), br#"{"schema": "\"long\""}"#.to_vec()]
    },
};

/// The reader of a schema that a run keeps. Its file has the name that belongs to its bytes.
pub const STORED_SCHEMAS: Target = Target {
    name: "stored_schemas",
    read: |bytes| {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let hash = xxh3_64(bytes);
        let path = folder.path().join(format!("{hash:016x}.json"));
        fs::write(path, bytes).expect("a file can be written");
        StoredSchema::load(folder.path(), hash).is_ok()
    },
    seeds: || {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let schema = StoredSchema {
            language: "PROTOBUF".to_owned(),
            text: "message Row {}".to_owned(),
            references: vec![StoredReference {
                name: "city.proto".to_owned(),
                text: "message City {}".to_owned(),
            }],
        };
        let hash = schema.save(&Files::new(), folder.path()).expect("a schema can be saved");
        let path = folder.path().join(format!("{hash:016x}.json"));
        vec![fs::read(path).expect("the schema was saved")]
    },
};

/// Starts the server of the answers, which runs until the process ends.
fn start_registry() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        // A client that closes its connection early has read enough.
        listener.incoming().flatten().for_each(|stream| drop(answer(stream)));
    });
    address
}

/// Reads the head of one request and answers it.
fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(&stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let which = usize::from(request.contains("/subjects/"));
    let body = BODIES.lock().unwrap_or_else(PoisonError::into_inner)[which].clone();
    let length = body.len();
    write!(&stream, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")?;
    (&stream).write_all(&body)
}
