//! The columns of the messages that lie in the followed folders of a job.

use std::fs::DirEntry;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use zillion_feature::Schema;
use zillion_reader::{DataConfig, Dataset, Format, Labels, ReaderError};
use zillion_stream::is_ignored_name;

use super::parts;
use super::report::Findings;
use crate::job::{Job, StreamConfig, StreamFormat, StreamKind, StreamRole};

/// Looks at the newest file of each partition of each followed folder, and reports columns that it
/// lacks or that have another type.
pub(super) fn check_streams(job: &Job, findings: &mut Findings) {
    if !job.streams.is_empty() && job.data.train.is_empty() {
        findings.note(
            "stream",
            "a stream has no end, so the sizes of the tables are not estimated; limit them with \
             `max_rows` or `max_table_bytes`",
        );
    }
    for stream in &job.streams {
        let about = format!("stream.{}", stream.name);
        let format = match stream.format {
            StreamFormat::Json => Format::Jsonl,
            StreamFormat::Arrow => Format::Arrow,
            StreamFormat::Avro | StreamFormat::Protobuf => {
                findings.note(&about, "messages in this format are not examined");
                continue;
            }
        };
        let Some(folder) = stream.path.as_ref().filter(|_| stream.kind == StreamKind::Folder)
        else {
            findings.note(&about, "the messages of a topic are not examined");
            continue;
        };
        let files = match find_newest_files(folder) {
            Ok(files) => files,
            Err(error) => {
                let text = format!(
                    "the folder {} cannot be read: {error}; create it, or correct the path",
                    folder.display()
                );
                findings.error(&about, text);
                continue;
            }
        };
        if files.is_empty() {
            let text = "the folder has no file yet, so no message is examined; check the job again \
                        when there is one";
            findings.note(&about, text);
            continue;
        }
        let data = DataConfig { format, ..job.data.clone() };
        for (used_by, schema) in parts_of(job, stream) {
            check_part((&data, &files), (&about, &used_by), &schema, findings);
        }
    }
}

/// Returns the parts of the schema that the messages of a stream have.
fn parts_of(job: &Job, stream: &StreamConfig) -> Vec<(String, Schema)> {
    let is_there = |used_by: &str| match stream.role {
        StreamRole::Rows => true,
        StreamRole::Impressions => !used_by.starts_with("labels."),
        StreamRole::Feedback => used_by == "columns",
    };
    let mut all = parts(&job.schema);
    all.retain(|(used_by, _)| is_there(used_by));
    if stream.role == StreamRole::Feedback {
        all.iter_mut().for_each(|(_, schema)| (schema.weight, schema.group) = (None, None));
    }
    all
}

fn check_part(
    (data, files): (&DataConfig, &[PathBuf]),
    (about, used_by): (&str, &str),
    schema: &Schema,
    findings: &mut Findings,
) {
    match Dataset::open_with(data, files, schema, Labels::Required) {
        Ok(_) => {}
        // An absent key of an object is a missing value.
        Err(error @ ReaderError::MissingColumn { .. }) if data.format == Format::Jsonl => {
            let text = format!("{used_by}: {error}; in a stream, its values count as missing");
            findings.warning(about, text);
        }
        Err(error) => findings.error(about, format!("{used_by}: {error}")),
    }
}

/// Returns the last file by name of each sub-folder of a followed folder. The names that a run
/// ignores are left out: such a file is being written.
fn find_newest_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let is_ignored = |entry: &DirEntry| is_ignored_name(&entry.file_name().to_string_lossy());
    let mut newest = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let partition = entry.path();
        if is_ignored(&entry) || !partition.is_dir() {
            continue;
        }
        let mut last: Option<PathBuf> = None;
        for entry in std::fs::read_dir(&partition)? {
            let entry = entry?;
            if is_ignored(&entry) {
                continue;
            }
            let metadata = match std::fs::metadata(entry.path()) {
                // The file was removed since the listing.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if metadata.is_file() && metadata.len() > 0 {
                last = last.max(Some(entry.path()));
            }
        }
        newest.extend(last);
    }
    newest.sort();
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{CheckReport, Severity, check};

    fn check_messages(lines: &str) -> CheckReport {
        let place = tempfile::tempdir().unwrap();
        let partition = place.path().join("events/a");
        std::fs::create_dir_all(&partition).unwrap();
        std::fs::write(partition.join("1"), lines).unwrap();
        // A run ignores these names, because such a file is being written.
        std::fs::write(partition.join(".2"), "being written").unwrap();
        std::fs::write(partition.join("3.tmp"), "being written").unwrap();
        for unfinished in ["b.tmp", ".c"] {
            let unfinished = place.path().join("events").join(unfinished);
            std::fs::create_dir_all(&unfinished).unwrap();
            std::fs::write(unfinished.join("1"), "being written").unwrap();
        }
        let job = format!(
            "[features.user]\nkind = 'id'\n[labels.click]\n[columns]\nevent_time = 'time'\n\
             event_time_unit = 'ms'\n[model]\nkind = 'lr'\n[run]\noutput = '{0}/run'\n\
             [[stream]]\nname = 'events'\npath = '{0}/events'\n",
            place.path().display()
        );
        let job = Job::from_value(toml::from_str(&job).unwrap()).unwrap();
        let threads = std::num::NonZeroUsize::MIN;
        let workers = std::sync::Arc::new(zillion_device::Workers::new(threads).unwrap());
        check(&job, 100, &workers).unwrap()
    }

    fn find<'a>(report: &'a CheckReport, text: &str) -> Option<&'a Severity> {
        let found = report.findings.iter().find(|finding| finding.text.contains(text));
        found.map(|finding| &finding.severity)
    }

    #[test]
    fn a_job_over_streams_is_checked_without_files() {
        let report = check_messages("{\"user\":1,\"click\":0,\"time\":1}\n");
        let of_stream = report.findings.iter().find(|finding| finding.about == "stream.events");
        assert_eq!(of_stream, None);
        let errors = [Severity::Error, Severity::Stop];
        let is_wrong = report.worst().is_some_and(|worst| errors.contains(&worst));
        assert!(!is_wrong, "{:?}", report.findings);
    }

    #[test]
    fn columns_of_messages_are_found() {
        let report = check_messages("{\"usr\":1,\"click\":0,\"time\":1}\n");
        assert_eq!(find(&report, "features.user"), Some(&Severity::Warning));
        let report = check_messages("not json at all\n");
        assert_eq!(report.worst(), Some(Severity::Error), "{:?}", report.findings);
    }
}
