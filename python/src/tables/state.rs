//! The state of tables, and the lookups of the present step.
//!
//! A step has any number of lookups. Each gets a ticket. Gradients that are given for a ticket are
//! summed by key at once, so that nothing of the caller's memory is kept. At the end of the step,
//! the sums of all lookups are summed by key and pushed once.
//!
//! # Invariants
//! The sum of a key's gradients over one lookup is taken in the order of the fields, then of the
//! rows. The sum over lookups is taken in the order in which the key occurs in them: by field,
//! then by lookup. So the result does not depend on the number of threads.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use zillion_console::exit::usage_error;
use zillion_console::{compute_pool, durable_files};
use zillion_device::{Files, Workers};
use zillion_embedding::Rates;
use zillion_feature::{
    Batch, FeatureKey, KeyColumn, LookupPlan, PlanScratch, RowBuffer, Step, TableId,
};
use zillion_ps::{PullOptions, PushMode, StepReport, TrainClient};
use zillion_rows::TableParts;
use zillion_trainer::Job;

use super::lookup::{Lookup, join_batches};
use super::opening::{check_tables, open_tables};
use super::publish::OpenPublisher;
use super::rows::{join_sums, sum_gradients};

/// The largest number of lookups in a step. More of them are a step that is never ended.
const MOST_LOOKUPS: usize = 1024;
/// The largest number of ids of one lookup.
const MOST_IDS: usize = 1 << 30;
/// The name of the file that lists the parts of saved tables.
const MANIFEST: &str = "tables.json";
/// The format of that file.
const FORMAT: u32 = 1;

/// The tables with what a step needs.
pub(super) struct State {
    pub(super) client: Box<dyn TrainClient>,
    pub(super) job: Job,
    pub(super) workers: Arc<Workers>,
    pub(super) files: Files,
    scratch: PlanScratch,
    /// The memory of the rows that the last lookup read.
    pub(super) buffer: RowBuffer,
    /// The number of steps that changed the tables.
    pub(super) step: u64,
    /// The id by which versions of the tables are known; absent before the first publication.
    pub(super) run: Option<String>,
    /// The publisher of the last version, which knows the rows that the version has.
    pub(super) open: Option<OpenPublisher>,
    /// The lookups of the present step, in the order of their tickets.
    pub(super) lookups: Vec<Lookup>,
    tickets: u64,
    /// Whether the rows are those of one moment, and not of a `restore` that has failed.
    pub(super) is_whole: bool,
}

/// The file that lists the parts of saved tables.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    format: u32,
    step: u64,
    /// The id of the versions of the tables, so that tables that are restored continue them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    tables: Vec<TableParts>,
}

impl State {
    /// Opens empty tables. `stop` ends a wait for servers.
    pub(super) fn open(job: Job, stop: &Arc<AtomicBool>) -> Result<Self> {
        check_tables(&job)?;
        let (workers, files) = (compute_pool(job.run.threads)?, durable_files()?);
        let client = open_tables(&job, &workers, &files, 0, stop)?;
        Ok(Self {
            client,
            job,
            workers,
            files,
            scratch: PlanScratch::default(),
            buffer: RowBuffer::default(),
            step: 0,
            run: None,
            open: None,
            lookups: Vec::new(),
            tickets: 0,
            is_whole: true,
        })
    }

    fn table(&self, field: usize) -> Result<TableId> {
        let table = self.job.schema.sparse_tables().get(field).copied();
        table.ok_or_else(|| anyhow!("field {field} does not exist; the tables have fewer fields"))
    }

    pub(super) fn dim(&self, field: usize) -> usize {
        let table = self.job.schema.sparse_tables().get(field).copied();
        table.map_or(0, |table| self.client.layouts()[table.index()].width())
    }

    /// Reads the rows of ids.
    pub(super) fn read(
        &mut self,
        fields: &[usize],
        ids: &[i64],
        trains: bool,
    ) -> Result<(Lookup, RowBuffer)> {
        let (batch, rows, dim) = self.batch(fields, ids)?;
        let plan = Arc::new(LookupPlan::build(&batch, &self.job.schema, &mut self.scratch));
        let buffer = std::mem::take(&mut self.buffer);
        let mut lookup =
            Lookup { ticket: 0, fields: fields.to_vec(), rows, dim, batch, plan, sums: None };
        if !trains {
            let (found, _) = self.client.lookup(&lookup.plan, buffer)?;
            return Ok((lookup, found));
        }
        if self.lookups.len() >= MOST_LOOKUPS {
            bail!(
                "a step has {MOST_LOOKUPS} lookups for training and is not ended; call `step` after \
                 the backward pass, `discard` to leave it out, or look up without gradients"
            );
        }
        if self.lookups.is_empty() {
            self.client.begin_step(Step(self.step + 1), Rates::default())?;
        }
        let pulled = self.client.pull(&lookup.plan, PullOptions::default(), buffer);
        let found = match pulled {
            Ok(found) => found,
            Err(error) => {
                if self.lookups.is_empty() {
                    self.client.discard()?;
                }
                return Err(error.into());
            }
        };
        self.tickets += 1;
        lookup.ticket = self.tickets;
        Ok((lookup, found))
    }

    /// Returns the batch of ids of shape `[rows, fields]`, its rows and the floats of a row.
    fn batch(&self, fields: &[usize], ids: &[i64]) -> Result<(Batch, usize, usize)> {
        if fields.is_empty() || !ids.len().is_multiple_of(fields.len()) {
            bail!(
                "{} ids are not those of {} fields; give one id for each field of a row",
                ids.len(),
                fields.len()
            );
        }
        if ids.len() > MOST_IDS {
            bail!(
                "a lookup of {} ids; at most {MOST_IDS} are allowed, use smaller batches",
                ids.len()
            );
        }
        let dim = self.dim(fields[0]);
        for (at, &field) in fields.iter().enumerate() {
            self.table(field)?;
            if self.dim(field) != dim {
                return usage_error(
                    "the fields of one lookup have different dims; split the lookup",
                );
            }
            if fields[..at].contains(&field) {
                return usage_error("a field occurs twice in one lookup; name each field once");
            }
        }
        let mut batch = Batch::empty(&self.job.schema);
        batch.rows = ids.len() / fields.len();
        for (at, &field) in fields.iter().enumerate() {
            let ids = ids.iter().skip(at).step_by(fields.len());
            batch.sparse[field] =
                KeyColumn::single(ids.copied().map(FeatureKey::from_i64).collect());
        }
        let rows = batch.rows;
        Ok((batch, rows, dim))
    }

    /// Sums the gradients of a lookup by key, and adds the sums to those that it has.
    pub(super) fn keep(&mut self, ticket: u64, gradients: &[f32]) -> Result<()> {
        let Some(lookup) = self.lookups.iter_mut().find(|lookup| lookup.ticket == ticket) else {
            bail!(
                "the lookup belongs to a step that has ended; look the ids up again after `step` or \
                 `discard`"
            );
        };
        let floats = lookup.rows * lookup.fields.len() * lookup.dim;
        if gradients.len() != floats {
            bail!(
                "{} gradients for {floats} floats; give the shape of the rows in float32",
                gradients.len()
            );
        }
        let kept = lookup.sums.take();
        let is_first = kept.is_none();
        let mut sums = kept.unwrap_or_else(|| std::mem::take(&mut self.buffer));
        let layouts = self.client.layouts();
        sum_gradients(&self.workers, lookup, layouts, gradients, is_first, &mut sums);
        lookup.sums = Some(sums);
        Ok(())
    }

    /// Pushes the gradients of all lookups that have some, and ends the step.
    pub(super) fn push(&mut self, scale: f32) -> Result<StepReport> {
        let mut lookups = std::mem::take(&mut self.lookups);
        if lookups.is_empty() {
            return Ok(StepReport::default());
        }
        lookups.retain(|lookup| lookup.sums.is_some());
        if lookups.is_empty() {
            self.client.discard()?;
            return Ok(StepReport::default());
        }
        let pushed = self.push_sums(lookups, scale);
        match &pushed {
            Ok(_) => self.step += 1,
            // A push that failed has its own error, also if the step cannot be left.
            Err(_) => drop(self.client.discard()),
        }
        pushed
    }

    /// Pushes the sums of lookups.
    fn push_sums(&mut self, mut lookups: Vec<Lookup>, scale: f32) -> Result<StepReport> {
        let (plan, sums) = match lookups.as_mut_slice() {
            [lookup] => (lookup.plan.clone(), lookup.sums.take().unwrap_or_default()),
            _ => {
                let batch = join_batches(Batch::empty(&self.job.schema), &lookups);
                let plan = LookupPlan::build(&batch, &self.job.schema, &mut self.scratch);
                let mut sums = std::mem::take(&mut self.buffer);
                join_sums(&self.workers, &plan, self.client.layouts(), &lookups, &mut sums);
                (Arc::new(plan), sums)
            }
        };
        // The same step begins again, now that its learning rates are known.
        self.client.begin_step(Step(self.step + 1), Rates { scale })?;
        self.client.push(&plan, sums, PushMode::Apply)?;
        Ok(self.client.sweep()?)
    }

    /// Reads the row of an id. The present step goes on, if there is one.
    pub(super) fn find(&mut self, field: usize, id: i64) -> Result<Option<(Vec<f32>, u32)>> {
        let (batch, _, dim) = self.batch(&[field], &[id])?;
        let plan = Arc::new(LookupPlan::build(&batch, &self.job.schema, &mut self.scratch));
        let (_, report) = self.client.lookup(&plan, RowBuffer::default())?;
        if report.total_missing() > 0 {
            return Ok(None);
        }
        let is_between = self.lookups.is_empty();
        if is_between {
            self.client.begin_step(Step(self.step + 1), Rates::default())?;
        }
        let pulled = self.client.pull(&plan, PullOptions { counts: true }, RowBuffer::default());
        if is_between {
            self.client.discard()?;
        }
        let pulled = pulled?;
        let rows = &pulled.tables[plan.columns[field].table];
        let count = rows.counts.as_ref().and_then(|counts| counts.first()).copied();
        Ok(Some((rows.row(0)[..dim].to_vec(), count.unwrap_or_default())))
    }

    /// Drops the gradients that are kept for this step. Its lookups stay.
    pub(super) fn clear_gradients(&mut self) {
        self.lookups.iter_mut().for_each(|lookup| lookup.sums = None);
    }

    pub(super) fn discard(&mut self) -> Result<()> {
        if !self.lookups.is_empty() {
            self.lookups.clear();
            self.client.discard()?;
        }
        Ok(())
    }

    pub(super) fn save(&mut self, folder: &Path) -> Result<()> {
        if !self.lookups.is_empty() {
            bail!("a step is not ended; call `step` or `discard` before the tables are saved");
        }
        if folder.exists() {
            bail!("{} exists; choose another folder, or remove it", folder.display());
        }
        let stage = self.files.stage(folder)?;
        let tables = self.client.checkpoint(stage.path(), &self.files)?;
        let saved = Saved { format: FORMAT, step: self.step, run: self.run.clone(), tables };
        stage.write_bytes(MANIFEST, &serde_json::to_vec(&saved)?)?;
        stage.commit()?;
        // An operator may have asked the servers for a checkpoint, and waits for it.
        Ok(self.client.record_checkpoint(&[self.step])?)
    }

    /// Replaces all rows. If a server was lost, the tables are opened again first; `stop` ends the
    /// wait for it.
    pub(super) fn restore(&mut self, folder: &Path, stop: &Arc<AtomicBool>) -> Result<()> {
        let path = folder.join(MANIFEST);
        let bytes = std::fs::read(&path)
            .with_context(|| format!("{} has no saved tables", folder.display()))?;
        let saved: Saved = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} does not list saved tables", path.display()))?;
        if saved.format != FORMAT {
            bail!(
                "{} has the format {}; this version reads {FORMAT}",
                path.display(),
                saved.format
            );
        }
        // The rows are others than those of the last version and of the present step.
        self.open = None;
        self.lookups.clear();
        self.is_whole = false;
        let discarded = self.client.discard();
        match discarded.and_then(|()| self.client.restore(folder, &saved.tables)) {
            Err(
                zillion_ps::Error::Rewound { generation, .. }
                | zillion_ps::Error::Restored { generation, .. },
            ) => {
                self.client = open_tables(&self.job, &self.workers, &self.files, generation, stop)?;
                self.client.restore(folder, &saved.tables)?;
            }
            restored => restored?,
        }
        self.step = saved.step;
        self.run = saved.run;
        self.is_whole = true;
        Ok(())
    }
}
