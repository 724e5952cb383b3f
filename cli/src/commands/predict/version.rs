//! `zillion predict --model`: scores rows with a published version. It uses the code of a server.

use std::io::{self, BufWriter};
use std::path::Path;

use anyhow::{Context, Result, bail};
use zillion_console::exit::usage_error;
use zillion_console::{compute_pool, data_settings, durable_files, open_registry};
use zillion_reader::RawRows;
use zillion_registry::{Cache, STABLE};
use zillion_rows::layer::Unthrottled;
use zillion_scorer::{ScoringDevice, Servable};

use super::kept_columns::KeptColumns;
use super::score_lines::{self, ScoreLines};
use crate::args::PredictArgs;
use crate::device::chosen_gpu;
use crate::operator;
use crate::registry::{cache_folder, pointed_version};

/// The default number of rows in a batch.
const BATCH: usize = 4096;

pub(super) fn run(args: &PredictArgs, name: &str, input: &Path) -> Result<()> {
    let Some(registry) = &args.registry else {
        return usage_error("--model needs a registry; name it with --registry");
    };
    if input.as_os_str() == "-" {
        return usage_error("--model scores files and not stdin; write the rows to a file first");
    }
    if !args.fetch.fetch.is_empty() {
        return usage_error("--fetch works only with a checkpoint; remove --fetch or --model");
    }
    let data = data_settings::of_file(&args.set)?;
    let folder = cache_folder(args.cache.as_ref(), registry)?;
    let registry = operator::trust(open_registry(registry)?, args.trust.trust.as_deref())?;
    let model = registry.model(name)?.with_memory(&folder, durable_files()?);
    let version = pointed_version(&model, args.version, STABLE)?;
    let mut cache = Cache::open(&folder, name, durable_files()?)?;
    let workers = compute_pool(args.threads)?;
    let pace = &mut Unthrottled;
    let device = match chosen_gpu(&args.device, args.dense.unwrap_or_default())? {
        Some(name) => Some(ScoringDevice::open(name, None)?),
        None => None,
    };
    let (device, dense, others) = (device.as_ref(), args.dense, []);
    let servable =
        Servable::load_on(device, dense, &model, version, others, &mut cache, &workers, pace)?;
    let schema = servable.encoder().schema();

    let mut rows = RawRows::open(&data, &[input.to_owned()], schema)?;
    let names = servable.tasks().iter().filter(|_| servable.has_predictions()).enumerate();
    let tasks: Vec<_> = names.map(|(at, name)| (name.clone(), servable.kind_of_task(at))).collect();
    let out = BufWriter::new(io::stdout().lock());
    let columns = if args.json { Vec::new() } else { score_lines::header(&tasks) };
    let kept = KeptColumns::open(&data, input, &args.keep, &columns)?;
    let mut scores = ScoreLines::new(out, args.json, tasks, kept)?.only(args.rows);
    let (mut missing, mut missing_side_rows) = (0, 0);
    let mut failed = None;
    let batch = args.batch.map_or(BATCH, std::num::NonZeroUsize::get);
    while failed.is_none()
        && scores.left() > 0
        && let Some(block) = rows.next_block(batch.min(scores.left()))?
    {
        let scored = servable.score(block.rows, &block.columns).with_context(|| {
            format!("cannot score the {} rows from row {} on", block.rows, block.first)
        })?;
        missing += scored.missing;
        missing_side_rows += scored.missing_side_rows;
        let logits: Vec<&[f32]> = scored.logits.iter().map(Vec::as_slice).collect();
        if logits.is_empty() {
            bail!("version {version} has no outputs, which is a defect; publish the model again");
        }
        failed = scores.write(&logits, &[]).err();
    }
    if !scores.finish(failed)? {
        return Ok(());
    }
    if missing > 0 {
        eprintln!(
            "{missing} lookups of keys that version {version} does not have read the declared default"
        );
    }
    if missing_side_rows > 0 {
        eprintln!("{missing_side_rows} keys are not in their side table and read as missing");
    }
    Ok(())
}
