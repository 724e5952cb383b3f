//! The oracle of all fuzz targets, and the mutations with which CI tests them.
//!
//! A target reads bytes from outside in the same way as the program. For all bytes, the target must
//! not panic and must not exceed limits of memory and time, which grow with the size of the input.
//! The fuzz crate and the tests `hostile.rs` of the crates share this file, so both check the same
//! properties.
//!
//! This file has its own mutations. The mutations of proptest were rejected, because they do not
//! know the parts of formats (lengths, numbers in text, nesting). The number of a case gives the
//! same input on every machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zillion_device::CountingAllocator;
use zillion_device::machine::CpuTimes;

/// The maximum number of bytes of memory that a target may use at the same time for an empty input.
pub const FREE_BYTES: usize = 64 << 20;

/// The additional number of bytes of memory that a target may use at the same time, for each byte
/// of its input.
pub const BYTES_A_BYTE: usize = 8;

/// The maximum processor time of a target for an empty input. The limit is far above the need of
/// any target, because a shared machine is slow at times.
pub const FREE_TIME: Duration = Duration::from_secs(1);

/// The additional processor time that a target may use for each byte of its input.
pub const TIME_A_BYTE: Duration = Duration::from_micros(20);

/// The number of mutated inputs of each target in CI.
const CASES: u64 = 400;

/// The largest number of bytes of a mutated input.
const LARGEST: usize = 256 << 10;

/// The allocator, which ends the process with an error if a target takes more memory than this.
/// Without this limit, a reader that trusts one wrong length could take all memory of the machine.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::with_limit(1 << 30);

/// A reader of bytes from outside.
#[derive(Debug)]
pub struct Target {
    /// The name of the target. Its program in `fuzz_targets` and its folder in `seeds` have the
    /// same name.
    pub name: &'static str,
    /// The reader. The result tells whether the reader accepts the bytes.
    pub read: fn(&[u8]) -> bool,
    /// The inputs that the reader must accept. They are written by the code that writes the format.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Target {
    /// Reads an input, and returns whether the reader accepts it.
    ///
    /// # Panics
    /// Panics if the reader panics, or if it exceeds the limits of memory or time.
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
    /// Each input is first written to a file. If the check fails, the path of this file is printed,
    /// because a process without memory cannot print its input. If the variable `WRITE_FUZZ_SEEDS`
    /// is set, the seeds are also written to `fuzz/seeds`, from which fuzzers start.
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

    /// Checks an input. A file contains the input during the check.
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

/// Returns the maximum memory in bytes and the maximum processor time for an input of `bytes`
/// bytes.
fn limits(bytes: usize) -> (usize, Duration) {
    let time = TIME_A_BYTE.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX));
    (bytes.saturating_mul(BYTES_A_BYTE).saturating_add(FREE_BYTES), FREE_TIME + time)
}

/// The file with the input of the current check.
struct Kept<'a>(&'a Path);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input is in {}", self.0.display());
        } else {
            // If the file cannot be removed, the next run overwrites it.
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

    /// Returns a random range of the bytes. Short ranges are more frequent than long ranges.
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

/// Repeats a range of the bytes at its place, up to ten thousand times.
fn repeat(bytes: &mut Vec<u8>, range: std::ops::Range<usize>, random: &mut Random) {
    let times = random.one_of(&[1, 2, 7, 100, 10_000]).min(LARGEST / range.len().max(1));
    let again = bytes[range.clone()].repeat(times);
    bytes.splice(range.end..range.end, again);
}

/// Inserts many opening brackets or similar bytes, so that a recursive reader without a limit runs
/// out of stack.
fn nest(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let opening = random.one_of(&[&b"["[..], b"{\"a\":", b"{a=", b"(", b"\x0a\x7f", b"a."]);
    let times = random.one_of(&[100, 20_000]).min(LARGEST / opening.len());
    bytes.splice(at..at, opening.repeat(times));
}

/// Replaces the first decimal number in the text that begins at or after the index `at`.
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

/// Overwrites the bytes at `at` with an integer of two, four or eight bytes.
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
    // Lengths and offsets of binary formats are usually aligned.
    let at = if random.below(2) == 0 { at - at % width } else { at };
    let end = bytes.len().min(at + width);
    bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
}
