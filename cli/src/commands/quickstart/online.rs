//! `zillion quickstart --online`: events stream in, a server's predictions follow within seconds,
//! and flipped labels are caught and rolled back.

mod events;
mod serving;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use zillion_console::exit::refuse;
use zillion_console::{
    compute_pool, durable_files, job_file, open_registry, print_json_if, signals,
};
use zillion_registry::{Model, MoveKind, STABLE};
use zillion_trainer::{Job, OnlineReport, Silent, TrainOptions, TrainerPlace, train_online};

use super::place::{program, word};
use crate::args::QuickstartArgs;
use events::World;
use serving::Follower;

/// The name of the job and of the model.
const NAME: &str = "online";
/// The longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(90);

/// The times of the story, in seconds.
struct Scenes {
    /// The times since the beginning at which an item becomes popular, at which labels are flipped,
    /// and at which they are right again.
    wish: u64,
    flip: u64,
    flip_end: u64,
    /// The length of a window.
    window: u64,
    /// The time between two choices of the stable version, and the age of anchor rows.
    stable: u64,
    anchor_delay: u64,
}

const LONG: Scenes =
    Scenes { wish: 35, flip: 50, flip_end: 110, window: 5, stable: 20, anchor_delay: 10 };
const SHORT: Scenes =
    Scenes { wish: 8, flip: 14, flip_end: 24, window: 2, stable: 5, anchor_delay: 3 };

/// A function that waits until something has happened, and returns the seconds.
type Wait<'a> = dyn Fn(&str, &mut dyn FnMut() -> Result<bool>) -> Result<f64> + 'a;

/// The outcome of the command, printed for scripts.
#[derive(Serialize)]
struct Outcome {
    job: PathBuf,
    /// The number of events that were written.
    events: u64,
    /// The seconds from the first event to the first answer of the server.
    first_answer_seconds: f64,
    /// The probability of the item before it became popular, and at the end of the wait.
    item_before: f32,
    item_after: f32,
    /// The seconds after which the prediction had moved by half of the way.
    item_seconds: f64,
    /// The AUC of the server's predictions before the labels were flipped, and the lowest one
    /// while they were flipped.
    auc_before: f64,
    auc_lowest: f64,
    /// The seconds after which the gate tripped first, and the number of quarantines.
    caught_seconds: f64,
    quarantines: usize,
    /// The seconds after the end of the flip until a newer version answered.
    recovered_seconds: f64,
    auc_after: f64,
    batches: u64,
    commands: Vec<String>,
    seconds: f64,
}

pub(super) fn run(args: &QuickstartArgs) -> Result<()> {
    let began = Instant::now();
    let output = match args.output.as_path() == Path::new("runs/quickstart") {
        true => PathBuf::from("runs/quickstart-online"),
        false => args.output.clone(),
    };
    if output.exists() {
        return refuse(format!(
            "the folder {} exists; remove it, or choose another one with --output",
            output.display()
        ));
    }
    let (events, registry) = (output.join("events"), output.join("registry"));
    std::fs::create_dir_all(&events)?;
    let path = output.join("job.toml");
    let scenes = if args.short { SHORT } else { LONG };
    let text = job_text(&output.join("run"), &registry, &events, args.seed, &scenes);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("1. follow {}, train and publish: {}", events.display(), path.display());
    let stop = Arc::new(AtomicBool::new(false));
    let signal = signals::stop_flag()?;
    let world = Arc::new(World::new(args.seed));
    let story = thread::scope(|scope| {
        let source = scope.spawn(|| world.write_events(&events, &stop));
        let trainer = scope.spawn(|| train(args, &path, stop.clone()));
        let told = tell(&world, (&output, &registry), &scenes, &signal, || {
            trainer.is_finished() || source.is_finished()
        });
        stop.store(true, Ordering::Relaxed);
        let report = trainer.join().map_err(|_| anyhow::anyhow!("the training has panicked"))?;
        let written = source.join().map_err(|_| anyhow::anyhow!("the source has panicked"))?;
        // The error of the training explains that of the story.
        let report = report?;
        Ok::<_, anyhow::Error>((told?, report, written?))
    });
    let (mut outcome, report, written) = story?;
    outcome.job = path;
    outcome.events = written;
    outcome.batches = report.batches;
    outcome.seconds = began.elapsed().as_secs_f64();
    outcome.commands = commands(&output, &registry);
    eprintln!("done in {:.0} s; look around with", outcome.seconds);
    outcome.commands.iter().for_each(|command| eprintln!("  {command}"));
    print_json_if(args.json, &outcome)
}

/// Runs the resident training until it is stopped.
fn train(args: &QuickstartArgs, job: &Path, stop: Arc<AtomicBool>) -> Result<OnlineReport> {
    let value = job_file::load(job, std::iter::empty(), &[])?;
    let options = TrainOptions {
        resume: true,
        overwrite: false,
        from: None,
        workers: compute_pool(args.threads)?,
        files: durable_files()?,
        stop,
        profile: None,
        in_memory: false,
        trainer: TrainerPlace::ALONE,
    };
    Ok(train_online(Job::from_value(value)?, options, &mut Silent)?)
}

/// Tells the story: serves, changes the world, flips labels, and measures what the server answers.
fn tell(
    world: &World,
    (output, registry): (&Path, &Path),
    scenes: &Scenes,
    signal: &AtomicBool,
    has_ended: impl Fn() -> bool,
) -> Result<Outcome> {
    let wait = |what: &str, is_there: &mut dyn FnMut() -> Result<bool>| -> Result<f64> {
        let began = Instant::now();
        while !is_there()? {
            if signal.load(Ordering::Relaxed) {
                bail!("stopped by a signal");
            }
            if has_ended() || began.elapsed() > PATIENCE {
                bail!("{what} has not happened; look into {}", output.display());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(began.elapsed().as_secs_f64())
    };
    wait("the first version", &mut || Ok(registry.join(NAME).exists()))?;
    let model = open_registry(&registry.to_string_lossy())?.model(NAME)?;
    wait("the first version", &mut || Ok(!model.page(None, 1)?.is_empty()))?;
    let follower = Follower::start(NAME, registry, &output.join("server.log"))?;
    let mut state = follower.ask(world)?;
    let first_answer_seconds = world.seconds();
    eprintln!(
        "2. version {} answers after {first_answer_seconds:.1} s at {}",
        state.version,
        follower.url()
    );
    let until = |second: u64| {
        let mut is_there = || Ok(world.seconds() >= second as f64);
        wait("the next scene", &mut is_there)
    };
    until(scenes.wish)?;
    state = follower.ask(world)?;
    let (item_before, begin) = (state.item, world.make_item_popular());
    let target = f64::from(world.popular_probability() as f32 + item_before) / 2.0;
    let item_seconds = wait("the rise of the item", &mut || {
        state = follower.ask(world)?;
        Ok(f64::from(state.item) >= target)
    })?;
    eprintln!(
        "3. an item becomes popular at {begin:.0} s: its prediction goes from {item_before:.3} to \
         {:.3} within {item_seconds:.1} s",
        state.item
    );
    until(scenes.flip)?;
    state = follower.ask(world)?;
    let item_after = state.item;
    let (auc_before, version_before) = (state.auc, state.version);
    eprintln!(
        "4. all labels are flipped for {} s; AUC of the server {auc_before:.4}",
        scenes.flip_end - scenes.flip
    );
    let end = scenes.flip_end as f64;
    let (lowest, caught_seconds) = watch_flip(world, &follower, &model, auc_before, end, &wait)?;
    let recovered = Instant::now();
    wait("a new version", &mut || {
        state = follower.ask(world)?;
        Ok(state.version > version_before && state.auc > auc_before - 0.005)
    })?;
    // The bad batches that were still on their way are left out too.
    thread::sleep(Duration::from_secs(5));
    state = follower.ask(world)?;
    let recovered_seconds = recovered.elapsed().as_secs_f64();
    let (auc_after, quarantines) = (state.auc, count_quarantines(&model, 1000)?);
    eprintln!(
        "5. the labels are right again: version {} answers with AUC {auc_after:.4}",
        state.version
    );
    Ok(Outcome {
        job: PathBuf::new(),
        events: 0,
        first_answer_seconds,
        item_before,
        item_after,
        item_seconds,
        auc_before,
        auc_lowest: lowest,
        caught_seconds,
        quarantines,
        recovered_seconds,
        auc_after,
        batches: 0,
        commands: Vec::new(),
        seconds: 0.0,
    })
}

/// Flips all labels until the second `end` of the story. Returns the lowest AUC of the server, and
/// the seconds until the gate tripped.
fn watch_flip(
    world: &World,
    follower: &Follower,
    model: &Model,
    auc_before: f64,
    end: f64,
    wait: &Wait<'_>,
) -> Result<(f64, f64)> {
    let mut lowest = auc_before;
    world.flip(true);
    let flipped = Instant::now();
    wait("the quarantine", &mut || {
        lowest = lowest.min(follower.ask(world)?.auc);
        Ok(count_quarantines(model, 5)? > 0)
    })?;
    let caught_seconds = flipped.elapsed().as_secs_f64();
    eprintln!(
        "   caught after {caught_seconds:.1} s: the bad versions are in quarantine, the pointer went \
         back"
    );
    wait("the end of the flip", &mut || {
        lowest = lowest.min(follower.ask(world)?.auc);
        Ok(world.seconds() >= end)
    })?;
    world.flip(false);
    eprintln!(
        "   lowest AUC of the server meanwhile: {lowest:.4}, a loss of {:.4}",
        auc_before - lowest
    );
    Ok((lowest, caught_seconds))
}

/// Counts the quarantines among the newest moves of the pointer.
fn count_quarantines(model: &Model, limit: usize) -> Result<usize> {
    let moves = model.moves(STABLE, None, limit)?;
    Ok(moves.iter().filter(|entry| entry.kind == MoveKind::Quarantine).count())
}

/// Returns the commands that show what has happened.
fn commands(output: &Path, registry: &Path) -> Vec<String> {
    let (program, run) = (program(), word(output.join("run")));
    let registry = word(registry);
    vec![
        format!("{program} stream status {run}"),
        format!("{program} stream tail {run}"),
        format!("{program} model log --registry {registry} --model {NAME}"),
        format!("{program} online {}", word(output.join("job.toml"))),
    ]
}

fn job_text(run: &Path, registry: &Path, events: &Path, seed: u64, scenes: &Scenes) -> String {
    let text = |path: &Path| toml::Value::from(path.to_string_lossy().as_ref());
    format!(
        r#"# A resident training: it follows a folder of events, and publishes a version every second.
name = "{NAME}"
seed = {seed}

[features.user]
kind = "id"

[features.item]
kind = "id"

[labels.click]

[columns]
event_time = "time"
event_time_unit = "ms"

[tables."*"]
dim = 4
optimizer = {{ kind = "adagrad", lr = 0.1, initial_accumulator = 0.1 }}

[model]
kind = "deepfm"
hidden = [16]

[train]
batch_size = 1024
keep = 20

[publish]
registry = {registry}

# When batches end, and when versions and checkpoints are made.
[online]
linger_seconds = 0.2
publish_seconds = 1.0
checkpoint_seconds = 5.0
disorder_seconds = 1.0
stable_seconds = {stable}.0

# Each batch is scored before it is learned from, in windows of event time.
[validation]
windows = [{window}, {windows}]

# Before a version is published, it is compared with an earlier one: on the newest windows, and on
# rows of the last minutes, whose labels are known to be good.
[gate]
anchor_rows = 4096
anchor_every = 8
anchor_delay_seconds = {anchor_delay}
# Here, one item becomes popular within seconds, which makes older rows misleading.
hold_drop = 0.01

# Each sub-folder is a partition. A file appears by a rename when it is complete.
[[stream]]
name = "events"
path = {events}

[run]
output = {run}
"#,
        registry = text(registry),
        events = text(events),
        run = text(run),
        stable = scenes.stable,
        window = scenes.window,
        windows = 12 * scenes.window,
        anchor_delay = scenes.anchor_delay,
    )
}
