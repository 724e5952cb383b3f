//! A server process of the real binary, and a client that can send invalid requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Workplace, zillion};

/// The time limit of every operation of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The folder of the registry in a workplace.
pub(crate) const REGISTRY: &str = "registry";
pub(crate) const MODEL: &str = "e2e";

/// A running `zillion serve` on a free port. The server is stopped when the value is dropped.
pub(crate) struct Server {
    child: Child,
    /// The address for HTTP, as `127.0.0.1:PORT`.
    pub(crate) address: String,
    /// The address for gRPC, if `--grpc` was given.
    pub(crate) grpc: Option<String>,
}

/// The answer to an HTTP request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the message of an error response.
    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

impl Server {
    /// Starts a server of the workplace's registry and waits until it listens.
    pub(crate) fn start(place: &Workplace, more: &[&str]) -> Self {
        Self::try_start(place, more, &[]).expect("the server listens")
    }

    /// Starts a server with these environment variables. Returns `None` if the process ends before
    /// it listens.
    pub(crate) fn try_start(
        place: &Workplace,
        more: &[&str],
        environment: &[(&str, &str)],
    ) -> Option<Self> {
        let registry = place.text(REGISTRY);
        Self::launch(place, &registry, more, |mut command| {
            command.envs(environment.iter().copied());
            command
        })
    }

    /// Starts a server that gets the names of its models only from the arguments.
    pub(crate) fn configured(
        place: &Workplace,
        more: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = Self::command(place, &place.text(REGISTRY), more);
        command.envs(environment.iter().copied());
        Self::adopt(command.spawn(), more.contains(&"--grpc")).expect("the server listens")
    }

    /// Starts a server of any registry. The function `last_word` can change the command before the
    /// start. Returns `None` if the process ends before it listens.
    pub(crate) fn launch(
        place: &Workplace,
        registry: &str,
        more: &[&str],
        last_word: impl FnOnce(Command) -> Command,
    ) -> Option<Self> {
        let mut arguments = vec!["--model", MODEL];
        arguments.extend(more);
        let spawned = last_word(Self::command(place, registry, &arguments)).spawn();
        Self::adopt(spawned, more.contains(&"--grpc"))
    }

    fn command(place: &Workplace, registry: &str, more: &[&str]) -> Command {
        let cache = place.text("cache");
        let mut arguments = vec!["serve", "--registry", registry];
        arguments.extend(["--http", "127.0.0.1:0", "--threads", "2", "--poll-ms", "20"]);
        if !more.contains(&"--cache") {
            arguments.extend(["--cache", &cache]);
        }
        arguments.extend(more);
        let log = std::fs::File::create(place.path("server.log")).expect("a log file");
        let mut command = zillion(&arguments);
        command.stdout(Stdio::piped()).stderr(log);
        command
    }

    /// Reads the addresses of a started server from its stdout. Also reads the gRPC address if
    /// `has_grpc` is true. Returns `None` if the process ends before it listens.
    pub(crate) fn adopt(child: std::io::Result<Child>, has_grpc: bool) -> Option<Self> {
        let mut child = child.expect("the binary runs");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut line).expect("stdout is text");
        match line.trim().strip_prefix("listening on http://") {
            Some(address) => {
                let grpc = has_grpc.then(|| {
                    let mut line = String::new();
                    stdout.read_line(&mut line).expect("stdout is text");
                    let address = line.trim().strip_prefix("grpc on ");
                    address.unwrap_or_else(|| panic!("no second address: {line:?}")).to_owned()
                });
                Some(Self { child, address: address.to_owned(), grpc })
            }
            None => {
                child.wait().expect("our own child can be waited for");
                None
            }
        }
    }

    /// Waits until the server is ready. Returns `false` if the process ends first.
    pub(crate) fn becomes_ready(&mut self) -> bool {
        let began = Instant::now();
        while self.is_running() {
            if self.try_get("/v2/health/ready").is_ok_and(|reply| reply.status == 200) {
                return true;
            }
            assert!(began.elapsed() < PATIENCE, "the server does not become ready");
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Waits until the version that answers has this number of layers. Returns `false` if the
    /// server ends before.
    pub(crate) fn merges_to(&mut self, layers: usize) -> bool {
        let wanted = format!("zillion_serving_layers{{model=\"{MODEL}\"}} {layers}\n");
        let began = Instant::now();
        while self.is_running() {
            if self.try_get("/metrics").is_ok_and(|reply| reply.body.contains(&wanted)) {
                return true;
            }
            assert!(began.elapsed() < PATIENCE, "the layers are not merged to {layers}");
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Waits until this version answers requests that do not name a version.
    pub(crate) fn wait_for(&self, version: u64) {
        let wanted = format!("zillion_serving_current_version{{model=\"{MODEL}\"}} {version}\n");
        let began = Instant::now();
        loop {
            let metrics = self.get("/metrics").body;
            if metrics.contains(&wanted) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "version {version} does not come:\n{metrics}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our own child can be asked").is_none()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("our own child can be killed");
        self.child.wait().expect("our own child can be waited for");
    }

    /// Sends the signal with this name, for example `TERM` or `HUP`.
    pub(crate) fn signal(&self, name: &str) {
        let (signal, pid) = (format!("-{name}"), self.child.id().to_string());
        Command::new("kill").args([signal, pid]).status().expect("`kill` runs");
    }

    /// Sends SIGTERM and returns the exit status.
    pub(crate) fn terminate(&mut self) -> std::process::ExitStatus {
        // If the server was stopped in another way, its process may have ended, and another process
        // may have the same id.
        if self.is_running() {
            self.signal("TERM");
        }
        self.child.wait().expect("our own child can be waited for")
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.try_get(path).expect("the server answers")
    }

    fn try_get(&self, path: &str) -> std::io::Result<Reply> {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), b"")
    }

    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Reply {
        self.try_post(path, body).expect("the server answers")
    }

    pub(crate) fn try_post(&self, path: &str, body: &[u8]) -> std::io::Result<Reply> {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        self.send(&head, body)
    }

    /// Sends the bytes of a request without any change, and reads until the server closes the
    /// connection.
    pub(crate) fn send(&self, head: &str, body: &[u8]) -> std::io::Result<Reply> {
        Self::over(TcpStream::connect(&self.address)?, head, body)
    }

    /// Sends the bytes of a request over an open connection, and reads until the server closes the
    /// connection.
    pub(crate) fn over(mut stream: TcpStream, head: &str, body: &[u8]) -> std::io::Result<Reply> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(head.as_bytes())?;
        // A server that refuses a body may close the connection before it has received all bytes.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        // An answer that arrives before a reset counts.
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer).into_owned();
        let cut = || std::io::Error::other(format!("no whole answer: {text:?}"));
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(cut)?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(cut)?;
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        assert!(!chunked, "this client reads no chunks: {head}");
        Ok(Reply { status, head: head.to_owned(), body: body.to_owned() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `zillion <command> --registry … --model …`, asserts that it succeeds, and returns its
/// stdout.
pub(crate) fn operate(place: &Workplace, arguments: &[&str]) -> String {
    let output = operator(place, arguments).output().expect("the binary runs");
    let said = crate::harness::stderr(&output);
    assert!(output.status.success(), "{arguments:?}\n{said}");
    crate::harness::stdout(&output)
}

/// Returns the command `zillion <command> --registry … --model …`.
pub(crate) fn operator(place: &Workplace, arguments: &[&str]) -> Command {
    let registry = place.text(REGISTRY);
    let mut all = arguments.to_vec();
    all.extend(["--registry", &registry, "--model", MODEL]);
    zillion(&all)
}

/// Converts generated CSV text to rows as JSON objects, in the form that requests have.
pub(crate) fn instances(csv: &str) -> Vec<Value> {
    csv.lines()
        .skip(1)
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let tags: Vec<&str> = cells[2].split('|').filter(|tag| !tag.is_empty()).collect();
            let number = |text: &str| text.parse::<f64>().map_or(Value::Null, Value::from);
            serde_json::json!({
                "user": cells[0],
                "item": cells[1].parse::<i64>().expect("an id"),
                "tags": tags,
                "price": number(cells[3]),
                "age": number(cells[4]),
            })
        })
        .collect()
}

/// Returns the body of a request in the v2 protocol for these rows.
pub(crate) fn infer_body(instances: &[Value], outputs: &[&str]) -> String {
    let column =
        |name: &str| -> Vec<Value> { instances.iter().map(|row| row[name].clone()).collect() };
    let flat: Vec<Value> = column("tags")
        .iter()
        .flat_map(|tags| tags.as_array().cloned().unwrap_or_default())
        .collect();
    let lengths: Vec<usize> =
        column("tags").iter().map(|tags| tags.as_array().map_or(0, Vec::len)).collect();
    let rows = instances.len();
    let input = |name: &str, datatype: &str| serde_json::json!({ "name": name, "shape": [rows], "datatype": datatype, "data": column(name) });
    let outputs: Vec<Value> =
        outputs.iter().map(|name| serde_json::json!({ "name": name })).collect();
    serde_json::json!({
        "inputs": [
            input("user", "BYTES"),
            input("item", "INT64"),
            { "name": "tags", "shape": [flat.len()], "datatype": "BYTES", "data": flat },
            { "name": "tags__lengths", "shape": [rows], "datatype": "INT32", "data": lengths },
            input("price", "FP64"),
            input("age", "FP64"),
        ],
        "outputs": outputs,
    })
    .to_string()
}

/// Returns the values of an output in a v2 response.
pub(crate) fn output(reply: &Reply, name: &str) -> Vec<f32> {
    let answer = reply.json();
    let outputs = answer["outputs"].as_array().unwrap_or_else(|| panic!("{reply:?}"));
    let output = outputs.iter().find(|output| output["name"] == name);
    floats(&output.unwrap_or_else(|| panic!("no output {name}: {reply:?}"))["data"])
}

/// Converts a JSON list to floats.
pub(crate) fn floats(value: &Value) -> Vec<f32> {
    let list = value.as_array().unwrap_or_else(|| panic!("no list: {value}"));
    list.iter().map(|x| x.as_f64().unwrap_or_else(|| panic!("no number: {x}")) as f32).collect()
}
