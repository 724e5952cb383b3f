//! The floors of a device: what no kernel can be faster than.

use std::time::Instant;

use super::{Rate, Timer, median};
use crate::gpu::conformance::twins::{Copy16, Nothing, launch};
use crate::gpu::device::Gpu;
use crate::gpu::error::GpuError;
use crate::gpu::kernels::{CONFORMANCE_COPY as COPY, CONFORMANCE_NOTHING as NOTHING};

/// The bytes of a copy within the device.
const DEVICE_BYTES: usize = 1 << 30;
/// The bytes of a copy from or to the host.
const HOST_BYTES: usize = 256 << 20;
/// The number of launches in a graph.
const LAUNCHES: usize = 200;

/// Measures copies within the device by the library and by an own kernel, copies from and to pinned
/// memory, a launch in a graph, and the host's time for a launch. The first figure is the floor of
/// kernels that are bound by memory.
///
/// # Errors
///
/// Returns the error of the device.
pub fn measure_floors(gpu: &dyn Gpu) -> Result<Vec<Rate>, GpuError> {
    let mut all = Vec::new();
    let mut timer = Timer::new(gpu)?;
    let stream = timer.stream;
    let (from, to) = (timer.allocate(DEVICE_BYTES)?, timer.allocate(DEVICE_BYTES)?);
    let bytes = |count: usize, seconds: f64| count as f64 / seconds / 1e9;

    let parts = (DEVICE_BYTES / 16) as u64;
    let mut best = f64::MAX;
    let mut best_blocks = 0;
    for blocks in [8, 16, 32, 64].map(|each| each * gpu.info().multiprocessors as u32) {
        let params = Copy16 { from: from.address(), to: to.address(), n: parts };
        let seconds = timer.seconds_in_graph(4, |_| {
            launch(gpu, stream, &COPY, blocks, 0, &params, DEVICE_BYTES)
        })?;
        if seconds < best {
            (best, best_blocks) = (seconds, blocks);
        }
    }
    let rate = bytes(2 * DEVICE_BYTES, best);
    let shape = format!("{DEVICE_BYTES} bytes");
    let name = "copy within the device, own kernel";
    let own = Rate::new(name, shape.clone(), best, rate, "GB/s read and written");
    all.push(own.noted(format!("{best_blocks} blocks")));

    let seconds = timer.seconds_in_graph(4, |_| gpu.copy(stream, to, from))?;
    let rate = bytes(2 * DEVICE_BYTES, seconds);
    let name = "copy within the device, driver";
    all.push(Rate::new(name, shape, seconds, rate, "GB/s read and written"));

    let pinned = gpu.allocate_pinned(HOST_BYTES)?;
    let part = from.part(0, HOST_BYTES)?;
    let shape = format!("{HOST_BYTES} bytes");
    let seconds = timer.seconds_in_graph(4, |_| gpu.copy_in(stream, part, &pinned, 0))?;
    let rate = bytes(HOST_BYTES, seconds);
    all.push(Rate::new("copy from pinned memory", shape.clone(), seconds, rate, "GB/s"));
    let seconds = timer.seconds_in_graph(4, |_| gpu.copy_out(stream, &pinned, 0, part))?;
    let rate = bytes(HOST_BYTES, seconds);
    all.push(Rate::new("copy to pinned memory", shape, seconds, rate, "GB/s"));

    let nothing = Nothing { to: 0 };
    let empty = || launch(gpu, stream, &NOTHING, 1, 0, &nothing, 0);
    let seconds = timer.seconds_in_graph(LAUNCHES, |_| empty())?;
    let shape = "1 block".to_owned();
    let per_second = |seconds: f64| 1e-6 / seconds;
    let name = "empty kernel in a graph";
    all.push(Rate::new(name, shape.clone(), seconds, per_second(seconds), "M launches/s"));

    let mut device = Vec::new();
    let mut host = Vec::new();
    for _ in 0..super::REPLAYS {
        let mut enqueued = 0.0;
        let seconds = timer.seconds(|| {
            let started = Instant::now();
            (0..LAUNCHES).try_for_each(|_| empty())?;
            enqueued = started.elapsed().as_secs_f64();
            Ok(())
        })?;
        device.push(seconds / LAUNCHES as f64);
        host.push(enqueued / LAUNCHES as f64);
    }
    let seconds = median(device);
    let name = "empty kernel, launched one by one";
    all.push(Rate::new(name, shape.clone(), seconds, per_second(seconds), "M launches/s"));
    let seconds = median(host);
    let name = "the host's time for a launch";
    all.push(Rate::new(name, shape.clone(), seconds, per_second(seconds), "M launches/s"));

    let graph = timer.capture(|| (0..LAUNCHES).try_for_each(|_| empty()))?;
    let mut host = Vec::new();
    for _ in 0..super::REPLAYS {
        let started = Instant::now();
        gpu.replay(stream, graph)?;
        host.push(started.elapsed().as_secs_f64());
        gpu.synchronize(stream)?;
    }
    gpu.free_graph(graph)?;
    let seconds = median(host);
    let name = "the host's time for a replay of 200 kernels";
    all.push(Rate::new(name, shape, seconds, per_second(seconds), "M replays/s"));
    timer.free()?;
    Ok(all)
}
