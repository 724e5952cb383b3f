//! The oracle of all fuzz targets, and the mutations with which CI tests them.
//!
//! A target reads bytes from outside as the program does. Whatever the bytes are, it must not panic
//! and must not cost more memory or time than its input is worth. The fuzz crate and the tests
//! `hostile.rs` of the crates share this file, so that both check the same.
//!
//! The mutations are our own and not those of proptest: they know the bytes of formats (lengths,
//! numbers in text, nesting), and the number of a case gives the same input on every machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zillion_device::CountingAllocator;
use zillion_device::machine::CpuTimes;

/// The largest number of bytes that a target may use at a time, apart from its input.
pub const FREE_BYTES: usize = 64 << 20;

/// The largest number of bytes that a target may use at a time for each byte of its input.
pub const BYTES_A_BYTE: usize = 8;

/// The largest processor time of a target, apart from its input. It is far more than any target
/// needs, because a shared machine is slow at times.
pub const FREE_TIME: Duration = Duration::from_secs(1);

/// The largest processor time of a target for each byte of its input.
pub const TIME_A_BYTE: Duration = Duration::from_micros(20);

/// The number of mutated inputs of each target in CI.
const CASES: u64 = 400;

/// The largest number of bytes of a mutated input.
const LARGEST: usize = 256 << 10;

/// A target that takes more memory than this ends the process with an error. Otherwise one length
/// that is believed could take the memory of the machine.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::with_limit(1 << 30);

/// A reader of bytes from outside.
#[derive(Debug)]
pub struct Target {
    /// The name of the target, of its program in `fuzz_targets` and of its folder in `seeds`.
    pub name: &'static str,
    /// The reader, which returns whether it accepts the bytes.
    pub read: fn(&[u8]) -> bool,
    /// The inputs that the reader must accept, written by the code that writes the format.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Target {
    /// Reads an input, and returns whether the reader accepts it.
    ///
    /// # Panics
    /// Panics if the reader panics or costs too much.
    pub fn check(&self, input: &[u8]) -> bool {
        let before = ALLOCATOR.reset_peak();
        let began = CpuTimes::now().own;
        let is_accepted = (self.read)(input);
        let time = CpuTimes::now().own.saturating_sub(began);
        let memory = ALLOCATOR.peak_bytes().saturating_sub(before);
        let bytes = input.len();
        let (most_memory, most_time) = limits(bytes);
        let name = self.name;
        assert!(memory <= most_memory, "{name}: {memory} bytes of memory for {bytes} bytes");
        assert!(time <= most_time, "{name}: {time:?} of processor time for {bytes} bytes");
        is_accepted
    }

    /// Checks the seeds, the kept inputs of `fuzz/seeds`, and mutations of the seeds.
    ///
    /// Each input is written to a file first, whose path is printed if the check fails: a process
    /// that runs out of memory cannot print its input. With the variable `WRITE_FUZZ_SEEDS`, the
    /// seeds are also written to `fuzz/seeds`, where fuzzers begin.
    ///
    /// # Panics
    /// Panics if a check fails, or if a seed is not accepted.
    pub fn check_cases(&self) {
        let _turn = wait_for_turn();
        let seeds = (self.seeds)();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(self.name);
        if std::env::var_os("WRITE_FUZZ_SEEDS").is_some() {
            fs::create_dir_all(&folder).expect("the folder of seeds can be made");
            for (number, seed) in seeds.iter().enumerate() {
                fs::write(folder.join(format!("seed-{number}")), seed).expect("a seed is written");
            }
        }
        for (number, seed) in seeds.iter().enumerate() {
            let is_accepted = self.check_kept(seed);
            assert!(is_accepted, "{}: seed {number} is not accepted", self.name);
        }
        for path in files_in(&folder) {
            self.check_kept(&fs::read(path).expect("a kept input can be read"));
        }
        for case in 0..CASES {
            let mut random = Random(case);
            let seed = &seeds[random.below(seeds.len())];
            self.check_kept(&mutate(seed, &mut random));
        }
    }

    /// Checks an input that is kept in a file for as long as the check runs.
    fn check_kept(&self, input: &[u8]) -> bool {
        let folder = PathBuf::from(option_env!("CARGO_TARGET_TMPDIR").unwrap_or("."));
        let path = folder.join(format!("{}.input", self.name));
        fs::write(&path, input).expect("the input can be written");
        let kept = Kept(&path);
        let is_accepted = self.check(input);
        drop(kept);
        is_accepted
    }
}

/// Waits until no other test of this process checks a target, because tests share the counts of
/// memory and time.
pub fn wait_for_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the largest memory and the largest time for an input of so many bytes.
fn limits(bytes: usize) -> (usize, Duration) {
    let time = TIME_A_BYTE.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX));
    (bytes.saturating_mul(BYTES_A_BYTE).saturating_add(FREE_BYTES), FREE_TIME + time)
}

/// The file of the input that is being checked.
struct Kept<'a>(&'a Path);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input is in {}", self.0.display());
        } else {
            // A file that stays is overwritten by the next run.
            let _ = fs::remove_file(self.0);
        }
    }
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// A small generator of pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Returns a range of the bytes, short ones more often than long ones.
    fn range(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let longest = [4, 16, 256, usize::MAX][self.below(4)].min(bytes.len());
        let length = self.below(longest + 1);
        let start = self.below(bytes.len() - length + 1);
        start..start + length
    }
}

/// Changes a seed in one to four ways.
fn mutate(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        change(&mut bytes, random);
        bytes.truncate(LARGEST);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    let range = random.range(bytes);
    match random.below(10) {
        0 => bytes.truncate(range.start),
        1 => drop(bytes.drain(range)),
        2 => flip_bit(bytes, random),
        3 => {
            let value =
                random.one_of(&[0, 1, 0x7f, 0x80, 0xff, b'"', b'[', b'{', b'-', b'9', b'\n']);
            let at = random.below(bytes.len());
            bytes.get_mut(at).into_iter().for_each(|byte| *byte = value);
        }
        4 => {
            let noise: Vec<u8> = (0..range.len().min(64)).map(|_| random.next() as u8).collect();
            bytes.splice(range.start..range.start, noise);
        }
        5 => repeat(bytes, range, random),
        6 => nest(bytes, range.start, random),
        7 => change_decimal(bytes, range.start, random),
        _ => change_integer(bytes, range.start, random),
    }
}

fn flip_bit(bytes: &mut [u8], random: &mut Random) {
    let (at, bit) = (random.below(bytes.len()), random.below(8));
    bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << bit);
}

/// Repeats a range in place, up to thousands of times.
fn repeat(bytes: &mut Vec<u8>, range: std::ops::Range<usize>, random: &mut Random) {
    let times = random.one_of(&[1, 2, 7, 100, 10_000]).min(LARGEST / range.len().max(1));
    let again = bytes[range.clone()].repeat(times);
    bytes.splice(range.end..range.end, again);
}

/// Inserts many openings, so that a reader that calls itself runs out of stack.
fn nest(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let opening = random.one_of(&[&b"["[..], b"{\"a\":", b"{a=", b"(", b"\x0a\x7f", b"a."]);
    let times = random.one_of(&[100, 20_000]).min(LARGEST / opening.len());
    bytes.splice(at..at, opening.repeat(times));
}

/// Replaces the first number in text at or behind `at`.
fn change_decimal(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|found| at + found)
    else {
        return;
    };
    let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = random.one_of(&[
        "0",
        "1",
        "-1",
        "255",
        "65536",
        "4294967295",
        "1000000000000",
        "9223372036854775807",
        "18446744073709551615",
        "99999999999999999999",
        "1e308",
        "1e-400",
        "0.5",
    ]);
    bytes.splice(start..start + digits, number.bytes());
}

/// Writes an integer of two, four or eight bytes over the bytes at `at`.
fn change_integer(bytes: &mut [u8], at: usize, random: &mut Random) {
    let length = bytes.len() as u64;
    let value = random.one_of(&[
        0,
        1,
        2,
        length,
        length + 1,
        0x7f,
        0xff,
        0xffff,
        0x7fff_ffff,
        0xffff_ffff,
        1 << 40,
        u64::MAX >> 1,
        u64::MAX,
    ]);
    let value = value.wrapping_add(random.one_of(&[0, 0, 8, 0u64.wrapping_sub(1)]));
    let width = random.one_of(&[2, 4, 8]);
    // Lengths and offsets of binary formats are aligned.
    let at = if random.below(2) == 0 { at - at % width } else { at };
    let end = bytes.len().min(at + width);
    bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
}
