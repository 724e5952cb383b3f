//! The benchmark `zillion bench registry`: the times of operations on a registry in which one model
//! has very many versions.
//!
//! Only one version is really published. The other versions are copies of its manifest with other
//! numbers. They are sealed and written to the places where the registry looks for them, but
//! without syncs, which would take most of an hour. The log of the pointer has one entry for each
//! version. Each measured operation opens the registry again, like each command of `zillion`. With
//! `--publish`, a training run really publishes all versions, see [`published`].

mod pairs;
mod published;

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use zillion_registry::{Model, MoveKind, PointerMove, STABLE, VersionId, VersionManifest};

use crate::args::BenchRegistryArgs;
use crate::criteo::{MODEL, open_model, publish};
use crate::print_outcome;
use zillion_console::compute_pool;

/// The number of rows in the version that is really published.
const ROWS: u64 = 1000;
/// The number of versions on one page of `zillion model list`.
const PAGE: usize = 20;
/// The number of measurements for each figure.
const REPEAT: usize = 20;

#[derive(Serialize)]
struct Outcome {
    versions: u64,
    /// The number of entries in the pointer's log before the measurements.
    moves: u64,
    make_seconds: f64,
    open: Times,
    latest: Times,
    /// The times for reading and verifying one manifest.
    show: Times,
    /// The times for reading and verifying a page of manifests in the middle of the list.
    list: Times,
    promote: Times,
    rollback: Times,
}

/// The times of an operation, in milliseconds.
#[derive(Serialize)]
struct Times {
    median_ms: f64,
    max_ms: f64,
}

pub(crate) fn run(args: &BenchRegistryArgs, is_json: bool) -> Result<()> {
    let folder = crate::scratch_folder(args.folder.as_deref())?;
    let url = folder.path().join("registry");
    let versions = args.versions.get();
    if args.publish {
        return published::run(versions, folder.path(), is_json);
    }
    let began = Instant::now();
    let model = open_model(&url)?;
    let first = publish(&model, ROWS, folder.path(), &compute_pool(None)?)?;
    eprintln!("writing {versions} manifests");
    write_copies(&model, &first, &url.join(MODEL), versions)?;
    let make_seconds = began.elapsed().as_secs_f64();
    let model = open_model(&url)?;
    ensure!(
        model.latest()? == Some(VersionId(versions)),
        "the registry does not find the written versions, because its layout has changed"
    );

    let some = |i: u64| VersionId(1 + i * 7919 % versions);
    let outcome = Outcome {
        versions,
        moves: model.pointer(STABLE)?.number,
        make_seconds,
        open: measure(|_| open_model(&url).map(drop))?,
        latest: measure(|_| Ok(open_model(&url)?.latest().map(drop)?))?,
        show: measure(|i| Ok(open_model(&url)?.version(some(i)).map(drop)?))?,
        list: measure(|i| {
            let model = open_model(&url)?;
            for version in model.page(Some(some(i)), PAGE)? {
                model.version(version)?;
            }
            Ok(())
        })?,
        promote: measure(|i| {
            let model = open_model(&url)?;
            model.promote(STABLE, some(i), MoveKind::Promote, "bench", None)?;
            Ok(())
        })?,
        rollback: measure(|_| {
            Ok(open_model(&url)?.rollback(STABLE, None, "bench", None).map(drop)?)
        })?,
    };
    print_outcome(&outcome, is_json)
}

/// Writes the versions from 2 to `versions`, and one entry in the pointer's log for each of them.
fn write_copies(
    model: &Model,
    first: &VersionManifest,
    folder: &Path,
    versions: u64,
) -> Result<()> {
    let mut entry: PointerMove = model.pointer(STABLE)?;
    for number in 2..=versions {
        let version = VersionId(number);
        let manifest = VersionManifest { version, chain: String::new(), ..first.clone() }.seal();
        write(&folder.join("versions"), number, &manifest)?;
        entry = PointerMove { number, from: Some(entry.to.version), to: manifest.link(), ..entry };
        write(&folder.join("pointers").join(STABLE), number, &entry)?;
    }
    Ok(())
}

fn write(folder: &Path, number: u64, value: &impl Serialize) -> Result<()> {
    // The registry stores an object with this number at this path.
    let (high, middle) = (number / 1_000_000, number / 1000 % 1000);
    let folder = folder.join(format!("{high:014}/{middle:03}"));
    fs::create_dir_all(&folder)
        .with_context(|| format!("folder `{}` cannot be created", folder.display()))?;
    let path = folder.join(format!("{number:020}.json"));
    fs::write(&path, serde_json::to_vec_pretty(value)?)
        .with_context(|| format!("file `{}` cannot be written", path.display()))
}

/// Measures an operation [`REPEAT`] times. `work` receives the number of the measurement, counted
/// from 0.
fn measure(mut work: impl FnMut(u64) -> Result<()>) -> Result<Times> {
    let mut times = Vec::with_capacity(REPEAT);
    for i in 0..REPEAT as u64 {
        let began = Instant::now();
        work(i)?;
        times.push((began.elapsed().as_secs_f64() * 1e6).round() / 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(Times { median_ms: times[REPEAT / 2], max_ms: times[REPEAT - 1] })
}
