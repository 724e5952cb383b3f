//! Checks that a replayed graph does what its launches did.

use super::orders::slow_rounds;
use super::twins::{MixNumbers, fill, filled, mix, mix_on_host};
use super::{download, expect_equal, expect_error, free_all, upload};
use crate::gpu::device::Gpu;
use crate::gpu::error::GpuError;
use crate::gpu::memory::Memory;

const COUNT: usize = 1000;

pub(super) fn read_header(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let stream = gpu.create_stream()?;
    let (memory, header) = (upload(gpu, stream, &filled(COUNT, 2))?, gpu.allocate(4)?);
    let numbers = MixNumbers { scalar: 3, rounds: 2 };
    gpu.begin_capture(stream)?;
    mix(gpu, stream, memory, Memory::NULL, header, numbers)?;
    mix(gpu, stream, memory, memory, header, numbers)?;
    let graph = gpu.end_capture(stream)?;
    let mut wanted = filled(COUNT, 2);
    expect_equal("a recorded graph", &download(gpu, stream, memory)?, &wanted)?;
    for step in 1..5u32 {
        gpu.upload(stream, header, bytemuck::bytes_of(&(step * 17)))?;
        gpu.replay(stream, graph)?;
        mix_on_host(&mut wanted, &[], step * 17, numbers);
        // The second kernel adds each number to itself, round by round.
        for value in &mut wanted {
            let add = value.wrapping_add(step * 17).wrapping_add(numbers.scalar);
            for _ in 0..numbers.rounds {
                *value = value.wrapping_mul(5).wrapping_add(add);
            }
        }
    }
    expect_equal("the header of a replay", &download(gpu, stream, memory)?, &wanted)?;
    gpu.free_graph(graph)?;
    expect_error("a freed graph", gpu.replay(stream, graph))?;
    free_all(gpu, &[memory, header])
}

pub(super) fn keep_scalars(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let stream = gpu.create_stream()?;
    let memory = upload(gpu, stream, &filled(COUNT, 0))?;
    let numbers = MixNumbers { scalar: 7, rounds: 1 };
    gpu.begin_capture(stream)?;
    mix(gpu, stream, memory, Memory::NULL, Memory::NULL, numbers)?;
    let graph = gpu.end_capture(stream)?;
    let mut wanted = filled(COUNT, 0);
    for scalar in [7, 8, 9] {
        // A launch outside of the graph uses its own scalar, and the replay that of the capture.
        let other = MixNumbers { scalar, rounds: 1 };
        mix(gpu, stream, memory, Memory::NULL, Memory::NULL, other)?;
        mix_on_host(&mut wanted, &[], 0, other);
        gpu.replay(stream, graph)?;
        mix_on_host(&mut wanted, &[], 0, numbers);
    }
    expect_equal("the scalar of a replay", &download(gpu, stream, memory)?, &wanted)?;
    gpu.free_graph(graph)?;
    gpu.free(memory)
}

pub(super) fn span_two_streams(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let (main, side) = (gpu.create_stream()?, gpu.create_stream()?);
    let (fork, join) = (gpu.create_event(false)?, gpu.create_event(false)?);
    let (one, two) = (upload(gpu, main, &filled(COUNT, 1))?, upload(gpu, main, &filled(COUNT, 2))?);
    let slow = MixNumbers { scalar: 1, rounds: slow_rounds(gpu) };
    let quick = MixNumbers { scalar: 4, rounds: 1 };
    gpu.begin_capture(main)?;
    mix(gpu, main, one, Memory::NULL, Memory::NULL, quick)?;
    gpu.record(fork, main)?;
    gpu.wait(side, fork)?;
    mix(gpu, side, two, one, Memory::NULL, slow)?;
    gpu.record(join, side)?;
    gpu.wait(main, join)?;
    mix(gpu, main, one, two, Memory::NULL, quick)?;
    let graph = gpu.end_capture(main)?;
    let (mut wanted_one, mut wanted_two) = (filled(COUNT, 1), filled(COUNT, 2));
    for _ in 0..4 {
        gpu.replay(main, graph)?;
        mix_on_host(&mut wanted_one, &[], 0, quick);
        mix_on_host(&mut wanted_two, &wanted_one, 0, slow);
        let from = wanted_two.clone();
        mix_on_host(&mut wanted_one, &from, 0, quick);
    }
    expect_equal("two streams of a graph", &download(gpu, main, one)?, &wanted_one)?;
    // The side stream is free again after the capture.
    expect_equal("two streams of a graph", &download(gpu, side, two)?, &wanted_two)?;
    gpu.free_graph(graph)?;
    free_all(gpu, &[one, two])
}

pub(super) fn copy_at_replay(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "the copies of a replay";
    let stream = gpu.create_stream()?;
    let done = gpu.create_event(false)?;
    let memory = gpu.allocate(COUNT * 4)?;
    let mut from = gpu.allocate_pinned(COUNT * 4)?;
    let to = gpu.allocate_pinned(COUNT * 4)?;
    let numbers = MixNumbers { scalar: 1, rounds: 1 };
    gpu.begin_capture(stream)?;
    gpu.copy_in(stream, memory, &from, 0)?;
    mix(gpu, stream, memory, Memory::NULL, Memory::NULL, numbers)?;
    gpu.copy_out(stream, &to, 0, memory)?;
    let graph = gpu.end_capture(stream)?;
    for step in 0..4 {
        let mut wanted = filled(COUNT, step * 100);
        from.write(0, &wanted)?;
        gpu.replay(stream, graph)?;
        gpu.record(done, stream)?;
        gpu.synchronize_event(done)?;
        let mut found = vec![0u32; COUNT];
        to.read(0, &mut found)?;
        mix_on_host(&mut wanted, &[], 0, numbers);
        expect_equal(check, &found, &wanted)?;
    }
    // A graph keeps the pinned memory that it copies from.
    drop(from);
    gpu.replay(stream, graph)?;
    gpu.synchronize(stream)?;
    gpu.free_graph(graph)?;
    gpu.free(memory)
}

pub(super) fn replay_without_waits(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let stream = gpu.create_stream()?;
    let memory = upload(gpu, stream, &filled(COUNT, 1))?;
    let numbers = MixNumbers { scalar: 1, rounds: 1 };
    gpu.begin_capture(stream)?;
    mix(gpu, stream, memory, Memory::NULL, Memory::NULL, numbers)?;
    let graph = gpu.end_capture(stream)?;
    let before = gpu.counters();
    let mut wanted = filled(COUNT, 1);
    for _ in 0..50 {
        gpu.replay(stream, graph)?;
        mix_on_host(&mut wanted, &[], 0, numbers);
    }
    let after = gpu.counters();
    let found = [
        after.host_waits - before.host_waits,
        after.allocations - before.allocations,
        after.pinned_allocations - before.pinned_allocations,
        after.launches - before.launches,
        after.replays - before.replays,
    ];
    expect_equal("the counts of replays", &found, &[0, 0, 0, 0, 50])?;
    expect_equal("fifty replays", &download(gpu, stream, memory)?, &wanted)?;
    gpu.free_graph(graph)?;
    gpu.free(memory)
}

pub(super) fn refuse_in_capture(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "a capture";
    let (main, side) = (gpu.create_stream()?, gpu.create_stream()?);
    let (fork, outside) = (gpu.create_event(false)?, gpu.create_event(false)?);
    let (one, two) = (upload(gpu, main, &filled(COUNT, 1))?, upload(gpu, main, &filled(COUNT, 2))?);
    expect_error(check, gpu.end_capture(main))?;

    // What the driver cannot record is refused before it spoils the graph.
    gpu.begin_capture(main)?;
    expect_error(check, gpu.begin_capture(side))?;
    expect_error(check, gpu.allocate(16))?;
    expect_error(check, gpu.free(two))?;
    expect_error(check, gpu.allocate_pinned(16))?;
    expect_error(check, gpu.synchronize(main))?;
    expect_error(check, gpu.synchronize_event(fork))?;
    expect_error(check, gpu.upload(main, one, &[0; 4]))?;
    expect_error(check, gpu.download(main, &mut [0; 4], one))?;
    expect_error(check, gpu.end_capture(side))?;
    fill(gpu, main, one, 10)?;
    let graph = gpu.end_capture(main)?;
    gpu.replay(main, graph)?;
    expect_equal(check, &download(gpu, main, one)?, &filled(COUNT, 10))?;
    gpu.free_graph(graph)?;

    // A stream that was not joined back, and an event from outside.
    gpu.begin_capture(main)?;
    fill(gpu, main, one, 20)?;
    gpu.record(fork, main)?;
    gpu.wait(side, fork)?;
    fill(gpu, side, two, 20)?;
    expect_error(check, gpu.end_capture(main))?;
    gpu.record(outside, side)?;
    gpu.begin_capture(main)?;
    expect_error(check, gpu.wait(main, outside))?;
    // The driver spoils the graph by this mistake; another device may go on.
    if let Ok(graph) = gpu.end_capture(main) {
        gpu.free_graph(graph)?;
    }

    // Nothing of this has run, and both streams still work.
    expect_equal(check, &download(gpu, main, one)?, &filled(COUNT, 10))?;
    fill(gpu, side, two, 30)?;
    expect_equal(check, &download(gpu, side, two)?, &filled(COUNT, 30))?;
    free_all(gpu, &[one, two])
}
