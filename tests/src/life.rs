//! Tests of admission and eviction in a job. The job must give the same bytes with any number of
//! threads and shards and after any interruption. Tables must not exceed their limits. Wrong
//! settings must be refused.

use std::fmt::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use zillion_feature::random::mix64;

use crate::harness::{Workplace, stderr, stdout, zillion};

const LIFE: [&str; 8] = [
    "--set",
    "tables.user.admission={ kind = 'count', at_least = 3 }",
    "--set",
    "tables.user.eviction={ kind = 'unseen', steps = 3 }",
    "--set",
    "tables.tags.admission={ kind = 'count', at_least = 40 }",
    "--set",
    "tables.tags.eviction={ kind = 'unseen', steps = 2 }",
];

fn outcome(place: &Workplace, output: &str, more: &[&str]) -> Value {
    let result = place.train_ok(output, &[&LIFE[..], &["--json"], more].concat());
    serde_json::from_str(stdout(&result).trim()).expect("JSON")
}

fn table<'a>(outcome: &'a Value, name: &str) -> &'a Value {
    let tables = outcome["tables"].as_array().expect("a list");
    tables.iter().find(|t| t["name"] == name).expect("the table")
}

#[test]
fn threads_and_shards_do_not_change_admission_and_eviction() {
    let place = Workplace::with_rare_users();
    let reference = outcome(&place, "reference", &[]);
    let (user, tags) = (table(&reference, "user"), table(&reference, "tags"));
    for (what, table) in [("user", user), ("tags", tags)] {
        for counter in ["created", "admitted", "waiting", "evicted", "lapsed"] {
            // Every tag occurs again after a few steps.
            let is_rare = what == "user" || !["evicted", "lapsed"].contains(&counter);
            assert!(
                !is_rare || table[counter].as_u64() > Some(0),
                "no {counter} in {what}: {table}"
            );
        }
        let count = |name: &str| table[name].as_u64().expect("a number");
        assert_eq!(count("rows"), count("created") - count("evicted"), "{what}");
        assert_eq!(count("created"), count("admitted"), "{what}");
    }
    let files = place.digest("reference/checkpoints");
    assert!(files.keys().any(|name| name.contains("tables/user/candidates-00000.arrow")));
    for threads in [1, 2] {
        for shards in [1, 3, 8] {
            let output = format!("t{threads}s{shards}");
            let threads = format!("run.threads={threads}");
            let shards = format!("run.shards={shards}");
            let other = outcome(&place, &output, &["--set", &threads, "--set", &shards]);
            assert_eq!(place.digest(&format!("{output}/checkpoints")), files, "{output}");
            for name in ["user", "tags", "item"] {
                for counter in ["rows", "candidates", "created", "admitted", "waiting", "evicted"] {
                    assert_eq!(table(&other, name)[counter], table(&reference, name)[counter]);
                }
            }
        }
    }
}

#[test]
fn a_run_resumed_on_other_shards_ends_in_the_same_bytes() {
    let place = Workplace::with_rare_users();
    let began = Instant::now();
    place.train_ok("reference", &LIFE);
    let whole_run = began.elapsed();
    let reference = place.digest("reference/checkpoints");
    for kill in 0..8 {
        let output = format!("killed-{kill}");
        let mut child = place
            .train(&output, &LIFE)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let share = (mix64(kill) % 1000) as f64 / 1000.0;
        std::thread::sleep(Duration::from_secs_f64(whole_run.as_secs_f64() * share));
        child.kill().expect("our own child can be killed");
        child.wait().expect("our own child can be waited for");
        let shards = format!("run.shards={}", 1 + kill);
        place.train_ok(&output, &[&LIFE[..], &["--resume", "--set", &shards]].concat());
        assert_eq!(place.digest(&format!("{output}/checkpoints")), reference, "kill {kill}");
    }
}

/// The settings of tables that reach their limits. Their rules of admission and eviction use every
/// field of a row.
const LIMITED: [&str; 18] = [
    "--set",
    "tables.user.admission={ kind = 'bloom', at_least = 2, keys = 1000, error = 0.01 }",
    "--set",
    "tables.user.eviction={ kind = 'lfu', half_life = 5 }",
    "--set",
    "tables.user.max_rows=12",
    "--set",
    "tables.user.pinned=['once7']",
    "--set",
    "tables.tags.admission={ kind = 'probability', p = 0.2 }",
    "--set",
    "tables.tags.eviction={ kind = 'score', show_weight = 1.0, click_weight = 2.0 }",
    "--set",
    "tables.tags.statistics={ decay = 0.9, every_steps = 3 }",
    "--set",
    "tables.tags.max_rows=6",
    "--set",
    "train.max_table_bytes='64 MiB'",
];

#[test]
fn tables_at_limits_end_in_the_same_bytes_on_any_shards() {
    let place = Workplace::with_rare_users();
    let result = place.train_ok("reference", &[&LIMITED[..], &["--json"]].concat());
    let reference: Value = serde_json::from_str(stdout(&result).trim()).expect("JSON");
    for (name, limit) in [("user", 12), ("tags", 6)] {
        let table = table(&reference, name);
        assert!(table["rows"].as_u64() <= Some(limit), "{table}");
        assert!(table["displaced"].as_u64() > Some(0), "{table}");
    }
    let files = place.digest("reference/checkpoints");
    assert!(files.keys().any(|name| name.contains("tables/user/filter-00000.arrow")));
    let alone = ["--set", "run.shards=1", "--set", "run.threads=2"];
    place.train_ok("other", &[&LIMITED[..], &alone].concat());
    assert_eq!(place.digest("other/checkpoints"), files);
    // The run trains all epochs but the last one. Then it resumes from its checkpoint and trains
    // the last epoch.
    let epochs = reference["epochs"].as_u64().expect("a number");
    let fewer = format!("train.epochs={}", epochs - 1);
    place.train_ok("resumed", &[&LIMITED[..], &["--set", &fewer]].concat());
    let whole = format!("train.epochs={epochs}");
    let rest = ["--resume", "--set", "run.shards=5", "--set", &whole];
    place.train_ok("resumed", &[&LIMITED[..], &rest].concat());
    let tables = |output: &str| -> Vec<(String, String)> {
        let files = place.digest(&format!("{output}/checkpoints")).into_iter();
        files.filter(|(name, _)| name.contains("/tables/")).collect()
    };
    let (resumed, reference) = (tables("resumed"), tables("reference"));
    assert!(!reference.is_empty());
    assert_eq!(resumed, reference);
}

/// Trains on a log in which every id occurs only once, with eviction and without eviction.
#[test]
fn a_stream_of_new_ids_does_not_fill_the_memory() {
    let place = Workplace::new();
    let mut text = "id,label\n".to_owned();
    let rows = 400_000;
    for index in 0..rows {
        writeln!(text, "{index},{}", mix64(index) % 2).expect("a string takes text");
    }
    place.write("stream.csv", &text);
    place.write(
        "stream.toml",
        r#"
[data]
train = ["stream.csv"]
shuffle = false
[features.id]
kind = "id"
[labels.label]
[tables.id]
dim = 64
[model]
kind = "dnn"
hidden = [8]
[train]
batch_size = 2000
"#,
    );
    let run = |output: &str, more: &[&str]| -> (u64, f64, u64) {
        let (job, root) = (place.text("stream.toml"), format!("data.root={}", place.text("")));
        let output = format!("run.output={}", place.text(output));
        let result = zillion(
            &[
                &[
                    "train",
                    &job,
                    "--json",
                    "--set",
                    &root,
                    "--set",
                    &output,
                    "--set",
                    "run.threads=1",
                ],
                more,
            ]
            .concat(),
        )
        .output()
        .expect("the binary runs");
        assert!(result.status.success(), "{}", stderr(&result));
        let outcome: Value = serde_json::from_str(stdout(&result).trim()).expect("JSON");
        let table = &outcome["tables"][0];
        (
            table["rows"].as_u64().expect("a number"),
            outcome["peak_rss_mib"].as_f64().expect("a number"),
            table["bytes"].as_u64().expect("a number"),
        )
    };
    let (all, all_mib, all_bytes) = run("grows", &[]);
    assert_eq!(all, rows);
    let evict = ["--set", "tables.id.eviction={ kind = 'unseen', steps = 8 }"];
    let (window, mib, bytes) = run("bounded", &evict);
    // An id stays for eight steps, and for at most one more round of eight steps.
    assert!((8 * 2000..=16 * 2000).contains(&window), "{window} rows");
    assert!(bytes * 6 < all_bytes, "{bytes} bytes of {all_bytes}");
    let payload = (all_bytes - bytes) as f64 / f64::from(1 << 20);
    assert!(mib < all_mib - 0.8 * payload, "{mib} MiB of {all_mib}, {payload} less in the table");
    // No id occurs twice, so no id is admitted.
    let admit = ["--set", "tables.id.admission={ kind = 'count', at_least = 2 }"];
    let (none, mib, bytes) = run("waiting", &admit);
    assert_eq!(none, 0);
    assert!(bytes <= rows * 24 + (1 << 19), "{bytes} bytes for {rows} candidates");
    assert!(mib < all_mib - 0.8 * payload, "{mib} MiB of {all_mib}");
}

#[test]
fn contradictory_rules_are_refused_with_a_remedy() {
    let place = Workplace::new();
    for (setting, wanted) in [
        ("tables.item.admission={ kind = 'count', at_least = 2 }", "kind = \"all\""),
        ("tables.item.eviction={ kind = 'unseen', steps = 2 }", "kind = \"never\""),
        (
            "tables.user.admission={ kind = 'count', at_least = 0 }",
            "tables.user.admission.at_least",
        ),
        ("tables.user.admission={ kind = 'count', at_leest = 2 }", "at_least"),
        ("tables.user.eviction={ kind = 'unsen', steps = 2 }", "unseen"),
        ("tables.user.eviction={ kind = 'unseen', steps = 0 }", "tables.user.eviction.steps"),
    ] {
        let (code, said) = place.train_fails(&["--set", setting]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(wanted), "{said}");
    }
    // A rule for all tables can be switched off for one table.
    let every = [
        "--set",
        "tables.\"*\".admission={ kind = 'count', at_least = 2 }",
        "--set",
        "tables.item.admission={ kind = 'all' }",
        "--set",
        "tables.age.admission={ kind = 'all' }",
        "--print-config",
    ];
    let config = stdout(&place.train_ok("config", &every));
    assert_eq!(config.matches("at_least = 2").count(), 2, "{config}");
    // A job with other rules is another job, which cannot resume the run.
    place.train_ok("run", &["--set", "train.epochs=1"]);
    let output = place
        .train("run", &[&["--resume"][..], &LIFE[..2]].concat())
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("tables.user.admission"), "{}", stderr(&output));
}

#[test]
fn check_predicts_admission() {
    let place = Workplace::with_rare_users();
    let root = format!("data.root={}", place.text(""));
    let check = |more: &[&str]| -> Value {
        let job = place.text("job.toml");
        let arguments = [&["check", &job, "--json", "--set", &root], more].concat();
        let result = zillion(&arguments).output().expect("the binary runs");
        serde_json::from_str(stdout(&result).trim()).expect("JSON")
    };
    let user = |report: &Value| {
        let tables = report["tables"].as_array().expect("a list");
        let table = tables.iter().find(|t| t["name"] == "user").expect("the table");
        (table["rows"].as_u64(), table["candidates"].as_u64().unwrap_or(0), table["bytes"].as_u64())
    };
    // There are three epochs. 50 users occur often, and 300 users occur once in each epoch.
    let (rows, waiting, bytes) = user(&check(&[]));
    assert_eq!((rows, waiting), (Some(350), 0));
    let four = ["--set", "tables.user.admission={ kind = 'count', at_least = 4 }"];
    let report = check(&four);
    let (rows, waiting, less) = user(&report);
    assert_eq!((rows, waiting), (Some(50), 300));
    assert!(less < bytes.map(|b| b * 3));
    assert!(report.to_string().contains("about 50 of 350 ids"), "{report}");
    let three = ["--set", "tables.user.admission={ kind = 'count', at_least = 3 }"];
    assert_eq!(user(&check(&three)).0, Some(350));
    let trained = place.train_ok("run", &[&four[..], &["--json"]].concat());
    let outcome: Value = serde_json::from_str(stdout(&trained).trim()).expect("JSON");
    assert_eq!(table(&outcome, "user")["rows"], 50);
}
