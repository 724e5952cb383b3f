//! `zillion publish`: writes a checkpoint into a registry as a version.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use serde_json::json;
use zillion_console::exit::refuse;
use zillion_console::{
    compute_pool, create_registry, data_settings, durable_files, print_json, print_line,
};
use zillion_device::SystemClock;
use zillion_reader::{DataConfig, Dataset, Paths};
use zillion_registry::VersionManifest;
use zillion_rows::RowType;
use zillion_scorer::{DenseType, published_dense};
use zillion_trainer::{
    Checkpoint, CheckpointWish, ItemsConfig, Job, Loaded, PublishConfig, Published, RoundingCost,
    publish_checkpoint,
};

use crate::args::PublishArgs;
use crate::operator::{audited, check_key_path, describe_publication};
use crate::registry::print_store_retries;

pub(crate) fn run(args: &PublishArgs) -> Result<()> {
    let checkpoint = Checkpoint::find(&args.checkpoint)?;
    let mut job = checkpoint.job()?;
    job.data = data_settings::of_checkpoint(&job, &args.set)?;
    let (row_type, dense) = choose_types(args)?;
    let cost = measure_rounding(args, (row_type, dense), &checkpoint, &job.data);
    let (cost, failure) = match cost.transpose() {
        Ok(cost) => (cost, None),
        Err(error) => (None, Some(error)),
    };
    if !args.parity.is_empty() {
        read_parity_from(&mut job, &args.parity);
    }
    check_key_path(args.operator.sign.as_deref())?;
    let config = PublishConfig {
        model: Some(args.model.model.clone()),
        promote: if args.no_promote { String::new() } else { args.promote.clone() },
        parity_rows: args.parity_rows,
        sign: args.operator.sign.clone(),
        valid_for: args.operator.valid_for,
        rows: row_type,
        dense,
        items: args
            .items
            .as_ref()
            .map(|path| ItemsConfig { path: absolute(path), id: args.items_id.clone() }),
        ..PublishConfig::new(&args.model.registry)
    };
    let workers = compute_pool(args.threads)?;
    let clock = Arc::new(SystemClock::new());
    let files = durable_files()?;
    let wish = CheckpointWish { base: args.base, rounding: cost };
    let act = || Ok(publish_checkpoint(&checkpoint, &job, &config, wish, &workers, &files, clock)?);
    let asked = format!("checkpoint {}", checkpoint.path().display());
    let name = &args.model.model;
    let describe = |published: &Published| describe_publication(published, &config.promote);
    let published = audited(&args.operator, "publish", name, &asked, act, describe)?;
    if let Some(error) = failure {
        eprintln!(
            "the cost of {} rows and of dense layers in {dense} is not known, because the \
             validation files cannot be scored: {error:#}",
            row_type.name()
        );
    }
    if args.json {
        if let Some(inputs) = &published.inputs {
            eprintln!("warning: {inputs}");
        }
        return print_json(&summary(&published, cost.as_ref()));
    }
    print_line(&published.to_string());
    if let Some(cost) = cost {
        print_line(&cost.to_string());
    }
    print_store_retries(&published.store);
    Ok(())
}

/// Returns the number types of the rows and of the dense layers. Without the options, they are the
/// types of the version that the pointer names, so that a command without them does not make a
/// model larger or slower unnoticed.
///
/// # Errors
/// Returns an error if the version that the pointer names can retrieve items, and the new version
/// could not.
fn choose_types(args: &PublishArgs) -> Result<(RowType, DenseType)> {
    let Some((version, row_type)) = find_pointed(args)? else {
        return Ok((args.rows.unwrap_or_default(), args.dense.unwrap_or_default()));
    };
    if version.items.is_some() && args.items.is_none() && !args.without_items {
        return refuse(format!(
            "version {} of {} retrieves items, and a version without items would end that; name \
             the file of items with --items, or publish with --without-items",
            version.version, version.model
        ));
    }
    if args.rows.is_none() && !row_type.is_f32() {
        eprintln!(
            "the rows are {}, as in version {}; choose another type with --rows",
            row_type.name(),
            version.version
        );
    }
    let dense = published_dense(&version);
    if args.dense.is_none() && !dense.is_exact() {
        if !dense.is_available() {
            return refuse(format!(
                "version {} of {} has dense layers in {dense}, which this processor cannot \
                 compute, so that a version like it cannot be checked; choose f32 or int8 with \
                 --dense",
                version.version, version.model
            ));
        }
        eprintln!(
            "servers compute the dense layers in {dense}, as those of version {}; choose another \
             type with --dense",
            version.version
        );
    }
    Ok((args.rows.unwrap_or(row_type), args.dense.unwrap_or(dense)))
}

/// Returns the version that the pointer names with the number type of its rows, or `None` if there
/// is no such version yet.
fn find_pointed(args: &PublishArgs) -> Result<Option<(VersionManifest, RowType)>> {
    // The publication needs the registry too. One that cannot be opened must not count as empty,
    // because the version would lose its items and the number type of its rows.
    let model = create_registry(&args.model.registry)?.model(&args.model.model)?;
    if !model.pointers()?.contains(&args.promote) {
        return Ok(None);
    }
    let version = model.version(model.pointer(&args.promote)?.to.version)?;
    let layer = model.layer(&version)?;
    let row_type = layer.tables.first().map_or(RowType::F32, |table| table.row_type);
    Ok(Some((version, row_type)))
}

/// Scores the validation files of the job with the rows and the dense layers of the checkpoint and
/// with those of the version. Returns `None` if both are the same, or if the job has no validation
/// files.
fn measure_rounding(
    args: &PublishArgs,
    (row_type, dense): (RowType, DenseType),
    checkpoint: &Checkpoint,
    data: &DataConfig,
) -> Option<Result<RoundingCost>> {
    if (row_type.is_f32() && dense.is_exact()) || data.valid.is_empty() {
        return None;
    }
    let measure = || {
        let workers = compute_pool(args.threads)?;
        let mut loaded = Loaded::from_checkpoint(checkpoint.clone(), workers)?;
        if loaded.job.schema.labels.first().is_some_and(|label| label.kind.is_number()) {
            bail!(
                "the first label is a number, which has no AUC; compare the figures of `zillion \
                 eval` with and without rounding"
            );
        }
        let dataset = Dataset::open(data, &data.files(&data.valid)?, &loaded.job.schema)?
            .with_statistics(loaded.statistics().clone());
        let whole = loaded.evaluate(&dataset)?.auc;
        loaded.set_dense(dense);
        let rounded = loaded.evaluate_as(&dataset, row_type)?.auc;
        let (Some(whole), Some(rounded)) = (whole, rounded) else {
            bail!("the rows have no AUC, because all have the same label; add rows of both classes")
        };
        Ok(RoundingCost { row_type, dense, whole, rounded })
    };
    Some(measure())
}

/// Makes the given files the validation files of the job. Parity rows are read from the validation
/// files if there are any.
fn read_parity_from(job: &mut Job, files: &[String]) {
    job.data.valid = Paths(files.iter().map(|file| absolute(file)).collect());
}

/// Returns the path of a file that is named on the command line, and so is relative to the current
/// folder.
fn absolute(file: &str) -> String {
    std::path::absolute(Path::new(file))
        .map_or_else(|_| file.to_owned(), |p| p.display().to_string())
}

fn summary(published: &Published, cost: Option<&RoundingCost>) -> serde_json::Value {
    let version = &published.version;
    json!({
        "model": version.model,
        "version": version.version,
        "parent": version.parent.as_ref().map(|parent| parent.version),
        "rows": version.layer.rows(),
        "zeros": version.layer.sparsity(),
        "step": version.origin.step,
        "moved": published.moved.is_some(),
        "was_there": published.was_there,
        "store": published.store,
        "rounding": cost,
    })
}
