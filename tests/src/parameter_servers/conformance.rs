//! The conformance suite of `TrainClient` on tables in other processes.

use std::num::NonZeroUsize;
use std::path::Path;

use zillion_ps::conformance;
use zillion_ps::{RemoteClient, TableOptions, TrainClient};
use zillion_rows::{Dtype, TableSpec};

use super::servers::{ServerProcess, options};

/// Groups of servers of which each serves one run at a time.
struct Pool {
    groups: Vec<Vec<ServerProcess>>,
    runs: usize,
}

impl Pool {
    /// Starts groups of servers. The suite has at most three clients at a time.
    fn start(store: &Path, servers: usize) -> Self {
        let group = |_| (0..servers).map(|_| ServerProcess::start(store, &[])).collect();
        Self { groups: (0..4).map(group).collect(), runs: 0 }
    }

    /// Opens a new run on a group whose last run has ended.
    fn open(&mut self, store: &Path, specs: Vec<TableSpec>) -> Box<dyn TrainClient> {
        self.runs += 1;
        let shards = NonZeroUsize::MIN;
        let mut failures = Vec::new();
        for group in &self.groups {
            let servers = group.iter().map(|server| server.address.clone()).collect();
            // Other tests record their runs in the same folder.
            let run = format!("run {}-{}-{}", std::process::id(), group.len(), self.runs);
            let options = options(servers, &run, store);
            match RemoteClient::open(options, TableOptions::new(specs.clone(), shards)) {
                Ok(client) => return Box::new(client),
                Err(error) => failures.push(error.to_string()),
            }
        }
        panic!("no group of servers is free: {failures:?}");
    }
}

fn conforms(dtype: Dtype, servers: usize) {
    // The suite writes its checkpoints into folders of its own.
    let store = std::env::temp_dir();
    let mut pool = Pool::start(&store, servers);
    conformance::run_of(dtype, &mut |specs| pool.open(&store, specs)).unwrap();
}

#[test]
fn the_remote_client_conforms() {
    conforms(Dtype::F32, 1);
}

#[test]
fn the_remote_client_conforms_with_two_servers_and_16_bits() {
    conforms(Dtype::Bf16, 2);
}

#[test]
fn the_remote_client_conforms_with_three_servers() {
    conforms(Dtype::F32, 3);
}

#[test]
fn the_remote_client_conforms_with_five_servers() {
    conforms(Dtype::F32, 5);
}
