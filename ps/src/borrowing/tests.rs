//! Tests of a client that borrows its rows, against one that has all rows.

use std::num::NonZeroUsize;

use zillion_device::Files;
use zillion_embedding::Rates;
use zillion_feature::random::{combine, mix64, unit_f32};
use zillion_feature::{FeatureKey, RowBuffer, Step, TableId};
use zillion_rows::conformance::plan_of;
use zillion_rows::{Admission, Dtype, InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

use super::*;
use crate::client::{
    Checkpointing, Publishing, PullOptions, PushMode, Residency, StepClient, TableAccess,
};

fn specs() -> Vec<TableSpec> {
    let normal = InitializerSpec::Normal { mean: 0.0, std: 0.1 };
    let table = |name: &str, dim, optimizer| {
        let segment = SegmentSpec { l2: 0.1, ..SegmentSpec::new("v", dim, normal, optimizer) };
        TableSpec { seed: 5, ..TableSpec::new(name, vec![segment]) }
    };
    let ftrl = OptimizerSpec::Ftrl { lr: 0.1, beta: 1.0, l1: 0.001, l2: 0.01, l21: 0.0 };
    vec![
        table("user", 6, OptimizerSpec::adam(0.1)),
        TableSpec { dtype: Dtype::Bf16, ..table("item", 9, ftrl) },
        TableSpec { dense: true, ..table("age", 5, OptimizerSpec::adam(0.1)) },
        TableSpec { dense: true, ..table("fixed", 3, OptimizerSpec::Sgd { lr: 0.1 }) },
    ]
}

fn workers() -> Arc<Workers> {
    Arc::new(Workers::new(NonZeroUsize::new(2).unwrap()).unwrap())
}

fn local(shards: usize) -> LocalClient {
    LocalClient::new(specs(), NonZeroUsize::new(shards).unwrap(), workers()).unwrap()
}

fn options(shards: usize) -> TableOptions {
    TableOptions::new(specs(), NonZeroUsize::new(shards).unwrap())
}

fn plan(seed: u64, step: u64) -> Arc<LookupPlan> {
    let keys = |table: u64| -> Vec<FeatureKey> {
        let id = |i| mix64(combine(combine(combine(seed, step), table), i)) % 400;
        (0..25).map(|i| FeatureKey::from_u64(id(i))).collect()
    };
    Arc::new(plan_of(&[keys(0), keys(1), keys(2), keys(3)]))
}

/// Does one step, and returns the bits of everything that it returns.
fn step(client: &mut dyn TrainClient, plan: &Arc<LookupPlan>, step: u64) -> Vec<u64> {
    client.begin_step(Step(step), Rates::default()).unwrap();
    let counts = PullOptions { counts: true };
    let mut rows = client.pull(plan, counts, RowBuffer::default()).unwrap();
    let mut seen: Vec<u64> = Vec::new();
    for (table, planned) in rows.tables.iter_mut().zip(&plan.tables) {
        seen.extend(table.values.iter().map(|value| u64::from(value.to_bits())));
        seen.extend(table.counts.take().unwrap().iter().map(|count| u64::from(*count)));
        for (row, key) in table.values.chunks_exact_mut(table.stride).zip(&planned.keys) {
            let bits = |unit| combine(combine(step, key.0), unit as u64) as u32;
            row.iter_mut().enumerate().for_each(|(unit, g)| *g = unit_f32(bits(unit)) - 0.4);
        }
    }
    let report = match step % 4 {
        0 => {
            client.push(plan, rows, PushMode::Stage).unwrap();
            client.discard().unwrap();
            return seen;
        }
        1 => {
            client.push(plan, rows, PushMode::Stage).unwrap();
            seen.push(client.grad_sq_norm().unwrap().to_bits());
            client.apply(0.5).unwrap()
        }
        _ => {
            client.push(plan, rows, PushMode::Apply).unwrap();
            client.sweep().unwrap()
        }
    };
    seen.extend([report.pushed, report.created]);
    seen.push(client.regulariser_loss(plan).unwrap().to_bits());
    seen
}

/// Compares a history of steps, checkpoints, restores and versions with one on tables that have
/// all rows.
fn compare<L: TrainClient + Lending>(
    borrowing: &mut BorrowingClient<L>,
    seed: u64,
    folder: &std::path::Path,
) {
    let (mut whole, files) = (local(3), Files::new());
    let mut keys: Vec<FeatureKey> = (0..70).map(FeatureKey::from_u64).collect();
    keys.sort_unstable();
    for table in [TableId(2), TableId(3)] {
        assert_eq!(borrowing.prefill(table, &keys).unwrap(), 70);
        whole.prefill(table, &keys).unwrap();
    }
    let draw = |step: u64, below: u64| mix64(combine(seed, step + 1000)) % below;
    let (mut last, mut peak, mut has_released) = (None, 0, false);
    for number in 1..80 {
        let plans = |ahead: u64| plan(seed, number + ahead);
        let own = plans(0);
        // The plans of a window are announced early, or the window was dropped.
        if draw(number, 3) > 0 {
            borrowing.announce_rows(&own).unwrap();
            assert!(borrowing.open <= MOST_QUESTIONS);
            let later = plans(1);
            borrowing.announce_rows(&later).unwrap();
        }
        assert_eq!(step(borrowing, &own, number), step(&mut whole, &own, number), "{number}");
        peak = peak.max(borrowing.local.borrowed_rows());
        has_released |= borrowing.left > 0;
        match draw(number, 11) {
            0 | 1 => {
                let write = |client: &mut dyn TrainClient, name: &str| {
                    let folder = folder.join(format!("{name}-{number}"));
                    std::fs::create_dir(&folder).unwrap();
                    let parts = client.checkpoint(&folder, &files).unwrap();
                    (folder, parts)
                };
                let written = [write(borrowing, "lent"), write(&mut whole, "whole")];
                let digests = |parts: &[zillion_rows::TableParts]| -> Vec<_> {
                    parts.iter().map(|table| (table.rows, table.digest)).collect()
                };
                assert_eq!(digests(&written[0].1), digests(&written[1].1), "{number}");
                last = Some(written);
            }
            2 => {
                if let Some([lent, all]) = &last {
                    borrowing.restore(&lent.0, &lent.1).unwrap();
                    whole.restore(&all.0, &all.1).unwrap();
                    assert_eq!(borrowing.local.borrowed_rows(), 0);
                }
            }
            3 => {
                assert_eq!(borrowing.end_dirty_epoch().unwrap(), whole.end_dirty_epoch().unwrap());
            }
            4 => {
                let read = |client: &mut dyn TrainClient| {
                    let (rows, report) = client.lookup(&own, RowBuffer::default()).unwrap();
                    let values = rows.tables.into_iter().map(|table| table.values);
                    (values.collect::<Vec<_>>(), report.missing)
                };
                assert_eq!(read(borrowing), read(&mut whole));
            }
            _ => {}
        }
        let counts = |client: &mut dyn TrainClient| -> Vec<_> {
            let statistics = client.stats().unwrap().into_iter();
            statistics.map(|table| (table.rows, table.counters.pushed)).collect()
        };
        assert_eq!(counts(borrowing), counts(&mut whole), "{number}");
    }
    assert!(has_released && peak < 400, "{peak} rows were borrowed at most");
}

#[test]
fn borrowed_rows_have_the_numbers_of_tables_with_all_rows() {
    for seed in 0..8 {
        let shards = [1 + seed as usize % 3, 1 + seed as usize % 2];
        let mut borrowing =
            BorrowingClient::new(local(shards[0]), options(shards[1]), workers()).unwrap();
        borrowing.most = 90 + seed;
        compare(&mut borrowing, seed, tempfile::tempdir().unwrap().path());
    }
}

#[test]
fn tables_whose_rows_cannot_be_lent_are_refused() {
    let admission = Admission::Count { at_least: 2 };
    let admits = TableSpec { admission, ..specs().remove(0) };
    let options = TableOptions::new(vec![admits], NonZeroUsize::MIN);
    let lender = LocalClient::open(options.clone(), workers()).unwrap();
    let error = BorrowingClient::new(lender, options, workers()).unwrap_err().to_string();
    assert!(error.contains("`tables.user.admission`"), "{error}");
    assert!(local(1).take_rows().unwrap_err().to_string().contains("ask_for_rows"));
}

#[cfg(feature = "server")]
mod servers {
    use std::time::Duration;

    use zillion_embedding::LentRows;

    use super::*;
    use crate::client::{Exchanging, TrainerPlace};
    use crate::remote::{RemoteClient, RemoteOptions, Stop};
    use crate::server::{Server, ServerOptions};

    /// Three servers and the folder of their run.
    fn servers() -> (tempfile::TempDir, Vec<Server>) {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().to_str().unwrap().to_owned();
        let start = |id| {
            let options = ServerOptions::new("127.0.0.1:0", &store);
            Server::start(ServerOptions { id, ..options }).unwrap()
        };
        let servers = (0..3).map(start).collect();
        (folder, servers)
    }

    fn open(folder: &std::path::Path, servers: &[Server]) -> RemoteClient {
        let options = RemoteOptions {
            servers: servers.iter().map(|server| server.address().to_string()).collect(),
            directory: None,
            place: TrainerPlace::ALONE,
            run: "run".to_owned(),
            job_digest: "0".repeat(64),
            store: folder.to_owned(),
            token: None,
            tls: None,
            pace: None,
            bf16_gradients: false,
            deadline: Duration::from_secs(5),
            after: 0,
            clock: None,
            patience: Duration::from_secs(5),
            stop: Stop::default(),
        };
        RemoteClient::open(options, super::options(2)).unwrap()
    }

    #[test]
    fn servers_lend_rows_and_take_them_back() {
        let (folder, servers) = servers();
        let mut client = open(folder.path(), &servers);
        client.start(Vec::new()).unwrap();
        let all = |keys: &[u64]| LentRows {
            keys: keys.iter().copied().map(FeatureKey).collect(),
            ..LentRows::new(TableId(0))
        };
        // One key of each server.
        let keys = [3, 2000 << 52, u64::MAX];
        let words = local(1).lent_words()[0];
        let mut rows = all(&keys);
        rows.words = (0..3 * words as u32).collect();
        let give = |client: &mut RemoteClient, rows: &LentRows| {
            let mut rows = Some(rows.clone());
            client.give_back(Step(1), &mut || rows.take())
        };
        let early = give(&mut client, &rows).unwrap_err().to_string();
        assert!(early.contains("not lent"), "{early}");
        client.ask_for_rows(Step(1), vec![all(&keys)]).unwrap();
        let found = client.take_rows().unwrap();
        assert!(found.iter().all(|of| of.keys.is_empty()), "{found:?}");
        give(&mut client, &rows).unwrap();
        client.ask_for_rows(Step(2), vec![all(&[3, 7, u64::MAX])]).unwrap();
        let found = client.take_rows().unwrap().remove(0);
        assert_eq!(found.keys, [FeatureKey(3), FeatureKey(u64::MAX)]);
        assert_eq!(found.words[..6], rows.words[..6], "the weights of the row");
        // The padding that was sent is not kept.
        assert_eq!(found.words[6..8], [0, 0]);
        // A step on the servers would use old rows.
        client.begin_step(Step(3), Rates::default()).unwrap();
        let plan = plan(1, 1);
        let pulled = client.pull(&plan, PullOptions::default(), RowBuffer::default());
        let refused = pulled.unwrap_err().to_string();
        assert!(refused.contains("are lent to the trainer"), "{refused}");
        drop(client);
        servers.into_iter().for_each(Server::stop);
    }

    #[test]
    fn bad_loans_are_refused_and_the_session_goes_on() {
        let (folder, servers) = servers();
        let mut client = open(folder.path(), &servers);
        client.start(Vec::new()).unwrap();
        let ask = |client: &mut RemoteClient, rows: LentRows| {
            client.ask_for_rows(Step(1), vec![rows])?;
            client.take_rows()
        };
        let key = LentRows { keys: vec![FeatureKey(9)], ..LentRows::new(TableId(1)) };
        ask(&mut client, key.clone()).unwrap();
        let double = LentRows { keys: vec![FeatureKey(9); 2], ..key.clone() };
        let error = ask(&mut client, double).unwrap_err().to_string();
        assert!(error.contains("table 1"), "{error}");
        let words = local(1).lent_words()[1];
        let short = LentRows { words: vec![0; words - 1], ..key.clone() };
        let mut next = Some(short);
        let error = client.give_back(Step(1), &mut || next.take()).unwrap_err().to_string();
        assert!(error.contains("too early"), "{error}");
        let error = ask(&mut client, LentRows { table: TableId(7), ..key.clone() });
        // No server owns a key of a table that does not exist.
        assert!(error.unwrap().is_empty());
        assert!(ask(&mut client, key).is_ok());
        drop(client);
        servers.into_iter().for_each(Server::stop);
    }

    #[test]
    fn rows_of_servers_have_the_numbers_of_tables_with_all_rows() {
        let (folder, servers) = servers();
        let lender = open(folder.path(), &servers);
        let mut borrowing = BorrowingClient::new(lender, options(2), workers()).unwrap();
        borrowing.start(Vec::new()).unwrap();
        borrowing.most = 90;
        // Checkpoints of servers are below their store.
        compare(&mut borrowing, 3, folder.path());
        drop(borrowing);
        servers.into_iter().for_each(Server::stop);
    }
}
