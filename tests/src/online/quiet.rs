//! Tests of streams that give no batch, or no version: checkpoints are renewed all the same, and a
//! start after a failure publishes what is missing.

use super::place::{JOINED, Place, ROWS, files_below, impressions, now_ms, rows};

/// Returns the number of states of the feed in the folder of the run.
fn states(place: &Place) -> usize {
    let folder = std::fs::read_dir(place.path("runs/live/stream")).expect("a folder");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
    folder.map(name).filter(|name| name.to_string_lossy().starts_with("feed-")).count()
}

#[test]
fn a_join_that_waits_renews_its_checkpoint() {
    let place = Place::new(JOINED);
    let more = [
        "--set",
        "join.wait_seconds=3600",
        "--set",
        "online.checkpoint_seconds=0.1",
        "--set",
        "train.keep=2",
    ];
    let begin = now_ms() - 600_000;
    let mut run = place.start(&more);
    let mut written = 0;
    for step in 0..15u64 {
        let (shown, clicked) = impressions(step * 100..(step + 1) * 100, begin + step * 1000);
        written += shown.len() as u64;
        place.put("impressions/0", &format!("{step:04}"), &shown);
        if step == 0 {
            written += clicked.len() as u64;
            place.put("clicks/0", "0", &clicked);
        }
        run.wait_for_messages(written);
        std::thread::sleep(std::time::Duration::from_millis(150));
    }
    let last = place.path("runs/live/stream/renewed-000000000000");
    let began = std::time::Instant::now();
    while !last.exists() && began.elapsed() < super::place::PATIENCE {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let found = states(&place);
    assert!(found <= 4, "{found} states of the feed");
    run.kill();
    // A start goes on at the newest state, without the files before it.
    for (_, file) in files_below(&place.path("impressions/0")).into_iter().take(8) {
        std::fs::remove_file(file).expect("a file");
    }
    let mut run = place.start(&more);
    run.wait_for_messages(written);
    let report = run.stop();
    assert_eq!((&report["messages"], &report["batches"]), (&written.into(), &0.into()), "{report}");
    // After a stop, no decisions are left, and a setting of rows changes.
    let mut run = place.start(&[&more[..], &["--set", "online.disorder_seconds=9"]].concat());
    run.wait_for_messages(written);
    let pending = place.status().expect("a status")["feed"]["join"]["pending_rows"].clone();
    assert_eq!(pending, 1_500);
    run.stop();
    let found = states(&place);
    assert!(found <= 3, "{found} states of the feed");
}

#[test]
fn a_column_that_the_newest_rows_lack_ends_no_run() {
    let place = Place::new(ROWS);
    let job = std::fs::read_to_string(place.path("job.toml")).expect("a job");
    let job = job.replace("[labels.click]", "[features.coupon]\nkind = \"id\"\n[labels.click]");
    std::fs::write(place.path("job.toml"), job).expect("a job");
    let lines: Vec<String> = (0..600)
        .map(|number| {
            let row = rows(number..number + 1, now_ms()).remove(0);
            match number % 100 {
                0 => row.replace('}', ",\"coupon\":7}"),
                _ => row,
            }
        })
        .collect();
    place.put("events/a", "0", &lines);
    let mut run = place.start(&[]);
    run.wait_for_messages(600);
    let report = run.stop();
    assert!(report["published"].is_u64() && report["rows"] == 600, "{report}");
    place.put("events/a", "1", &lines);
    let mut run = place.start(&[]);
    run.wait_for_messages(1_200);
    let again = run.stop();
    assert!(again["published"].as_u64() > report["published"].as_u64(), "{again}");
}

#[test]
fn a_version_that_was_not_published_follows_at_the_next_start() {
    let place = Place::new(ROWS);
    place.put("events/a", "0", &rows(0..1_000, now_ms()));
    let mut run = place.start(&[]);
    run.wait_for_messages(1_000);
    run.wait_until("a version", |status| status["version"].is_u64());
    let first = place.status().expect("a status")["version"].as_u64();
    // A file at the place of the registry cannot be written to.
    let (registry, aside) = (place.path("registry"), place.path("aside"));
    std::fs::rename(&registry, &aside).expect("a rename");
    std::fs::write(&registry, "").expect("a file");
    place.put("events/a", "1", &rows(1_000..2_000, now_ms()));
    run.wait_for_messages(2_000);
    let error = run.stop_failing();
    assert!(error.contains("start the run again"), "{error}");
    assert!(!error.contains("zillion publish"), "{error}");
    std::fs::remove_file(&registry).expect("a file");
    std::fs::rename(&aside, &registry).expect("a rename");
    let mut run = place.start(&[]);
    run.wait_until("the version", |status| status["version"].as_u64() > first);
    let report = run.stop();
    assert!(report["published"].as_u64() > first, "{report}");
    assert_eq!(report["rows"], 2_000, "{report}");
}
