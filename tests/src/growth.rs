//! Tests of jobs whose rows are narrow until their key is frequent. The jobs must give the same
//! bytes with any number of threads and shards and after any interruption. A version must give the
//! same scores as its checkpoint. The tools must read narrow rows and full rows.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zillion_feature::random::mix64;

use crate::harness::{Workplace, stderr, stdout, zillion};
use crate::server::{MODEL, REGISTRY, Server, floats, instances, operate};

/// The settings of tables with narrow rows. A new row of the table `user` has only its linear
/// weight. A new row of the table `tags` has its linear weight and the first two floats of its
/// vector; each is stored in 16 bits.
const GROW: [&str; 10] = [
    "--set",
    "tables.user.grow={ at = 5 }",
    "--set",
    "tables.tags.grow={ at = 12, from = 2 }",
    "--set",
    "tables.tags.dtype='bf16'",
    "--set",
    "train.batch_size=100",
    "--set",
    "tables.user.eviction={ kind = 'unseen', steps = 30 }",
];

/// Runs a command and returns its output as JSON.
fn run_json(arguments: &[&str]) -> Value {
    let result = zillion(arguments).output().expect("the binary runs");
    assert!(result.status.success(), "{}", stderr(&result));
    serde_json::from_str(stdout(&result).trim()).expect("JSON")
}

#[test]
fn threads_shards_and_kills_do_not_change_when_rows_grow() {
    let place = Workplace::with_rare_users();
    let began = Instant::now();
    let result = place.train_ok("reference", &[&GROW[..], &["--json"]].concat());
    let whole_run = began.elapsed();
    let report: Value = serde_json::from_str(stdout(&result).trim()).expect("JSON");
    for table in report["tables"].as_array().expect("a list") {
        let grows = ["user", "tags"].contains(&table["name"].as_str().expect("a name"));
        for count in ["narrow_gradients", "grown"] {
            assert_eq!(table[count].as_u64() > Some(0), grows, "{count}: {table}");
        }
    }
    let files = place.digest("reference/checkpoints");
    assert!(files.keys().any(|name| name.contains("tables/user/narrow-00000.arrow")));
    for (threads, shards) in [(1, 8), (2, 1), (2, 5)] {
        let output = format!("t{threads}s{shards}");
        let threads = format!("run.threads={threads}");
        let shards = format!("run.shards={shards}");
        place.train_ok(&output, &[&GROW[..], &["--set", &threads, "--set", &shards]].concat());
        assert_eq!(place.digest(&format!("{output}/checkpoints")), files, "{output}");
    }
    for kill in 0..4 {
        let output = format!("killed-{kill}");
        let mut child = place
            .train(&output, &GROW)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let share = (mix64(kill) % 1000) as f64 / 1000.0;
        std::thread::sleep(Duration::from_secs_f64(whole_run.as_secs_f64() * share));
        child.kill().expect("our own child can be killed");
        child.wait().expect("our own child can be waited for");
        let shards = format!("run.shards={}", 1 + kill);
        place.train_ok(&output, &[&GROW[..], &["--resume", "--set", &shards]].concat());
        assert_eq!(place.digest(&format!("{output}/checkpoints")), files, "kill {kill}");
    }
}

#[test]
fn a_version_answers_as_the_checkpoint_does() {
    let place = Workplace::with_rare_users();
    let registry = place.text(REGISTRY);
    let publish = format!("publish.registry={registry}");
    let often = ["--set", &publish, "--set", "publish.every=7", "--set", "train.keep=100"];
    place.train_ok("run", &[&GROW[..], &often].concat());
    let checkpoints = std::fs::read_dir(place.path("run/checkpoints")).expect("a folder");
    let names = checkpoints.map(|entry| entry.expect("an entry").path());
    let last = names.filter(|path| path.join("MANIFEST").is_file()).max().expect("a checkpoint");
    let last = last.to_str().expect("plain names");
    // The last version belongs to the last step. The chain has a base, deltas, and merged deltas.
    let versions: Value =
        serde_json::from_str(&operate(&place, &["model", "list", "--json"])).expect("JSON");
    assert!(versions["versions"].as_array().is_some_and(|all| all.len() > 5), "{versions}");
    let newest = versions["versions"][0]["version"].to_string();
    let shown: Value =
        serde_json::from_str(&operate(&place, &["model", "show", "--json"])).expect("JSON");
    assert!(shown["layer"].to_string().contains("\"narrow\""), "{shown}");

    let rows = place.text("train.csv");
    let scores = |arguments: &[&str]| -> Vec<u32> {
        let all = [&["predict"], arguments, &[rows.as_str(), "--json"]].concat();
        let result = zillion(&all).output().expect("the binary runs");
        assert!(result.status.success(), "{}", stderr(&result));
        let of = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["logit"].as_f64();
        let bits = |line: &str| (of(line).expect("a number") as f32).to_bits();
        stdout(&result).lines().map(bits).collect()
    };
    let trained = scores(&[last]);
    assert_eq!(trained.len(), 1500);
    let version =
        ["--registry", &registry, "--model", MODEL, "--version", &newest, "--batch", "100"];
    assert_eq!(scores(&version), trained);

    // A server scores users with narrow rows and with full rows in the same way.
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    server.wait_for(newest.parse().expect("a number"));
    let text = std::fs::read_to_string(&rows).expect("text");
    for (at, rows) in instances(&text).chunks(100).enumerate() {
        let body = json!({ "instances": rows }).to_string();
        let reply = server.post(&format!("/v1/models/{MODEL}:predict"), body.as_bytes());
        let chances = floats(&reply.json()["predictions"]);
        let logits = trained[at * 100..].iter().map(|&bits| f64::from(f32::from_bits(bits)));
        let wanted: Vec<f32> =
            logits.take(100).map(|z| (1.0 / (1.0 + (-z).exp())) as f32).collect();
        assert_eq!(chances, wanted, "rows {}", at * 100);
    }

    // The tools can read narrow rows and full rows.
    let stats = run_json(&["table", "stats", last, "--json"]);
    let of = |name: &str| {
        let tables = stats["tables"].as_array().expect("a list");
        tables.iter().find(|table| table["table"] == name).expect("the table").clone()
    };
    let user = of("user");
    let narrow = user["narrow_rows"].as_u64().expect("a number");
    assert!(narrow > 0 && Some(narrow) < user["rows"].as_u64(), "{user}");
    assert_eq!(of("item")["narrow_rows"], 0);
    let rare = text.lines().last().and_then(|line| line.split(',').next()).expect("a user");
    let explained =
        run_json(&["table", "explain", last, "--table", "user", "--key", rare, "--json"]);
    assert_eq!(explained["row"]["grows_at"], 5, "{explained}");
    assert!(explained.to_string().contains("narrow"), "{explained}");
    let arguments = ["explain", "--table", "user", "--key", rare, "--version", &newest, "--json"];
    let answer: Value = serde_json::from_str(&operate(&place, &arguments)).expect("JSON");
    let values = floats(&answer["values"]);
    assert_eq!((values.len(), &answer["is_default"]), (5, &json!(false)), "{answer}");
    assert!(values.iter().all(|&x| x != 0.0), "the floats of the initial row: {answer}");
    let out = place.text("small");
    let shrink =
        ["table", "shrink", last, "--table", "user", "--min-count", "2", "--out", &out, "--json"];
    run_json(&shrink);
    let small = run_json(&["table", "stats", &out, "--json"]);
    let left = small["tables"].to_string();
    assert!(small["tables"][0]["rows"].as_u64() <= user["rows"].as_u64(), "{left}");
}

#[test]
fn settings_that_conflict_with_growth_are_refused_by_key() {
    let place = Workplace::new();
    for (set, said) in [
        ("tables.item.grow={ at = 5 }", "tables.item.grow"),
        ("tables.user.grow={ at = 0 }", "tables.user.grow.at"),
        ("tables.user.grow={ at = 5, from = 4 }", "tables.user.grow.from"),
        ("tables.user.grow={ after = 5 }", "after"),
    ] {
        let (code, message) = place.train_fails(&["--set", set]);
        assert_eq!(code, 2, "{message}");
        assert!(message.contains(said), "{message}");
    }
    let spill = ["--set", "tables.user.grow={ at = 5 }", "--set", "run.spill.user='64 MiB'"];
    let (_, message) = place.train_fails(&spill);
    assert!(message.contains("run.spill.user"), "{message}");
    // If rows are full from the start, the result is the same as without `grow`.
    place.train_ok("off", &["--set", "tables.user.grow={ at = 1 }", "--set", "train.epochs=1"]);
    place.train_ok("without", &["--set", "train.epochs=1"]);
    assert_eq!(place.digest("off/checkpoints"), place.digest("without/checkpoints"));
}
