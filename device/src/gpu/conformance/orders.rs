//! Checks of streams and events.

use super::twins::{MixNumbers, fill, filled, mix, mix_on_host};
use super::{download, expect_equal, fail, free_all, upload};
use crate::gpu::device::Gpu;
use crate::gpu::error::GpuError;
use crate::gpu::info::Kind;
use crate::gpu::memory::Memory;

/// The number of numbers in most checks.
const COUNT: usize = 1000;

/// Returns the rounds of a kernel that must be slow: long enough on a real device that a missing
/// event is seen, and short where a processor emulates the device.
pub(super) fn slow_rounds(gpu: &dyn Gpu) -> u32 {
    match gpu.info().kind {
        Kind::Cuda => 200_000,
        Kind::Emulated => 3,
    }
}

pub(super) fn run_in_order(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let stream = gpu.create_stream()?;
    let memory = gpu.allocate(COUNT * 4)?;
    let other = upload(gpu, stream, &filled(COUNT, 9))?;
    fill(gpu, stream, memory, 3)?;
    let mut wanted = filled(COUNT, 3);
    let mut added = filled(COUNT, 9);
    for scalar in 0..6 {
        let numbers = MixNumbers { scalar, rounds: 1 + scalar };
        mix(gpu, stream, memory, other, Memory::NULL, numbers)?;
        mix_on_host(&mut wanted, &added, 0, numbers);
        gpu.copy(stream, other, memory)?;
        added.copy_from_slice(&wanted);
    }
    expect_equal("a stream in order", &download(gpu, stream, memory)?, &wanted)?;
    free_all(gpu, &[memory, other])
}

pub(super) fn order_two_streams(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let (first, second) = (gpu.create_stream()?, gpu.create_stream()?);
    let (ready, back) = (gpu.create_event(false)?, gpu.create_event(false)?);
    let (one, two) = (gpu.allocate(COUNT * 4)?, gpu.allocate(COUNT * 4)?);
    let slow = MixNumbers { scalar: 1, rounds: slow_rounds(gpu) };
    let quick = MixNumbers { scalar: 2, rounds: 1 };
    fill(gpu, first, one, 5)?;
    fill(gpu, second, two, 6)?;
    let (mut wanted_one, mut wanted_two) = (filled(COUNT, 5), filled(COUNT, 6));
    for _ in 0..4 {
        mix(gpu, first, one, Memory::NULL, Memory::NULL, slow)?;
        mix_on_host(&mut wanted_one, &[], 0, slow);
        gpu.record(ready, first)?;
        gpu.wait(second, ready)?;
        mix(gpu, second, two, one, Memory::NULL, quick)?;
        mix_on_host(&mut wanted_two, &wanted_one, 0, quick);
        // The first stream changes what the second reads, so it waits in turn.
        gpu.record(back, second)?;
        gpu.wait(first, back)?;
    }
    expect_equal("two streams", &download(gpu, second, two)?, &wanted_two)?;
    expect_equal("two streams", &download(gpu, first, one)?, &wanted_one)?;
    free_all(gpu, &[one, two])
}

pub(super) fn wait_on_the_host(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "a wait on the host";
    let stream = gpu.create_stream()?;
    let event = gpu.create_event(false)?;
    // An event that was never recorded holds nothing up.
    gpu.wait(stream, event)?;
    gpu.synchronize_event(event)?;
    let memory = gpu.allocate(COUNT * 4)?;
    let pinned = gpu.allocate_pinned(COUNT * 4)?;
    let before = gpu.counters().host_waits;
    let slow = MixNumbers { scalar: 1, rounds: slow_rounds(gpu) };
    let mut wanted = filled(COUNT, 1);
    fill(gpu, stream, memory, 1)?;
    mix(gpu, stream, memory, Memory::NULL, Memory::NULL, slow)?;
    mix_on_host(&mut wanted, &[], 0, slow);
    gpu.copy_out(stream, &pinned, 0, memory)?;
    gpu.record(event, stream)?;
    // What comes later is not waited for.
    mix(gpu, stream, memory, Memory::NULL, Memory::NULL, slow)?;
    expect_equal(check, &[gpu.counters().host_waits], &[before])?;
    gpu.synchronize_event(event)?;
    let mut found = vec![0u32; COUNT];
    pinned.read(0, &mut found)?;
    expect_equal(check, &found, &wanted)?;
    expect_equal(check, &[gpu.counters().host_waits], &[before + 1])?;
    if !gpu.is_done(event)? {
        return fail(check, "an event is not done after a wait for it".into());
    }
    gpu.synchronize(stream)?;
    gpu.free(memory)
}

pub(super) fn ask_for_an_event(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let stream = gpu.create_stream()?;
    let event = gpu.create_event(false)?;
    let memory = gpu.allocate(COUNT * 4)?;
    let pinned = gpu.allocate_pinned(COUNT * 4)?;
    fill(gpu, stream, memory, 77)?;
    gpu.copy_out(stream, &pinned, 0, memory)?;
    gpu.record(event, stream)?;
    while !gpu.is_done(event)? {
        std::thread::yield_now();
    }
    let mut found = vec![0u32; COUNT];
    pinned.read(0, &mut found)?;
    expect_equal("a question for an event", &found, &filled(COUNT, 77))?;
    gpu.free(memory)
}

pub(super) fn use_pinned_again(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let (copies, steps) = (gpu.create_stream()?, gpu.create_stream()?);
    let total = gpu.allocate(COUNT * 4)?;
    gpu.fill(steps, total, 0)?;
    let mut wanted = vec![0u32; COUNT];
    let mut ring = Vec::new();
    for _ in 0..2 {
        let (arrived, used) = (gpu.create_event(false)?, gpu.create_event(false)?);
        let pinned = gpu.allocate_pinned(COUNT * 4)?;
        ring.push((pinned, gpu.allocate(COUNT * 4)?, arrived, used));
    }
    let numbers = MixNumbers { scalar: 0, rounds: 1 };
    for step in 0..12u32 {
        let (pinned, memory, arrived, used) = &mut ring[step as usize % 2];
        let values = filled(COUNT, step * 1000);
        // The copy of two steps ago must have read the block before it changes.
        gpu.synchronize_event(*arrived)?;
        pinned.write(0, &values)?;
        gpu.wait(copies, *used)?;
        gpu.copy_in(copies, *memory, pinned, 0)?;
        gpu.record(*arrived, copies)?;
        gpu.wait(steps, *arrived)?;
        mix(gpu, steps, total, *memory, Memory::NULL, numbers)?;
        gpu.record(*used, steps)?;
        mix_on_host(&mut wanted, &values, 0, numbers);
    }
    expect_equal("pinned memory", &download(gpu, steps, total)?, &wanted)?;
    gpu.synchronize(copies)?;
    gpu.free(total)?;
    ring.iter().try_for_each(|(_, memory, ..)| gpu.free(*memory))
}

pub(super) fn measure_time(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "the time of two events";
    let stream = gpu.create_stream()?;
    let (from, to) = (gpu.create_event(true)?, gpu.create_event(true)?);
    let memory = gpu.allocate(COUNT * 4)?;
    let slow = MixNumbers { scalar: 1, rounds: slow_rounds(gpu) };
    fill(gpu, stream, memory, 1)?;
    gpu.record(from, stream)?;
    mix(gpu, stream, memory, Memory::NULL, Memory::NULL, slow)?;
    gpu.record(to, stream)?;
    gpu.synchronize(stream)?;
    let seconds = gpu.elapsed(from, to)?;
    if !(seconds > 0.0 && seconds < 60.0) {
        return fail(check, format!("{seconds} s"));
    }
    let untimed = gpu.create_event(false)?;
    gpu.record(untimed, stream)?;
    gpu.synchronize(stream)?;
    super::expect_error(check, gpu.elapsed(from, untimed))?;
    gpu.free(memory)
}

pub(super) fn give_back(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "streams and events that are freed";
    let lives = || {
        let counters = gpu.counters();
        [counters.live_streams, counters.live_events]
    };
    let before = lives();
    let (stream, other) = (gpu.create_stream()?, gpu.create_stream()?);
    let event = gpu.create_event(false)?;
    let memory = upload(gpu, stream, &filled(COUNT, 7))?;
    gpu.record(event, stream)?;
    gpu.wait(other, event)?;
    gpu.synchronize(other)?;
    expect_equal(check, &lives(), &[before[0] + 2, before[1] + 1])?;
    gpu.free_stream(stream)?;
    gpu.free_event(event)?;
    super::expect_error(check, gpu.synchronize(stream))?;
    super::expect_error(check, gpu.record(event, other))?;
    super::expect_error(check, gpu.free_stream(stream))?;
    super::expect_error(check, gpu.free_event(event))?;
    expect_equal(check, &download(gpu, other, memory)?, &filled(COUNT, 7))?;
    gpu.free(memory)?;
    gpu.free_stream(other)?;
    expect_equal(check, &lives(), &before)
}
