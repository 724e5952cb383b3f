//! The findings about the disk for checkpoints, versions and caches.

use std::path::Path;

use anyhow::{Context, Result};
use zillion_device::machine;
use zillion_device::probe::measure_disk;

use super::Finding;

/// The write rate in bytes per second below which a checkpoint of several gigabytes takes minutes.
const SLOW_WRITE: f64 = 200e6;
/// The duration in seconds above which a sync is slow. With slower syncs, the small files of a
/// registry (pointers, manifests) are slow to write.
const SLOW_SYNC: f64 = 0.02;

/// Measures the speed of the disk with a file of `mib` MiB in `folder`.
pub(super) fn disk(folder: &Path, mib: usize) -> Result<Vec<Finding>> {
    let shown = folder.display();
    let kind = machine::file_system_kind(folder);
    let free = machine::free_disk(folder);
    let speed = measure_disk(folder, mib.saturating_mul(1 << 20)).with_context(|| {
        format!("cannot measure the disk of {shown}: choose another folder with --dir")
    })?;
    let mut findings = vec![file_system(&shown.to_string(), kind.as_deref(), free)];
    let mb = |rate: f64| format!("{:.0} MB/s", rate / 1e6);
    let read = speed.read.map_or_else(|| "not reported".to_owned(), mb);
    let found = format!("writes {}, reads {read}", mb(speed.write));
    findings.push(if speed.write < SLOW_WRITE {
        let advice = "checkpoints and publishing wait for the disk: put `run.output` and the registry on a faster one";
        Finding::improve("disk rate", found, advice)
    } else {
        Finding::good("disk rate", found)
    });
    let found = format!("{:.2} ms for a small durable write", speed.sync * 1e3);
    findings.push(if speed.sync > SLOW_SYNC {
        let advice =
            "each publish and each promotion waits for several such writes: use a disk with a durable write cache";
        Finding::improve("disk latency", found, advice)
    } else {
        Finding::good("disk latency", found)
    });
    Ok(findings)
}

fn file_system(folder: &str, kind: Option<&str>, free: Option<u64>) -> Finding {
    let kind = kind.unwrap_or("unknown file system");
    let free =
        free.map_or_else(|| "unknown".to_owned(), |b| format!("{:.1} GiB", b as f64 / 1.074e9));
    let found = format!("{folder} on {kind}, {free} free");
    match kind {
        "tmpfs" | "ramfs" => {
            let advice =
                "files there are lost at a restart: keep checkpoints and registries elsewhere";
            Finding::improve("disk", found, advice)
        }
        "nfs" | "nfs4" | "cifs" | "smb3" | "fuse.sshfs" => {
            let advice = "a server maps the files of its cache: keep `--cache` on a local disk";
            Finding::improve("disk", found, advice)
        }
        _ => Finding::good("disk", found),
    }
}
