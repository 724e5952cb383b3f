//! The kernels of `device/kernels/conformance.cu`: their parameters, and the same functions on the
//! host.

use crate::gpu::device::{Gpu, Stream};
use crate::gpu::error::GpuError;
use crate::gpu::kernels::{CONFORMANCE_FILL as FILL, CONFORMANCE_MIX as MIX};
use crate::gpu::launch::{Kernel, Launch, Param};
use crate::gpu::memory::Memory;

/// The parameters of `conformance_fill`.
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
pub struct Fill {
    /// The address of the numbers.
    pub to: u64,
    /// The number of numbers.
    pub n: u32,
    /// The value of the first number.
    pub value: u32,
}

/// The parameters of `conformance_mix`.
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
pub struct Mix {
    /// The address of the numbers that change.
    pub to: u64,
    /// The address of the numbers that are added, or 0.
    pub from: u64,
    /// The address of one number that is added to all, or 0.
    pub header: u64,
    /// The number of numbers.
    pub n: u32,
    /// A number that is added to all.
    pub scalar: u32,
    /// The number of times that the numbers change.
    pub rounds: u32,
    /// Room that fills the last eight bytes.
    pub unused: u32,
}

/// The parameters of `conformance_reverse`.
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
pub struct Reverse {
    /// The address of the numbers.
    pub to: u64,
    /// The number of numbers, a multiple of the number of blocks.
    pub n: u32,
    /// Room that fills the last eight bytes.
    pub unused: u32,
}

/// The parameters of `conformance_nothing`.
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
pub struct Nothing {
    /// The address of a number that is set, or 0.
    pub to: u64,
}

/// The parameters of `conformance_copy`.
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
pub struct Copy16 {
    /// The address of the source.
    pub from: u64,
    /// The address of the target.
    pub to: u64,
    /// The number of parts of 16 bytes.
    pub n: u64,
}

/// Launches a kernel with one structure of parameters.
///
/// # Errors
///
/// Returns the error of the device.
pub fn launch<T: bytemuck::NoUninit>(
    gpu: &dyn Gpu,
    stream: Stream,
    kernel: &'static Kernel,
    blocks: u32,
    shared_bytes: u32,
    params: &T,
    count: usize,
) -> Result<(), GpuError> {
    gpu.launch(
        stream,
        &Launch {
            kernel,
            grid: [blocks, 1, 1],
            block: [256, 1, 1],
            shared_bytes,
            params: &[Param::new(params)],
            shapes: &[("numbers", count)],
        },
    )
}

/// Launches `conformance_fill` on all of `to`.
///
/// # Errors
///
/// Returns the error of the device.
pub fn fill(gpu: &dyn Gpu, stream: Stream, to: Memory, value: u32) -> Result<(), GpuError> {
    let n = to.bytes() / 4;
    let params = Fill { to: to.address(), n: n as u32, value };
    launch(gpu, stream, &FILL, blocks(n), 0, &params, n)
}

/// The numbers of one `conformance_mix` besides the memory.
#[derive(Clone, Copy, Debug)]
pub struct MixNumbers {
    /// A number that is added to all.
    pub scalar: u32,
    /// The number of times that the numbers change.
    pub rounds: u32,
}

/// Launches `conformance_mix` on all of `to`.
///
/// # Errors
///
/// Returns the error of the device.
pub fn mix(
    gpu: &dyn Gpu,
    stream: Stream,
    to: Memory,
    from: Memory,
    header: Memory,
    numbers: MixNumbers,
) -> Result<(), GpuError> {
    let n = to.bytes() / 4;
    let MixNumbers { scalar, rounds } = numbers;
    let (from, header) = (from.address(), header.address());
    let params = Mix { to: to.address(), from, header, n: n as u32, scalar, rounds, unused: 0 };
    launch(gpu, stream, &MIX, blocks(n), 0, &params, n)
}

fn blocks(count: usize) -> u32 {
    count.div_ceil(256).clamp(1, 1024) as u32
}

/// Computes `conformance_mix` on the host.
pub fn mix_on_host(to: &mut [u32], from: &[u32], header: u32, numbers: MixNumbers) {
    for (index, value) in to.iter_mut().enumerate() {
        let add = from.get(index).copied().unwrap_or_default();
        let add = add.wrapping_add(header).wrapping_add(numbers.scalar);
        for _ in 0..numbers.rounds {
            *value = value.wrapping_mul(5).wrapping_add(add);
        }
    }
}

/// Returns `count` numbers as `conformance_fill` writes them.
pub fn filled(count: usize, value: u32) -> Vec<u32> {
    (0..count as u32).map(|index| value.wrapping_add(index)).collect()
}
