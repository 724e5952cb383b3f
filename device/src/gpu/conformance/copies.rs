//! Checks of memory and of copies.

use super::{download, expect_equal, expect_error, fail, free_all, upload};
use crate::gpu::device::Gpu;
use crate::gpu::error::GpuError;
use crate::gpu::memory::Memory;

pub(super) fn move_bytes(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "copies";
    let stream = gpu.create_stream()?;
    for bytes in [1usize, 3, 4, 255, 256, 257, 4096, 100_001] {
        let values: Vec<u8> = (0..bytes).map(|index| (index * 7 + bytes) as u8).collect();
        let (first, second) = (gpu.allocate(bytes)?, gpu.allocate(bytes + 16)?);
        if first.address() % 256 != 0 || second.address() % 256 != 0 {
            return fail(check, "an address is not a multiple of 256".into());
        }
        let mut from = gpu.allocate_pinned(bytes + 5)?;
        let to = gpu.allocate_pinned(bytes + 3)?;
        let mut fresh = vec![1u8; bytes + 3];
        to.read(0, &mut fresh)?;
        expect_equal(check, &fresh, &vec![0; bytes + 3])?;
        from.write(5, &values)?;
        gpu.copy_in(stream, first, &from, 5)?;
        gpu.copy(stream, second, first)?;
        gpu.fill(stream, second.part(bytes, 16)?, 0x5a)?;
        gpu.copy_out(stream, &to, 3, second.part(0, bytes)?)?;
        gpu.synchronize(stream)?;
        let mut found = vec![0u8; bytes];
        to.read(3, &mut found)?;
        expect_equal(check, &found, &values)?;
        let mut end = vec![0u8; 16];
        gpu.download(stream, &mut end, second.part(bytes, 16)?)?;
        expect_equal(check, &end, &[0x5a; 16])?;
        // The host's own memory, and a part of an allocation.
        gpu.upload(stream, second.part(1, bytes)?, &values)?;
        gpu.download(stream, &mut found, second.part(1, bytes)?)?;
        expect_equal(check, &found, &values)?;
        free_all(gpu, &[first, second])?;
    }
    let empty = gpu.allocate(0)?;
    let pinned = gpu.allocate_pinned(0)?;
    gpu.copy_in(stream, empty, &pinned, 0)?;
    gpu.copy_out(stream, &pinned, 0, empty)?;
    gpu.copy(stream, empty, empty)?;
    gpu.fill(stream, empty, 1)?;
    gpu.synchronize(stream)?;
    gpu.free(empty)
}

pub(super) fn refuse_ranges(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "ranges";
    let stream = gpu.create_stream()?;
    let memory = upload(gpu, stream, &[1, 2, 3, 4])?;
    let pinned = gpu.allocate_pinned(16)?;
    let long = Memory::new(memory.address(), 17);
    expect_error(check, memory.part(12, 5))?;
    expect_error(check, memory.part(usize::MAX, 2))?;
    expect_error(check, gpu.fill(stream, long, 0))?;
    expect_error(check, gpu.copy_in(stream, memory, &pinned, 1))?;
    expect_error(check, gpu.copy_out(stream, &pinned, usize::MAX, memory))?;
    expect_error(check, gpu.copy(stream, memory, long))?;
    expect_error(check, gpu.copy(stream, Memory::new(memory.address(), 8), memory))?;
    expect_error(check, gpu.upload(stream, memory, &[0; 17]))?;
    expect_error(check, gpu.download(stream, &mut [0; 17], memory))?;
    // An address of the host is not memory of the device.
    let host = [0u32; 4];
    let foreign = Memory::new(host.as_ptr() as u64, 16);
    expect_error(check, gpu.fill(stream, foreign, 1))?;
    expect_error(check, gpu.free(foreign))?;
    expect_error(check, gpu.free(Memory::new(memory.address(), 8)))?;
    expect_equal(check, &download(gpu, stream, memory)?, &[1, 2, 3, 4])?;
    gpu.free(memory)?;
    expect_error(check, gpu.free(memory))?;
    expect_error(check, gpu.fill(stream, memory, 0))?;
    Ok(())
}

pub(super) fn refuse_too_much(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "memory that does not fit";
    let before = gpu.counters().live_bytes;
    let bytes = usize::try_from(gpu.info().memory_bytes * 2).unwrap_or(usize::MAX);
    match gpu.allocate(bytes) {
        Err(GpuError::OutOfMemory { bytes: found, free }) => {
            if found != bytes || free == 0 || free > gpu.info().memory_bytes {
                return fail(check, format!("the error says {found} bytes and {free} free"));
            }
        }
        Err(error) => return Err(error),
        Ok(_) => return fail(check, format!("{bytes} bytes were allocated")),
    }
    let memory = gpu.allocate(1 << 20)?;
    let live = gpu.counters().live_bytes;
    gpu.free(memory)?;
    let after = gpu.counters().live_bytes;
    expect_equal(check, &[live, after], &[before + (1 << 20), before])
}
