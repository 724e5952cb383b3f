//! Tests of restarts: a run that is killed at any moment and opened again at a checkpoint consumes
//! the same messages as one that reads everything at once.

use proptest::prelude::*;
use zillion_device::Files;

use super::*;
use crate::{DecisionLog, LogOptions, Taking, check_took};

/// The messages of each partition, in order.
type Consumed = Vec<Vec<(u64, String)>>;

/// A consumer with its log and its newest checkpoint.
struct Run<'a> {
    site: &'a Site,
    settings: FolderSettings,
    log_folder: &'a Path,
    source: FollowedFolder,
    log: DecisionLog,
    position: Position,
    consumed: Consumed,
    /// The position of the checkpoint as JSON, with what was consumed before.
    checkpoint: (String, Consumed),
    /// The block that is being consumed, and the number of its messages that were.
    block: Block,
    used: usize,
}

impl<'a> Run<'a> {
    fn open_log(folder: &Path) -> DecisionLog {
        let options = LogOptions { segment_bytes: 2000 };
        DecisionLog::open(&Files::new().scratch(), folder, options).unwrap()
    }

    fn start(site: &'a Site, settings: FolderSettings, log_folder: &'a Path) -> Self {
        let position = Position::default();
        Self {
            site,
            source: FollowedFolder::open(settings.clone(), &position).unwrap(),
            settings,
            log_folder,
            log: Self::open_log(log_folder),
            checkpoint: (serde_json::to_string(&position).unwrap(), Vec::new()),
            position,
            consumed: Vec::new(),
            block: Block::new(),
            used: 0,
        }
    }

    fn decide(&mut self, decision: &Decision) {
        let number = self.log.append(decision).unwrap();
        self.position.apply(number, decision).unwrap();
    }

    fn consume(consumed: &mut Consumed, number: u32, offset: u64, bytes: &[u8]) {
        consumed.resize(consumed.len().max(number as usize + 1), Vec::new());
        consumed[number as usize].push((offset, String::from_utf8(bytes.to_vec()).unwrap()));
    }

    /// Consumes up to `count` messages of the current block, or of the next one. Returns whether
    /// there was something.
    fn step(&mut self, count: usize) -> bool {
        if self.used == self.block.len() {
            self.used = 0;
            if !self.source.poll(&mut self.block, Duration::ZERO).unwrap() {
                return false;
            }
            for discovery in self.source.take_discoveries() {
                self.decide(&discovery);
            }
        }
        let partition = self.block.partition();
        let from = self.position.partition(partition).unwrap().next_offset;
        let mut taking = Taking::new(partition, from);
        for message in self.block.iter().skip(self.used).take(count) {
            taking.add(&message);
            Self::consume(&mut self.consumed, partition.number, message.offset, message.bytes);
        }
        self.used += taking.count() as usize;
        if self.used == self.block.len() {
            taking.extend_to(self.block.end());
        }
        self.decide(&Decision::Took(taking.finish()));
        self.log.sync().unwrap();
        true
    }

    /// Writes a checkpoint, and removes the decisions before it.
    fn save(&mut self) {
        let text = serde_json::to_string(&self.position).unwrap();
        self.checkpoint = (text, self.consumed.clone());
        self.log.remove_before(self.position.next_decision()).unwrap();
    }

    /// Forgets everything but the files, and goes on from the checkpoint.
    fn restart(self) -> Self {
        let Self { site, settings, log_folder, log, consumed: before, checkpoint, .. } = self;
        drop(log);
        let log = Self::open_log(log_folder);
        let mut position: Position = serde_json::from_str(&checkpoint.0).unwrap();
        let mut consumed = checkpoint.1.clone();
        let mut source = FollowedFolder::open(settings.clone(), &position).unwrap();
        let mut block = Block::new();
        for item in log.replay(position.next_decision()).unwrap() {
            let (number, decision) = item.unwrap();
            source.adopt(&decision).unwrap();
            if let Decision::Took(recorded) = &decision {
                let mut taking = Taking::new(recorded.partition, recorded.from);
                while source.read(recorded.partition, recorded.to, &mut block).unwrap() {
                    for message in block.iter() {
                        taking.add(&message);
                        let number = message.partition.number;
                        Self::consume(&mut consumed, number, message.offset, message.bytes);
                    }
                    taking.extend_to(block.end());
                }
                check_took(recorded, &taking.finish()).unwrap();
            }
            position.apply(number, &decision).unwrap();
        }
        assert_eq!(consumed, before, "everything that was synced is consumed again");
        assert!(source.take_discoveries().is_empty());
        Self {
            site,
            settings,
            log_folder,
            source,
            log,
            position,
            consumed,
            checkpoint,
            block: Block::new(),
            used: 0,
        }
    }
}

/// Returns the messages of a partition whose files have these texts, without the code under test.
fn expected(files: &[String]) -> Vec<(u64, String)> {
    let mut messages = Vec::new();
    let mut offset = 0;
    for text in files {
        for line in text.split_inclusive('\n') {
            let message = line.trim_end_matches(['\n', '\r']);
            if !message.is_empty() {
                messages.push((offset, message.to_owned()));
            }
            offset += line.len() as u64;
        }
    }
    messages
}

/// A thing that happens to a run.
#[derive(Clone, Debug)]
enum Event {
    /// A file with this text appears in this partition.
    File(usize, String),
    /// A sub-folder appears in the root.
    Partition,
    /// Up to this number of messages are consumed.
    Step(usize),
    /// A checkpoint is written.
    Save,
    /// The process is killed and started again.
    Kill,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0usize..4, "([a-z]{0,12}(\r?\n)?){0,12}").prop_map(|(at, text)| Event::File(at, text)),
        1 => Just(Event::Partition),
        8 => (1usize..9).prop_map(Event::Step),
        2 => Just(Event::Save),
        2 => Just(Event::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_killed_run_consumes_what_one_read_does(
        events in prop::collection::vec(event(), 1..60),
        block_bytes in 1usize..80,
    ) {
        let site = Site::new(&["p000", "p001"]);
        let log_folder = tempfile::tempdir().unwrap();
        let settings = FolderSettings { block_bytes, ..site.settings() };
        let mut run = Run::start(&site, settings, log_folder.path());
        let mut files: Vec<Vec<String>> = vec![Vec::new(), Vec::new()];
        for event in events {
            match event {
                Event::File(at, text) => {
                    let number = at % files.len();
                    let name = format!("p{number:03}/{:04}", files[number].len());
                    run.site.put(&name, &text);
                    files[number].push(text);
                }
                Event::Partition => {
                    let name = format!("p{:03}", files.len());
                    fs::create_dir(run.site.path(&name)).unwrap();
                    files.push(Vec::new());
                }
                Event::Step(count) => {
                    run.step(count);
                }
                Event::Save => run.save(),
                Event::Kill => run = run.restart(),
            }
        }
        while run.step(7) {}
        run.consumed.resize(files.len(), Vec::new());
        let wanted: Consumed = files.iter().map(|texts| expected(texts)).collect();
        prop_assert_eq!(&run.consumed, &wanted);

        // One read from the beginning gives the same.
        let mut source = FollowedFolder::open(run.site.settings(), &Position::default()).unwrap();
        let mut read: Consumed = vec![Vec::new(); files.len()];
        for (number, offset, text) in drain(&mut source).unwrap() {
            read[number as usize].push((offset, text));
        }
        prop_assert_eq!(read, wanted);
    }
}

#[test]
fn a_run_can_be_killed_at_every_message() {
    for kill in 0..14 {
        let site = Site::new(&["a", "b"]);
        let log_folder = tempfile::tempdir().unwrap();
        site.put("a/1", "one\ntwo\nthree");
        site.put("a/2", "four\nfive\n\n");
        site.put("b/1", "six\nseven\n");
        let mut run = Run::start(&site, site.settings(), log_folder.path());
        for step in 0.. {
            if step == kill {
                run = run.restart();
                site.put("a/3", "eight\n");
                site.put("b/2", "nine\n");
            }
            if step == 2 {
                run.save();
            }
            if !run.step(1) && step > kill {
                break;
            }
        }
        let texts = |texts: [&str; 3]| texts.map(str::to_owned);
        let a = expected(&texts(["one\ntwo\nthree", "four\nfive\n\n", "eight\n"]));
        let b = expected(&texts(["six\nseven\n", "nine\n", ""]));
        assert_eq!(run.consumed, [a, b], "{kill}");
    }
}

/// Makes a run that has consumed two files of a partition since its checkpoint, and stops it.
fn stopped(site: &Site, log_folder: &Path) {
    site.put("a/1", "one\ntwo\n");
    site.put("a/2", "three\nfour\n");
    let mut run = Run::start(site, site.settings(), log_folder);
    while run.step(3) {}
}

/// Replays a log from the beginning, and returns the error.
fn replay_error(site: &Site, log_folder: &Path) -> String {
    let mut source = site.open();
    let mut block = Block::new();
    for item in Run::open_log(log_folder).replay(0).unwrap() {
        let (_, decision) = item.unwrap();
        source.adopt(&decision).unwrap();
        let Decision::Took(recorded) = &decision else { continue };
        let mut taking = Taking::new(recorded.partition, recorded.from);
        loop {
            match source.read(recorded.partition, recorded.to, &mut block) {
                Ok(true) => block.iter().for_each(|message| taking.add(&message)),
                Ok(false) => break,
                Err(error) => return error.to_string(),
            }
        }
        taking.extend_to(block.end());
        if let Err(error) = check_took(recorded, &taking.finish()) {
            return error.to_string();
        }
    }
    panic!("the replay has found no difference");
}

#[test]
fn a_replay_finds_changed_and_missing_data() {
    let site = Site::new(&["a"]);
    let log_folder = tempfile::tempdir().unwrap();
    stopped(&site, log_folder.path());
    let error = |text: &str| {
        site.put("a/2", text);
        replay_error(&site, log_folder.path())
    };
    let found = error("three\nfour\nfive\n");
    assert!(found.contains("has 16 bytes, but had 11 when it appeared"), "{found}");
    let found = error("three\nfive\n");
    assert!(found.contains("the beginning of the file has changed"), "{found}");
    fs::remove_file(site.path("a/2")).unwrap();
    let found = replay_error(&site, log_folder.path());
    assert!(found.contains("a/2`: the file was removed before it was consumed"), "{found}");
}

#[test]
fn a_replay_finds_a_change_behind_the_head_of_a_file() {
    let site = Site::new(&["a"]);
    let log_folder = tempfile::tempdir().unwrap();
    let text = "0123456789\n".repeat(10_000);
    site.put("a/1", &text);
    let mut run = Run::start(&site, site.settings(), log_folder.path());
    while run.step(6_000) {}
    drop(run);
    let changed = text[..100_010].to_owned() + "x" + &text[100_011..];
    site.put("a/1", &changed);
    let error = replay_error(&site, log_folder.path());
    assert!(error.contains("offsets 66000 to 110000: the data has 4000 messages"), "{error}");
    // An end of a line instead of a byte changes the number.
    site.put("a/1", &(text[..100_005].to_owned() + "\n" + &text[100_006..]));
    let error = replay_error(&site, log_folder.path());
    assert!(error.contains("has 4001 messages"), "{error}");
}

#[test]
fn a_read_behind_the_recorded_files_is_refused() {
    let site = Site::new(&["a"]);
    let log_folder = tempfile::tempdir().unwrap();
    stopped(&site, log_folder.path());
    let mut source = site.open();
    let mut block = Block::new();
    let partition = Partition { stream: 0, number: 0 };
    let error = source.read(partition, 4, &mut block).unwrap_err().to_string();
    assert!(error.contains("adopt the partitions first"), "{error}");
    let names = vec!["a".to_owned()];
    source.adopt(&Decision::Partitions { stream: 0, names, starts: Vec::new() }).unwrap();
    let error = source.read(partition, 4, &mut block).unwrap_err().to_string();
    assert!(error.contains("the recorded files end at offset 0"), "{error}");
    let names = vec!["b".to_owned()];
    let error = source
        .adopt(&Decision::Partitions { stream: 0, names, starts: Vec::new() })
        .unwrap_err()
        .to_string();
    assert!(error.contains("do not begin with the known ones"), "{error}");
    // The decisions of other streams are not for this one.
    source
        .adopt(&Decision::Partitions { stream: 1, names: Vec::new(), starts: Vec::new() })
        .unwrap();
    assert_eq!(source.partitions().len(), 1);
}
