//! The descriptions of versions and of pointer moves as lines of text.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde::Serialize;
use zillion_registry::{Model, MoveKind, PointerMove, VersionId, VersionManifest};

#[derive(Serialize)]
pub(super) struct Summary<'a> {
    version: VersionId,
    parent: Option<VersionId>,
    published_ms: u64,
    rows: u64,
    bytes: u64,
    metrics: &'a BTreeMap<String, f64>,
}

pub(super) fn summarize(version: &VersionManifest) -> Summary<'_> {
    Summary {
        version: version.version,
        parent: version.parent.as_ref().map(|link| link.version),
        published_ms: version.published_ms,
        rows: version.layer.rows(),
        bytes: version.files().iter().map(|(_, file)| file.bytes).sum(),
        metrics: &version.origin.metrics,
    }
}

pub(super) fn format_version(version: &VersionManifest) -> String {
    let kind = match (&version.parent, version.compacts()) {
        (None, None) => "base".to_owned(),
        (None, Some(repeated)) => format!("base with the state of {repeated}"),
        (Some(link), _) => format!("delta on {}", link.version),
    };
    let summary = summarize(version);
    format!(
        "version {}  {kind}  {} rows  {} bytes  {}",
        version.version,
        summary.rows,
        summary.bytes,
        format_age(version.published())
    )
}

pub(super) fn format_move(entry: &PointerMove) -> String {
    let from = entry.from.map_or("nothing".to_owned(), |from| from.to_string());
    let kind = match entry.kind {
        MoveKind::Publish => "publish",
        MoveKind::Promote => "promote",
        MoveKind::Rollback => "rollback",
        MoveKind::Quarantine => "quarantine",
        MoveKind::Lift => "lift",
    };
    let about = entry.about.map_or(String::new(), |version| format!(" of version {version}"));
    let at = UNIX_EPOCH + Duration::from_millis(entry.at_ms);
    let note = entry.note.as_ref().map_or(String::new(), |note| format!(": {note}"));
    format!(
        "{kind}{about} {from} -> {} by {}, {}{note}",
        entry.to.version,
        entry.by,
        format_age(at)
    )
}

pub(super) fn format_pointers(model: &Model) -> Result<String> {
    let mut shown = Vec::new();
    for name in model.pointers()? {
        shown.push(format!("{name} -> {}", model.pointer(&name)?.to.version));
    }
    Ok(if shown.is_empty() { "no pointer is set".to_owned() } else { shown.join("  ") })
}

/// Formats the time since `then` as a number of one unit.
fn format_age(then: SystemTime) -> String {
    let seconds = SystemTime::now().duration_since(then).unwrap_or_default().as_secs();
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}
