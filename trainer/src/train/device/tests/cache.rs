//! Tests of runs whose tables are larger than what they may use of an emulated GPU
//! (`run.device_memory`).

use super::memory::{PLAIN, WITH_STATE, write_rows};
use super::*;
use crate::observer::GpuFigures;

/// A seed of an emulated GPU that runs every operation at once.
const FAST: u64 = 3;

/// Returns settings with a window, a budget of the GPU's memory and a number of shards.
fn with_budget(settings: &str, ahead: usize, mebibytes: u64, shards: usize) -> String {
    format!(
        "run = {{ ahead = {ahead}, device_memory = '{mebibytes} MiB', shards = {shards} }}\n\
         {settings}"
    )
}

/// Rules by which the host evicts rows.
const EVICTS: &str = "tables.'*' = { dim = 64, eviction = { kind = 'unseen', steps = 12 } }\n\
    [train]\nepochs = 2\nbatch_size = 100\ncheckpoint_every = 7\n\
    optimizer = { kind = 'adam', lr = 0.01 }\n";

#[test]
fn a_cache_of_any_size_has_the_bytes_of_processors() {
    let place = Place::new();
    write_rows(&place);
    for (case, settings) in [PLAIN, WITH_STATE, EVICTS].into_iter().enumerate() {
        let cpu = format!("cpu-{case}");
        let report = place.train(&cpu, settings, DeviceChoice::Cpu).unwrap();
        let files = place.files(&cpu);
        for (seed, ahead, mebibytes, shards) in
            [(1, 1, 7, 1), (2, 4, 8, 3), (FAST, 100, 7, 2), (4, 2, 9, 2)]
        {
            let output = format!("gpu-{case}-{seed}");
            let settings = with_budget(settings, ahead, mebibytes, shards);
            let (on_gpu, line) =
                place.train_noted(&output, &settings, DeviceChoice::Emulated(seed)).unwrap();
            assert!(line.contains("rows on the device"), "{output}: {line}");
            let figures = on_gpu.gpu.unwrap();
            assert!(figures.has_rows && figures.has_cache, "{output}: {figures:?}");
            assert!(figures.bytes <= mebibytes << 20, "{output}: {figures:?}");
            let found = figures.cache_found_rows;
            assert!(found > 0 && found < figures.cache_wanted_rows, "{output}: {figures:?}");
            assert_eq!(on_gpu.valid_auc, report.valid_auc, "{output}");
            assert!(place.files(&output) == files, "{output}");
        }
    }
}

#[test]
fn no_step_of_a_warm_cache_waits_for_rows() {
    let place = Place::new();
    write_rows(&place);
    let run = |name: &str, epochs: u64| -> GpuFigures {
        let settings = PLAIN.replace("epochs = 2", &format!("epochs = {epochs}"));
        let settings = with_budget(&settings, 3, 8, 2);
        place.train(name, &settings, DeviceChoice::Emulated(FAST)).unwrap().gpu.unwrap()
    };
    let (two, five) = (run("two", 2), run("five", 5));
    assert!(two.cache_rows_in > 1_000 && two.cache_rows_out > 1_000, "{two:?}");
    // Each epoch of known data brings and takes rows, but the first steps of a cache alone wait.
    assert!(five.cache_rows_in > 2 * two.cache_rows_in, "{two:?} {five:?}");
    assert_eq!(two.cache_waited_steps, five.cache_waited_steps, "{two:?} {five:?}");
    assert!(two.cache_waited_steps < 10, "{two:?}");
}

#[test]
fn a_batch_that_does_not_fit_into_the_cache_moves_the_rows_to_the_host() {
    let place = Place::new();
    write_rows(&place);
    let mut notes = Notes::default();
    let large = PLAIN.replace("batch_size = 100", "batch_size = 1000");
    place.train("cpu", &large, DeviceChoice::Cpu).unwrap();
    let settings = with_budget(&large, 2, 8, 2);
    let job = place.job("gpu", &settings, DeviceChoice::Emulated(1)).unwrap();
    let report = train(job, TrainOptions::new(2).unwrap(), &mut notes).unwrap();
    let line = notes.0.iter().find(|line| line.starts_with("rows on the host from step "));
    assert!(line.is_some_and(|line| line.contains("memory of the GPU")), "{:?}", notes.0);
    assert!(!report.gpu.unwrap().has_rows);
    assert!(place.files("gpu") == place.files("cpu"));
}

#[test]
fn a_run_with_a_cache_goes_on_from_its_checkpoints() {
    let place = Place::new();
    write_rows(&place);
    place.train("cpu", EVICTS, DeviceChoice::Cpu).unwrap();
    let budget = with_budget(EVICTS, 5, 8, 2);
    for part in 0_u64.. {
        let mut options = TrainOptions::new(2).unwrap();
        options.resume = part > 0;
        let mut observer = StopBehind { batches: 17, seen: 0, stop: options.stop.clone() };
        let (settings, device) = match part % 3 {
            2 => (EVICTS, DeviceChoice::Cpu),
            _ => (budget.as_str(), DeviceChoice::Emulated(part)),
        };
        let job = place.job("parts", settings, device).unwrap();
        if !train(job, options, &mut observer).unwrap().interrupted {
            assert!(part > 1);
            break;
        }
    }
    assert!(place.files("parts") == place.files("cpu"));
}

#[test]
fn rows_on_disk_go_through_the_cache() {
    let place = Place::new();
    write_rows(&place);
    place.train("cpu", PLAIN, DeviceChoice::Cpu).unwrap();
    for (seed, ahead, shards) in [(1, 1, 1), (2, 4, 2), (FAST, 100, 2)] {
        let output = format!("gpu-{seed}");
        let settings = format!(
            "run = {{ ahead = {ahead}, shards = {shards}, spill = {{ item = '2 MiB' }} }}\n{PLAIN}"
        );
        let emulated = DeviceChoice::Emulated(seed);
        let (report, line) = place.train_noted(&output, &settings, emulated).unwrap();
        assert!(line.ends_with("in a cache, because `run.spill` keeps rows on disk"), "{line}");
        let figures = report.gpu.unwrap();
        assert!(figures.has_rows && figures.cache_rows_in > 100, "{output}: {figures:?}");
        assert!(place.files(&output) == place.files("cpu"), "{output}");
    }
}
