//! `zillion model list`: lists the models of a registry, or the versions of a model.

use anyhow::{Result, bail};
use serde_json::json;
use zillion_console::{open_registry, print_json, print_line};
use zillion_registry::VersionManifest;

use super::describe::{format_pointers, format_version, summarize};
use crate::args::ListArgs;

pub(super) fn run(args: &ListArgs) -> Result<()> {
    let registry = open_registry(&args.registry)?;
    let Some(name) = &args.model else {
        let models = registry.models()?;
        if args.json {
            return print_json(&json!({ "models": models }));
        }
        for name in models {
            let model = registry.model(&name)?;
            let latest = model.latest()?.map_or("none".to_owned(), |version| version.to_string());
            print_line(&format!("{name}  latest {latest}  {}", format_pointers(&model)?));
        }
        return Ok(());
    };
    let model = registry.model(name)?;
    // A model without versions is an error; an empty list would hide a misspelt name.
    if model.latest()?.is_none() {
        let models = registry.models()?.join(", ");
        bail!(
            "model `{name}` has no version (models of the registry `{}`: {models}); correct the \
             name, or publish a version",
            args.registry
        );
    }
    let page = model.page(args.before, args.limit)?;
    let versions: Vec<VersionManifest> =
        page.iter().map(|&version| model.version(version)).collect::<Result<_, _>>()?;
    let next = page.last().filter(|last| last.0 > 1 && page.len() == args.limit);
    if args.json {
        let versions: Vec<_> = versions.iter().map(summarize).collect();
        return print_json(&json!({ "versions": versions, "before": next }));
    }
    let pinned = model.pins()?;
    for version in &versions {
        let pin = if pinned.contains(&version.version) { "  pinned" } else { "" };
        let figures = version.origin.metrics.iter().filter(|(name, _)| name.ends_with("auc"));
        let figures: String = figures.map(|(name, x)| format!("  {name} {x:.5}")).collect();
        print_line(&format!(
            "{}  step {}{figures}{pin}",
            format_version(version),
            version.origin.step
        ));
    }
    print_line(&format_pointers(&model)?);
    if let Some(next) = next {
        eprintln!("older versions: --before {next}");
    }
    Ok(())
}
