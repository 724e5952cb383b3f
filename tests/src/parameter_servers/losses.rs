//! Tests of runs that continue without a rewind after a server was lost
//! (`train.on_server_loss = "continue"`).

use std::num::NonZeroUsize;
use std::sync::Arc;

use serde_json::Value;
use zillion_device::Files;
use zillion_embedding::Rates;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId, TablePlan};
use zillion_ps::{
    Arrival, Checkpointing, Exchanging, Pace, Pacing, PullOptions, RemoteClient, RemoteOptions,
    StepClient, TableOptions,
};
use zillion_rows::{InitializerSpec, OptimizerSpec, SegmentSpec, TableParts, TableSpec};

use super::modes::{BATCHES, geo, geo_place, mode, place, refs};
use super::proxy::{Act, FrameProxy, Way, once, op};
use super::runs::{TrainerProcess, addresses, start_all};
use super::servers::{ServerProcess, options};
use super::versions::{arguments, publishing, versions};
use crate::server::REGISTRY;

const CONTINUE: [&str; 2] = ["--set", "train.on_server_loss=continue"];

/// The state of one trainer that sends updates by itself.
struct Sender {
    client: RemoteClient,
    plan: Arc<LookupPlan>,
    step: u64,
}

impl Sender {
    /// Opens a table of zeros. The trainer continues if it has a clock.
    fn open(servers: &[ServerProcess], store: &std::path::Path, after: (u64, Option<u64>)) -> Self {
        let rule = OptimizerSpec::Sgd { lr: 1.0 };
        let zero = InitializerSpec::Constant { value: 0.0 };
        let table = TableSpec::new("counts", vec![SegmentSpec::new("n", 1, zero, rule)]);
        let options = RemoteOptions {
            pace: Some(Pace { staleness: Some(0), counts_pushes: true }),
            after: after.0,
            clock: after.1,
            ..options(addresses(servers), "run", store)
        };
        let client = RemoteClient::open(options, TableOptions::new(vec![table], NonZeroUsize::MIN));
        // One key in the slots of each of the two servers.
        let keys = vec![FeatureKey(1 << 52), FeatureKey(4000 << 52)];
        let table = TablePlan::checked(TableId(0), keys, Some(&[1, 1])).unwrap();
        let plan = LookupPlan { rows: 1, tables: vec![table], columns: Vec::new() };
        let step = after.1.unwrap_or(0);
        Self { client: client.unwrap(), plan: Arc::new(plan), step }
    }

    /// Begins a step, and returns the rows of both keys.
    fn pull(&mut self) -> [f32; 2] {
        self.client.begin_step(Step(self.step + 1), Rates::default()).unwrap();
        let options = PullOptions::default();
        let rows = self.client.pull(&self.plan, options, RowBuffer::default()).unwrap();
        let rows = &rows.tables[0];
        [rows.row(0)[0], rows.row(1)[0]]
    }

    /// Ends a step with an update that subtracts 1 from both rows.
    fn send(&mut self) -> zillion_ps::Result<()> {
        let mut gradients = RowBuffer::default();
        let stride = 1.max(zillion_ps::TableAccess::layouts(&self.client)[0].stride);
        gradients.reshape([(2, stride)].into_iter());
        gradients.tables[0].values.chunks_exact_mut(stride).for_each(|row| row[0] = 1.0);
        let arrival = Arrival { scale: 1.0, dense: Vec::new(), is_stopping: false };
        self.client.send(Some(&self.plan), &gradients, arrival)?;
        self.step += 1;
        self.client.take_shared().map(drop)
    }

    fn checkpoint(&mut self, folder: &std::path::Path) -> Vec<TableParts> {
        let ticket = self.client.begin_checkpoint(folder, &Files::new()).unwrap();
        while !self.client.poll_checkpoint(&ticket).unwrap() {}
        self.client.finish_checkpoint(ticket).unwrap()
    }
}

/// The rows count the updates that each server has applied.
#[test]
fn every_update_is_applied_or_counted_as_lost() {
    let store = tempfile::tempdir().unwrap();
    let mut servers = ServerProcess::start_group(store.path(), 2, &[]);
    let mut first = Sender::open(&servers, store.path(), (0, None));
    first.client.begin_pace(0, &[]).unwrap();
    first.client.start(Vec::new()).unwrap();
    assert_eq!(first.client.continued(), None);
    for _ in 0..2 {
        first.pull();
        first.send().unwrap();
    }
    let folder = store.path().join("cut");
    std::fs::create_dir(&folder).unwrap();
    let parts = first.checkpoint(&folder);
    for _ in 0..3 {
        first.pull();
        first.send().unwrap();
    }
    assert_eq!(first.pull(), [-5.0, -5.0]);
    servers[1].kill_and_restart(&[]);
    let error = first.send().unwrap_err();
    assert!(error.is_rewound(), "{error}");
    let generation = first.client.generation();
    // The caller does not know whether the sixth update was applied, so it counts five of them.
    let sent = 5;
    first.client.leave(&error);
    drop(first);
    let mut again = Sender::open(&servers, store.path(), (generation, Some(sent)));
    let continued = again.client.continued().unwrap();
    assert_eq!((continued.empty_servers, continued.unapplied), (1, Some(0)), "{continued:?}");
    again.client.restore(&folder, &parts).unwrap();
    again.client.begin_pace(sent, &[]).unwrap();
    again.client.start(Vec::new()).unwrap();
    let [kept, restored] = again.pull();
    // The update that was in flight may have reached the server that was not lost.
    assert!(kept == -5.0 || kept == -6.0, "{kept}");
    assert_eq!(restored, -2.0);
    again.send().unwrap();
    assert_eq!(again.pull(), [-6.0, -3.0], "the update in flight has its effect once");
    // Both servers lack two updates that the trainer counts as sent, and keep their rows.
    let generation = again.client.generation();
    drop(again);
    let mut third = Sender::open(&servers, store.path(), (generation, Some(sent + 3)));
    let continued = third.client.continued().unwrap();
    assert_eq!((continued.empty_servers, continued.unapplied), (0, Some(4)), "{continued:?}");
    third.client.restore(&folder, &parts).unwrap();
    third.client.start(Vec::new()).unwrap();
    assert_eq!(third.pull(), [-6.0, -3.0]);
    third.send().unwrap();
    // A later restore fills all tables.
    third.client.restore(&folder, &parts).unwrap();
    assert_eq!(third.pull(), [-2.0, -2.0]);
    third.send().unwrap();
    // A trainer that has sent fewer updates than were applied is another one.
    let generation = third.client.generation();
    drop(third);
    let fourth = Sender::open(&servers, store.path(), (generation, Some(1)));
    assert_eq!(fourth.client.continued().unwrap().unapplied, None);
    // The preparation of that generation has not ended, so its tables do not go on.
    let generation = fourth.client.generation();
    drop(fourth);
    let fifth = Sender::open(&servers, store.path(), (generation, Some(1)));
    assert_eq!(fifth.client.continued().unwrap().empty_servers, 2);
    // Without the wish to continue, the tables begin empty.
    let generation = fifth.client.generation();
    drop(fifth);
    let mut anew = Sender::open(&servers, store.path(), (generation, None));
    assert_eq!(anew.client.continued(), None);
    assert_eq!(anew.pull(), [0.0, 0.0]);
}

/// Asserts that a run has ended and has repeated nothing. Returns the number of lost pushes.
fn lost(report: &Value) -> u64 {
    assert_eq!(report["steps"].as_u64(), Some(BATCHES), "{report}");
    assert!(report["rewinds"].is_null() && report["repeated_steps"].is_null(), "{report}");
    report["lost_pushes"].as_u64().unwrap_or(0)
}

#[test]
fn a_run_continues_without_the_pushes_that_a_lost_server_has_applied() {
    let place = place();
    let registry = place.text(REGISTRY);
    let publishing = publishing(&registry);
    let mut servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let mut at = addresses(&servers);
    // The newest checkpoint is that of step 5, and the server has applied the updates up to 8.
    let proxy = FrameProxy::start(&at[1], once(Way::Answer, op::UPDATE, 8, Act::HoldAndLose));
    at[1].clone_from(&proxy.address);
    let mode = mode("async", 0);
    let more = [&refs(&mode)[..], &CONTINUE].concat();
    let trainer =
        TrainerProcess::start(&place, "over", &at, (0, 1), &arguments(&publishing, &more));
    proxy.wait_for_disturbance();
    servers[1].kill_and_restart(&[]);
    proxy.release();
    let ended = trainer.end();
    assert_eq!(lost(&ended.succeeded()), 3, "{}", ended.said);
    assert!(ended.said.contains("3 pushes of all trainers are lost"), "{}", ended.said);
    let versions = versions(&registry);
    let before: Vec<_> = versions.iter().filter(|version| version.origin.step < 8).collect();
    let after: Vec<_> = versions.iter().filter(|version| version.origin.step > 8).collect();
    assert!(before.iter().all(|version| version.origin.lost_pushes == 0));
    assert!(!after.is_empty() && after.iter().all(|version| version.origin.lost_pushes == 3));
    assert!(after[0].is_base(), "the changes since the version before are not known");
}

/// The pushes that were lost first would be counted again.
#[test]
fn a_second_loss_before_the_next_checkpoint_sets_the_run_back() {
    let place = place();
    let mut servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let mut at = addresses(&servers);
    // The checkpoints are those of the steps 5 and 10.
    let first = FrameProxy::start(&at[1], once(Way::Answer, op::UPDATE, 7, Act::HoldAndLose));
    let second = FrameProxy::start(&at[0], once(Way::Answer, op::UPDATE, 9, Act::HoldAndLose));
    at[1].clone_from(&first.address);
    at[0].clone_from(&second.address);
    let mode = mode("async", 0);
    let more = [&refs(&mode)[..], &CONTINUE].concat();
    let mut trainer = TrainerProcess::start(&place, "over", &at, (0, 1), &more);
    first.wait_for_disturbance();
    servers[1].kill_and_restart(&[]);
    first.release();
    trainer.wait_for("2 pushes of all trainers are lost");
    second.wait_for_disturbance();
    servers[1].kill_and_restart(&[]);
    second.release();
    let report = trainer.end().succeeded();
    assert_eq!(report["rewinds"].as_u64(), Some(1), "{report}");
    assert!(report["lost_pushes"].is_null(), "the run has all pushes again: {report}");
}

#[test]
fn trainers_continue_without_a_lost_server() {
    let (free, rounds, long) = (mode("async", 2), geo(2), geo(3));
    // With three local steps, a pull of the round is held in its middle.
    for (name, mode, op, nth) in [
        ("async", refs(&free), op::UPDATE, 9),
        ("geo", refs(&rounds), op::UPDATE, 6),
        ("geo-middle", refs(&long), op::PULL, 16),
    ] {
        let place = if name == "async" { place() } else { geo_place(1) };
        let mut servers = ServerProcess::start_group(&place.path(""), 3, &[]);
        let mut at = addresses(&servers);
        let mut seen_frames = 0;
        let proxy = FrameProxy::start(&at[0], move |seen| {
            let is_it = seen.op == op && seen.way == Way::Question;
            seen_frames += u64::from(is_it);
            if is_it && seen_frames == nth { Act::Hold } else { Act::Pass }
        });
        at[0].clone_from(&proxy.address);
        let more = [&mode[..], &CONTINUE, &["--set", "train.checkpoint_every=6"]].concat();
        let trainers = start_all(&place, name, &at, 2, &more);
        proxy.wait_for_disturbance();
        servers[0].kill_and_restart(&[]);
        proxy.release();
        let mut losses = Vec::new();
        for trainer in trainers {
            let ended = trainer.end();
            assert!(ended.said.contains("the run continues; 1 server has"), "{}", ended.said);
            losses.push(lost(&ended.succeeded()));
        }
        // In the middle of the first round after a checkpoint, nothing was pushed since.
        let has_lost = losses[0] > 0;
        assert!(losses[0] == losses[1] && has_lost != (name == "geo-middle"), "{name}: {losses:?}");
        let applied: Vec<_> =
            servers.iter().map(|server| server.status()["applied_steps"].clone()).collect();
        assert!(applied.iter().all(|steps| *steps == applied[0]), "{name}: {applied:?}");
    }
}

/// A trainer that begins anew has no dense parameters and no position of its own.
#[test]
fn a_lost_trainer_sets_a_run_back_that_may_continue() {
    let place = place();
    let mode = mode("async", 2);
    let more = [&refs(&mode)[..], &CONTINUE].concat();
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    for victim in 0..2 {
        let mut at = addresses(&servers);
        let proxy = FrameProxy::start(&at[0], once(Way::Question, op::UPDATE, 7, Act::Hold));
        at[0].clone_from(&proxy.address);
        let output = format!("over-{victim}");
        let mut trainers = start_all(&place, &output, &at, 2, &more);
        proxy.wait_for_disturbance();
        drop(trainers.remove(victim));
        proxy.release();
        let resumed = [&more[..], &["--resume"]].concat();
        let again = TrainerProcess::start(&place, &output, &at, (victim, 2), &resumed);
        let report = trainers.remove(0).end().succeeded();
        assert!(report["rewinds"].as_u64() >= Some(1), "{report}");
        for report in [report, again.end().succeeded()] {
            assert_eq!(report["steps"].as_u64(), Some(BATCHES), "{report}");
            assert!(report["lost_pushes"].is_null(), "{report}");
        }
    }
}

#[test]
fn modes_that_need_every_server_cannot_continue() {
    let place = place();
    for name in ["sync", "hybrid"] {
        let mode = format!("train.mode={name}");
        let (_, said) = place.train_fails(&["--set", &mode, CONTINUE[0], CONTINUE[1]]);
        assert!(
            said.contains("train.on_server_loss") && said.contains("`async` and `geo`"),
            "{said}"
        );
    }
}
