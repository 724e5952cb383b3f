//! The reading of a job from three layers of settings. The first layer is the job file with the
//! files that it extends, the second is the environment, and the third is `--set`. Each layer
//! overrides the layers before it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use toml::{Table, Value};
use zillion_config::merge;
use zillion_reader::{DataConfig, Paths};
use zillion_trainer::Job;

use crate::exit::{as_usage, usage_error};

/// The environment variables that begin like a setting but are not settings.
const NOT_SETTINGS: [&str; 7] = [
    "ZILLION_AUDIT_LOG",
    "ZILLION_FAILPOINT",
    "ZILLION_LOG",
    crate::PROGRAM,
    "ZILLION_REGISTRY",
    "ZILLION_SIGN_KEY",
    "ZILLION_TRUST",
];
/// The prefix of the environment variables that are settings of a server, not of a job.
pub const SERVE_PREFIX: &str = "ZILLION_SERVE__";
/// The settings outside all sections of a job, which an environment variable without `__` can set.
const ROOT_SETTINGS: [&str; 2] = ["name", "seed"];
/// The maximum number of `extends` steps from a job file to the last file of its chain. If a chain
/// is longer, it is considered to be a cycle.
const MAX_EXTENDS: usize = 16;

/// Reads a job file. The environment and then `sets` override its settings.
pub fn load(
    path: &Path,
    environment: impl Iterator<Item = (String, String)>,
    sets: &[String],
) -> Result<Value> {
    let mut job = read(path, 0).map_err(as_usage)?;
    let [data, sides] = ["data", "side"].map(|section| job.get(section).cloned());
    overlay(&mut job, environment, sets)?;
    // What the environment and `--set` name is relative to the current folder.
    let is_as_written = job.get("data") == data.as_ref() && job.get("side") == sides.as_ref();
    find_root(&mut job, path, is_as_written)?;
    Ok(Value::Table(job))
}

/// Reads the job in a job file. The environment of the process and then `sets` override its
/// settings.
pub fn load_job(path: &Path, sets: &[String]) -> Result<Job> {
    let value = load(path, std::env::vars(), sets)?;
    Job::from_value(value).with_context(|| path.display().to_string())
}

/// Reads a job file. The environment of the process overrides its settings. Returns the job and its
/// `[data]` section.
pub fn load_data(path: &Path) -> Result<(Value, DataConfig)> {
    let job = load(path, std::env::vars(), &[])?;
    let data = zillion_config::section(&job, "data").with_context(|| path.display().to_string())?;
    Ok((job, data))
}

/// Overrides the settings of the job `job`, first by the environment and then by `sets`. Settings
/// of a server in the environment are ignored.
pub fn overlay(
    job: &mut Table,
    environment: impl Iterator<Item = (String, String)>,
    sets: &[String],
) -> Result<()> {
    let environment = environment.filter(|(name, _)| !name.starts_with(SERVE_PREFIX));
    lay_over(job, environment, sets).map_err(as_usage)
}

/// Overrides settings, first by the environment and then by `sets`. The settings need not belong to
/// a job.
pub fn lay_over(
    job: &mut Table,
    environment: impl Iterator<Item = (String, String)>,
    sets: &[String],
) -> Result<()> {
    let mut environment: Vec<(String, String)> = environment.collect();
    environment.sort_unstable();
    for (name, value) in environment {
        if let Some(key) = environment_key(&name) {
            let patch = assignment(&key, &value)
                .with_context(|| format!("in the environment variable {name}={value}"))?;
            merge(job, patch);
        } else if name.starts_with("ZILLION_") && !is_of_others(&name) {
            tracing::warn!(
                "the environment variable {name} is not a setting; write ZILLION_SECTION__KEY"
            );
        }
    }
    for set in sets {
        let (key, value) = set.split_once('=').ok_or_else(|| {
            anyhow!("--set {set} is not key=value; write it like --set train.epochs=3")
        })?;
        let patch = assignment(key.trim(), value.trim()).with_context(|| format!("--set {set}"))?;
        merge(job, patch);
    }
    Ok(())
}

fn read(path: &Path, depth: usize) -> Result<Table> {
    if depth > MAX_EXTENDS {
        bail!(
            "the job file {} is part of a circle of `extends`; remove one `extends` of the circle",
            path.display()
        );
    }
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the job file {}", path.display()))?;
    let mut job: Table = text
        .parse()
        .with_context(|| format!("the job file {} is not valid TOML", path.display()))?;
    let Some(base) = job.remove("extends") else { return Ok(job) };
    let Value::String(base) = base else {
        bail!("`extends` of {} is not a text; write the path of a job file", path.display());
    };
    let base: PathBuf = path.parent().unwrap_or(Path::new("")).join(base);
    let mut merged = read(&base, depth + 1)
        .with_context(|| format!("the job file {} extends", path.display()))?;
    merge(&mut merged, job);
    Ok(merged)
}

/// Sets `data.root` of a job to the folder of the job file if the files of the job are there, and
/// not below the current folder, to which `data.root` is relative otherwise. `path` is the path of
/// the job file. A pattern is there if it matches a file. The log says that the root was changed.
///
/// # Errors
/// Returns an error if some files are in the one folder and some in the other, or if
/// `is_as_written` is false, because the section then is not that of the file.
fn find_root(job: &mut Table, path: &Path, is_as_written: bool) -> Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    let Some(Value::Table(data)) = job.get("data") else { return Ok(()) };
    let root = match data.get("root") {
        None => String::new(),
        Some(Value::String(root)) => root.clone(),
        Some(_) => return Ok(()),
    };
    if root.contains("://") {
        return Ok(());
    }
    let root = Path::new(&root);
    let beside = folder.join(root);
    let (mut found_here, mut found_beside) = (None, None);
    for (key, name) in files_of(job, data) {
        if name.contains("://") || Path::new(name).is_absolute() {
            continue;
        }
        if is_below(root, name) {
            found_here = Some(name);
        } else if is_below(&beside, name) {
            found_beside.get_or_insert((key, name));
        }
    }
    let Some((key, name)) = found_beside else { return Ok(()) };
    let (here, there) = (root.join(name), beside.join(name));
    let found = match is_pattern(name) && !there.exists() {
        true => format!(
            "no file matches `{}`, but files match `{}`, beside the job file",
            here.display(),
            there.display()
        ),
        false => format!(
            "the file `{}` does not exist, but `{}` does, beside the job file",
            here.display(),
            there.display()
        ),
    };
    if found_here.is_some() || !is_as_written {
        return usage_error(format!(
            "`{key}`: {found}; set `data.root` to the folder of all files, such as {}",
            beside.display(),
        ));
    }
    tracing::warn!("`data.root`: {found}, so files are read from the folder of the job file");
    let beside = beside.to_string_lossy().into_owned();
    if let Some(Value::Table(data)) = job.get_mut("data") {
        data.insert("root".to_owned(), Value::String(beside));
    }
    Ok(())
}

fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// Returns whether a file or a folder is below `root`, or whether a pattern matches a file there.
fn is_below(root: &Path, name: &str) -> bool {
    if root.join(name).exists() || !is_pattern(name) {
        return root.join(name).exists();
    }
    let data = DataConfig { root: root.to_owned(), ..DataConfig::default() };
    data.files(&Paths(vec![name.to_owned()])).is_ok()
}

/// Returns the key and the name of each file that a job with the section `data` reads: the files of
/// rows and the side tables.
fn files_of<'a>(job: &'a Table, data: &'a Table) -> Vec<(String, &'a str)> {
    let mut files = Vec::new();
    for key in ["train", "valid", "test"] {
        let names = match data.get(key) {
            Some(Value::Array(names)) => names.as_slice(),
            Some(name) => std::slice::from_ref(name),
            None => &[],
        };
        files.extend(
            names.iter().filter_map(Value::as_str).map(|name| (format!("data.{key}"), name)),
        );
    }
    if let Some(Value::Table(sides)) = job.get("side") {
        files.extend(sides.iter().filter_map(|(side, section)| {
            Some((format!("side.{side}.path"), section.get("path")?.as_str()?))
        }));
    }
    files
}

/// Returns whether an environment variable is known to Zillion but is not a setting of a job.
fn is_of_others(name: &str) -> bool {
    NOT_SETTINGS.contains(&name) || zillion_store::STORE_SETTINGS.contains(&name)
}

/// Returns the key of the job that an environment variable sets, such as `train.batch_size` for
/// `ZILLION_TRAIN__BATCH_SIZE`. Returns `None` if the variable sets no key.
fn environment_key(name: &str) -> Option<String> {
    if is_of_others(name) {
        return None;
    }
    let rest = name.strip_prefix("ZILLION_")?.to_lowercase();
    if rest.contains("__") {
        Some(rest.replace("__", "."))
    } else {
        ROOT_SETTINGS.contains(&rest.as_str()).then_some(rest)
    }
}

/// Returns the TOML table of `a.b = value` for the key `a.b`. A value that is not valid TOML is
/// used as a text.
fn assignment(key: &str, value: &str) -> Result<Table> {
    if let Ok(table) = format!("{key} = {value}").parse::<Table>() {
        return Ok(table);
    }
    format!("{key} = {}", Value::from(value)).parse::<Table>().map_err(|_| {
        anyhow!(
            "`{key}` is not a valid key; write names with dots between them, such as train.epochs"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_beside_the_job_file_are_found() {
        let place = tempfile::tempdir().unwrap();
        let job_file = place.path().join("job.toml");
        let root_of = |text: &str| {
            let mut job: Table = text.parse().unwrap();
            find_root(&mut job, &job_file, true).map(|()| job["data"].get("root").cloned())
        };
        // A file that is nowhere, and one below the current folder.
        assert_eq!(root_of("[data]\ntrain = 'none.csv'").unwrap(), None);
        assert_eq!(root_of("[data]\ntrain = 'Cargo.toml'").unwrap(), None);
        std::fs::create_dir(place.path().join("rows")).unwrap();
        std::fs::write(place.path().join("rows/a.csv"), "x\n").unwrap();
        let found = |root: &str| Some(Value::from(place.path().join(root).to_str().unwrap()));
        assert_eq!(root_of("[data]\ntrain = ['rows/a.csv']").unwrap(), found(""));
        assert_eq!(root_of("[data]\nroot = 'rows'\nvalid = 'a.csv'").unwrap(), found("rows"));
        let side = "[side.items]\npath = 'rows/a.csv'";
        assert_eq!(root_of(&format!("[data]\ntrain = 'rows/a.csv'\n{side}")).unwrap(), found(""));
        let apart = format!("[data]\ntrain = 'Cargo.toml'\n{side}");
        let refused = root_of(&apart).unwrap_err().to_string();
        assert!(refused.starts_with("`side.items.path`: the file `rows/a.csv`"), "{refused}");
        let mixed = "[data]\ntrain = 'rows/a.csv'\nvalid = 'Cargo.toml'";
        let refused = root_of(mixed).unwrap_err().to_string();
        assert!(
            refused.contains("`data.train`") && refused.contains("set `data.root`"),
            "{refused}"
        );
        assert_eq!(root_of("[data]\ntrain = 'rows/*.csv'\nvalid = 'no*.csv'").unwrap(), found(""));
        let refused = root_of("[data]\ntrain = 'rows/?.csv'\nvalid = 'Cargo.*'").unwrap_err();
        let refused = refused.to_string();
        assert!(refused.starts_with("`data.train`: no file matches `rows/?.csv`"), "{refused}");
        for kept in ["root = 's3://b'\ntrain = 'a.csv'", "train = 'no/*.csv'", "train = '/a.csv'"] {
            let text = format!("[data]\n{kept}");
            let before: Table = text.parse().unwrap();
            assert_eq!(root_of(&text).unwrap(), before["data"].get("root").cloned());
        }
    }

    #[test]
    fn later_layers_win_key_by_key() {
        let mut job: Table =
            "seed = 1\n[train]\nepochs = 1\nbatch_size = 2\n[data]\nroot = 'x'".parse().unwrap();
        let environment = [
            ("ZILLION_TRAIN__EPOCHS", "5"),
            ("ZILLION_TRAIN__BATCH_SIZE", "6"),
            ("ZILLION_SEED", "7"),
            ("ZILLION_HOME", "/nowhere"),
            ("ZILLION_FAILPOINT", "3:kill"),
            ("PATH", "/bin"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()));
        let sets = ["train.epochs=9", "data.root = a/b", "tables.\"*\".l2=0.5"].map(str::to_owned);
        overlay(&mut job, environment.into_iter(), &sets).unwrap();
        assert_eq!(job["train"]["epochs"], Value::from(9));
        assert_eq!(job["train"]["batch_size"], Value::from(6));
        assert_eq!(job["seed"], Value::from(7));
        assert_eq!(job["data"]["root"], Value::from("a/b"));
        assert_eq!(job["tables"]["*"]["l2"], Value::from(0.5));
        assert!(!job.contains_key("home"));
    }

    #[test]
    fn another_kind_inherits_nothing() {
        let mut job: Table = "[o]\nkind = 'adagrad'\nlr = 1\neps = 2".parse().unwrap();
        let same = ["o.lr=3".to_owned()];
        overlay(&mut job, std::iter::empty(), &same).unwrap();
        assert_eq!(job["o"].as_table().unwrap().len(), 3);
        let other = ["o={kind='adam',lr=4}".to_owned()];
        overlay(&mut job, std::iter::empty(), &other).unwrap();
        assert_eq!(job["o"].as_table().unwrap().len(), 2);
    }

    #[test]
    fn what_cannot_be_set_is_refused() {
        let mut job = Table::new();
        for set in ["novalue", "a b=1", "=3"] {
            assert!(overlay(&mut job, std::iter::empty(), &[set.to_owned()]).is_err(), "{set}");
        }
    }
}
