//! The checks on the emulator itself, without streams: each operation runs at once.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void};
use std::sync::Mutex;

use super::super::kernels::KERNELS;
use super::super::*;
use super::{CHECKS, Size};

/// The function of the emulator that runs a kernel.
pub(super) type Launcher = unsafe extern "C" fn(
    kernel: *const c_char,
    grid: *const c_uint,
    block: *const c_uint,
    shared_bytes: c_uint,
    params: *mut *mut c_void,
    seed: c_ulonglong,
    error: *mut c_char,
    error_len: c_ulong,
) -> c_int;

unsafe extern "C" {
    fn zn_emulated_launch(
        kernel: *const c_char,
        grid: *const c_uint,
        block: *const c_uint,
        shared_bytes: c_uint,
        params: *mut *mut c_void,
        seed: c_ulonglong,
        error: *mut c_char,
        error_len: c_ulong,
    ) -> c_int;
    fn zn_emulated_parameter_bytes(kernel: *const c_char) -> c_ulong;
}

/// A device without streams.
#[derive(Debug)]
pub(super) struct Direct {
    seed: u64,
    /// A unit with another launcher than the one that is linked.
    replaced: Option<(&'static str, Launcher)>,
    blocks: Mutex<HashMap<u64, Vec<u128>>>,
}

impl Direct {
    pub(super) fn new(seed: u64, replaced: Option<(&'static str, Launcher)>) -> Self {
        Self { seed, replaced, blocks: Mutex::default() }
    }
}

fn refuse<T>() -> Result<T, GpuError> {
    Err(GpuError::Mistake("the checks do not call this".into()))
}

impl Gpu for Direct {
    fn info(&self) -> &Info {
        unreachable!("the checks do not ask for properties")
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
    fn launches(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    fn free_bytes(&self) -> Result<u64, GpuError> {
        refuse()
    }
    fn allocate(&self, bytes: usize) -> Result<Memory, GpuError> {
        let block = vec![0u128; bytes.div_ceil(16) + 16];
        let address = (block.as_ptr() as u64).next_multiple_of(256);
        self.blocks.lock().unwrap().insert(address, block);
        Ok(Memory::new(address, bytes))
    }
    fn free(&self, memory: Memory) -> Result<(), GpuError> {
        self.blocks.lock().unwrap().remove(&memory.address()).map(|_| ()).map_or_else(refuse, Ok)
    }
    fn allocate_pinned(&self, _: usize) -> Result<Pinned, GpuError> {
        refuse()
    }
    fn create_stream(&self) -> Result<Stream, GpuError> {
        Ok(Stream(0))
    }
    fn free_stream(&self, _: Stream) -> Result<(), GpuError> {
        refuse()
    }
    fn create_event(&self, _: bool) -> Result<Event, GpuError> {
        refuse()
    }
    fn free_event(&self, _: Event) -> Result<(), GpuError> {
        refuse()
    }
    fn record(&self, _: Event, _: Stream) -> Result<(), GpuError> {
        refuse()
    }
    fn wait(&self, _: Stream, _: Event) -> Result<(), GpuError> {
        refuse()
    }
    fn is_done(&self, _: Event) -> Result<bool, GpuError> {
        refuse()
    }
    fn synchronize_event(&self, _: Event) -> Result<(), GpuError> {
        refuse()
    }
    fn elapsed(&self, _: Event, _: Event) -> Result<f64, GpuError> {
        refuse()
    }
    fn synchronize(&self, _: Stream) -> Result<(), GpuError> {
        Ok(())
    }
    fn copy_in(&self, _: Stream, _: Memory, _: &Pinned, _: usize) -> Result<(), GpuError> {
        refuse()
    }
    fn copy_out(&self, _: Stream, _: &Pinned, _: usize, _: Memory) -> Result<(), GpuError> {
        refuse()
    }
    fn copy(&self, _: Stream, _: Memory, _: Memory) -> Result<(), GpuError> {
        refuse()
    }
    fn fill(&self, _: Stream, to: Memory, byte: u8) -> Result<(), GpuError> {
        // SAFETY: the range lies in a block that `allocate` returned, as the checks promise.
        unsafe { std::ptr::write_bytes(to.address() as *mut u8, byte, to.bytes()) };
        Ok(())
    }
    fn upload(&self, _: Stream, to: Memory, from: &[u8]) -> Result<(), GpuError> {
        assert!(from.len() <= to.bytes());
        // SAFETY: as in `fill`.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.address() as *mut u8, from.len());
        };
        Ok(())
    }
    fn download(&self, _: Stream, to: &mut [u8], from: Memory) -> Result<(), GpuError> {
        assert!(to.len() <= from.bytes());
        // SAFETY: as in `fill`.
        unsafe {
            std::ptr::copy_nonoverlapping(from.address() as *const u8, to.as_mut_ptr(), to.len());
        };
        Ok(())
    }
    fn launch(&self, _: Stream, launch: &Launch<'_>) -> Result<(), GpuError> {
        let name = CString::new(launch.kernel.name).unwrap();
        let mut params: Vec<*mut c_void> =
            launch.params.iter().map(|p| p.as_bytes().as_ptr().cast_mut().cast()).collect();
        let mut error = vec![0u8; 400];
        let launcher = match self.replaced {
            Some((unit, launcher)) if unit == launch.kernel.unit => launcher,
            _ => zn_emulated_launch,
        };
        // SAFETY: the parameters are those of the kernel, whose sizes a test compares.
        let code = unsafe {
            launcher(
                name.as_ptr(),
                launch.grid.as_ptr(),
                launch.block.as_ptr(),
                launch.shared_bytes,
                params.as_mut_ptr(),
                self.seed,
                error.as_mut_ptr().cast(),
                400,
            )
        };
        if code == 0 {
            return Ok(());
        }
        let end = error.iter().position(|&byte| byte == 0).unwrap_or(0);
        Err(GpuError::Mistake(String::from_utf8_lossy(&error[..end]).into_owned()))
    }
    fn prepare(&self, _: Stream, _: &Product) -> Result<(), GpuError> {
        refuse()
    }
    fn algorithm(&self, _: &Product) -> Option<Algorithm> {
        None
    }
    fn set_algorithm(&self, _: &Product, _: Algorithm) -> Result<(), GpuError> {
        refuse()
    }
    fn multiply(&self, _: Stream, _: &Product) -> Result<(), GpuError> {
        refuse()
    }
    fn begin_capture(&self, _: Stream) -> Result<(), GpuError> {
        refuse()
    }
    fn end_capture(&self, _: Stream) -> Result<Graph, GpuError> {
        refuse()
    }
    fn replay(&self, _: Stream, _: Graph) -> Result<(), GpuError> {
        refuse()
    }
    fn free_graph(&self, _: Graph) -> Result<(), GpuError> {
        refuse()
    }
}

#[test]
fn checks_pass_under_several_schedules() {
    for seed in [0, 1, 2] {
        for check in CHECKS {
            let device = Direct::new(seed, None);
            match (check.run)(&device, Size::Small) {
                Ok(outcome) => assert!(outcome.compared > 0, "{}", check.name),
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
}

#[test]
fn parameters_have_one_size_on_both_sides() {
    for kernel in KERNELS {
        let name = CString::new(kernel.name).unwrap();
        // SAFETY: the name is a string with an end.
        let bytes = unsafe { zn_emulated_parameter_bytes(name.as_ptr()) } as usize;
        let [parameter] = kernel.params else { panic!("{} has one parameter", kernel.name) };
        assert_eq!(bytes, parameter.bytes(), "{}", kernel.name);
    }
}
