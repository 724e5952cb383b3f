//! Copies and fills. Every range of the device is checked against the live allocations first.

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::state::State;
use crate::gpu::device::Stream;
use crate::gpu::error::GpuError;
use crate::gpu::memory::{Memory, Pinned};

pub(super) fn copy_in(
    state: &mut State,
    stream: Stream,
    to: Memory,
    from: &Pinned,
    offset: usize,
) -> Result<(), GpuError> {
    let place = from.place(offset, to.bytes())?;
    state.ranges.check(to)?;
    if to.bytes() == 0 {
        return Ok(());
    }
    let stream = state.stream(stream)?;
    state.keep(from.owner());
    let place = place.as_ptr().cast::<c_void>();
    // SAFETY: both ranges are live and have as many bytes. The owner of pinned memory waits for the
    // device before it frees, and a graph keeps it.
    let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to.address(), place, to.bytes(), stream) };
    state.note("copy from pinned memory", status.result())
}

pub(super) fn copy_out(
    state: &mut State,
    stream: Stream,
    to: &Pinned,
    offset: usize,
    from: Memory,
) -> Result<(), GpuError> {
    let place = to.place(offset, from.bytes())?;
    state.ranges.check(from)?;
    if from.bytes() == 0 {
        return Ok(());
    }
    let stream = state.stream(stream)?;
    state.keep(to.owner());
    let place = place.as_ptr().cast::<c_void>();
    // SAFETY: as in `copy_in`. No reference to pinned memory exists.
    let status = unsafe { sys::cuMemcpyDtoHAsync_v2(place, from.address(), from.bytes(), stream) };
    state.note("copy to pinned memory", status.result())
}

pub(super) fn copy(
    state: &mut State,
    stream: Stream,
    to: Memory,
    from: Memory,
) -> Result<(), GpuError> {
    state.ranges.check(from)?;
    state.ranges.check(to.part(0, from.bytes())?)?;
    if from.bytes() == 0 {
        return Ok(());
    }
    let stream = state.stream(stream)?;
    // SAFETY: both ranges are live and large enough.
    let outcome =
        unsafe { result::memcpy_dtod_async(to.address(), from.address(), from.bytes(), stream) };
    state.note("copy memory", outcome)
}

pub(super) fn fill(
    state: &mut State,
    stream: Stream,
    to: Memory,
    byte: u8,
) -> Result<(), GpuError> {
    state.ranges.check(to)?;
    if to.bytes() == 0 {
        return Ok(());
    }
    let stream = state.stream(stream)?;
    // SAFETY: the range is live.
    let outcome = unsafe { result::memset_d8_async(to.address(), byte, to.bytes(), stream) };
    state.note("fill memory", outcome)
}

pub(super) fn upload(
    state: &mut State,
    stream: Stream,
    to: Memory,
    from: &[u8],
) -> Result<(), GpuError> {
    state.refuse_in_capture("the host waits")?;
    state.ranges.check(to.part(0, from.len())?)?;
    let stream = state.stream(stream)?;
    state.counters.host_waits += 1;
    // SAFETY: the range is live and large enough, and the bytes of the host live until the copy has
    // run, because the stream is waited for, also after an error.
    let outcome = unsafe {
        let copied = result::memcpy_htod_async(to.address(), from, stream);
        result::stream::synchronize(stream).and(copied)
    };
    state.note("copy from the host", outcome)
}

pub(super) fn download(
    state: &mut State,
    stream: Stream,
    to: &mut [u8],
    from: Memory,
) -> Result<(), GpuError> {
    state.refuse_in_capture("the host waits")?;
    let from = from.part(0, to.len())?;
    state.ranges.check(from)?;
    let stream = state.stream(stream)?;
    state.counters.host_waits += 1;
    // SAFETY: as in `upload`.
    let outcome = unsafe {
        let copied = result::memcpy_dtoh_async(to, from.address(), stream);
        result::stream::synchronize(stream).and(copied)
    };
    state.note("copy to the host", outcome)
}
