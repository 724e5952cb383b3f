//! The opening of tables, in this process or on parameter servers.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Result;
use zillion_console::exit::usage_error;
use zillion_device::{Files, Workers};
use zillion_feature::TableId;
use zillion_ps::{
    ClientTls, ClientTlsFiles, LocalClient, RegisteredServers, RemoteClient, RemoteOptions,
    SpillOptions, Stop, TableOptions, Token, TrainClient, open_etcd,
};
use zillion_rows::TableClock;
use zillion_trainer::{Job, PsConfig, TrainerPlace};

/// Checks that no table needs what only a training of Zillion has.
///
/// # Errors
/// Returns an error that names the setting to remove.
pub(super) fn check_tables(job: &Job) -> Result<()> {
    for table in &job.tables {
        let about = |key: &str, problem: &str| {
            usage_error(format!("`tables.{}.{key}`: {problem}; remove it", table.name))
        };
        if table.dense {
            return about("dense", "tables in Python have no vocabulary to fill them with");
        }
        if table.statistics.is_some() {
            return about("statistics", "tables in Python see no labels");
        }
        if table.clock() == TableClock::EventTime {
            return about("eviction", "tables in Python see no event times");
        }
    }
    if job.ps.as_ref().and_then(PsConfig::bucket).is_some() {
        return usage_error(
            "`ps.store`: tables in Python are saved in a folder; name a folder that the servers \
             share with this process, not a bucket",
        );
    }
    Ok(())
}

/// Opens empty tables. On servers, they belong to a generation after the given one, and `stop`
/// ends a wait for servers.
///
/// # Errors
/// Returns an error if a setting is wrong or a server cannot be reached.
pub(super) fn open_tables(
    job: &Job,
    workers: &Arc<Workers>,
    files: &Files,
    after: u64,
    stop: &Arc<AtomicBool>,
) -> Result<Box<dyn TrainClient>> {
    let options = TableOptions {
        max_bytes: job.train.max_table_bytes,
        ..TableOptions::new(job.tables.clone(), job.run.shards)
    };
    if let Some(ps) = &job.ps {
        let remote = remote_options(job, ps, after, stop)?;
        return Ok(Box::new(RemoteClient::open(remote, options)?));
    }
    let memory: Vec<(TableId, u64)> = (0..)
        .map(TableId)
        .zip(&job.tables)
        .filter_map(|(id, table)| Some((id, job.run.spill.get(&table.name)?.bytes())))
        .collect();
    let folder = job.run.spill_folder.clone().unwrap_or_else(|| job.output().join("spill"));
    let spill = (!memory.is_empty()).then(|| SpillOptions { folder, files: files.clone(), memory });
    Ok(Box::new(LocalClient::open(TableOptions { spill, ..options }, workers.clone())?))
}

/// Returns the settings of a client of servers, which is the only one of its run.
fn remote_options(
    job: &Job,
    ps: &PsConfig,
    after: u64,
    stop: &Arc<AtomicBool>,
) -> Result<RemoteOptions> {
    let directory = ps.etcd_options().map(|etcd| -> Result<_> {
        let directory = open_etcd(&etcd)?;
        Ok(RegisteredServers { directory, count: ps.server_count.unwrap_or_default() })
    });
    let tls = ps.tls_ca.clone().map(|authority| {
        let identity = ps.tls_cert.clone().zip(ps.tls_key.clone());
        ClientTls::open(ClientTlsFiles { authority, identity })
    });
    let settings = serde_json::to_vec(&job.portable()?)?;
    Ok(RemoteOptions {
        servers: ps.servers.clone(),
        directory: directory.transpose()?,
        place: TrainerPlace::ALONE,
        run: ps.run_in_store(&job.output())?,
        job_digest: blake3::hash(&settings).to_hex().to_string(),
        store: ps.store.clone(),
        token: ps.token_file.as_deref().map(Token::read).transpose()?,
        tls: tls.transpose()?,
        pace: None,
        bf16_gradients: false,
        deadline: Duration::from_secs(ps.deadline_seconds.get()),
        after,
        clock: None,
        patience: Duration::from_secs(ps.wait_seconds.get()),
        stop: Stop(stop.clone()),
    })
}
