//! Tests of messages and floods that must not silence the server. While one client sends them, the
//! server must answer other clients.

use tonic::Code;

use super::victim::{Pulse, Victim, predict_body, predict_path, publish};
use super::wire;
use crate::server::MODEL;

/// Returns a field of a Protobuf message with this number and these bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend(bytes);
    field
}

/// Returns a message with the model's name in the field `name`. The field `map` has `count` entries
/// of a map of parameters.
fn parameters(name: u8, map: u8, count: usize) -> Vec<u8> {
    let mut message = field(name, MODEL.as_bytes());
    for index in 0..count {
        // An entry has a key and a value. The value is a message with one flag.
        let key = format!("{index:06x}");
        let entry = [field(1, key.as_bytes()), field(2, &[8, 1])].concat();
        message.extend(field(map, &entry));
    }
    message
}

/// Returns a message of classification with `count` empty examples.
fn examples(count: usize) -> Vec<u8> {
    let list = field(1, &[]).repeat(count);
    let input = field(1, &list);
    [field(1, &field(1, MODEL.as_bytes())), field(2, &input)].concat()
}

#[test]
fn no_message_silences_the_server() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &["--request-ms", "60000", "--receive-ms", "60000"]);
    let entries = 2_000_000;
    let inference = "/inference.GRPCInferenceService";
    let tensorflow = "/tensorflow.serving.PredictionService";
    for (call, message, codes) in [
        (
            format!("{inference}/ModelInfer"),
            parameters(1, 4, entries),
            &[Code::InvalidArgument, Code::ResourceExhausted][..],
        ),
        (
            format!("{inference}/ModelStreamInfer"),
            parameters(1, 4, entries),
            &[Code::Unimplemented, Code::ResourceExhausted],
        ),
        (
            format!("{tensorflow}/Classify"),
            examples(14 << 20),
            &[Code::Unimplemented, Code::ResourceExhausted],
        ),
        // Only the address for administration answers this call.
        (
            format!("{inference}/RepositoryModelLoad"),
            parameters(2, 3, entries),
            &[Code::Unimplemented, Code::PermissionDenied],
        ),
    ] {
        let (admin, public) = (Pulse::start(&victim.admin), Pulse::start(&victim.public));
        let (code, said) = wire::call(&victim.public, &call, &message);
        let (admin, public) = (admin.finish(), public.finish());
        assert!(codes.contains(&code) && said.len() < 1000, "{call}: {code:?} {said}");
        admin.assert_alive(&format!("{call} with {} bytes, administration", message.len()));
        public.assert_alive(&format!("{call} with {} bytes, public", message.len()));
    }
    // The same call goes to the address that answers it. The message is refused because of its
    // size.
    let pulse = Pulse::start(&victim.public);
    let load = format!("{inference}/RepositoryModelLoad");
    let (code, said) = wire::call(&victim.admin, &load, &parameters(2, 3, entries));
    assert_eq!(code, Code::ResourceExhausted, "{said}");
    pulse.finish().assert_alive("RepositoryModelLoad at the address for administration");
    victim.survives();
}

/// Requests a path over four connections, and returns the processor time for each request in
/// seconds.
fn flood(victim: &Victim, address: &str, path: &str) -> f64 {
    const REQUESTS: usize = 100;
    let before = victim.cpu();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (mut kept, line) = (wire::Kept::open(address), format!("GET {path}"));
            std::thread::spawn(move || {
                for _ in 0..REQUESTS {
                    let reply = kept.ask(&line, b"").expect("an answer");
                    assert_eq!(reply.status, 200, "{reply:?}");
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("each request has an answer"));
    (victim.cpu() - before) / (4 * REQUESTS) as f64
}

#[test]
fn the_description_of_the_server_is_cheap() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &[]);
    // The server only copies a document to the socket. In comparison, it builds the metadata of a
    // model for each request, although the metadata has a hundredth of the size.
    let metadata = flood(&victim, &victim.public, &format!("/v2/models/{MODEL}"));
    let pulse = Pulse::start(&victim.admin);
    let description = flood(&victim, &victim.public, "/openapi.json");
    pulse.finish().assert_alive("a flood of /openapi.json");
    eprintln!("CPU of a request: /openapi.json {description:.6} s, metadata {metadata:.6} s");
    assert!(description <= 8.0 * metadata + 3e-4, "{description} s, metadata {metadata} s");
    let body = predict_body(&[&[1]]);
    let reply = wire::post(&victim.public, &predict_path(), "", &body).expect("an answer");
    assert_eq!(reply.status, 200, "{reply:?}");
    victim.survives();
}
