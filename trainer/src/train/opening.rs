//! The opening of a run's tables, in this process or on the servers of a parameter service.

use std::time::Duration;

use zillion_config::ConfigError;
use zillion_feature::TableId;
use zillion_ps::{
    BorrowingClient, LocalClient, RegisteredServers, RemoteClient, RemoteOptions, SpillOptions,
    Stop, TableAccess, TableOptions, Token, TrainClient, TrainerPlace, open_etcd,
};

use super::TrainOptions;
use crate::checkpoint::RunDir;
use crate::error::{Error, Result};
use crate::job::{Job, PsConfig};
use crate::observer::Observer;

/// The generation of the parameter service after which tables are opened, and their use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct After {
    /// The number of the generation that has ended; 0 at first.
    pub(super) generation: u64,
    /// The number of pushes of this trainer, if it wants to continue with the tables of that
    /// generation.
    pub(super) clock: Option<u64>,
    /// Whether a GPU computes the steps, so that the trainer borrows rows that servers have.
    pub(super) borrows: bool,
}

/// A function that opens the tables of a run.
pub(super) type Open<'a> =
    dyn FnMut(&Job, &TrainOptions, After, &mut dyn Observer) -> Result<Box<dyn TrainClient>> + 'a;

/// Opens the tables of a run, which are empty at first.
pub(super) fn open_client(
    job: &Job,
    options: &TrainOptions,
    after: After,
    observer: &mut dyn Observer,
) -> Result<Box<dyn TrainClient>> {
    let tables = TableOptions {
        max_bytes: job.train.max_table_bytes,
        frozen: job.frozen_tables()?,
        follows_checkpoints: job.train.full_every.get() > 1,
        ..TableOptions::new(job.tables.clone(), job.run.shards)
    };
    match &job.ps {
        Some(ps) => open_remote(job, ps, options, tables, after),
        None if options.trainer.count > 1 => Err(Error::Unsupported(
            "several trainers need the servers of a parameter service; name them in `ps.servers`"
                .to_owned(),
        )),
        None => open_local(job, options, tables, observer),
    }
}

/// Opens tables in this process.
fn open_local(
    job: &Job,
    options: &TrainOptions,
    tables: TableOptions,
    observer: &mut dyn Observer,
) -> Result<Box<dyn TrainClient>> {
    let spills = !job.run.spill.is_empty();
    if spills {
        // The run's folders are created first, which makes their names durable.
        RunDir::new(job.output()).prepare(&options.files)?;
    }
    let memory_of = |(id, table): (TableId, &zillion_rows::TableSpec)| {
        Some((id, job.run.spill.get(&table.name)?.bytes()))
    };
    let folder = job.spill_folder();
    let spill = spills.then(|| SpillOptions {
        folder: folder.clone(),
        files: options.files.clone(),
        memory: (0..).map(TableId).zip(&job.tables).filter_map(memory_of).collect(),
    });
    let tables = TableOptions { spill, ..tables };
    let mut client = LocalClient::open(tables, options.workers.clone())?;
    let statistics = client.stats()?;
    if statistics.iter().any(|table| table.spill.is_some_and(|spill| spill.cached_files > 0)) {
        observer.note(&format!(
            "spilled rows may still take memory, because the file system of {} keeps files in memory or cannot bypass \
             its page cache; set `run.spill_folder` to a folder on another disk",
            folder.display()
        ));
    }
    Ok(Box::new(client))
}

/// Opens tables on the servers of a parameter service.
fn open_remote(
    job: &Job,
    ps: &PsConfig,
    options: &TrainOptions,
    tables: TableOptions,
    after: After,
) -> Result<Box<dyn TrainClient>> {
    let directory = ps.etcd_options().map(|etcd| {
        let directory = open_etcd(&etcd)?;
        Ok::<_, Error>(RegisteredServers { directory, count: ps.server_count.unwrap_or_default() })
    });
    let remote = RemoteOptions {
        servers: ps.servers.clone(),
        directory: directory.transpose()?,
        place: options.trainer,
        run: ps.run_in_store(&job.output())?,
        job_digest: job.digest()?,
        store: ps.store.clone(),
        token: ps.token_file.as_deref().map(Token::read).transpose()?,
        tls: ps.client_tls()?,
        pace: job.train.pace(),
        bf16_gradients: !job.train.wire.is_f32(),
        deadline: Duration::from_secs(ps.deadline_seconds.get()),
        after: after.generation,
        clock: after.clock,
        patience: Duration::from_secs(ps.wait_seconds.get()),
        stop: Stop(options.stop.clone()),
    };
    let client = RemoteClient::open(remote, tables.clone())?;
    match after.borrows {
        false => Ok(Box::new(client)),
        true => Ok(Box::new(BorrowingClient::new(client, tables, options.workers.clone())?)),
    }
}

/// Checks the place of the trainer among the trainers of the run.
pub(super) fn check_place(job: &Job, place: TrainerPlace) -> Result<()> {
    if place.index >= place.count {
        return Err(Error::Unsupported(format!(
            "trainer {} of {} does not exist; trainers are counted from 0",
            place.index, place.count
        )));
    }
    job.check_mode_has_servers()?;
    if place.count > 1 && job.train.accumulate.get() > 1 {
        let message = "must be 1 if several trainers train together, because a step already has \
                       one batch of each trainer; remove it, or start more trainers instead";
        return Err(ConfigError::at("train.accumulate", message).into());
    }
    Ok(())
}
