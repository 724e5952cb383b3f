//! Tests of runs whose tables are on servers, and whose steps an emulated GPU computes with
//! borrowed rows.

use std::sync::Mutex;
use std::time::Duration;

use zillion_ps::server::{Server, ServerOptions};
use zillion_rows::RowDigest;

use super::memory::{PLAIN, write_rows};
use super::*;
use crate::observer::CheckpointReport;

/// A seed of an emulated GPU that runs every operation at once.
const FAST: u64 = 3;

/// Rows with several optimizers and types, a table with a rule for all of its rows, clipping, and
/// versions.
const RICH: &str = "publish = { registry = '{registry}', model = '{output}', every = 11 }\n\
    [tables.user]\ndim = 12\ndtype = 'bf16'\ndense = true\nl2 = 0.01\noptimizer = { kind = 'adam', lr = 0.01 }\n\
    [tables.item]\ndim = 12\noptimizer = { kind = 'ftrl', lr = 0.1 }\n\
    statistics = { decay = 0.9, every_steps = 2 }\n\
    [train]\nepochs = 2\nbatch_size = 100\nclip_norm = 0.5\ncheckpoint_every = 7\nfull_every = 3\n\
    optimizer = { kind = 'adam', lr = 0.01 }\n";

/// Three servers of one run.
struct Servers {
    servers: Mutex<Vec<Option<Server>>>,
    addresses: Vec<String>,
    store: String,
}

impl Servers {
    fn new(place: &Place) -> Self {
        let store = place.path("");
        let start = |id| Some(start_server("127.0.0.1:0", id, &store));
        let servers: Vec<Option<Server>> = (0..3).map(start).collect();
        let addresses = servers.iter().flatten().map(|server| server.address().to_string());
        Self { addresses: addresses.collect(), servers: Mutex::new(servers), store }
    }

    /// Returns settings with these servers.
    fn settings(&self, settings: &str, output: &str) -> String {
        let Self { addresses, store, .. } = self;
        format!(
            "ps = {{ servers = {addresses:?}, store = {store:?}, deadline_seconds = 2 }}\n{}",
            settings.replace("{output}", output)
        )
    }

    /// Ends a server and starts another one in its place, whose tables are empty.
    fn replace(&self, id: u32) {
        let mut servers = self.servers.lock().unwrap();
        servers[id as usize].take().unwrap().stop();
        servers[id as usize] = Some(start_server(&self.addresses[id as usize], id, &self.store));
    }
}

fn start_server(address: &str, id: u32, store: &str) -> Server {
    let options = || ServerOptions { id, ..ServerOptions::new(address, store) };
    for _ in 0..100 {
        match Server::start(options()) {
            Ok(server) => return server,
            // The port of the server before is free in a moment.
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    Server::start(options()).unwrap()
}

/// An observer that replaces a server after some checkpoints.
struct Killer<'a> {
    servers: &'a Servers,
    after: u64,
    seen: u64,
    notes: Vec<String>,
}

impl Observer for Killer<'_> {
    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn report_checkpoint(&mut self, _: &CheckpointReport) {
        self.seen += 1;
        if self.seen == self.after {
            self.servers.replace(1);
        }
    }
}

/// Returns the digests of the rows of a run's newest checkpoint, which do not depend on the cut of
/// its files.
fn digests(place: &Place, output: &str) -> Vec<(u64, Option<RowDigest>)> {
    let newest = RunDir::new(place.path(output)).newest().unwrap().unwrap();
    let tables = newest.manifest.tables.iter();
    tables.map(|table| (table.rows, table.digest)).collect()
}

#[test]
fn rows_of_servers_have_the_bytes_of_processors() {
    let place = Place::new();
    write_rows(&place);
    let servers = Servers::new(&place);
    for (case, settings) in [PLAIN, RICH].into_iter().enumerate() {
        let settings = &settings.replace("epochs = 2", "epochs = 1");
        let cpu = format!("cpu-{case}");
        let alone = format!("alone-{case}");
        let report = place.train(&cpu, &servers.settings(settings, &cpu), DeviceChoice::Cpu);
        let report = report.unwrap();
        let files = place.files(&cpu);
        let plain = settings.replace("{output}", &alone);
        place.train(&alone, &plain, DeviceChoice::Cpu).unwrap();
        assert_eq!(digests(&place, &alone), digests(&place, &cpu));
        for (seed, ahead, mebibytes, shards) in [(1, 1, 7, 1), (2, 4, 8, 3), (FAST, 100, 7, 2)] {
            if case > 0 && seed == 1 {
                continue;
            }
            let output = format!("gpu-{case}-{seed}");
            let settings = format!(
                "run = {{ ahead = {ahead}, device_memory = '{mebibytes} MiB', shards = {shards} }}\n{}",
                servers.settings(settings, &output)
            );
            let emulated = DeviceChoice::Emulated(seed);
            let (on_gpu, line) = place.train_noted(&output, &settings, emulated).unwrap();
            assert!(line.contains("in a cache, because servers have the other rows"), "{line}");
            let figures = on_gpu.gpu.unwrap();
            assert!(figures.has_rows && figures.has_cache, "{output}: {figures:?}");
            // The trainer holds twice as many rows as the GPU, so rows have left it.
            let rows: u64 = digests(&place, &cpu).iter().map(|(rows, _)| rows).sum();
            assert!(2 * figures.cache_slots < rows || case > 0, "{rows} rows, {figures:?}");
            assert_eq!(on_gpu.valid_auc, report.valid_auc, "{output}");
            assert_eq!(on_gpu.rewinds, 0);
            assert!(place.files(&output) == files, "{output}");
        }
    }
}

#[test]
fn a_server_that_is_killed_changes_no_byte() {
    let place = Place::new();
    write_rows(&place);
    let servers = Servers::new(&place);
    let settings = servers.settings(&PLAIN.replace("epochs = 2", "epochs = 1"), "");
    place.train("cpu", &settings, DeviceChoice::Cpu).unwrap();
    let job = place
        .job("gpu", &format!("run = {{ ahead = 4 }}\n{settings}"), DeviceChoice::Emulated(FAST))
        .unwrap();
    let mut killer = Killer { servers: &servers, after: 2, seen: 0, notes: Vec::new() };
    let report = train(job, TrainOptions::new(2).unwrap(), &mut killer).unwrap();
    assert_eq!(report.rewinds, 1, "{:?}", killer.notes);
    assert!(report.gpu.unwrap().has_rows);
    assert!(place.files("gpu") == place.files("cpu"));
}

#[test]
fn jobs_whose_rows_cannot_be_lent_are_refused_by_name() {
    let place = Place::new();
    let servers = Servers::new(&place);
    for (key, settings) in [
        (
            "tables.item.admission",
            "tables.item = { dim = 4, admission = { kind = 'count', at_least = 2 } }",
        ),
        (
            "tables.item.eviction",
            "tables.item = { dim = 4, eviction = { kind = 'unseen', steps = 9 } }",
        ),
        ("tables.item.max_rows", "tables.item = { dim = 4, max_rows = 1000 }"),
        ("train.max_table_bytes", "train = { max_table_bytes = '64 MiB' }"),
        ("train.accumulate", "train = { accumulate = 2 }"),
        ("train.wire", "train = { wire = 'bf16' }"),
    ] {
        let settings = servers.settings(settings, "refused");
        let emulated = place.train("refused", &settings, DeviceChoice::Emulated(1));
        let error = emulated.unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{key}: {error}");
    }
}
