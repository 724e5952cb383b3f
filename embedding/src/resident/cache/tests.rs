//! Random histories of a cache over a model of a device: two streams run late and in random legal
//! orders, and the rows end with the numbers of a plain table.

use std::collections::{BTreeMap, BTreeSet};

use zillion_feature::random::{combine, mix64};

use super::*;

/// The variable with the number of histories.
const HISTORIES: &str = "ZILLION_CACHE_HISTORIES";

/// The number in fresh memory of the device.
const POISON: u64 = 0xdead_beef_dead_beef;

/// A source of random numbers.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0) % n
    }
}

/// A step on its stream: the places of its rows with the numbers that it must find there, those of
/// new rows with their numbers, and the move for which it waits.
struct Step {
    batch: u32,
    /// Whether the step changes its rows.
    changes: bool,
    places: Vec<(u32, u64)>,
    new: Vec<(u32, u64)>,
    wait: u32,
}

/// A move on its stream.
struct Move {
    number: u32,
    /// The number of steps that run before it.
    before: u32,
    ins: Vec<(u32, u64)>,
    outs: Vec<Cleaned>,
}

/// A host with a plain table, a host with a cache on a device, and the work on the device's
/// streams.
struct Model {
    chance: Chance,
    cache: ShardCache,
    /// The row of each key.
    rows: BTreeMap<u64, u32>,
    plain: BTreeMap<u64, u64>,
    host: Vec<u64>,
    device: Vec<u64>,
    steps: VecDeque<Step>,
    moves: VecDeque<Move>,
    /// The moves that have run and that the host has not read.
    ran: VecDeque<(u32, Vec<(Cleaned, u64)>)>,
    steps_run: u32,
    moves_run: u32,
    sent: u32,
    landed: u32,
    begun: u32,
    looked: u32,
    window: VecDeque<Vec<u64>>,
    late: u64,
    wanted: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(mix64(seed));
        let slots = match chance.below(4) {
            0 => 1 + chance.below(4),
            1 => 1 + chance.below(10_000),
            _ => 1 + chance.below(60),
        };
        Self {
            cache: ShardCache::new(0, slots as u32),
            device: vec![POISON; slots as usize],
            chance,
            rows: BTreeMap::new(),
            plain: BTreeMap::new(),
            host: Vec::new(),
            steps: VecDeque::new(),
            moves: VecDeque::new(),
            ran: VecDeque::new(),
            steps_run: 0,
            moves_run: 0,
            sent: 0,
            landed: 0,
            begun: 0,
            looked: 0,
            window: VecDeque::new(),
            late: 0,
            wanted: 0,
        }
    }

    /// Runs one operation of a stream, if one may run. Returns whether one has run.
    fn run_one(&mut self) -> bool {
        let can_step = self.steps.front().is_some_and(|step| step.wait <= self.moves_run);
        let can_move = self.moves.front().is_some_and(|of| of.before <= self.steps_run);
        let steps = match (can_step, can_move) {
            (false, false) => return false,
            (true, true) => self.chance.below(2) == 0,
            (can_step, _) => can_step,
        };
        if steps {
            let Some(step) = self.steps.pop_front() else { return false };
            let Step { batch, changes, places, new, .. } = step;
            new.into_iter().for_each(|(place, number)| self.device[place as usize] = number);
            for (place, expected) in places {
                let row = &mut self.device[place as usize];
                assert_eq!(*row, expected, "step {batch} finds another row");
                if changes {
                    *row = combine(*row, u64::from(batch));
                }
            }
            self.steps_run = batch;
        } else {
            let Some(Move { number, ins, outs, .. }) = self.moves.pop_front() else { return false };
            let read = |row: Cleaned| (row, self.device[row.slot as usize]);
            self.ran.push_back((number, outs.into_iter().map(read).collect()));
            ins.into_iter().for_each(|(place, value)| self.device[place as usize] = value);
            self.moves_run = number;
        }
        true
    }

    /// Reads what has come to the host, and waits for the moves up to `until`.
    fn land(&mut self, until: u32) {
        loop {
            if let Some((number, rows)) = self.ran.pop_front() {
                for (row, value) in rows {
                    if self.cache.land(row) {
                        self.host[row.row as usize] = value;
                    }
                }
                self.landed = number;
            } else if self.landed >= until {
                return;
            } else {
                assert!(self.run_one(), "move {until} never runs");
            }
        }
    }

    fn send(&mut self, ins: Vec<(u32, u64)>, outs: Vec<Cleaned>) {
        if !ins.is_empty() || !outs.is_empty() {
            self.sent += 1;
            let before = self.begun.saturating_sub(1);
            self.moves.push_back(Move { number: self.sent, before, ins, outs });
        }
    }

    fn draw_batch(&mut self) -> Vec<u64> {
        let ids = [3, 40, 400][self.chance.below(3) as usize];
        let most = self.cache.len().min(12) as u64;
        let keys = (0..self.chance.below(most + 1)).map(|_| self.chance.below(ids));
        keys.collect::<BTreeSet<u64>>().into_iter().collect()
    }

    fn look_ahead(&mut self) {
        let batch = self.draw_batch();
        let is_told = self.chance.below(8) > 0;
        if is_told {
            self.land(0);
            self.looked = self.looked.max(self.begun + self.window.len() as u32) + 1;
            let mut ins = Vec::new();
            let rows: Vec<u32> =
                batch.iter().filter_map(|key| self.rows.get(key)).copied().collect();
            let missing: Vec<u32> =
                rows.into_iter().filter(|&row| !self.cache.want(row, self.looked)).collect();
            for row in missing {
                let Taken::Slot(slot) = self.cache.take(self.begun, self.landed) else { break };
                self.cache.give(slot, row, (self.looked, self.sent + 1));
                ins.push((slot, self.host[row as usize]));
            }
            let mut outs = Vec::new();
            let reserve = self.cache.reserve_of_batch();
            self.cache.mark_leaving(reserve, (self.begun, self.sent + 1), &mut outs);
            self.send(ins, outs);
        }
        self.window.push_back(batch);
    }

    fn step(&mut self) {
        let Some(batch) = self.window.pop_front() else { return };
        self.begun += 1;
        let (mut places, mut new, mut late, mut wait) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let changes = self.chance.below(3) > 0;
        for &key in &batch {
            let initial = mix64(key);
            let (row, is_new) = match self.rows.get(&key) {
                Some(row) => (*row, false),
                None => (self.create(key, initial), true),
            };
            let plain = self.plain.entry(key).or_insert(initial);
            let expected = *plain;
            if changes {
                *plain = combine(*plain, u64::from(self.begun));
            }
            match self.cache.enter(row, self.begun, changes) {
                Some((place, moved)) => {
                    places.push((place, expected));
                    wait = wait.max(moved);
                }
                None => late.push((row, expected, is_new.then_some(initial))),
            }
        }
        self.wanted += batch.len() as u64;
        let mut ins = Vec::new();
        while let Some((row, expected, initial)) = late.pop() {
            let slot = loop {
                match self.cache.take_any(self.begun, self.landed) {
                    Taken::Slot(slot) => break slot,
                    Taken::After(number) => {
                        if number > self.sent {
                            self.send(std::mem::take(&mut ins), Vec::new());
                        }
                        self.land(number);
                    }
                    Taken::Nothing => {
                        let mut outs = Vec::new();
                        let with = (self.begun, self.sent + 1);
                        self.cache.clean_any(late.len() + 1, with, &mut outs);
                        assert!(!outs.is_empty(), "no slot can be taken");
                        self.send(std::mem::take(&mut ins), outs);
                        self.land(self.sent);
                    }
                }
            };
            let moved = if initial.is_some() { 0 } else { self.sent + 1 };
            self.cache.give(slot, row, (self.begun, moved));
            self.cache.enter(row, self.begun, changes || initial.is_some());
            places.push((slot, expected));
            match initial {
                Some(number) => new.push((slot, number)),
                None => {
                    self.late += 1;
                    ins.push((slot, self.host[row as usize]));
                }
            }
        }
        if !ins.is_empty() {
            self.send(ins, Vec::new());
            wait = self.sent;
        }
        self.steps.push_back(Step { batch: self.begun, changes, places, new, wait });
    }

    /// Gives the lowest free number to a key.
    fn create(&mut self, key: u64, initial: u64) -> u32 {
        let taken: BTreeSet<u32> = self.rows.values().copied().collect();
        let row = (0..).find(|row| !taken.contains(row)).unwrap_or(0);
        if row as usize >= self.host.len() {
            self.host.push(initial);
        }
        self.host[row as usize] = initial;
        self.cache.reserve(self.host.len());
        self.rows.insert(key, row);
        row
    }

    /// Evicts the row of a key on the host, and moves the highest row to its number.
    fn evict(&mut self) {
        let Some((&key, &row)) = self.rows.iter().nth(self.chance.below(9) as usize) else {
            return;
        };
        self.rows.remove(&key);
        self.plain.remove(&key);
        self.cache.free(row);
        let highest = self.rows.iter().max_by_key(|(_, row)| **row).map(|(&key, &row)| (key, row));
        if let Some((key, from)) = highest.filter(|(_, from)| *from > row) {
            self.host[row as usize] = self.host[from as usize];
            self.cache.rename(from, row);
            self.rows.insert(key, row);
        }
    }

    /// Copies all dirty rows to the host, and compares the host with the plain table.
    fn settle(&mut self) {
        self.land(self.sent);
        while self.run_one() {}
        assert!(self.steps.is_empty() && self.moves.is_empty(), "a stream never ends");
        self.land(self.sent);
        let Self { cache, host, device, .. } = self;
        cache.take_dirty(|row, slot| host[row as usize] = device[slot as usize]);
        for (key, value) in &self.plain {
            assert_eq!(self.host[self.rows[key] as usize], *value, "key {key}");
        }
        // A clean row is the same on the device.
        for (row, slot) in self.cache.slot_of.iter().enumerate().filter(|(_, slot)| **slot != NONE)
        {
            assert_eq!(self.host[row], self.device[*slot as usize], "row {row}");
            assert_eq!(self.cache.slots[*slot as usize].row, row as u32);
        }
    }

    fn run(&mut self, operations: u64) {
        let window = 1 + self.chance.below([1, 4, 100][self.chance.0 as usize % 3]) as usize;
        for _ in 0..operations {
            match self.chance.below(24) {
                0 => self.settle(),
                1 => self.evict(),
                2..=8 => {
                    self.run_one();
                }
                9 => self.land(0),
                _ => {
                    while self.window.len() < window {
                        self.look_ahead();
                    }
                    self.step();
                }
            }
        }
        self.settle();
    }
}

#[test]
fn rows_of_random_histories_are_those_of_a_plain_table() {
    let count =
        std::env::var(HISTORIES).ok().and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let (mut late, mut wanted) = (0, 0);
    for seed in 0..count {
        let history = std::panic::catch_unwind(|| {
            let mut model = Model::new(seed);
            model.run(60);
            (model.late, model.wanted)
        });
        let Ok(counts) = history else { panic!("history {seed} failed") };
        (late, wanted) = (late + counts.0, wanted + counts.1);
    }
    assert!(late > 0 && wanted > 10 * late, "{late} of {wanted} rows came late");
}

#[test]
fn slots_of_the_window_stay_and_cold_rows_leave_first() {
    let mut cache = ShardCache::new(10, 8);
    cache.reserve(20);
    let mut cleaned = Vec::new();
    for row in 0..8 {
        let Taken::Slot(slot) = cache.take(1, 0) else { panic!("a slot is free") };
        cache.give(slot, row, (0, 0));
    }
    // Two rows are used often, and batch 9 of the window wants another one.
    for batch in 1..=4 {
        assert_eq!(cache.enter(3, batch, true), Some((13, 0)));
        assert_eq!(cache.enter(4, batch, false), Some((14, 0)));
    }
    assert!(cache.want(5, 9));
    cache.mark_leaving(4, (5, 1), &mut cleaned);
    let mut taken = Vec::new();
    while let Taken::Slot(slot) = cache.take(5, 0) {
        taken.push(slot);
        if taken.len() == 4 {
            break;
        }
    }
    assert_eq!(taken, [0, 1, 2, 6]);
    // A dirty row leaves only when the host has it, and not if it is used again meanwhile.
    cache.mark_leaving(100, (5, 1), &mut cleaned);
    assert_eq!(cleaned.len(), 1);
    assert_eq!(cleaned[0].row, 3);
    assert!(matches!(cache.take(5, 0), Taken::Slot(7)));
    assert!(matches!(cache.take(5, 0), Taken::Slot(4) | Taken::After(1)));
    cache.enter(3, 6, true);
    assert!(!cache.land(cleaned[0]), "the row has changed since");
    assert!(cache.want(5, 9), "the window keeps its rows");
}

#[test]
fn a_leaving_row_that_the_window_wants_again_stays() {
    let mut cache = ShardCache::new(0, 2);
    cache.reserve(2);
    for row in 0..2 {
        let Taken::Slot(slot) = cache.take(1, 0) else { panic!("a slot is free") };
        cache.give(slot, row, (0, 0));
    }
    // The first visits halve the counts.
    cache.mark_leaving(2, (1, 1), &mut Vec::new());
    assert_eq!(cache.idle(), 2);
    assert!(cache.want(0, 5));
    assert_eq!(cache.take(1, 0), Taken::Slot(1));
    assert_eq!(cache.take(1, 0), Taken::Nothing);
    assert!(cache.want(0, 6) && !cache.want(1, 6));
    // A step of another batch may take the slot, but not one that uses its row.
    cache.give(1, 1, (2, 0));
    assert_eq!(cache.enter(0, 2, false), Some((0, 0)));
    assert_eq!(cache.enter(1, 2, false), Some((1, 0)));
    assert_eq!(cache.take_any(2, 0), Taken::Nothing);
    assert!(matches!(cache.take_any(3, 0), Taken::Slot(_)));
}
