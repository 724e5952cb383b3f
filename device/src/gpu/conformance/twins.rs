//! The kernels of `device/kernels/conformance.cu`: their parameters, and the same functions on the
//! host.

use crate::gpu::device::{Gpu, Stream};
use crate::gpu::error::GpuError;
use crate::gpu::launch::{Kernel, Launch, Param, ParamKind, Unit};
use crate::gpu::memory::Memory;

/// The unit of these kernels.
pub const UNIT: Unit =
    Unit { name: "conformance", source: include_str!("../../../kernels/conformance.cu") };

/// All kernels of the unit.
pub const KERNELS: [&Kernel; 5] = [&FILL, &MIX, &REVERSE, &NOTHING, &COPY];

const fn kernel<T>(name: &'static str, params: &'static [ParamKind; 1]) -> Kernel {
    match params[0] {
        ParamKind::Value(bytes) => assert!(bytes == size_of::<T>()),
        ParamKind::Pointer => panic!("a kernel takes one structure"),
    }
    Kernel { name, unit: UNIT.name, params }
}

/// Writes `value + i` to number `i`.
pub static FILL: Kernel = kernel::<Fill>("conformance_fill", &[ParamKind::Value(16)]);
/// Computes `to * 5 + from + header + scalar` for each number, several times.
pub static MIX: Kernel = kernel::<Mix>("conformance_mix", &[ParamKind::Value(40)]);
/// Reverses each block's part of the numbers.
pub static REVERSE: Kernel = kernel::<Reverse>("conformance_reverse", &[ParamKind::Value(16)]);
/// Does nothing.
pub static NOTHING: Kernel = kernel::<Nothing>("conformance_nothing", &[ParamKind::Value(8)]);
/// Copies memory by 16 bytes.
pub static COPY: Kernel = kernel::<Copy16>("conformance_copy", &[ParamKind::Value(24)]);

/// The parameters of [`FILL`].
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
pub struct Fill {
    /// The address of the numbers.
    pub to: u64,
    /// The number of numbers.
    pub n: u32,
    /// The first value.
    pub value: u32,
}

/// The parameters of [`MIX`].
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
    /// How often the numbers change.
    pub rounds: u32,
    /// Not used.
    pub unused: u32,
}

/// The parameters of [`REVERSE`].
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
pub struct Reverse {
    /// The address of the numbers.
    pub to: u64,
    /// The number of numbers, a multiple of the number of blocks.
    pub n: u32,
    /// Not used.
    pub unused: u32,
}

/// The parameters of [`NOTHING`].
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
pub struct Nothing {
    /// The address of a number that is set, or 0.
    pub to: u64,
}

/// The parameters of [`COPY`].
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

/// Launches [`FILL`] on all of `to`.
///
/// # Errors
///
/// Returns the error of the device.
pub fn fill(gpu: &dyn Gpu, stream: Stream, to: Memory, value: u32) -> Result<(), GpuError> {
    let n = to.bytes() / 4;
    let params = Fill { to: to.address(), n: n as u32, value };
    launch(gpu, stream, &FILL, blocks(n), 0, &params, n)
}

/// The numbers of one [`MIX`] besides the memory.
#[derive(Clone, Copy, Debug)]
pub struct MixNumbers {
    /// A number that is added to all.
    pub scalar: u32,
    /// How often the numbers change.
    pub rounds: u32,
}

/// Launches [`MIX`] on all of `to`.
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
    let params =
        Mix { to: to.address(), from, header, n: n as u32, scalar, rounds, unused: 0 };
    launch(gpu, stream, &MIX, blocks(n), 0, &params, n)
}

fn blocks(count: usize) -> u32 {
    count.div_ceil(256).clamp(1, 1024) as u32
}

/// Computes [`MIX`] on the host.
pub fn mix_on_host(to: &mut [u32], from: &[u32], header: u32, numbers: MixNumbers) {
    for (index, value) in to.iter_mut().enumerate() {
        let add = from.get(index).copied().unwrap_or_default();
        let add = add.wrapping_add(header).wrapping_add(numbers.scalar);
        for _ in 0..numbers.rounds {
            *value = value.wrapping_mul(5).wrapping_add(add);
        }
    }
}

/// Returns `count` numbers as [`FILL`] writes them.
pub fn filled(count: usize, value: u32) -> Vec<u32> {
    (0..count as u32).map(|index| value.wrapping_add(index)).collect()
}
