//! The smallest job, for the tests of sections of a job.

use super::Job;

/// Reads the smallest job with more lines.
///
/// # Errors
/// Returns the text of the error if the job is wrong.
pub(super) fn read(more: &str) -> Result<Job, String> {
    let text = format!("[features.user]\nkind = 'id'\n[labels.y]\n[model]\nkind = 'lr'\n{more}");
    let value: toml::Table = toml::from_str(&text).expect("the lines are TOML");
    Job::from_value(value.into()).map_err(|e| e.to_string())
}
