//! The settings for reading the files that a command scores. They are a `[data]` section, and the
//! environment and `--set` can override them.

use anyhow::{Context, Result};
use toml::{Table, Value};
use zillion_reader::DataConfig;
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
