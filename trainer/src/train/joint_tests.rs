//! Tests of runs with several trainers, which share the tables of this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::tests::{Place, StopBehind};
use super::*;
use crate::error::Error;
use crate::observer::Silent;

mod hub;

use hub::{Hub, Loss};

/// The settings of everything that has a state, that depends on the batch of a step, or that
/// decides something.
const EVERYTHING: &str = "[model]\nkind = 'deepfm'\nhidden = [8, 4]\nbatch_norm = true\ndropout = 0.2\n\
    [tables.user]\nadmission = { kind = 'count', at_least = 3 }\nstatistics = { decay = 0.9, every_steps = 4 }\n\
    eviction = { kind = 'score', show_weight = 0.5, click_weight = 1.0 }\nmax_rows = 24\nl2 = 0.01\n\
    [tables.item]\neviction = { kind = 'unseen', steps = 3 }\nlinear = { l2 = 0.02 }\n\
    [train]\nepochs = 2\nbatch_size = 40\nclip_norm = 0.05\n\
    optimizer = { kind = 'lamb', lr = 0.01, weight_decay = 0.01 }\n\
    average = { kind = 'ema', decay = 0.9, start = 2 }\n\
    [train.plateau]\npatience = 1\n\
    [train.schedule]\nwarmup_steps = 3\ndecay = { kind = 'cosine', steps = 6 }\n\
    [train.loss.click]\nkind = 'focal'\n";

/// A model without clipping, with a dense table and with item counts of a table.
const DENSE: &str = "[model]\nkind = 'two_tower'\nuser = ['user', 'price']\nitem = ['item']\ndim = 4\n\
    [tables.user]\ndense = true\nl2 = 0.001\n\
    [train]\nepochs = 2\nbatch_size = 40\ncheckpoint_every = 2\nfull_every = 3\nitem_counts = 'table'\n";

/// Returns the settings with the key `accumulate` in the section `[train]`.
fn accumulating(more: &str, count: usize) -> String {
    more.replace("[train]\n", &format!("[train]\naccumulate = {count}\n"))
}

/// Trains a job with several trainers, each in its own thread. Returns their outcomes.
fn train_together(
    place: &Place,
    output: &str,
    more: &str,
    hub: &Arc<Hub>,
    resume: bool,
) -> Vec<Result<TrainReport>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..hub.count())
            .map(|index| {
                let job = place.job(output, more);
                scope.spawn(move || {
                    let trainer = TrainerPlace { index, count: hub.count() };
                    let options = TrainOptions::new(1 + index % 2).unwrap();
                    let options = TrainOptions { resume, trainer, ..options };
                    let mut open = hub.opener(trainer);
                    match hub.stop_after(index) {
                        Some(batches) => {
                            let stop = options.stop.clone();
                            let mut observer = StopBehind { batches, seen: 0, stop };
                            train_over(job, options, &mut open, &mut observer)
                        }
                        None => train_over(job, options, &mut open, &mut Silent),
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn succeed(outcomes: Vec<Result<TrainReport>>) -> Vec<TrainReport> {
    outcomes.into_iter().map(|outcome| outcome.unwrap()).collect()
}

/// Reads the files of a run's newest checkpoint. The key `accumulate` of the job is left out.
fn result(place: &Place, output: &str) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut files = place.files(output);
    let manifest = files.remove(Path::new("MANIFEST")).unwrap();
    let text = String::from_utf8(manifest).unwrap();
    let (_, body) = text.split_once('\n').unwrap();
    let mut manifest: serde_json::Value = serde_json::from_str(body).unwrap();
    manifest["job"]["train"].as_object_mut().unwrap().remove("accumulate");
    // The parent's hash depends on the job of the parent.
    manifest.as_object_mut().unwrap().remove("parent");
    files.insert("MANIFEST".into(), manifest.to_string().into_bytes());
    files
}

#[test]
fn several_trainers_give_the_bytes_of_one_that_accumulates() {
    let place = Place::new();
    let rounded = EVERYTHING.replace("[train]\n", "[train]\nwire = 'bf16'\n");
    for (name, more) in [("everything", EVERYTHING), ("rounded", &rounded), ("dense", DENSE)] {
        // An epoch has 15 batches, so the last step of 2 or 4 trainers has fewer batches.
        for count in [1, 2, 4] {
            let one = format!("{name}-{count}-one");
            let alone = place.run(&one, &accumulating(more, count));
            let many = format!("{name}-{count}-many");
            let reports = succeed(train_together(&place, &many, more, &Hub::new(count), false));
            assert_eq!(result(&place, &many), result(&place, &one), "{name}, {count} trainers");
            for (index, report) in reports.iter().enumerate() {
                assert_eq!((report.steps, report.epochs), (alone.steps, alone.epochs));
                assert_eq!(report.epoch_rows, alone.epoch_rows);
                assert_eq!(report.valid_auc, alone.valid_auc);
                assert_eq!(report.rejected_rows, alone.rejected_rows);
                assert_eq!((report.rewinds, report.repeated_steps), (0, 0));
                assert_eq!(report.test.is_some(), index == 0, "trainer 0 tests");
            }
            assert_eq!(reports[0].test.as_ref().unwrap().auc, alone.test.unwrap().auc);
            if name == "everything" && count == 2 {
                let user = &reports[0].tables[0];
                assert!(user.waiting > 0 && user.displaced > 0, "{user:?}");
                assert!(reports[0].tables[1].evicted > 0);
            }
        }
    }
    let dense = |output: &str| result(&place, output).remove(Path::new("dense.safetensors"));
    assert!(dense("rounded-2-many").is_some());
    assert_ne!(dense("rounded-2-many"), dense("everything-2-many"), "nothing is rounded");
}

#[test]
fn the_number_of_trainers_is_not_without_effect() {
    let place = Place::new();
    place.run("one", EVERYTHING);
    succeed(train_together(&place, "two", EVERYTHING, &Hub::new(2), false));
    assert_ne!(result(&place, "one"), result(&place, "two"));
}

#[test]
fn a_stop_of_any_trainer_ends_all_and_the_run_resumes() {
    let place = Place::new();
    place.run("one", &accumulating(EVERYTHING, 2));
    for (index, batches) in [(0, 1), (1, 3), (1, 7), (0, 8), (1, 11)] {
        let output = format!("stopped-{index}-{batches}");
        let hub = Hub::stopping(2, index, batches);
        let reports = succeed(train_together(&place, &output, EVERYTHING, &hub, false));
        assert!(reports.iter().all(|report| report.interrupted), "{output}");
        assert_eq!(reports[0].steps, reports[1].steps);
        let reports = succeed(train_together(&place, &output, EVERYTHING, &Hub::new(2), true));
        assert!(reports.iter().all(|report| !report.interrupted), "{output}");
        assert_eq!(result(&place, &output), result(&place, "one"), "{output}");
    }
}

#[test]
fn a_run_continues_from_its_newest_checkpoint_after_a_loss() {
    let place = Place::new();
    let more = EVERYTHING.replace("[train]\n", "[train]\ncheckpoint_every = 3\n");
    place.run("one", &accumulating(&more, 2));
    // The steps of one epoch are 1 to 8. A loss comes before the first checkpoint, inside an epoch,
    // twice in the same step, and in the last step.
    for losses in [vec![2], vec![5], vec![7, 7, 12], vec![16]] {
        let output = format!("lost-{losses:?}");
        let count = losses.len() as u64;
        let hub = Hub::losing(2, losses.iter().map(|&step| Loss { index: 1, step }).collect());
        let reports = succeed(train_together(&place, &output, &more, &hub, false));
        assert_eq!(result(&place, &output), result(&place, "one"), "{output}");
        assert!(reports.iter().all(|report| report.rewinds == count), "{output}");
        // Before the first checkpoint, the lost trainer has made one step.
        assert!(reports[1].repeated_steps == 1 || losses != [2], "{output}");
    }
    // A single trainer over a remote client is set back in the same way.
    place.run("single", &more);
    let hub = Hub::losing(1, vec![Loss { index: 0, step: 5 }]);
    let reports = succeed(train_together(&place, "lost-single", &more, &hub, false));
    assert_eq!((reports[0].rewinds, reports[0].repeated_steps), (1, 1));
    assert_eq!(result(&place, "lost-single"), result(&place, "single"));
}

#[test]
fn a_run_that_makes_no_progress_gives_up() {
    let place = Place::new();
    let losses = (0..20).map(|_| Loss { index: 0, step: 3 }).collect();
    let outcomes = train_together(&place, "run", EVERYTHING, &Hub::losing(1, losses), false);
    let error = outcomes[0].as_ref().unwrap_err();
    assert!(matches!(error, Error::GaveUp { rewinds: 11, .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("ps.rewinds") && said.contains("generation 11"), "{said}");
}

#[test]
fn a_loss_that_is_not_finite_ends_all_trainers() {
    let place = Place::new();
    let more = EVERYTHING
        .replace("kind = 'lamb', lr = 0.01, weight_decay = 0.01", "kind = 'sgd', lr = 1e30")
        .replace("clip_norm = 0.05\n", "");
    let outcomes = train_together(&place, "run", &more, &Hub::new(2), false);
    let said: Vec<String> =
        outcomes.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect();
    assert!(said[0].contains("diverged"), "{}", said[0]);
    assert_eq!(said[0], said[1]);
}

#[test]
fn trainers_begin_from_the_same_version_or_checkpoint() {
    let place = Place::new();
    let registry = place.path("registry");
    let model = "[model]\nkind = 'deepfm'\nhidden = [8, 4]\nbatch_norm = true\n[train]\n";
    let publish = format!(
        "[publish]\nregistry = {registry:?}\nmodel = 'm'\nparity_rows = 8\n{model}batch_size = 50\n"
    );
    place.run("first", &publish);
    let warm = format!(
        "{model}batch_size = 40\nwarm_start = {{ registry = {registry:?}, model = 'm' }}\n"
    );
    place.run("one", &accumulating(&warm, 2));
    succeed(train_together(&place, "two", &warm, &Hub::new(2), false));
    assert_eq!(result(&place, "two"), result(&place, "one"));

    let next = format!("{model}batch_size = 40\n");
    let from = Some(place.path("first"));
    let options = TrainOptions { from: from.clone(), ..TrainOptions::new(2).unwrap() };
    train(place.job("from-one", &accumulating(&next, 2)), options, &mut Silent).unwrap();
    let hub = Hub::new(2);
    std::thread::scope(|scope| {
        for index in 0..2 {
            let job = place.job("from-two", &next);
            let (hub, from) = (&hub, from.clone().filter(|_| index == 0));
            scope.spawn(move || {
                let trainer = TrainerPlace { index, count: 2 };
                let options = TrainOptions { from, trainer, ..TrainOptions::new(1).unwrap() };
                train_over(job, options, &mut hub.opener(trainer), &mut Silent).unwrap();
            });
        }
    });
    assert_eq!(result(&place, "from-two"), result(&place, "from-one"));
}

#[test]
fn settings_that_do_not_fit_several_trainers_are_refused() {
    let place = Place::new();
    let with = |more: &str, index, count| {
        let trainer = TrainerPlace { index, count };
        let options = TrainOptions { trainer, ..TrainOptions::new(1).unwrap() };
        train(place.job("run", more), options, &mut Silent).unwrap_err().to_string()
    };
    let said = with(&accumulating(EVERYTHING, 2), 0, 2);
    assert!(said.contains("train.accumulate") && said.contains("remove it"), "{said}");
    let said = with(EVERYTHING, 2, 2);
    assert!(said.contains("trainer 2 of 2"), "{said}");
    let said = with(EVERYTHING, 0, 2);
    assert!(said.contains("ps.servers"), "{said}");
    assert!(!place.path("run").exists());
}

#[test]
fn trainers_over_servers_learn_what_one_process_learns() {
    use zillion_ps::server::{Server, ServerOptions};

    let place = Place::new();
    let servers: Vec<Server> = (0..3)
        .map(|id| {
            let options = ServerOptions::new("127.0.0.1:0", place.path(""));
            Server::start(ServerOptions { id, ..options }).unwrap()
        })
        .collect();
    let addresses: Vec<String> = servers.iter().map(|s| s.address().to_string()).collect();
    for (name, settings) in [("everything", EVERYTHING), ("dense", DENSE)] {
        let more =
            format!("{settings}[ps]\nservers = {addresses:?}\nstore = {:?}\n", place.path(""));
        for count in [1, 2] {
            let (one, many) = (format!("{name}-{count}-one"), format!("{name}-{count}-many"));
            let alone = place.run(&one, &accumulating(settings, count));
            let reports: Vec<TrainReport> = std::thread::scope(|scope| {
                let train = |index| {
                    let trainer = TrainerPlace { index, count };
                    let options = TrainOptions { trainer, ..TrainOptions::new(1).unwrap() };
                    train(place.job(&many, &more), options, &mut Silent).unwrap()
                };
                let threads: Vec<_> =
                    (0..count).map(|index| scope.spawn(move || train(index))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(reports[0].steps, alone.steps, "{many}");
            assert_eq!(reports[0].rewinds, 0, "{many}");
            assert_eq!(place.logits(&many), place.logits(&one), "{many}");
            let dense = Path::new("dense.safetensors");
            assert_eq!(place.files(&many)[dense], place.files(&one)[dense], "{many}");
            let progress = |output: &str| place.newest(output).manifest.progress;
            assert_eq!(progress(&many), progress(&one), "{many}");
            // The files of tables differ in their cut, but not in the digest of the rows.
            let digests = |output: &str| {
                let tables = place.newest(output).manifest.tables;
                let digests = tables.iter().map(|table| (table.rows, table.digest));
                digests.collect::<Vec<_>>()
            };
            assert!(digests(&one).iter().all(|(rows, digest)| *rows > 0 && digest.is_some()));
            assert_eq!(digests(&many), digests(&one), "{many}");
        }
    }
}

#[test]
fn a_trainer_that_fails_ends_the_others_with_its_error() {
    let place = Place::new();
    let text = std::fs::read_to_string(place.path("train.csv")).unwrap();
    std::fs::write(place.path("bad.csv"), format!("{text}not,a,row\n")).unwrap();
    for failing in 0..2 {
        let hub = Hub::new(2);
        let outcomes: Vec<Result<TrainReport>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|index| {
                    let output = format!("failing-{failing}");
                    let mut job = place.job(&output, EVERYTHING);
                    if index == failing {
                        job.data.train = "bad.csv".into();
                    }
                    let trainer = TrainerPlace { index, count: 2 };
                    let options = TrainOptions { trainer, ..TrainOptions::new(1).unwrap() };
                    let mut open = hub.opener(trainer);
                    scope.spawn(move || train_over(job, options, &mut open, &mut Silent))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let texts: Vec<String> =
            outcomes.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect();
        assert!(texts[failing].contains("bad.csv"), "{texts:?}");
        let cause = format!("trainer {failing} failed: ");
        let other = &texts[1 - failing];
        assert!(other.contains(&cause) && other.contains("bad.csv"), "{texts:?}");
    }
}
