//! Tests of runs on the emulated GPU whose steps are taken one at a time.

use super::memory::{PLAIN, write_rows};
use super::*;
use crate::train::stepped::SteppedRun;

/// Opens a run for steps.
fn open(place: &Place, output: &str, settings: &str, device: DeviceChoice) -> SteppedRun {
    let job = place.job(output, settings, device).unwrap();
    SteppedRun::open(job, TrainOptions::new(2).unwrap(), &mut Silent).unwrap()
}

/// Takes all steps of a run in its order. Returns its report.
fn take_steps(mut run: SteppedRun) -> TrainReport {
    while !run.is_finished() {
        while let Some(batch) = run.next_batch(&mut Silent).unwrap() {
            run.step(batch, &mut Silent).unwrap();
        }
        run.end_epoch(&mut Silent).unwrap();
    }
    run.finish(&mut Silent).unwrap()
}

/// Returns the settings of one epoch.
fn one_epoch() -> String {
    PLAIN.replace("epochs = 2", "epochs = 1")
}

/// Returns settings with which the GPU has a cache of rows.
fn with_cache() -> String {
    format!("run = {{ ahead = 3, device_memory = '8 MiB', shards = 2 }}\n{}", one_epoch())
}

#[test]
fn steps_on_a_gpu_have_the_bytes_of_processors_and_use_the_cache_as_a_whole_run() {
    let place = Place::new();
    write_rows(&place);
    place.train("cpu", &one_epoch(), DeviceChoice::Cpu).unwrap();
    let files = place.files("cpu");
    let emulated = DeviceChoice::Emulated(3);
    let whole = place.train("whole", &with_cache(), emulated).unwrap().gpu.unwrap();
    let cache = take_steps(open(&place, "cache", &with_cache(), emulated)).gpu.unwrap();
    assert!(cache.has_rows && cache.has_cache, "{cache:?}");
    assert!(place.files("cache") == files);
    // The batches of the window were announced, so steps find the rows that they find in a whole
    // run.
    assert!(cache.cache_found_rows > 0, "{cache:?}");
    assert_eq!(cache.cache_waited_steps, whole.cache_waited_steps, "{cache:?} {whole:?}");
}

#[test]
fn batches_in_any_order_have_the_bytes_of_processors() {
    let place = Place::new();
    write_rows(&place);
    let train = |name: &str, settings: &str, device| {
        let mut run = open(&place, name, settings, device);
        let step = |run: &mut SteppedRun, batch| {
            run.step(batch, &mut Silent).unwrap();
        };
        let mut held = Vec::new();
        for number in 0..12 {
            let Some(batch) = run.next_batch(&mut Silent).unwrap() else { break };
            match number % 4 {
                // The batch waits, so a later one comes first.
                0 => held.push(batch),
                // The batch is trained on twice.
                1 => {
                    step(&mut run, batch.clone());
                    step(&mut run, batch);
                }
                // The batch has no plan and no place in the order of the run.
                2 => step(&mut run, batch.batch().clone().into()),
                _ => step(&mut run, batch),
            }
        }
        held.into_iter().rev().for_each(|batch| step(&mut run, batch));
        run.save(&mut Silent).unwrap();
        place.files(name)
    };
    let cpu = train("cpu", &one_epoch(), DeviceChoice::Cpu);
    let emulated = DeviceChoice::Emulated(3);
    assert!(train("all", &one_epoch(), emulated) == cpu);
    assert!(train("cache", &with_cache(), emulated) == cpu);
}
