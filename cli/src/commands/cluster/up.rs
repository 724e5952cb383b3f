//! `zillion cluster up`: starts the members of a cluster, watches them, and ends them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use zillion_console::job_file;
use zillion_store::is_bucket;
use zillion_trainer::Job;

use super::member::{Member, say};
use crate::args::ClusterUpArgs;

/// The interval between two looks at the processes.
const LOOK: Duration = Duration::from_millis(50);
/// The time within which the other trainers must end by themselves after trainer 0 has.
const FINISH: Duration = Duration::from_secs(60);
/// The time within which a member must end after a signal, before it gets another one.
const GRACE: Duration = Duration::from_secs(5);
/// The exit code of a trainer that was killed.
const KILLED: u8 = 1;

pub(crate) fn run(args: &ClusterUpArgs) -> Result<ExitCode> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("cannot listen for signals")?;
    let job = job_file::load_job(&args.job.job, &args.job.set)?;
    let place = Place::new(args.store.as_deref(), &job)?;
    let etcd: Vec<String> = match args.etcd.is_empty() {
        true => Vec::new(),
        false => ["--etcd", &args.etcd.join(","), "--etcd-prefix", &args.etcd_prefix]
            .map(str::to_owned)
            .to_vec(),
    };
    let mut servers = Vec::new();
    let mut addresses = Vec::new();
    for index in 0..args.servers.get() {
        let (server, address) = Member::server(index, &place.store, &place.logs, &etcd)?;
        say(&format!(
            "server {index}: {address}, process {}",
            server.process().unwrap_or_default()
        ));
        servers.push(server);
        addresses.push(address);
    }
    let mut trainers = Vec::new();
    for index in 0..args.trainers.get() {
        let again = place.trainer(index, args, &addresses, true);
        let first = place.trainer(index, args, &addresses, args.resume);
        let trainer = Member::trainer(index, &first, again, &place.logs)?;
        say(&format!("trainer {index}: process {}", trainer.process().unwrap_or_default()));
        trainers.push(trainer);
    }
    say(&format!("logs: {}", place.logs.display()));
    let code = watch(&mut trainers, &mut servers, &mut signals)?;
    end(&mut servers)?;
    Ok(code)
}

/// The folders of a cluster.
struct Place {
    /// The folder that servers and trainers share, or the URL of their bucket.
    store: PathBuf,
    /// The folder of the run, if it is not that of the job.
    output: Option<PathBuf>,
    logs: PathBuf,
}

impl Place {
    /// Chooses the folders, and makes them.
    fn new(store: Option<&Path>, job: &Job) -> Result<Self> {
        let absolute = |path: &Path| {
            let absolute = std::path::absolute(path);
            absolute.with_context(|| format!("cannot resolve the path {}", path.display()))
        };
        let run = absolute(&job.output())?;
        if let Some(bucket) = store.filter(|store| is_bucket(&store.to_string_lossy())) {
            let logs = make_logs(run.parent().unwrap_or(&run))?;
            return Ok(Self { store: bucket.to_owned(), output: None, logs });
        }
        let store = match (store, run.parent()) {
            (Some(store), _) => absolute(store)?,
            (None, Some(parent)) => parent.to_owned(),
            (None, None) => run.clone(),
        };
        let is_below = run.starts_with(&store) && run != store;
        let output = (!is_below).then(|| store.join(&job.name));
        let logs = make_logs(&store)?;
        Ok(Self { store, output, logs })
    }

    /// Returns the arguments of a trainer.
    fn trainer(
        &self,
        index: usize,
        args: &ClusterUpArgs,
        servers: &[String],
        resume: bool,
    ) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut all = vec!["train".to_owned(), text(&args.job.job)];
        let output = self.output.as_ref().map(|output| format!("run.output={:?}", text(output)));
        for set in args.job.set.iter().cloned().chain(output) {
            all.extend(["--set".to_owned(), set]);
        }
        if args.etcd.is_empty() {
            all.extend(["--ps".to_owned(), servers.join(",")]);
        } else {
            let (etcd, count) = (args.etcd.join(","), args.servers.to_string());
            let named = ["--ps-etcd", &etcd, "--ps-etcd-prefix", &args.etcd_prefix];
            all.extend(named.into_iter().chain(["--ps-count", &count]).map(str::to_owned));
        }
        all.extend(["--ps-store".to_owned(), text(&self.store)]);
        all.extend(["--trainer".to_owned(), format!("{index}/{}", args.trainers)]);
        all.extend(resume.then(|| "--resume".to_owned()));
        all
    }
}

/// Makes the folder of logs in a folder.
fn make_logs(folder: &Path) -> Result<PathBuf> {
    let logs = folder.join("logs");
    std::fs::create_dir_all(&logs)
        .with_context(|| format!("cannot create the folder {}", logs.display()))?;
    Ok(logs)
}

/// Watches the members until trainer 0 has ended, and starts those again that were killed. Returns
/// the exit code of trainer 0, or that of the first member that has failed before it.
fn watch(
    trainers: &mut [Member],
    servers: &mut [Member],
    signals: &mut Signals,
) -> Result<ExitCode> {
    let mut asked = 0;
    loop {
        for signal in signals.pending() {
            asked += 1;
            let signal = if signal == SIGINT { "INT" } else { "TERM" };
            // After the first signal, trainers need the servers for their last checkpoint.
            trainers.iter().for_each(|trainer| trainer.signal(signal));
            if asked > 1 {
                servers.iter().for_each(|server| server.signal(signal));
            }
        }
        let restarts = asked == 0;
        // A trainer that was killed while the run ends has nobody to train with.
        let mut members = trainers.iter_mut().chain(servers.iter_mut());
        members.try_for_each(|member| member.look(restarts))?;
        let failed = trainers.iter().chain(servers.iter()).find(|member| member.has_failed());
        let first = trainers[0].ended().is_some().then(|| &trainers[0]).or(failed);
        if let Some(member) = first {
            let status = member.ended().unwrap_or_default();
            if !status.success() {
                say(&format!("{} has failed ({status}); the cluster ends", member.name()));
            }
            let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(KILLED);
            if status.success() {
                wait(trainers, FINISH)?;
            }
            end(trainers)?;
            return Ok(ExitCode::from(code));
        }
        std::thread::sleep(LOOK);
    }
}

/// Waits until all members have ended, but not for longer than `most`.
fn wait(members: &mut [Member], most: Duration) -> Result<()> {
    let until = Instant::now() + most;
    while members.iter().any(|member| member.ended().is_none()) && Instant::now() < until {
        members.iter_mut().try_for_each(|member| member.look(false))?;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Asks members to end, and waits for them. A trainer that waits for servers or other trainers ends
/// only with a second signal. A member that does not end at all is killed when it is dropped.
fn end(members: &mut [Member]) -> Result<()> {
    for _ in 0..2 {
        members.iter().for_each(|member| member.signal("TERM"));
        wait(members, GRACE)?;
    }
    Ok(())
}
