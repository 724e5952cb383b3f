//! The files and folders of the quickstart, and the commands that repeat its steps.

use std::path::{Path, PathBuf};

/// The files and folders of the quickstart.
pub(super) struct Place {
    pub(super) data: PathBuf,
    pub(super) job: PathBuf,
    pub(super) first: PathBuf,
    pub(super) second: PathBuf,
    /// The folder of the third run, which trains on later rows.
    pub(super) next: PathBuf,
    pub(super) registry: PathBuf,
    /// The file with an example request.
    pub(super) request: PathBuf,
    pub(super) server_log: PathBuf,
}

impl Place {
    pub(super) fn new(output: &Path) -> Self {
        Self {
            data: output.join("data"),
            job: output.join("job.toml"),
            first: output.join("run"),
            second: output.join("resumed"),
            next: output.join("next"),
            registry: output.join("registry"),
            request: output.join("request.json"),
            server_log: output.join("server.log"),
        }
    }

    /// Returns the commands that repeat each step. They must be started in the current folder.
    pub(super) fn commands(&self) -> Vec<(&'static str, String)> {
        let (zillion, job) = (program(), word(&self.job));
        let test = word(self.data.join("test.parquet"));
        let train = word(self.data.join("train.parquet"));
        let run = word(&self.first);
        let again = self.first.with_file_name("again");
        vec![
            ("look at the data", format!("{zillion} data inspect {train} --against {test}")),
            ("what will the job cost, what could go wrong", format!("{zillion} check {job}")),
            (
                "train; Ctrl-C stops it in good order",
                format!("{zillion} train {job} --set {}", word(run_setting(&again))),
            ),
            ("go on after Ctrl-C, a crash, or for more epochs", self.resume(&again)),
            ("test the best epoch's checkpoint", format!("{zillion} eval {run} --data {test}")),
            (
                "a probability for each row",
                format!(
                    "{zillion} predict {run} {test} > {}",
                    word(self.first.with_file_name("scores.csv"))
                ),
            ),
            ("the job with every default", format!("{zillion} train {job} --print-config")),
        ]
    }

    /// Returns the settings of the third run: one pass over the later rows, and then a version.
    pub(super) fn settings_of_next(&self) -> Vec<String> {
        let text = |path: &Path| toml::Value::from(path.to_string_lossy().as_ref());
        vec![
            run_setting(&self.next),
            r#"data.train="next.parquet""#.to_owned(),
            "train.epochs=1".to_owned(),
            format!("publish.registry={}", text(&self.registry)),
        ]
    }

    pub(super) fn resume(&self, run: &Path) -> String {
        format!("{} train {} --set {} --resume", program(), word(&self.job), word(run_setting(run)))
    }
}

pub(super) fn run_setting(run: &Path) -> String {
    format!("run.output={}", toml::Value::from(run.to_string_lossy().as_ref()))
}

/// Returns the path of this binary for a printed command, so that the command can be run in the
/// current folder.
pub(super) fn program() -> String {
    let Ok(path) = zillion_console::program() else { return "zillion".to_owned() };
    let here = std::env::current_dir().unwrap_or_default();
    match path.strip_prefix(here) {
        Ok(below) => word(Path::new(".").join(below)),
        Err(_) => word(path),
    }
}

/// Returns a path or a setting as one word of a shell command.
pub(super) fn word(text: impl AsRef<std::ffi::OsStr>) -> String {
    let text = text.as_ref().to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:,@%+".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_survives_a_shell() {
        assert_eq!(word("runs/a-b_c.d=1"), "runs/a-b_c.d=1");
        assert_eq!(word("my runs/it's"), r"'my runs/it'\''s'");
        assert_eq!(word(""), "''");
    }
}
