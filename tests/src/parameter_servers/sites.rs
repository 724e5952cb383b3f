//! Places in which servers keep their files, a shared folder or a bucket, and the processes that
//! work there.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::runs::{TrainerProcess, replaced, small_job};
use super::servers::ServerProcess;
use crate::harness::Workplace;
use crate::stores::{BUCKET, S3Place, S3Server};

/// The URL of the bucket of the servers.
const BUCKET_STORE: &str = "s3://models/of/a/team";

/// A folder with a small job, and the store of its servers.
pub(crate) struct Site {
    s3: S3Place,
    is_bucket: bool,
}

impl Site {
    /// Makes a site whose servers share its folder.
    pub(crate) fn folder() -> Self {
        Self::new(S3Place::new(([127, 0, 0, 1], 9).into()), false)
    }

    /// Makes a site whose servers use a bucket.
    pub(crate) fn bucket(address: std::net::SocketAddr) -> Self {
        Self::new(S3Place::new(address), true)
    }

    /// Gives the requests to the bucket more time, for large files.
    pub(crate) fn with_long_requests(mut self) -> Self {
        self.s3.set("ZILLION_STORE_REQUEST_MS", "60000");
        self
    }

    fn new(s3: S3Place, is_bucket: bool) -> Self {
        s3.place.write("job.toml", &small_job());
        Self { s3, is_bucket }
    }

    /// Replaces parts of the text of the small job.
    pub(crate) fn change_job(&self, changes: &[(&str, &str)]) {
        self.place().write("job.toml", &replaced(&small_job(), changes));
    }

    /// Returns the folder with the job and the data.
    pub(crate) fn place(&self) -> &Workplace {
        &self.s3.place
    }

    /// Adds the environment variables of the bucket to a command.
    pub(crate) fn command(&self, command: Command) -> Command {
        self.s3.command(command)
    }

    /// Returns the store as servers and trainers name it.
    pub(crate) fn store(&self) -> PathBuf {
        match self.is_bucket {
            true => PathBuf::from(BUCKET_STORE),
            false => self.place().path(""),
        }
    }

    /// Starts a server at an address, with a failpoint if one is given.
    pub(crate) fn server(&self, address: &str, failpoint: Option<&str>) -> ServerProcess {
        ServerProcess::launch(&self.store(), address, &[], |command| {
            let mut command = self.command(command);
            command.envs(failpoint.map(|failpoint| ("ZILLION_FAILPOINT", failpoint)));
            command
        })
    }

    /// Starts several servers at free ports.
    pub(crate) fn servers(&self, count: usize) -> Vec<ServerProcess> {
        (0..count).map(|_| self.server("127.0.0.1:0", None)).collect()
    }

    /// Returns the command of a trainer.
    pub(crate) fn train(
        &self,
        output: &str,
        servers: &[String],
        (index, count): (usize, usize),
        more: &[&str],
    ) -> Command {
        let (servers, number) = (servers.join(","), format!("{index}/{count}"));
        let store = self.store().display().to_string();
        let usual = ["--ps", &servers, "--ps-store", &store, "--trainer", &number, "--json"];
        let patience = ["--set", "ps.wait_seconds=40", "--set", "ps.deadline_seconds=5"];
        let often = ["--set", "ps.rewinds=100"];
        let arguments = [&usual[..], &patience, &often, more].concat();
        self.command(self.place().train(output, &arguments))
    }

    /// Starts all trainers of a run. Their copies of files are in folders of their own.
    pub(crate) fn start_all(
        &self,
        output: &str,
        servers: &[String],
        trainers: usize,
        more: &[&str],
    ) -> Vec<TrainerProcess> {
        let start = |index| {
            let command = self.train(output, servers, (index, trainers), more);
            TrainerProcess::spawn(self.place(), command)
        };
        (0..trainers).map(start).collect()
    }

    /// Trains with several trainers, and returns their reports.
    pub(crate) fn train_over(
        &self,
        output: &str,
        servers: &[String],
        trainers: usize,
        more: &[&str],
    ) -> Vec<Value> {
        let processes = self.start_all(output, servers, trainers, more);
        processes.into_iter().map(|process| process.end().succeeded()).collect()
    }

    /// Returns the folder in which the server of the bucket keeps the checkpoints of a run.
    pub(crate) fn checkpoints_in(&self, server: &S3Server, run: &str) -> PathBuf {
        let prefix = BUCKET_STORE.trim_start_matches("s3://").trim_start_matches(BUCKET);
        server.bucket().join(prefix.trim_start_matches('/')).join(run).join("checkpoints")
    }
}

/// Returns the folders of checkpoints in which there is a manifest. Asserts that each of them has
/// every file that its manifest lists, with the right size.
pub(crate) fn whole_checkpoints(checkpoints: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(checkpoints) else { return Vec::new() };
    let folders = entries.map(|entry| entry.expect("the folder can be listed").path());
    let mut whole = Vec::new();
    for folder in folders.filter(|folder| folder.join("MANIFEST").exists()) {
        let text = std::fs::read_to_string(folder.join("MANIFEST")).expect("a manifest is text");
        let (_, body) = text.split_once('\n').expect("the first line has the hash");
        let manifest: Value = serde_json::from_str(body).expect("the manifest is JSON");
        let mut files = Vec::new();
        collect_files(&manifest["tables"], &mut files);
        files.push(("dense.safetensors".to_owned(), manifest["dense"]["bytes"].clone()));
        assert!(files.len() > 4, "{manifest}");
        for (file, bytes) in files {
            let found = std::fs::metadata(folder.join(&file)).map(|found| found.len());
            assert_eq!(found.ok(), bytes.as_u64(), "{file} of {}", folder.display());
        }
        whole.push(folder);
    }
    whole.sort();
    whole
}

/// Collects the names and the sizes of all files in a part of a manifest.
fn collect_files(value: &Value, files: &mut Vec<(String, Value)>) {
    if let (Some(file), Some(_)) = (value["file"].as_str(), value["bytes"].as_u64()) {
        files.push((file.to_owned(), value["bytes"].clone()));
    }
    let below = value.as_array().into_iter().flatten();
    let members = value.as_object().into_iter().flat_map(|object| object.values());
    below.chain(members).for_each(|value| collect_files(value, files));
}
