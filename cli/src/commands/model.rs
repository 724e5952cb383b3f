//! `zillion model`: what operators do with versions.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::json;
use zillion_console::{open_registry, print_json};
use zillion_registry::{Model, MoveKind, PointerMove, Retention, VersionId, VersionManifest};
use zillion_store::StoreSums;

use super::{graph, model_export, say};
use crate::args::{
    DiffArgs, GcArgs, ListArgs, ModelArgs, ModelCommand, ModelRef, PinArgs, PromoteArgs,
    RollbackArgs, ShowArgs, VerifyArgs,
};

/// Moves of a pointer that are shown.
const SHOWN_MOVES: usize = 20;

pub(crate) fn run(args: &ModelArgs) -> Result<()> {
    match &args.what {
        ModelCommand::List(args) => list(args),
        ModelCommand::Show(args) => show(args),
        ModelCommand::Diff(args) => diff(args),
        ModelCommand::Promote(args) => promote(args),
        ModelCommand::Rollback(args) => rollback(args),
        ModelCommand::Verify(args) => verify(args),
        ModelCommand::Gc(args) => gc(args),
        ModelCommand::Pin(args) => pin(args),
        ModelCommand::Export(args) => model_export::run(args),
        ModelCommand::Graph(args) => graph::run(args),
    }
}

/// The model that arguments name.
pub(super) fn model(args: &ModelRef) -> Result<Model> {
    Ok(open_registry(&args.registry)?.model(&args.model)?)
}

/// Says on stderr when the store was in trouble: what went well in the end took longer than it should.
pub(super) fn tell_store(sums: &StoreSums) {
    if sums.retries > 0 {
        eprintln!(
            "the store was asked {} times, {} of them again after a failure, and {:.1} s were spent waiting in between",
            sums.requests, sums.retries, sums.backoff_seconds
        );
    }
}

/// Who does it, as far as the machine knows.
pub(super) fn who() -> String {
    let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    of("USER")
        .or_else(|| of("LOGNAME"))
        .or_else(number_of_user)
        .unwrap_or_else(|| "unknown".to_owned())
}

/// In a container nobody has a name, and yet a number and a machine.
fn number_of_user() -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let user = std::fs::metadata("/proc/self").ok()?.uid();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(format!("user {user} on {}", host.trim()))
}

fn list(args: &ListArgs) -> Result<()> {
    let registry = open_registry(&args.registry)?;
    let Some(name) = &args.model else {
        let models = registry.models()?;
        if args.json {
            return print_json(&json!({ "models": models }));
        }
        for name in models {
            let model = registry.model(&name)?;
            say(&format!("{name}  latest {}  {}", shown(model.latest()?), pointers(&model)?));
        }
        return Ok(());
    };
    let model = registry.model(name)?;
    // A name without a version is an error and no empty list.
    if model.latest()?.is_none() {
        let models = registry.models()?.join("`, `");
        bail!(
            "it has no version; the registry `{}` has the models `{models}`: model `{name}`",
            args.registry
        );
    }
    let page = model.page(args.before, args.limit)?;
    let versions: Vec<VersionManifest> =
        page.iter().map(|&version| model.version(version)).collect::<Result<_, _>>()?;
    let next = page.last().filter(|last| last.0 > 1 && page.len() == args.limit);
    if args.json {
        let versions: Vec<_> = versions.iter().map(summary).collect();
        return print_json(&json!({ "versions": versions, "before": next }));
    }
    let pinned = model.pins()?;
    for version in &versions {
        let pin = if pinned.contains(&version.version) { "  pinned" } else { "" };
        let figures = version.origin.metrics.iter().filter(|(name, _)| name.ends_with("auc"));
        let figures: String = figures.map(|(name, x)| format!("  {name} {x:.5}")).collect();
        say(&format!("{}  step {}{figures}{pin}", line(version), version.origin.step));
    }
    say(&pointers(&model)?);
    if let Some(next) = next {
        eprintln!("older ones: --before {next}");
    }
    Ok(())
}

fn show(args: &ShowArgs) -> Result<()> {
    let model = model(&args.model)?;
    if let Some(pointer) = &args.pointer {
        // A name that was never set is an error and no empty log.
        model.pointer(pointer)?;
        let moves = model.moves(pointer, None, SHOWN_MOVES)?;
        if args.json {
            return print_json(&moves);
        }
        moves.iter().for_each(|entry| say(&moved(entry)));
        return Ok(());
    }
    let version = newest(&model, args.version)?;
    let manifest = model.version(version)?;
    if args.json {
        return print_json(&manifest);
    }
    say(&line(&manifest));
    say(&format!("chain      {}", manifest.chain));
    let parent = manifest
        .parent
        .as_ref()
        .map_or("none: a base".to_owned(), |link| format!("version {}", link.version));
    say(&format!("parent     {parent}"));
    let origin = &manifest.origin;
    say(&format!(
        "origin     run {}, step {}, epoch {}",
        origin.run, origin.step, origin.cursor.epoch
    ));
    for (name, value) in &origin.metrics {
        say(&format!("metric     {name} {value:.5}"));
    }
    for table in &manifest.layer.tables {
        say(&format!(
            "table      {}: {} rows, {} tombstones, {} parts",
            table.table,
            table.rows - table.tombstones,
            table.tombstones,
            table.parts.len() + table.narrow.as_ref().map_or(0, |narrow| narrow.parts.len())
        ));
    }
    let files = manifest.files();
    let bytes: u64 = files.iter().map(|(_, file)| file.bytes).sum();
    say(&format!("files      {}, {bytes} bytes", files.len()));
    say(&pointers(&model)?);
    Ok(())
}

fn diff(args: &DiffArgs) -> Result<()> {
    let model = model(&args.model)?;
    let (from, to) = (model.chain(args.from)?, model.chain(args.to)?);
    let shared = from.iter().zip(&to).take_while(|(a, b)| a.chain == b.chain).count();
    let last = |chain: &[Arc<VersionManifest>]| chain.last().cloned();
    let (Some(old), Some(new)) = (last(&from), last(&to)) else { return Ok(()) };
    let keys = |chain: &[Arc<VersionManifest>]| -> (u64, u64) {
        let tables = chain.iter().flat_map(|version| &version.layer.tables);
        tables.fold((0, 0), |(rows, gone), t| (rows + t.rows - t.tombstones, gone + t.tombstones))
    };
    let undone: Vec<VersionId> = from[shared..].iter().map(|v| v.version).collect();
    let added: Vec<VersionId> = to[shared..].iter().map(|v| v.version).collect();
    let (written, gone) = keys(&to[shared..]);
    let metrics: Vec<_> = new
        .origin
        .metrics
        .iter()
        .map(|(name, value)| (name, old.origin.metrics.get(name).copied(), *value))
        .collect();
    if args.json {
        return print_json(&json!({
            "from": args.from,
            "to": args.to,
            "common": shared.checked_sub(1).map(|at| from[at].version),
            "only_in_from": undone,
            "only_in_to": added,
            "rows_written": written,
            "tombstones": gone,
            "dense_differs": old.dense != new.dense,
            "graph_differs": old.graph != new.graph,
            "schema_differs": old.schema_hash != new.schema_hash,
            "metrics": metrics,
        }));
    }
    match shared.checked_sub(1) {
        Some(at) => say(&format!("both stand on version {}", from[at].version)),
        None => say("they have no version in common"),
    }
    let numbers = |versions: &[VersionId]| {
        versions.iter().map(VersionId::to_string).collect::<Vec<_>>().join(", ")
    };
    if !undone.is_empty() {
        say(&format!("only in {}: versions {}", args.from, numbers(&undone)));
    }
    if !added.is_empty() {
        let versions = numbers(&added);
        say(&format!(
            "only in {}: versions {versions}: {written} rows, {gone} tombstones",
            args.to
        ));
    }
    for (what, differs) in [
        ("dense parameters", old.dense != new.dense),
        ("graph", old.graph != new.graph),
        ("schema", old.schema_hash != new.schema_hash),
    ] {
        say(&format!("{what}: {}", if differs { "other" } else { "the same" }));
    }
    for (name, before, after) in metrics {
        let before = before.map_or("-".to_owned(), |value| format!("{value:.5}"));
        say(&format!("{name}: {before} -> {after:.5}"));
    }
    Ok(())
}

fn promote(args: &PromoteArgs) -> Result<()> {
    let model = model(&args.model)?;
    // A version that cannot be loaded must not become anybody's.
    model.check_files(args.version)?;
    let kind = MoveKind::Promote;
    let entry = model.promote(&args.to, args.version, kind, &who(), args.note.clone())?;
    say(&moved(&entry));
    tell_store(&model.store().stats().sums());
    Ok(())
}

fn rollback(args: &RollbackArgs) -> Result<()> {
    let model = model(&args.model)?;
    if let Some(to) = args.to {
        model.check_files(to)?;
    }
    let entry = model.rollback(&args.pointer, args.to, &who(), args.note.clone())?;
    say(&moved(&entry));
    tell_store(&model.store().stats().sums());
    Ok(())
}

fn verify(args: &VerifyArgs) -> Result<()> {
    let model = model(&args.model)?;
    let version = newest(&model, args.version)?;
    let verified = model.verify(version, |version| eprintln!("version {}", version.version))?;
    if args.json {
        return print_json(&json!({
            "version": version,
            "versions": verified.versions,
            "files": verified.files,
            "bytes": verified.bytes,
            "rows": verified.rows,
            "store": model.store().stats().sums(),
        }));
    }
    say(&format!(
        "version {version} is whole: {} versions, {} files, {} bytes, {} rows",
        verified.versions, verified.files, verified.bytes, verified.rows
    ));
    tell_store(&model.store().stats().sums());
    Ok(())
}

fn gc(args: &GcArgs) -> Result<()> {
    let retention = Retention { keep: args.keep, grace: Duration::from_secs(args.grace) };
    let model = model(&args.model)?;
    let done = model.collect(retention, args.dry_run)?;
    let store = model.store().stats().sums();
    if args.json {
        let mut summary = serde_json::to_value(done)?;
        summary["store"] = serde_json::to_value(store)?;
        return print_json(&summary);
    }
    let verb = if args.dry_run { "would remove" } else { "removed" };
    say(&format!(
        "{verb} {} files of {} bytes and {} unfinished writes; {} versions in use need {} files",
        done.removed_files, done.removed_bytes, done.leftovers, done.kept_versions, done.kept_files
    ));
    tell_store(&store);
    Ok(())
}

fn pin(args: &PinArgs) -> Result<()> {
    let model = model(&args.model)?;
    if args.remove {
        model.unpin(args.version)?
    } else {
        model.pin(args.version, &who())?
    }
    let pins: Vec<String> = model.pins()?.iter().map(VersionId::to_string).collect();
    let pins = if pins.is_empty() { "none".to_owned() } else { pins.join(", ") };
    say(&format!("pinned: {pins}"));
    Ok(())
}

/// The version that was named, or the newest.
pub(super) fn newest(model: &Model, version: Option<VersionId>) -> Result<VersionId> {
    match version {
        Some(version) => Ok(version),
        None => model.latest()?.ok_or_else(|| {
            zillion_registry::Error::NoModel { model: model.name().to_owned() }.into()
        }),
    }
}

#[derive(Serialize)]
struct Summary<'a> {
    version: VersionId,
    parent: Option<VersionId>,
    published_ms: u64,
    rows: u64,
    bytes: u64,
    metrics: &'a std::collections::BTreeMap<String, f64>,
}

fn summary(version: &VersionManifest) -> Summary<'_> {
    Summary {
        version: version.version,
        parent: version.parent.as_ref().map(|link| link.version),
        published_ms: version.published_ms,
        rows: version.layer.rows(),
        bytes: version.files().iter().map(|(_, file)| file.bytes).sum(),
        metrics: &version.origin.metrics,
    }
}

fn line(version: &VersionManifest) -> String {
    let kind = match &version.parent {
        None => "base".to_owned(),
        Some(link) => format!("delta on {}", link.version),
    };
    let summary = summary(version);
    format!(
        "version {}  {kind}  {} rows  {} bytes  {}",
        version.version,
        summary.rows,
        summary.bytes,
        ago(version.published())
    )
}

fn moved(entry: &PointerMove) -> String {
    let from = entry.from.map_or("nothing".to_owned(), |from| from.to_string());
    let kind = match entry.kind {
        MoveKind::Publish => "publish",
        MoveKind::Promote => "promote",
        MoveKind::Rollback => "rollback",
    };
    let at = UNIX_EPOCH + Duration::from_millis(entry.at_ms);
    let note = entry.note.as_ref().map_or(String::new(), |note| format!(": {note}"));
    format!("{kind} {from} -> {} by {}, {}{note}", entry.to.version, entry.by, ago(at))
}

fn pointers(model: &Model) -> Result<String> {
    let mut shown = Vec::new();
    for name in model.pointers()? {
        shown.push(format!("{name} -> {}", model.pointer(&name)?.to.version));
    }
    Ok(if shown.is_empty() { "no pointer is set".to_owned() } else { shown.join("  ") })
}

fn shown(version: Option<VersionId>) -> String {
    version.map_or("none".to_owned(), |version| version.to_string())
}

/// How long ago, in one unit.
fn ago(then: SystemTime) -> String {
    let seconds = SystemTime::now().duration_since(then).unwrap_or_default().as_secs();
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}
