//! The replacement of an old run by a new one in the same folder.
//!
//! # Crash consistency
//! The old run is removed only when the job, its data and its tables could be opened and the lock
//! of the folder is held. The id of the run goes first, so that no new run takes it over. Then the
//! checkpoints go, the newest one first, and the record goes last. If the process is killed in
//! between, the rest is still the folder of a run, and can be replaced in the same way.

use std::io::ErrorKind;
use std::path::Path;

use super::TrainOptions;
use super::warm_start;
use crate::checkpoint::{CHECKPOINTS, Checkpoint, LOCK, RunDir};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::online::stream_folder;
use crate::publish::RunId;
use crate::run_record::RECORD_FILE;
use crate::validation_history::HISTORY_FILE;

/// Checks that the folder of a run may be replaced, if the options ask for it.
///
/// # Errors
/// Returns an error if the folder contains files but no run, if the run has servers or follows
/// streams, if the new run also resumes, or if it begins from a run in the same folder.
pub(super) fn check(job: &Job, options: &TrainOptions, dir: &RunDir) -> Result<()> {
    if !options.overwrite {
        return Ok(());
    }
    let folder = dir.path();
    let refuse = |problem: &str| {
        Err(Error::Refused(format!("folder {} is not replaced: {problem}", folder.display())))
    };
    if options.resume {
        return refuse("a run cannot resume and be replaced; choose one of the two");
    }
    if job.ps.is_some() || !job.streams.is_empty() {
        return refuse(
            "the run has servers or follows streams, which keep state elsewhere; choose another \
             folder (`run.output`)",
        );
    }
    if stream_folder(folder).exists() {
        return refuse(
            "it holds the run of a trainer that follows streams; choose another folder \
             (`run.output`), or remove it yourself",
        );
    }
    let real = |path: &Path| path.canonicalize().ok();
    let is_inside = |origin: &Path| {
        real(origin).is_some_and(|origin| real(folder).is_some_and(|f| origin.starts_with(f)))
    };
    if options.from.as_deref().is_some_and(is_inside) {
        return refuse(
            "the new run begins from this run; choose another folder for the new run (`run.output`)",
        );
    }
    let has_record = folder.join(RECORD_FILE).exists();
    let has_run = has_record || RunId::exists(folder) || !dir.steps()?.is_empty();
    if !has_run && has_files(folder)? {
        return refuse(
            "it has files, but no run; choose another folder (`run.output`), or remove the files \
             yourself",
        );
    }
    Ok(())
}

/// Returns the newest checkpoint of the folder, or `None` if there is none or the run is replaced.
pub(super) fn find_newest(dir: &RunDir, options: &TrainOptions) -> Result<Option<Checkpoint>> {
    if options.overwrite { Ok(None) } else { dir.newest() }
}

/// Removes the old run from the folder, if the options ask for it. The lock of the folder is held.
/// Files that the trainer does not know are kept.
pub(super) fn remove_old_run(dir: &RunDir, options: &TrainOptions) -> Result<()> {
    if !options.overwrite {
        return Ok(());
    }
    let files = &options.files;
    RunId::remove(dir.path(), files)?;
    dir.remove_all(files)?;
    let version = dir.path().join(warm_start::FOLDER);
    if version.exists() {
        files.remove_dir(version)?;
    }
    for name in [HISTORY_FILE, RECORD_FILE] {
        let path = dir.path().join(name);
        if path.exists() {
            files.remove_file(path)?;
        }
    }
    Ok(())
}

/// Returns whether a folder has files that a run which has not begun does not make. A folder that
/// does not exist has none.
fn has_files(folder: &Path) -> Result<bool> {
    let read = Error::io("cannot list the folder", folder);
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(read(error)),
    };
    for entry in entries {
        let name = entry.map_err(&read)?.file_name();
        // The lock and the folder of checkpoints are made first.
        if name != LOCK && name != CHECKPOINTS {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Place;
    use super::super::train;
    use super::*;
    use crate::checkpoint::RunLock;
    use crate::observer::Silent;

    const SMALL: &str = "[model]\nkind = 'lr'\n[train]\nbatch_size = 64\n";

    fn overwriting() -> TrainOptions {
        TrainOptions { overwrite: true, ..TrainOptions::new(1).unwrap() }
    }

    #[test]
    fn a_replaced_run_equals_a_new_one() {
        let place = Place::new();
        place.run("new", SMALL);
        place.run("old", &format!("{SMALL}epochs = 3\n"));
        let id = std::fs::read(place.path("old/RUN")).unwrap();
        std::fs::write(place.path("old/notes.txt"), "mine").unwrap();
        train(place.job("old", SMALL), overwriting(), &mut Silent).unwrap();
        assert_eq!(place.files("old"), place.files("new"));
        assert_ne!(std::fs::read(place.path("old/RUN")).unwrap(), id);
        let dir = RunDir::new(place.path("old"));
        assert_eq!(dir.steps().unwrap(), RunDir::new(place.path("new")).steps().unwrap());
        assert_eq!(std::fs::read(place.path("old/notes.txt")).unwrap(), b"mine");
        // A folder that does not exist yet is as good.
        train(place.job("other", SMALL), overwriting(), &mut Silent).unwrap();
    }

    #[test]
    fn a_refused_replacement_keeps_the_old_run() {
        let place = Place::new();
        place.run("old", SMALL);
        let before = place.files("old");
        let refused = |output: &str, more: &str, options: TrainOptions| {
            let error = train(place.job(output, more), options, &mut Silent).unwrap_err();
            error.to_string()
        };
        let error = refused("old", SMALL, TrainOptions::new(1).unwrap());
        assert!(error.contains("resume that run, replace it (`overwrite`)"), "{error}");
        let both = TrainOptions { resume: true, ..overwriting() };
        assert!(refused("old", SMALL, both).contains("choose one of the two"));
        let from = TrainOptions { from: Some(place.path("old")), ..overwriting() };
        assert!(refused("old", SMALL, from).contains("begins from this run"));
        // The data of the job is checked first.
        let mut job = place.job("old", SMALL);
        job.data.train = zillion_reader::Paths(vec!["nowhere.csv".to_owned()]);
        let error = train(job, overwriting(), &mut Silent).unwrap_err().to_string();
        assert!(error.contains("nowhere.csv"), "{error}");
        let lock = RunLock::take(&RunDir::new(place.path("old"))).unwrap();
        assert!(refused("old", SMALL, overwriting()).contains("trains into the folder"));
        drop(lock);
        assert_eq!(place.files("old"), before);

        // The rest of a replacement that was killed can be replaced too.
        std::fs::create_dir_all(place.path("rest/checkpoints")).unwrap();
        for name in ["LOCK", "record.json", "curves.svg"] {
            std::fs::write(place.path("rest").join(name), "").unwrap();
        }
        train(place.job("rest", SMALL), overwriting(), &mut Silent).unwrap();

        std::fs::create_dir(place.path("mine")).unwrap();
        std::fs::write(place.path("mine/thesis.tex"), "all my work").unwrap();
        assert!(refused("mine", SMALL, overwriting()).contains("has files, but no run"));
        std::fs::create_dir_all(place.path("streams/stream")).unwrap();
        assert!(refused("streams", SMALL, overwriting()).contains("follows streams"));
    }
}
