//! A training process of the real binary that runs until it is stopped, and the metrics of this
//! process.

use std::fs::File;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::harness::Workplace;
use crate::server::PATIENCE;

/// A running `zillion train --metrics` on a free port. The process is killed when the value is
/// dropped.
pub(crate) struct Trainer {
    child: Child,
    log: std::path::PathBuf,
    /// The address of the metrics, as `127.0.0.1:PORT`.
    pub(crate) address: String,
}

impl Trainer {
    /// Starts the job of the workplace, and waits until the metrics are served.
    pub(crate) fn start(place: &Workplace, output: &str, more: &[&str]) -> Self {
        let log = place.path("trainer.log");
        let mut arguments = vec!["--metrics", "127.0.0.1:0"];
        arguments.extend(more);
        let child = place
            .train(output, &arguments)
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a log file"))
            .spawn()
            .expect("the binary runs");
        let mut trainer = Self { child, log, address: String::new() };
        let line = trainer.wait_for_line("metrics on http://");
        let address = line.trim_start_matches("metrics on http://").trim_end_matches("/metrics");
        trainer.address = address.to_owned();
        trainer
    }

    /// Returns the output that the process has written so far.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log can be read")
    }

    /// Waits for an output line that begins with this text, and returns the line.
    pub(crate) fn wait_for_line(&mut self, beginning: &str) -> String {
        let began = Instant::now();
        loop {
            let said = self.output();
            let whole = said.rfind('\n').map_or("", |end| &said[..end]);
            if let Some(line) = whole.lines().find(|line| line.starts_with(beginning)) {
                return line.to_owned();
            }
            let running = self.child.try_wait().expect("our own child can be asked").is_none();
            assert!(running, "the run has ended:\n{said}");
            assert!(began.elapsed() < PATIENCE, "no line begins with {beginning:?}:\n{said}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends SIGTERM and returns the exit status.
    pub(crate) fn terminate(&mut self) -> std::process::ExitStatus {
        let pid = self.child.id().to_string();
        std::process::Command::new("kill").arg(&pid).status().expect("`kill` runs");
        self.child.wait().expect("our own child can be waited for")
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
