//! The checks on the emulated device, and mistakes of a program that it must find.

use super::twins::{MixNumbers, filled, mix, mix_on_host};
use super::{CHECKS, run, tell_relu_of_nan, upload};
use crate::gpu::check::Size;
use crate::gpu::device::{Event, Gpu, Graph};
use crate::gpu::emulated::{Emulated, EmulatedOptions, Pace};
use crate::gpu::error::GpuError;
use crate::gpu::memory::{Memory, Pinned};
use crate::gpu::report::check;

/// The number of seeds with which each program runs.
const SEEDS: u64 = 12;
/// The number of numbers of a batch, and of batches.
const COUNT: usize = 300;
const STEPS: u32 = 8;

#[test]
fn the_emulated_device_passes_every_check() {
    // Products have another order in the second hundred of seeds.
    for seed in (0..8).chain(100..104) {
        let device = Emulated::new(EmulatedOptions::seeded(seed));
        let outcomes = run(&device);
        assert_eq!(outcomes.len(), CHECKS.len());
        for outcome in outcomes {
            if let Some(error) = outcome.error {
                panic!("seed {seed}: {}: {error}", outcome.name);
            }
        }
    }
}

#[test]
fn the_emulated_device_keeps_nan_in_the_relu_of_products() {
    let device = Emulated::new(EmulatedOptions::seeded(1));
    let stays = "NaN stays in f32, NaN stays in tf32, NaN stays in bf16";
    assert_eq!(tell_relu_of_nan(&device).unwrap(), stays);
    let report = check(&device, Size::Small, |name| name.contains("relu"), |_| ());
    let names: Vec<_> = report.checks.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(names, [format!("relu of NaN in products: {stays}")]);
    assert_eq!(device.counters().live_bytes, 0);
}

/// A mistake in the program below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A program that is right.
    None,
    /// The step does not wait for the copy of its batch.
    MissingEvent,
    /// A copy does not wait until the step before has used the memory.
    MissingReverseEvent,
    /// The host writes a batch without waiting until the last one was copied.
    ReusedPinned,
    /// A number of the step is a parameter of the launch and not in memory.
    StaleScalar,
    /// The result is read before it has arrived.
    EarlyRead,
    /// Memory is freed while steps still use it.
    EarlyRelease,
    /// Memory is freed and allocated anew, while a graph still uses the old one.
    FreedUnderGraph,
    /// Pinned memory is dropped before its copy has run.
    DroppedPinned,
    /// Pinned memory that nothing uses is dropped while a graph is recorded.
    DroppedInRecord,
    /// The kernel writes one number too many.
    WriteBehindEnd,
    /// The side stream of a graph is not joined.
    MissingJoin,
    /// Memory is used that nothing has written.
    UnwrittenMemory,
}

/// All mistakes. The test below finds each of them.
const BUGS: [Bug; 12] = [
    Bug::MissingEvent,
    Bug::MissingReverseEvent,
    Bug::ReusedPinned,
    Bug::StaleScalar,
    Bug::EarlyRead,
    Bug::EarlyRelease,
    Bug::FreedUnderGraph,
    Bug::DroppedPinned,
    Bug::DroppedInRecord,
    Bug::WriteBehindEnd,
    Bug::MissingJoin,
    Bug::UnwrittenMemory,
];

/// One of two places for batches.
struct Place {
    pinned: Pinned,
    /// The header, one number on 256 bytes, and the batch.
    memory: Memory,
    arrived: Event,
    used: Event,
    graph: Option<Graph>,
}

/// The first number of the batch behind the header.
const HEADER: usize = 64;

fn header_of(step: u32) -> u32 {
    step * 31 + 7
}

/// Trains, in a manner of speaking: copies batches by one stream, and adds each to a total by a
/// graph on another, which reads the number of its step from the batch's header.
fn train(gpu: &dyn Gpu, bug: Bug) -> Result<Vec<u32>, GpuError> {
    let (copies, steps, side) = (gpu.create_stream()?, gpu.create_stream()?, gpu.create_stream()?);
    let (fork, join) = (gpu.create_event(false)?, gpu.create_event(false)?);
    let total = match bug {
        Bug::UnwrittenMemory => gpu.allocate(COUNT * 4)?,
        _ => upload(gpu, steps, &vec![0; COUNT])?,
    };
    let other = upload(gpu, steps, &vec![0; COUNT])?;
    let bytes = (HEADER + COUNT) * 4;
    let mut places = Vec::new();
    for _ in 0..2 {
        places.push(Place {
            pinned: gpu.allocate_pinned(bytes)?,
            memory: gpu.allocate(bytes)?,
            arrived: gpu.create_event(false)?,
            used: gpu.create_event(false)?,
            graph: None,
        });
    }
    for step in 0..STEPS {
        let place = &mut places[step as usize % 2];
        if bug != Bug::ReusedPinned {
            gpu.synchronize_event(place.arrived)?;
        }
        place.pinned.write(0, &[header_of(step)])?;
        place.pinned.write(HEADER * 4, &filled(COUNT, step * 1000))?;
        if bug != Bug::MissingReverseEvent {
            gpu.wait(copies, place.used)?;
        }
        gpu.copy_in(copies, place.memory, &place.pinned, 0)?;
        gpu.record(place.arrived, copies)?;
        if bug == Bug::DroppedPinned && step + 2 == STEPS {
            place.pinned = gpu.allocate_pinned(bytes)?;
        }
        if bug != Bug::MissingEvent {
            gpu.wait(steps, place.arrived)?;
        }
        if bug == Bug::FreedUnderGraph && step == 4 {
            gpu.synchronize(copies)?;
            gpu.synchronize(steps)?;
            gpu.free(place.memory)?;
            place.memory = gpu.allocate(bytes)?;
        }
        let header = place.memory.part(0, 4)?;
        let batch = place.memory.part(HEADER * 4, COUNT * 4)?;
        let graph = match place.graph {
            Some(graph) => graph,
            None => {
                let mut unused = Some(gpu.allocate_pinned(4)?);
                gpu.begin_capture(steps)?;
                if bug == Bug::DroppedInRecord {
                    unused = None;
                }
                let (header, scalar) = match bug {
                    Bug::StaleScalar => (Memory::NULL, header_of(step)),
                    _ => (header, 0),
                };
                let numbers = MixNumbers { scalar, rounds: 1 };
                let to = match bug {
                    Bug::WriteBehindEnd => Memory::new(total.address(), COUNT * 4 + 4),
                    _ => total,
                };
                mix(gpu, steps, to, batch, header, numbers)?;
                gpu.record(fork, steps)?;
                gpu.wait(side, fork)?;
                mix(gpu, side, other, total, header, numbers)?;
                if bug != Bug::MissingJoin {
                    gpu.record(join, side)?;
                    gpu.wait(steps, join)?;
                }
                let graph = gpu.end_capture(steps)?;
                drop(unused);
                *place.graph.insert(graph)
            }
        };
        gpu.replay(steps, graph)?;
        gpu.record(place.used, steps)?;
    }
    let result = gpu.allocate_pinned(COUNT * 8)?;
    let done = gpu.create_event(false)?;
    gpu.copy_out(steps, &result, 0, total)?;
    gpu.copy_out(steps, &result, COUNT * 4, other)?;
    gpu.record(done, steps)?;
    if bug == Bug::EarlyRelease {
        gpu.free(places[0].memory)?;
    }
    if bug != Bug::EarlyRead {
        gpu.synchronize_event(done)?;
    }
    let mut found = vec![0u32; COUNT * 2];
    result.read(0, &mut found)?;
    gpu.synchronize(copies)?;
    gpu.synchronize(steps)?;
    Ok(found)
}

fn train_on_host() -> Vec<u32> {
    let (mut total, mut other) = (vec![0u32; COUNT], vec![0u32; COUNT]);
    let numbers = MixNumbers { scalar: 0, rounds: 1 };
    for step in 0..STEPS {
        mix_on_host(&mut total, &filled(COUNT, step * 1000), header_of(step), numbers);
        mix_on_host(&mut other, &total, header_of(step), numbers);
    }
    total.extend(other);
    total
}

#[test]
fn a_program_without_a_mistake_is_right_for_every_seed() {
    for seed in 0..4 * SEEDS {
        let found = train(&Emulated::new(EmulatedOptions::seeded(seed)), Bug::None);
        assert_eq!(found.unwrap(), train_on_host(), "seed {seed}");
    }
}

#[test]
fn every_planted_mistake_is_found() {
    let wanted = train_on_host();
    let mut missed = Vec::new();
    for bug in BUGS {
        let is_found = (0..SEEDS).any(|seed| {
            let device = Emulated::new(EmulatedOptions::seeded(seed));
            train(&device, bug).map_or(true, |found| found != wanted)
        });
        if !is_found {
            missed.push(bug);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn a_failing_allocation_or_launch_is_reported() {
    for number in 1..5 {
        let mut options = EmulatedOptions::seeded(1);
        options.fail_allocation = Some(number);
        let error = train(&Emulated::new(options), Bug::None).unwrap_err();
        assert!(matches!(error, GpuError::OutOfMemory { .. }), "{error}");
    }
    for number in 1..10 {
        let mut options = EmulatedOptions::seeded(1);
        options.fail_launch = Some(number);
        let device = Emulated::new(options);
        let error = train(&device, Bug::None).unwrap_err();
        assert!(error.to_string().contains("conformance_mix"), "{error}");
        // A device that has failed stays so.
        assert!(matches!(device.allocate(16), Err(GpuError::Lost { .. })));
    }
}

#[test]
fn a_lazy_device_runs_nothing_before_the_host_waits() {
    let mut options = EmulatedOptions::seeded(3);
    options.pace = Pace::Lazy;
    let device = Emulated::new(options);
    let stream = device.create_stream().unwrap();
    let memory = upload(&device, stream, &[0]).unwrap();
    let mut pinned = device.allocate_pinned(4).unwrap();
    pinned.write(0, &[5u32]).unwrap();
    device.copy_in(stream, memory, &pinned, 0).unwrap();
    // The copy has not run, so the host must not write yet. The mistake is told by the next call.
    pinned.write(0, &[6u32]).unwrap();
    let error = device.synchronize(stream).unwrap_err().to_string();
    assert!(error.contains("wrote pinned memory before a copy of 4 bytes"), "{error}");
}

/// Gives a stream and an event back while operations use them.
#[test]
fn an_early_release_is_found() {
    let begin = || {
        let device =
            Emulated::new(EmulatedOptions { pace: Pace::Lazy, ..EmulatedOptions::seeded(3) });
        let (stream, event) =
            (device.create_stream().unwrap(), device.create_event(false).unwrap());
        let memory = device.allocate(4).unwrap();
        device.fill(stream, memory, 1).unwrap();
        device.record(event, stream).unwrap();
        (device, stream, event)
    };
    let (device, stream, _) = begin();
    let error = device.free_stream(stream).unwrap_err().to_string();
    assert!(error.contains("a stream was freed before a fill of 4 bytes had run"), "{error}");
    let (device, stream, event) = begin();
    let error = device.free_event(event).unwrap_err().to_string();
    assert!(error.contains("an event was freed before a record of event 0 had run"), "{error}");
    // A device that was used wrongly stays so.
    assert!(device.free_stream(stream).is_err());
    let (device, stream, event) = begin();
    device.synchronize(stream).unwrap();
    device.free_event(event).unwrap();
    device.free_stream(stream).unwrap();
}
