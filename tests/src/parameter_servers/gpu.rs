//! Tests of a trainer with an emulated GPU over servers, which borrows their rows. Its run must end
//! with the bytes of a run on processors, also if a server is killed.

use super::proxy::{Act, FrameProxy, Way, once, op};
use super::runs::{TrainerProcess, addresses, outcome, small_place, train_alone};
use super::servers::ServerProcess;
use crate::harness::stderr;

/// The device that takes the place of a GPU, and runs every operation at once.
const DEVICE: [&str; 2] = ["--device", "emulated:3"];

#[test]
fn one_of_three_servers_of_a_gpu_trainer_is_killed() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    // The first step waits for rows. Rows come back before each checkpoint, after five steps.
    for (way, op, step, act) in [
        (Way::Answer, op::TAKE, 1, Act::HoldAndLose),
        (Way::Question, op::GIVE_BACK, 9, Act::Hold),
        (Way::Answer, op::GIVE_BACK, 9, Act::HoldAndLose),
    ] {
        let output = format!("killed-{op}-{act:?}");
        let mut servers = ServerProcess::start_group(&place.path(""), 3, &[]);
        let mut at = addresses(&servers);
        let proxy = FrameProxy::start(&at[1], once(way, op, step, act));
        at[1].clone_from(&proxy.address);
        let trainer = TrainerProcess::start(&place, &output, &at, (0, 1), &DEVICE);
        proxy.wait_for_disturbance();
        servers[1].kill_and_restart(&[]);
        if act == Act::HoldAndLose {
            proxy.release();
        }
        let ended = trainer.end();
        let report = ended.succeeded();
        assert_eq!(report["rewinds"].as_u64(), Some(1), "{report}");
        assert_eq!(report["gpu"]["has_rows"].as_bool(), Some(true), "{report}");
        assert!(ended.said.contains("because servers have the other rows"), "{}", ended.said);
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
}

#[test]
fn what_a_gpu_does_not_train_on_servers_is_refused_by_name() {
    let place = small_place();
    let servers = ["--ps", "127.0.0.1:1", "--ps-store", &place.text("")];
    for (setting, key) in [
        ("tables.tags.eviction={kind='unseen',steps=9}", "`tables.tags.eviction`"),
        ("train.accumulate=2", "`train.accumulate`"),
    ] {
        let more = [&servers[..], &DEVICE, &["--set", setting]].concat();
        let refused = place.train("refused", &more).output().expect("the binary runs");
        let error = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{error}");
        assert!(error.contains(key) && error.contains("`[ps]`"), "{error}");
    }
}
