//! Test of a registry in a bucket of moto, an independent S3 server. The Python client boto3 must
//! be able to read the registry. Zillion and boto3 use the same profile of AWS's configuration
//! files.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Python, run};
use crate::harness::csv;
use crate::server::{MODEL, infer_body, instances, output};
use crate::stores::{BUCKET, KEY, Proxy, S3Place, SECRET, storm};

/// A running `moto_server` on its own port. The server is stopped when the value is dropped.
struct Moto {
    child: Child,
    address: SocketAddr,
}

impl Moto {
    fn start(python: &Python) -> Self {
        let mut child = python
            .program("moto_server", &["-H", "127.0.0.1", "-p", "0"])
            // The parts of this test are small.
            .env("S3_UPLOAD_PART_MIN_SIZE", "1")
            .env("PYTHONUNBUFFERED", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("moto_server runs");
        let mut said = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert_ne!(said.read_line(&mut line).expect("stderr is text"), 0, "moto ended");
            if let Some((_, address)) = line.trim().split_once("Running on http://") {
                break address.parse().expect("an address");
            }
        };
        // The server writes one line for each request, and a full pipe would stop the server.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Self { child, address }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn boto3_reads_versions_published_to_moto() {
    let Some(python) = Python::get() else { return };
    let moto = Moto::start(python);
    // A proxy is between Zillion and the server. The objects that boto3 reads were written in spite
    // of many faults.
    let proxy = Proxy::start(moto.address, storm(9, 60));
    let mut s3 = S3Place::new(proxy.address);
    s3.set("ZILLION_STORE_MULTIPART_BYTES", "4000");
    s3.set("ZILLION_STORE_PART_BYTES", "3000");
    let place = &s3.place;
    place.write(
        "credentials",
        &format!("[team]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"),
    );
    place.write("config", "[profile team]\nregion = us-east-1\n");
    let with_profile = |mut command: Command| {
        command.env("AWS_SHARED_CREDENTIALS_FILE", place.path("credentials"));
        command.env("AWS_CONFIG_FILE", place.path("config"));
        command.env("AWS_PROFILE", "team").env_remove("AWS_REGION").env("NO_PROXY", "127.0.0.1");
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        command
    };
    let endpoint = format!("http://{}", moto.address);
    let boto3 = |what: &str, more: &[&str]| {
        let mut arguments = vec![what, &endpoint, BUCKET];
        arguments.extend(more);
        run(&mut with_profile(python.script("s3.py", &arguments)))
    };
    boto3("make", &[]);
    run(&mut with_profile(
        s3.train("run", &["--set", "train.epochs=1", "--set", "publish.every=10"]),
    ));
    let newest = s3.latest();
    let read: Value = serde_json::from_str(&boto3("read", &["of/a/team"])).expect("JSON");
    assert_eq!(read["versions"], newest);
    assert!(read["rows"].as_u64() > Some(100), "{read}");
    assert!(read["in_parts"].as_u64() > Some(3), "{read}");
    // The version in the bucket is served, promoted, rolled back and verified.
    let mut server = s3.serve(&[]);
    assert!(server.becomes_ready());
    server.wait_for(newest);
    let ask = || {
        let body = infer_body(&instances(&csv(7, 50)), &["logits"]);
        let reply = server.post(&format!("/v2/models/{MODEL}/infer"), body.as_bytes());
        assert_eq!(reply.status, 200, "{reply:?}");
        output(&reply, "logits")
    };
    let scores = ask();
    s3.operate(&["model", "promote", "1", "--to", "canary"]);
    s3.operate(&["model", "rollback"]);
    server.wait_for(newest - 1);
    assert_ne!(ask(), scores);
    s3.operate(&["model", "promote", &newest.to_string()]);
    server.wait_for(newest);
    assert_eq!(ask(), scores);
    s3.operate(&["model", "verify"]);
    s3.operate(&["model", "gc", "--keep", "1", "--grace", "0"]);
    assert!(proxy.broken() > 0);
}
