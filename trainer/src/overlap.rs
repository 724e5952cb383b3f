//! Files that a job both trains on and judges by.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::job::Job;

/// Returns each list of files, `valid` or `test`, that shares files with `data.train`, with a text
/// that names them. Globs and folders are expanded. A list that cannot be expanded shares none,
/// because opening it returns the error.
pub(crate) fn shared_files(job: &Job) -> Vec<(&'static str, String)> {
    let expand = |paths| job.data.files(paths).unwrap_or_default();
    let train: HashSet<PathBuf> = expand(&job.data.train).iter().map(|path| real(path)).collect();
    let lists = [("valid", &job.data.valid), ("test", &job.data.test)];
    let shared = lists.into_iter().filter_map(|(part, paths)| {
        let shared = expand(paths).into_iter().filter(|path| train.contains(&real(path)));
        let shared: Vec<PathBuf> = shared.collect();
        let first = shared.first()?.display();
        let (files, is) = match shared.len() {
            1 => (format!("file {first}"), "is"),
            n => (format!("file {first} and {} more", n - 1), "are"),
        };
        let text = format!(
            "{files} {is} also in `data.train`, so the figures are those of rows that the model \
             has learned; name other files here, or remove the file from `data.train`"
        );
        Some((part, text))
    });
    shared.collect()
}

/// Returns the path of a file without links and detours. The URL of an object stays as it is.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use zillion_device::Workers;
    use zillion_reader::Paths;

    use super::*;
    use crate::check::{Severity, check};

    #[test]
    fn a_file_of_two_lists_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (name, row) in [("a.csv", "1,0"), ("b.csv", "2,1"), ("c.csv", "3,1")] {
            std::fs::write(folder.path().join(name), format!("user,label\n{row}\n")).unwrap();
        }
        let text = format!(
            "[data]\nroot = {:?}\ntrain = '*.csv'\nvalid = './b.csv'\n\
             [features.user]\nkind = 'id'\n[labels.label]\n[tables.'*']\ndim = 1\n\
             [model]\nkind = 'lr'",
            folder.path()
        );
        let value: toml::Table = toml::from_str(&text).unwrap();
        let mut job = Job::from_value(value.into()).unwrap();
        let shared = shared_files(&job);
        assert_eq!(shared.len(), 1);
        assert_eq!(shared[0].0, "valid");
        assert!(shared[0].1.contains("b.csv is also in `data.train`"), "{shared:?}");
        let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
        let report = check(&job, 10, &workers).unwrap();
        let found = report.findings.iter().find(|finding| finding.about == "data.valid").unwrap();
        assert_eq!((found.severity, &found.text), (Severity::Warning, &shared[0].1));

        job.data.test = Paths(vec!["a.csv".to_owned(), "c.csv".to_owned()]);
        let shared = shared_files(&job);
        assert_eq!(shared[1].0, "test");
        assert!(shared[1].1.contains("a.csv and 1 more are also"), "{shared:?}");
        job.data.train = Paths(vec!["a.csv".to_owned()]);
        job.data.test = Paths(vec!["c.csv".to_owned()]);
        assert_eq!(shared_files(&job), []);
    }
}
