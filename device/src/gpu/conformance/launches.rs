//! Checks of launches and of their errors.

use super::twins::{Fill, Nothing, Reverse, fill, filled, launch};
use super::{download, expect_equal, expect_error, fail, upload};
use crate::gpu::device::Gpu;
use crate::gpu::error::GpuError;
use crate::gpu::kernels::{
    CONFORMANCE_FILL as FILL, CONFORMANCE_MIX as MIX, CONFORMANCE_NOTHING as NOTHING,
    CONFORMANCE_REVERSE as REVERSE,
};
use crate::gpu::launch::{Kernel, Launch, Param, ParamKind};
use crate::gpu::memory::Memory;

pub(super) fn use_shared_memory(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let stream = gpu.create_stream()?;
    let most = gpu.info().shared_bytes / 4;
    for (each, blocks) in [(256, 1), (1000, 3), (12_288, 2), (most, 2)] {
        let values = filled(each * blocks, 11);
        let memory = upload(gpu, stream, &values)?;
        let n = values.len() as u32;
        let params = Reverse { to: memory.address(), n, unused: 0 };
        let (grid, shared) = (blocks as u32, (each * 4) as u32);
        launch(gpu, stream, &REVERSE, grid, shared, &params, values.len())?;
        let wanted: Vec<u32> =
            values.chunks(each).flat_map(|part| part.iter().rev().copied()).collect();
        expect_equal("dynamic shared memory", &download(gpu, stream, memory)?, &wanted)?;
        gpu.free(memory)?;
    }
    Ok(())
}

pub(super) fn refuse_wrong_launches(gpu: &dyn Gpu) -> Result<(), GpuError> {
    static UNKNOWN: Kernel =
        Kernel { name: "no_such_kernel", unit: "conformance", params: &[ParamKind::Value(16)] };
    let check = "wrong launches";
    let stream = gpu.create_stream()?;
    let memory = upload(gpu, stream, &[1, 2, 3])?;
    let params = Fill { to: memory.address(), n: 3, value: 5 };
    let wide = [0u64; 5];
    let shapes: &[(&str, usize)] = &[("rows", 77), ("columns", 88)];
    let right = Launch {
        kernel: &FILL,
        grid: [1, 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
        params: &[Param::new(&params)],
        shapes,
    };
    let too_much_shared = gpu.info().shared_bytes as u32 + 1024;
    let wrong = [
        (Launch { params: &[], ..right }, "parameters"),
        (Launch { params: &[Param::new(&wide)], ..right }, "40"),
        (Launch { block: [1025, 1, 1], ..right }, "1025"),
        (Launch { block: [0, 1, 1], ..right }, "threads"),
        (Launch { grid: [0, 1, 1], ..right }, "blocks"),
        (Launch { grid: [1, 70_000, 1], ..right }, "70000"),
        (Launch { shared_bytes: too_much_shared, ..right }, "shared memory"),
        (Launch { kernel: &MIX, ..right }, "16"),
    ];
    for (launch, part) in wrong {
        let text = expect_error(check, gpu.launch(stream, &launch))?.to_string();
        for part in [part, launch.kernel.name, "rows 77", "columns 88"] {
            if !text.contains(part) {
                return fail(check, format!("the error does not say `{part}`: {text}"));
            }
        }
    }
    let unknown = Launch { kernel: &UNKNOWN, ..right };
    let text = expect_error(check, gpu.launch(stream, &unknown))?.to_string();
    if !text.contains(UNKNOWN.name) {
        return fail(check, format!("the error does not name the kernel: {text}"));
    }
    // Nothing of this has run, and the device still works.
    expect_equal(check, &download(gpu, stream, memory)?, &[1, 2, 3])?;
    gpu.launch(stream, &right)?;
    expect_equal(check, &download(gpu, stream, memory)?, &[5, 6, 7])?;
    gpu.free(memory)
}

pub(super) fn count_launches(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "the counts of launches";
    let stream = gpu.create_stream()?;
    let memory = gpu.allocate(4096)?;
    let count = |name: &str| {
        let launches = gpu.launches();
        launches.iter().find(|(kernel, _)| *kernel == name).map_or(0, |(_, count)| *count)
    };
    let (before, all) = (count(FILL.name), gpu.counters().launches);
    for value in 0..3 {
        fill(gpu, stream, memory, value)?;
    }
    launch(gpu, stream, &NOTHING, 1, 0, &Nothing { to: 0 }, 0)?;
    gpu.synchronize(stream)?;
    let found = [count(FILL.name) - before, gpu.counters().launches - all];
    expect_equal(check, &found, &[3, 4])?;
    gpu.free(memory)
}

/// Ends the device on purpose, by a kernel that writes where there is no memory, and checks that
/// the error names the kernel and that all later calls return it. A process can do this once, and
/// only with a real device.
///
/// # Errors
///
/// Returns an error if the device goes on as if nothing had happened.
pub fn check_failure(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "a failed device";
    let stream = gpu.create_stream()?;
    let nowhere = Memory::new(0x10, 4096);
    fill(gpu, stream, nowhere, 1)?;
    for outcome in [gpu.synchronize(stream), gpu.allocate(16).map(drop)] {
        match outcome {
            Err(GpuError::Lost { launches, .. }) if launches.contains(FILL.name) => {}
            Err(error) => return fail(check, format!("an unexpected error: {error}")),
            Ok(()) => return fail(check, "a wrong address was not noticed".into()),
        }
    }
    Ok(())
}
