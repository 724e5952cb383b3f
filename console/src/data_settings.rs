//! The settings for reading the files that a command scores. They are a `[data]` section, and the
//! environment and `--set` can override them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use toml::{Table, Value};
use zillion_reader::{DataConfig, Paths};
use zillion_trainer::Job;

use crate::exit::usage_error;
use crate::job_file;

/// Returns the `[data]` section in the job of a checkpoint, after the environment and `--set` have
/// overridden its settings.
pub fn of_checkpoint(job: &Job, sets: &[String]) -> Result<DataConfig> {
    let data = Value::try_from(&job.data)
        .context("cannot read the [data] section of the checkpoint's job")?;
    overlay_data(data, sets, "the checkpoint carries the job")
}

/// Returns a `[data]` section of default values, after the environment and `--set` have overridden
/// them. A published version does not record the format of files, so its files are read with these
/// settings.
pub fn of_file(sets: &[String]) -> Result<DataConfig> {
    overlay_data(Value::Table(Table::new()), sets, "the version carries the job")
}

/// Returns the files that a command scores: those that its command line names, relative to the
/// current folder, or else the test files of the section `data`. Returns `None` if there are none.
///
/// # Errors
/// Returns an error if a name matches no file, or if two names match the same file.
pub fn files_to_score(data: &DataConfig, named: &[String]) -> Result<Option<Vec<PathBuf>>> {
    if named.is_empty() {
        return Ok(if data.test.is_empty() { None } else { Some(data.files(&data.test)?) });
    }
    let here = DataConfig { root: PathBuf::new(), ..data.clone() };
    Ok(Some(here.files(&Paths(named.to_vec()))?))
}

fn overlay_data(data: Value, sets: &[String], rest: &str) -> Result<DataConfig> {
    let mut job = Table::from_iter([("data".to_owned(), data)]);
    // The file of rejected rows belongs to training; a command that scores names a file of its own.
    if let Some(data) = job.get_mut("data").and_then(Value::as_table_mut) {
        data.remove("rejects");
    }
    // The environment may also hold settings for training. Only those of `[data]` matter here.
    let environment = std::env::vars().filter(|(name, _)| name.starts_with("ZILLION_DATA__"));
    job_file::overlay(&mut job, environment, sets)?;
    if let Some(key) = job.keys().find(|k| *k != "data") {
        return usage_error(format!(
            "setting `{key}` cannot be changed here, because {rest}; set only `data.*`"
        ));
    }
    Ok(zillion_config::section(&Value::Table(job), "data")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_scored_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("a.csv"), "x\n").unwrap();
        std::fs::write(path("b.csv"), "x\n").unwrap();
        let data = DataConfig { root: "elsewhere".into(), ..DataConfig::default() };
        let files = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| path(name)).collect();
            files_to_score(&data, &names).map_err(|error| error.to_string())
        };
        assert_eq!(files(&[]), Ok(None));
        let both = Some(vec![path("a.csv").into(), path("b.csv").into()]);
        assert_eq!(files(&["*.csv"]), Ok(both.clone()));
        assert_eq!(files(&["a.csv", "b.csv"]), Ok(both));
        for twice in [["a.csv", "a.csv"], ["*.csv", "b.csv"]] {
            let error = files(&twice).unwrap_err();
            assert!(error.contains(".csv is listed twice"), "{error}");
        }
        assert!(files(&["none.csv"]).unwrap_err().contains("matches no file"));
    }
}
