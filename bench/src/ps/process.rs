//! A parameter server in a separate process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use zillion_device::machine::process::{ProcessStatus, cpu_seconds};
use zillion_ps::{ClientTls, ClientTlsFiles, ServerState, server_state};

/// The number of connections that the server takes besides the idle ones.
const OTHER_CONNECTIONS: usize = 4096;
/// The time within which the server must give its state.
const DEADLINE: Duration = Duration::from_secs(60);

/// A certificate of the benchmark, and the settings of clients that trust it.
pub(super) struct Encryption {
    certificate: PathBuf,
    key: PathBuf,
    client: ClientTls,
}

impl Encryption {
    /// Makes a certificate, and writes it and its key into a folder.
    pub(super) fn make(folder: &Path) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])
            .context("cannot make a certificate for the benchmark")?;
        let (certificate, key) = (folder.join("server.pem"), folder.join("server.key"));
        fs::write(&certificate, made.cert.pem())?;
        fs::write(&key, made.signing_key.serialize_pem())?;
        let files = ClientTlsFiles { authority: certificate.clone(), identity: None };
        Ok(Self { certificate, key, client: ClientTls::open(files)? })
    }
}

/// A running `zillion ps serve`. It is stopped when this value is dropped.
pub(super) struct ParameterServer {
    child: Child,
    address: String,
    encryption: Option<Encryption>,
}

impl ParameterServer {
    /// Starts a server on a free port.
    pub(super) fn start(
        store: &Path,
        threads: NonZeroUsize,
        idle: usize,
        encryption: Option<Encryption>,
    ) -> Result<Self> {
        Self::launch("127.0.0.1:0", store, threads, idle, encryption)
    }

    /// Starts a server on the address of another one, which has ended.
    pub(super) fn start_at(
        address: &str,
        store: &Path,
        threads: NonZeroUsize,
        idle: usize,
    ) -> Result<Self> {
        Self::launch(address, store, threads, idle, None)
    }

    fn launch(
        address: &str,
        store: &Path,
        threads: NonZeroUsize,
        idle: usize,
        encryption: Option<Encryption>,
    ) -> Result<Self> {
        let program = zillion_console::program().context("cannot find the path of this program")?;
        let mut command = Command::new(program);
        command.args(["ps", "serve", "--listen", address, "--store"]).arg(store);
        if let Some(Encryption { certificate, key, .. }) = &encryption {
            command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
        }
        let mut child = command
            .env("ZILLION_LOG", "warn")
            .arg(format!("--threads={threads}"))
            .arg(format!("--max-connections={}", idle + OTHER_CONNECTIONS))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C must reach only this program. This program then stops the server by a signal.
            .process_group(0)
            .spawn()
            .context("cannot start the server")?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let address = line.trim().strip_prefix("listening on ").unwrap_or_default().to_owned();
        let server = Self { child, address, encryption };
        if server.address.is_empty() {
            bail!("the server did not start; its output has the reason");
        }
        Ok(server)
    }

    /// Returns the address that the server listens on.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the TLS settings of clients, or `None` if connections are not encrypted.
    pub(super) fn tls(&self) -> Option<&ClientTls> {
        self.encryption.as_ref().map(|encryption| &encryption.client)
    }

    /// Stops the server by SIGKILL. Returns when the process has ended.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot stop the server")?;
        self.child.wait().context("cannot wait for the end of the server")?;
        Ok(())
    }

    /// Returns the resident memory of the server in MiB.
    pub(super) fn resident_mib(&self) -> Result<f64> {
        let status = ProcessStatus::read(self.child.id());
        let status = status.context("cannot read the memory of the server")?;
        Ok(status.resident.unwrap_or_default() as f64 / f64::from(1 << 20))
    }

    /// Returns the processor time that the server has used.
    pub(super) fn cpu_seconds(&self) -> Option<f64> {
        cpu_seconds(self.child.id())
    }

    /// Asks the server for its state.
    pub(super) fn state(&self) -> Result<ServerState> {
        Ok(server_state(&self.address, None, self.tls(), DEADLINE)?)
    }
}

impl Drop for ParameterServer {
    fn drop(&mut self) {
        // SIGTERM is sent by the command `kill`, because the standard library can only send
        // SIGKILL.
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let signalled = Command::new("kill").arg(self.child.id().to_string()).status();
        if !signalled.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
