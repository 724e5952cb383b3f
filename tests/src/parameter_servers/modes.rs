//! Tests of the modes in which trainers do not wait for each other in each step.

use serde_json::Value;

use super::proxy::{Act, FrameProxy, PATIENCE, Way, once, op};
use super::runs::{
    TrainerProcess, addresses, outcome, replaced, start_all, train_alone, train_over,
};
use super::servers::ServerProcess;
use crate::harness::{JOB, Workplace};

/// The number of batches of an epoch.
pub(super) const BATCHES: u64 = 24;

/// The settings that hybrid and asynchronous training cannot have are left out.
const SETTINGS: &[(&str, &str)] = &[
    ("clip_norm = 1.0\n", ""),
    ("epochs = 3\n", "epochs = 1\n"),
    ("dense = true\nl2 = 1e-3\n", ""),
    (
        "[tables.user]\n",
        "[tables.user]\nadmission = { kind = 'count', at_least = 2 }\n\
         eviction = { kind = 'unseen', steps = 3 }\n",
    ),
    ("checkpoint_every = 10\n", "checkpoint_every = 5\n"),
];

/// Returns a folder with a job for any mode.
pub(super) fn place() -> Workplace {
    let place = Workplace::with_rare_users();
    place.write("job.toml", &replaced(JOB, SETTINGS));
    place
}

/// Returns the arguments that set the mode and the bound of staleness.
pub(super) fn mode(name: &str, staleness: u64) -> [String; 4] {
    let set = || "--set".to_owned();
    [set(), format!("train.mode={name}"), set(), format!("train.staleness={staleness}")]
}

pub(super) fn refs(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// Returns a list of numbers in the state of a server.
pub(super) fn numbers(status: &Value, name: &str) -> Vec<u64> {
    let list = status[name].as_array().unwrap_or_else(|| panic!("no {name} in {status}"));
    list.iter().map(|number| number.as_u64().expect("a count")).collect()
}

/// Waits until the state of a server fulfils a condition.
fn wait_for(server: &ServerProcess, what: &str, is_met: impl Fn(&Value) -> bool) -> Value {
    let began = std::time::Instant::now();
    loop {
        let status = server.status();
        if is_met(&status) {
            return status;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {status}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Strict pulls of one trainer leave nothing to be asynchronous.
#[test]
fn one_strict_trainer_gives_the_bytes_of_one_process() {
    let place = place();
    let report = train_alone(&place, "alone", &[]);
    assert!(report["tables"][0]["evicted"].as_u64() > Some(0), "{report}");
    let servers = ServerProcess::start_group(&place.path(""), 3, &[]);
    let at = addresses(&servers);
    for name in ["hybrid", "async"] {
        for count in [1, 3] {
            let output = format!("{name}-{count}");
            train_over(&place, &output, &at[..count], 1, &refs(&mode(name, 0)));
            assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
            let status = servers[0].status();
            assert_eq!(numbers(&status, "applied_steps"), [BATCHES], "{output}");
            assert_eq!(numbers(&status, "stale_pulls"), [BATCHES], "{output}");
        }
    }
    // With a bound above 0, pulls are sent ahead, and the result is another one.
    train_over(&place, "ahead", &at[..1], 1, &refs(&mode("hybrid", 1)));
    assert_ne!(outcome(&place, "ahead"), outcome(&place, "alone"));
}

/// A run that goes on in the same mode and is strict has the bytes of a run that was not stopped.
#[test]
fn a_strict_run_resumes_with_the_same_bytes() {
    let place = place();
    train_alone(&place, "alone", &[]);
    for name in ["hybrid", "async"] {
        let mut servers = ServerProcess::start_group(&place.path(""), 2, &[]);
        let mut at = addresses(&servers);
        let proxy = FrameProxy::start(&at[1], once(Way::Answer, op::UPDATE, 8, Act::HoldAndLose));
        at[1].clone_from(&proxy.address);
        let trainer = TrainerProcess::start(&place, name, &at, (0, 1), &refs(&mode(name, 0)));
        proxy.wait_for_disturbance();
        servers[1].kill_and_restart(&[]);
        proxy.release();
        let report = trainer.end().succeeded();
        assert_eq!(report["rewinds"].as_u64(), Some(1), "{report}");
        assert_eq!(outcome(&place, name), outcome(&place, "alone"), "{name}");
        // The clocks count the steps since the rewind to the checkpoint of step 5.
        let status = servers[0].status();
        assert_eq!(numbers(&status, "applied_steps"), [BATCHES - 5]);
    }
}

#[test]
fn a_lost_answer_or_a_second_frame_applies_no_update_twice() {
    let place = place();
    train_alone(&place, "alone", &[]);
    for (name, way, act) in [
        ("hybrid", Way::Answer, Act::Lose),
        ("async", Way::Answer, Act::Lose),
        ("hybrid", Way::Question, Act::CutBehind),
        ("async", Way::Question, Act::Twice),
    ] {
        let output = format!("{name}-{way:?}-{act:?}");
        let server = ServerProcess::start(&place.path(""), &[]);
        let proxy = FrameProxy::start(&server.address, once(way, op::UPDATE, 7, act));
        let at = [proxy.address.clone()];
        let report = &train_over(&place, &output, &at, 1, &refs(&mode(name, 0)))[0];
        assert_eq!(report["rewinds"].as_u64().unwrap_or(0), 0, "{report}");
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
        assert!(server.count("repeated_frames") > 0, "{output}");
        assert_eq!(numbers(&server.status(), "applied_steps"), [BATCHES], "{output}");
    }
    // The counterpart: a server that does the work of a frame twice gives an error or other bytes.
    let server = ServerProcess::start(&place.path(""), &["--without-deduplication"]);
    let lost = once(Way::Answer, op::UPDATE, 7, Act::Lose);
    let proxy = FrameProxy::start(&server.address, lost);
    let at = [proxy.address.clone()];
    let trainer = TrainerProcess::start(&place, "twice", &at, (0, 1), &refs(&mode("async", 0)));
    let ended = trainer.end();
    let is_equal = ended.status.success() && outcome(&place, "twice") == outcome(&place, "alone");
    assert!(!is_equal, "the repeated work had no effect");
}

/// Two trainers over two servers: an answer is lost, and the test counts its own pushes.
#[test]
fn acknowledged_updates_of_two_trainers_are_applied_once() {
    let place = place();
    for name in ["hybrid", "async"] {
        let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
        let mut at = addresses(&servers);
        let proxy = FrameProxy::start(&at[1], once(Way::Answer, op::UPDATE, 6, Act::Lose));
        at[1].clone_from(&proxy.address);
        let reports = train_over(&place, name, &at, 2, &refs(&mode(name, 2)));
        assert_eq!(proxy.disturbed(), 1);
        for report in &reports {
            assert_eq!(report["rewinds"].as_u64().unwrap_or(0), 0, "{report}");
        }
        for server in &servers {
            let applied = numbers(&server.status(), "applied_steps");
            assert_eq!(applied, [BATCHES / 2; 2], "{name}");
        }
        assert!(servers[1].count("repeated_frames") > 0);
    }
}

#[test]
fn a_killed_server_sets_all_trainers_back_to_the_checkpoint() {
    let place = place();
    for name in ["hybrid", "async"] {
        let mut servers = ServerProcess::start_group(&place.path(""), 2, &[]);
        let mut at = addresses(&servers);
        let proxy = FrameProxy::start(&at[1], once(Way::Question, op::UPDATE, 8, Act::Hold));
        at[1].clone_from(&proxy.address);
        let trainers = start_all(&place, name, &at, 2, &refs(&mode(name, 2)));
        proxy.wait_for_disturbance();
        servers[1].kill_and_restart(&[]);
        proxy.release();
        for trainer in trainers {
            let ended = trainer.end();
            let report = ended.succeeded();
            assert!(report["rewinds"].as_u64() >= Some(1), "{report}");
            let steps = if name == "hybrid" { BATCHES / 2 } else { BATCHES };
            assert_eq!(report["steps"].as_u64(), Some(steps), "{report}");
            assert!(ended.said.contains("the run continues after step"), "{}", ended.said);
        }
        let applied: Vec<_> =
            servers.iter().map(|server| numbers(&server.status(), "applied_steps")).collect();
        assert_eq!(applied[0], applied[1], "{name}");
        assert_eq!(applied[0][0], applied[0][1], "{name}");
        assert!(applied[0][0] < BATCHES / 2, "{name}: the run began anew: {applied:?}");
    }
}

/// While one of two trainers stands still, the other one goes on up to the bound and no further.
#[test]
fn staleness_is_measured_and_never_above_the_bound() {
    const BOUND: u64 = 3;
    let place = place();
    let servers = ServerProcess::start_group(&place.path(""), 2, &["--lease-seconds", "60"]);
    let mut at = addresses(&servers);
    // The frames of trainer 1 go through a proxy, which holds its update of step 3.
    let proxy = FrameProxy::start(&at[0], once(Way::Question, op::UPDATE, 3, Act::Hold));
    let direct = at.clone();
    at[0].clone_from(&proxy.address);
    let long = ["--set", "train.epochs=3", "--set", "train.checkpoint_every=1000"];
    let mode = mode("async", BOUND);
    let more = [&refs(&mode)[..], &long].concat();
    let first = TrainerProcess::start(&place, "over", &direct, (0, 2), &more);
    let second = TrainerProcess::start(&place, "over", &at, (1, 2), &more);
    proxy.wait_for_disturbance();
    second.signal("-STOP");
    // The other trainer sends the pull of step 2 + 2 + BOUND, which waits, and then the update of
    // the step before, which waits behind it.
    let reached = 2 + BOUND;
    let stands =
        |status: &Value| status["applied_steps"].as_array().is_some_and(|all| all[0] == reached);
    let status = wait_for(&servers[0], "trainer 0 does not go on", stands);
    assert_eq!(numbers(&status, "applied_steps"), [reached, 2]);
    proxy.release();
    second.signal("-CONT");
    for trainer in [first, second] {
        let report = trainer.end().succeeded();
        assert_eq!(report["steps"].as_u64(), Some(3 * BATCHES), "{report}");
    }
    for server in &servers {
        let status = server.status();
        assert_eq!(numbers(&status, "applied_steps"), [3 * BATCHES / 2; 2]);
        let pulls = numbers(&status, "stale_pulls");
        assert_eq!(pulls.len() as u64, BOUND + 1);
        assert_eq!(pulls.iter().sum::<u64>(), 3 * BATCHES, "every pull is counted");
        assert!(pulls[1..].iter().sum::<u64>() > 0, "nothing is asynchronous: {pulls:?}");
    }
    assert!(numbers(&servers[0].status(), "stale_pulls")[BOUND as usize] > 0);
}

#[test]
fn the_pulls_of_hybrid_trainers_are_stale_within_the_bound() {
    let place = place();
    for staleness in [0, 2] {
        let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
        let output = format!("over-{staleness}");
        let arguments = mode("hybrid", staleness);
        let reports = train_over(&place, &output, &addresses(&servers), 2, &refs(&arguments));
        assert_eq!(reports[0]["steps"].as_u64(), Some(BATCHES / 2));
        // All trainers have the same dense parameters, so they score alike.
        assert_eq!(reports[0]["valid_auc"], reports[1]["valid_auc"]);
        for server in &servers {
            let pulls = numbers(&server.status(), "stale_pulls");
            assert_eq!((pulls.len() as u64, pulls.iter().sum::<u64>()), (staleness + 1, BATCHES));
            assert_eq!(pulls[1..].iter().sum::<u64>() > 0, staleness > 0, "{pulls:?}");
        }
    }
}

#[test]
fn a_model_learns_in_every_mode_and_resumes_on_other_counts() {
    let place = Workplace::new();
    let changes: Vec<(&str, &str)> = SETTINGS
        .iter()
        .filter(|(from, _)| !from.starts_with("[tables"))
        .map(|&(from, to)| if from == "epochs = 3\n" { (from, "epochs = 4\n") } else { (from, to) })
        .collect();
    place.write("job.toml", &replaced(JOB, &changes));
    let alone = train_alone(&place, "alone", &[]);
    let auc = |report: &Value| report["test_auc"].as_f64().expect("the test has an AUC");
    for name in ["hybrid", "async"] {
        let servers = ServerProcess::start_group(&place.path(""), 3, &[]);
        let at = addresses(&servers);
        let arguments = mode(name, 2);
        let two = [&refs(&arguments)[..], &["--set", "train.epochs=2"]].concat();
        let reports = train_over(&place, name, &at[..2], 2, &two);
        assert_eq!(reports[0]["valid_auc"], reports[1]["valid_auc"], "{name}");
        let again = [&refs(&arguments)[..], &["--set", "train.epochs=4", "--resume"]].concat();
        let reports = train_over(&place, name, &at, 3, &again);
        assert_eq!(reports[0]["epochs"].as_u64(), Some(4));
        let (reached, alone) = (auc(&reports[0]), auc(&alone));
        assert!(reached > 0.6 && reached > alone - 0.05, "{name}: {reached}, alone {alone}");
    }
}

#[test]
fn a_stopped_trainer_stops_all_and_the_run_resumes() {
    let place = place();
    for name in ["hybrid", "async"] {
        let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
        let mut at = addresses(&servers);
        let proxy = FrameProxy::start(&at[1], once(Way::Question, op::UPDATE, 4, Act::Hold));
        at[1].clone_from(&proxy.address);
        let arguments = mode(name, 2);
        let trainers = start_all(&place, name, &at, 2, &refs(&arguments));
        proxy.wait_for_disturbance();
        trainers[1].signal("-TERM");
        proxy.release();
        let reports: Vec<Value> =
            trainers.into_iter().map(|trainer| trainer.end().succeeded()).collect();
        for report in &reports {
            assert_eq!(report["interrupted"], true, "{report}");
            assert_eq!(report["steps"], reports[0]["steps"]);
        }
        let more = [&refs(&arguments)[..], &["--resume"]].concat();
        let reports = train_over(&place, name, &at, 2, &more);
        let steps = if name == "hybrid" { BATCHES / 2 } else { BATCHES };
        assert_eq!(reports[0]["steps"].as_u64(), Some(steps));
    }
}

#[test]
fn pairs_that_do_not_fit_are_refused_by_name() {
    let place = place();
    let refused = |more: &[&str], expected: &str| {
        let (_, said) = place.train_fails(more);
        assert!(said.contains(expected), "{more:?}: {said}");
    };
    refused(&["--set", "train.mode=hybrid"], "train.mode");
    refused(&["--set", "train.mode=async"], "ps.servers");
    refused(&["--set", "train.staleness=1"], "train.staleness");
    let server = ServerProcess::start(&place.path(""), &[]);
    let store = place.text("");
    let over = ["--ps", &server.address, "--ps-store", &store, "--set", "train.mode=hybrid"];
    for (more, expected) in [
        ("train.clip_norm=1.0", "train.clip_norm"),
        ("train.accumulate=2", "train.accumulate"),
        ("tables.age.l2=0.1", "tables.age"),
        ("train.staleness=99", "train.staleness"),
    ] {
        refused(&[&over[..], &["--set", more]].concat(), expected);
    }
    // Both trainers must have the same mode.
    let at = [server.address.clone()];
    let first = TrainerProcess::start(&place, "over", &at, (0, 2), &refs(&mode("async", 1)));
    let second = TrainerProcess::start(&place, "over", &at, (1, 2), &refs(&mode("async", 2)));
    assert!(second.end().failed().contains("another job"));
    drop(first);
}

/// Returns a folder with a job whose tables move by plain SGD.
pub(super) fn geo_place(epochs: u32) -> Workplace {
    let place = Workplace::new();
    let epochs = format!("epochs = {epochs}\n");
    let changes = [
        ("clip_norm = 1.0\n", ""),
        ("epochs = 3\n", &epochs),
        ("checkpoint_every = 10\n", "checkpoint_every = 1000\n"),
        ("optimizer = { kind = 'adagrad', lr = 0.05 }", "optimizer = { kind = 'sgd', lr = 2.0 }"),
        (
            "dense = true\nl2 = 1e-3\noptimizer = { kind = 'adam', lr = 0.01 }",
            "dense = true\noptimizer = { kind = 'sgd', lr = 2.0 }",
        ),
        (
            "optimizer = { kind = 'ftrl', lr = 0.05, l1 = 1e-4 }\nl2 = 1e-4",
            "optimizer = { kind = 'sgd', lr = 2.0 }",
        ),
    ];
    let job = JOB.replace('"', "'");
    place.write("job.toml", &replaced(&job, &changes));
    place
}

/// Returns the arguments that set the mode `geo` and its number of local steps.
pub(super) fn geo(steps: u64) -> [String; 4] {
    let set = || "--set".to_owned();
    [set(), "train.mode=geo".to_owned(), set(), format!("train.local_steps={steps}")]
}

#[test]
fn one_trainer_with_one_local_step_gives_the_bytes_of_one_process() {
    let place = geo_place(2);
    let alone = train_alone(&place, "alone", &[]);
    let servers = ServerProcess::start_group(&place.path(""), 3, &[]);
    let at = addresses(&servers);
    for count in [1, 3] {
        let output = format!("over-{count}");
        train_over(&place, &output, &at[..count], 1, &refs(&geo(1)));
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
    // More local steps round the sums in another way, and the model is nearly the same.
    let reports = train_over(&place, "over-4", &at, 1, &refs(&geo(4)));
    assert_ne!(outcome(&place, "over-4"), outcome(&place, "alone"));
    let auc = |report: &Value| report["valid_auc"].as_f64().expect("a validation has an AUC");
    assert!((auc(&reports[0]) - auc(&alone)).abs() < 1e-3, "{} {alone}", reports[0]);
    assert_eq!(numbers(&servers[2].status(), "applied_steps"), [2 * BATCHES / 4]);
}

#[test]
fn trainers_with_local_steps_learn_and_push_once_in_a_round() {
    let place = geo_place(6);
    let alone = train_alone(&place, "alone", &[]);
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let mut at = addresses(&servers);
    let proxy = FrameProxy::start(&at[1], once(Way::Answer, op::UPDATE, 3, Act::Lose));
    at[1].clone_from(&proxy.address);
    let reports = train_over(&place, "over", &at, 2, &refs(&geo(3)));
    assert_eq!(proxy.disturbed(), 1);
    assert_eq!(reports[0]["valid_auc"], reports[1]["valid_auc"]);
    // The model may stop early, because it depends on the order of arrivals.
    let steps = reports[0]["steps"].as_u64().expect("a number of steps");
    assert!(steps.is_multiple_of(BATCHES) && steps >= 3 * BATCHES, "{}", reports[0]);
    for server in &servers {
        // Each epoch has 12 groups of batches, which are 4 rounds.
        assert_eq!(numbers(&server.status(), "applied_steps"), [steps / BATCHES * 4; 2]);
    }
    let auc = |report: &Value| report["test_auc"].as_f64().expect("the test has an AUC");
    let (reached, alone) = (auc(&reports[0]), auc(&alone));
    assert!(reached > 0.6 && reached > alone - 0.05, "{reached}, alone {alone}");
}

#[test]
fn a_killed_server_sets_trainers_with_local_steps_back() {
    let place = geo_place(1);
    let mut servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let mut at = addresses(&servers);
    let proxy = FrameProxy::start(&at[1], once(Way::Question, op::UPDATE, 4, Act::Hold));
    at[1].clone_from(&proxy.address);
    let arguments = geo(2);
    let more = [&refs(&arguments)[..], &["--set", "train.checkpoint_every=6"]].concat();
    let trainers = start_all(&place, "over", &at, 2, &more);
    proxy.wait_for_disturbance();
    servers[1].kill_and_restart(&[]);
    proxy.release();
    for trainer in trainers {
        let report = trainer.end().succeeded();
        assert!(report["rewinds"].as_u64() >= Some(1), "{report}");
        assert_eq!(report["steps"].as_u64(), Some(BATCHES), "{report}");
    }
    let applied: Vec<_> =
        servers.iter().map(|server| numbers(&server.status(), "applied_steps")).collect();
    assert_eq!((&applied[0], applied[0][0]), (&applied[1], applied[0][1]));
}

/// The trainers meet at the end of the epoch, long after the step whose loss is not finite.
#[test]
fn all_trainers_name_the_step_that_has_diverged() {
    let place = geo_place(1);
    let server = ServerProcess::start(&place.path(""), &[]);
    let at = [server.address.clone()];
    let arguments = geo(12);
    let far = ["--set", "train.optimizer={kind='sgd',lr=1e38}"];
    let more = [&refs(&arguments)[..], &far].concat();
    for trainer in start_all(&place, "over", &at, 2, &more) {
        let ended = trainer.end();
        // Steps 1 and 2 take both trainers away from the first weights.
        let said = ended.failed();
        assert!(said.contains("training has diverged") && said.contains("at step 3;"), "{said}");
    }
}

#[test]
fn tables_that_do_not_move_by_plain_sgd_are_refused_in_geo() {
    let place = place();
    let arguments = geo(2);
    let (_, said) = place.train_fails(&refs(&arguments));
    assert!(said.contains("tables.") && said.contains("plain SGD"), "{said}");
    let (_, said) = place.train_fails(&["--set", "train.mode=geo"]);
    assert!(said.contains("train.local_steps"), "{said}");
    let (_, said) = place.train_fails(&["--set", "train.local_steps=2"]);
    assert!(said.contains("train.local_steps"), "{said}");
}
