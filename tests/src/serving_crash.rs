//! Tests of publishers, operators and servers that are killed at any operation. No incomplete state
//! may become visible, and no acknowledged change may be lost.

use std::num::NonZeroUsize;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use zillion_device::{Files, SystemClock, Workers};
use zillion_feature::random::mix64;
use zillion_registry::{Cache, Registry, VersionId};
use zillion_rows::layer::Unthrottled;

use crate::harness::{Workplace, csv, stderr};
use crate::server::{MODEL, REGISTRY, Server, infer_body, instances, operate, operator, output};

const SIGKILL: i32 = 9;

/// Trains a run with two epochs, and publishes several of its checkpoints as versions.
fn place_with_versions(every: usize) -> Workplace {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let every = format!("publish.every={every}");
    place.train_ok("run", &["--set", &registry, "--set", &every, "--set", "train.epochs=2"]);
    place
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("`cp` runs");
    assert!(copied.success());
}

fn remove(path: &Path) {
    if path.exists() {
        std::fs::remove_dir_all(path).expect("our own folder can be removed");
    }
}

fn latest(place: &Workplace) -> u64 {
    let list: Value =
        serde_json::from_str(&operate(place, &["model", "list", "--json"])).expect("JSON");
    list["versions"][0]["version"].as_u64().expect("a number")
}

/// Runs a command repeatedly, each time on a new copy of the registry. The first run is killed at
/// the first durable operation, the second run at the second operation, and so on. After each kill,
/// the command runs again to its end. Returns the number of operations.
fn killed_everywhere(place: &Workplace, command: &[&str], after: impl Fn(bool)) -> u64 {
    let (registry, original) = (place.path(REGISTRY), place.path("original"));
    remove(&original);
    copy(&registry, &original);
    for operation in 1.. {
        remove(&registry);
        copy(&original, &registry);
        let before = latest(place);
        let result = operator(place, command)
            .env("ZILLION_FAILPOINT", format!("{operation}:kill"))
            .output()
            .expect("the binary runs");
        let is_whole = result.status.success();
        if !is_whole {
            assert_eq!(result.status.signal(), Some(SIGKILL), "{}", stderr(&result));
        }
        // Every visible version is complete, and the earlier versions still exist.
        assert!(latest(place) >= before, "{command:?} lost a version at operation {operation}");
        operate(place, &["model", "verify"]);
        operate(place, &["model", "list"]);
        // No manual step is necessary. The same command runs again.
        let again = operator(place, command).output().expect("the binary runs");
        assert!(again.status.success(), "{command:?} after {operation}: {}", stderr(&again));
        operate(place, &["model", "verify"]);
        after(is_whole);
        if is_whole {
            return operation - 1;
        }
    }
    unreachable!("the loop ends when the command has no more operations")
}

#[test]
fn publishing_promoting_and_collecting_killed_at_every_step() {
    let place = place_with_versions(1000);
    // The registry has the versions of both epochs, and one more epoch is to be published.
    place.train_ok("run", &["--resume", "--set", "train.epochs=3"]);
    let root = format!("data.root={}", place.text(""));
    let before = latest(&place);
    let newest = newest_checkpoint(&place);
    let operations = killed_everywhere(&place, &["publish", &newest, "--set", &root], |_| {
        assert_eq!(latest(&place), before + 1, "published once, however often it was tried");
        let list: Value = serde_json::from_str(&operate(
            &place,
            &["model", "show", "--pointer", "stable", "--json"],
        ))
        .expect("JSON");
        assert_eq!(list[0]["to"]["version"], before + 1, "the pointer stands on it");
    });
    assert!(operations > 10, "{operations}");
    let newest = latest(&place).to_string();
    let promote = ["model", "promote", newest.as_str(), "--to", "canary"];
    let operations = killed_everywhere(&place, &promote, |_| {});
    assert!(operations >= 2, "{operations}");
    // A base of another run is published. Later versions depend only on this base, so the earlier
    // versions are not needed any more.
    std::fs::write(place.path("run/RUN"), "another").expect("our own file");
    operate(&place, &["publish", &newest_checkpoint(&place), "--set", &root]);
    operate(&place, &["model", "promote", &latest(&place).to_string(), "--to", "canary"]);
    let gc = ["model", "gc", "--keep", "1", "--grace", "0"];
    let operations = killed_everywhere(&place, &gc, |_| {});
    assert!(operations >= 10, "{operations}");
}

/// Returns the number of layers of a version after all merges.
fn merged_layers(place: &Workplace, version: u64) -> usize {
    let clock = Arc::new(SystemClock::new());
    let registry = Registry::open(&place.text(REGISTRY), Files::new(), clock).expect("a registry");
    let model = registry.model(MODEL).expect("a model");
    let chain = model.chain(VersionId(version)).expect("a chain");
    let mut cache = Cache::open(&place.path("probe"), MODEL, Files::new()).expect("a folder");
    let workers = Arc::new(Workers::new(NonZeroUsize::MIN).expect("one thread"));
    let rows = cache.rows(&model, &chain, &workers, &mut Unthrottled).expect("rows");
    rows.layers().len()
}

fn newest_checkpoint(place: &Workplace) -> String {
    let folder = place.path("run/checkpoints");
    let names = std::fs::read_dir(&folder)
        .expect("checkpoints")
        .map(|entry| entry.expect("an entry").path());
    names.max().expect("a checkpoint").display().to_string()
}

#[test]
fn a_server_killed_at_every_step_of_its_loads_and_merges() {
    // The chain is long enough that deltas are merged.
    let place = place_with_versions(5);
    let newest = latest(&place);
    assert!(newest >= 6);
    let layers = merged_layers(&place, newest);
    let rows = instances(&csv(7, 20));
    let ask = |server: &Server| {
        let reply = server
            .post(&format!("/v2/models/{MODEL}/infer"), infer_body(&rows, &["logits"]).as_bytes());
        assert_eq!(reply.status, 200, "{reply:?}");
        output(&reply, "logits")
    };
    let wanted = {
        let mut server = Server::start(&place, &[]);
        assert!(server.becomes_ready());
        server.wait_for(newest);
        let opened = ask(&server);
        assert!(server.merges_to(layers));
        assert_eq!(ask(&server), opened);
        opened
    };
    let mut disturbed = 0;
    for operation in 1.. {
        remove(&place.path("cache"));
        let failpoint = format!("{operation}:kill");
        let server = Server::try_start(&place, &[], &[("ZILLION_FAILPOINT", failpoint.as_str())]);
        let survived =
            server.is_some_and(|mut server| server.becomes_ready() && server.merges_to(layers));
        disturbed += u64::from(!survived);
        // The cache is in the state in which the kill left it.
        let mut server = Server::start(&place, &[]);
        assert!(server.becomes_ready(), "operation {operation}");
        server.wait_for(newest);
        assert_eq!(ask(&server), wanted, "operation {operation}");
        if survived {
            break;
        }
    }
    assert!(disturbed > 10, "{disturbed}");
}

/// Returns the duration of the loop with random kills: the value of the environment variable, or
/// 25 seconds.
fn crash_time() -> Duration {
    let seconds = std::env::var("ZILLION_TEST_CRASH_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(seconds.unwrap_or(25))
}

#[test]
fn a_run_and_its_server_killed_at_random_moments() {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    // The server may start before the first version exists.
    std::fs::create_dir(place.path(REGISTRY)).expect("a folder");
    let rows = instances(&csv(7, 20));
    let body = infer_body(&rows, &["logits"]);
    let began = Instant::now();
    let (mut kills, mut answers, mut acknowledged, mut round) = (0, 0u64, 0, 0u64);
    let mut server: Option<Server> = None;
    while began.elapsed() < crash_time() {
        round += 1;
        let epochs = format!("train.epochs={}", round + 1);
        let settings =
            ["--resume", "--set", &registry, "--set", "publish.every=3", "--set", &epochs];
        let mut run = place
            .train("run", &settings)
            .args(["--set", "train.plateau.patience=1000000"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let until = Instant::now() + Duration::from_millis(mix64(round) % 900);
        while Instant::now() < until {
            let running = server.get_or_insert_with(|| Server::start(&place, &[]));
            match running.try_post(&format!("/v2/models/{MODEL}/infer"), body.as_bytes()) {
                Ok(reply) if reply.status == 200 => {
                    answers += 1;
                    let version =
                        reply.json()["model_version"].as_str().and_then(|v| v.parse().ok());
                    acknowledged = acknowledged.max(version.unwrap_or(0));
                }
                Ok(reply) => assert_eq!(reply.status, 503, "{reply:?}"),
                Err(error) => panic!("the server has gone: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if round.is_multiple_of(3)
            && let Some(mut running) = server.take()
        {
            running.kill();
        }
        run.kill().expect("our own child can be killed");
        kills += u32::from(run.wait().expect("our own child").signal() == Some(SIGKILL));
        if acknowledged > 0 {
            assert!(
                latest(&place) >= acknowledged,
                "version {acknowledged} was served and is lost"
            );
            operate(&place, &["model", "verify"]);
        }
    }
    assert!(kills >= 3 && answers > 0, "{kills} kills, {answers} answers");
    // After the kills, everything still works: the server starts again, and one last version
    // reaches it.
    let show = operate(&place, &["model", "show", "--json"]);
    let show: Value = serde_json::from_str(&show).expect("JSON");
    let reached = show["origin"]["cursor"]["epoch"].as_u64().expect("a number");
    let epochs = format!("train.epochs={}", reached + 1);
    place.train_ok(
        "run",
        &[
            "--resume",
            "--set",
            &registry,
            "--set",
            "publish.every=3",
            "--set",
            &epochs,
            "--set",
            "train.plateau.patience=1000000",
        ],
    );
    let mut server = server.unwrap_or_else(|| Server::start(&place, &[]));
    assert!(server.becomes_ready());
    let newest = latest(&place);
    assert!(newest >= acknowledged);
    server.wait_for(newest);
}

#[test]
fn of_two_publishers_at_once_exactly_one_wins() {
    let place = place_with_versions(1000);
    // Two other runs of the same job repeatedly publish bases to the same model at the same time.
    for run in ["left", "right"] {
        place.train_ok(run, &["--set", "train.epochs=1"]);
    }
    let root = format!("data.root={}", place.text(""));
    let mut won = 0;
    let mut told = 0;
    let before = latest(&place);
    for _ in 0..5 {
        let children: Vec<_> = ["left", "right"]
            .iter()
            .map(|run| {
                // With a new name, the run counts as one that has published nothing yet.
                std::fs::remove_file(place.path(&format!("{run}/RUN")))
                    .expect("the run has a name");
                std::fs::write(place.path(&format!("{run}/RUN")), format!("{run}{won}{told}"))
                    .expect("a name");
                operator(&place, &["publish", &place.text(run), "--set", &root])
                    .stderr(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("the binary runs")
            })
            .collect();
        for child in children {
            let result = child.wait_with_output().expect("our own child");
            if result.status.success() {
                won += 1;
            } else {
                let said = stderr(&result);
                assert!(said.contains("at the same time"), "{said}");
                told += 1;
            }
        }
    }
    assert_eq!(won + told, 10);
    assert!(latest(&place) >= before + won, "every version that was acknowledged is there");
    operate(&place, &["model", "verify"]);
}
