//! The job of the benchmarks of online training.

use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context, Result};

use super::events::IDS;

/// The name of the job and of its model.
pub(super) const MODEL: &str = "online";
/// The folder of the events in the folder of a benchmark.
pub(super) const EVENTS: &str = "events";
/// The folder of the run in the folder of a benchmark.
pub(super) const RUN: &str = "run";
/// The folder of the registry in the folder of a benchmark.
pub(super) const REGISTRY: &str = "registry";
/// The file of the job in the folder of a benchmark.
pub(super) const JOB: &str = "job.toml";

/// The settings in which the jobs of the benchmarks differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobSettings {
    pub(super) format: &'static str,
    pub(super) batch_rows: usize,
    pub(super) linger_seconds: f64,
    pub(super) publish_seconds: f64,
    pub(super) checkpoint_seconds: f64,
    pub(super) idle_seconds: f64,
    /// The number of checkpoints that are kept.
    pub(super) keep: usize,
    pub(super) threads: Option<NonZeroUsize>,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self {
            format: "json",
            batch_rows: 4096,
            linger_seconds: 0.2,
            publish_seconds: 1.0,
            checkpoint_seconds: 30.0,
            idle_seconds: 10.0,
            keep: 2,
            threads: None,
        }
    }
}

impl JobSettings {
    /// Returns the text of the job file. Its paths are relative to the folder of the benchmark, in
    /// which its programs run.
    pub(super) fn text(&self) -> String {
        let threads = self.threads.map_or(String::new(), |threads| format!("threads = {threads}"));
        let mut text = format!(
            r#"
name = "{MODEL}"
[labels.click]
[columns]
event_time = "time"
event_time_unit = "ms"
[tables."*"]
dim = 16
optimizer = {{ kind = "rowwise_adagrad", lr = 0.02 }}
[model]
kind = "deepfm"
hidden = [128, 64]
[train]
batch_size = {}
keep = {}
optimizer = {{ kind = "adam", lr = 1e-3 }}
[run]
output = "{RUN}"
{threads}
[publish]
registry = "{REGISTRY}"
[online]
linger_seconds = {:?}
publish_seconds = {:?}
checkpoint_seconds = {:?}
idle_seconds = {:?}
[[stream]]
name = "events"
path = "{EVENTS}"
format = "{}"
"#,
            self.batch_rows,
            self.keep,
            self.linger_seconds,
            self.publish_seconds,
            self.checkpoint_seconds,
            self.idle_seconds,
            self.format,
        );
        for (name, _) in IDS {
            let _ = write!(text, "[features.{name}]\nkind = \"id\"\n");
        }
        text
    }

    /// Writes the job file into the folder of a benchmark.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(JOB);
        fs::write(&path, self.text()).with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use toml::Table;
    use zillion_trainer::Job;

    use super::*;

    #[test]
    fn the_job_is_valid() {
        let settings = JobSettings {
            format: "arrow",
            threads: NonZeroUsize::new(3),
            linger_seconds: 0.05,
            ..JobSettings::default()
        };
        let job: Table = settings.text().parse().unwrap();
        let job = Job::from_value(job.into()).unwrap();
        assert_eq!(job.online.unwrap().linger_seconds, 0.05);
        assert_eq!(job.run.threads, NonZeroUsize::new(3));
    }
}
