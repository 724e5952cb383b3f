//! The kernels in the device's memory.

use std::collections::HashMap;
use std::ffi::{CString, c_void};

use cudarc::driver::result;
use cudarc::driver::sys::{CUfunction, CUfunction_attribute_enum, CUmodule};

use super::errors::describe;
use crate::gpu::compile::Binary;
use crate::gpu::error::GpuError;
use crate::gpu::kernels;
use crate::gpu::launch::Launch;

/// The dynamic shared memory that every kernel may use without asking.
const USUAL_SHARED: u32 = 48 << 10;

#[derive(Debug)]
struct Function {
    handle: CUfunction,
    /// The dynamic shared memory that the function may use.
    shared_bytes: u32,
    launches: u64,
}

/// The loaded units and the functions of all kernels.
#[derive(Debug)]
pub(super) struct Modules {
    modules: Vec<CUmodule>,
    functions: HashMap<&'static str, Function>,
}

impl Modules {
    /// Loads the machine code of all units, and finds all kernels in it. The context must be
    /// current.
    pub(super) fn load(binaries: &[Binary], arch: &str) -> Result<Self, GpuError> {
        let mut all = Self { modules: Vec::new(), functions: HashMap::new() };
        let mut units = HashMap::new();
        for binary in binaries {
            let image = binary.cubin.as_ptr().cast::<c_void>();
            // SAFETY: the image is what the compiler made, as its checksum says: a whole ELF file,
            // which has its own length.
            let module = unsafe { result::module::load_data(image) }.map_err(|error| {
                let problem = format!("the driver does not load the code ({})", describe(error));
                GpuError::Compile { unit: binary.unit, arch: arch.to_owned(), problem }
            })?;
            all.modules.push(module);
            units.insert(binary.unit, module);
        }
        for kernel in kernels::KERNELS {
            let unknown = |problem: String| GpuError::UnknownKernel {
                name: kernel.name,
                unit: kernel.unit,
                problem,
            };
            let module = units.get(kernel.unit).ok_or_else(|| unknown("no such unit".into()))?;
            let name = CString::new(kernel.name).map_err(|_| unknown("a zero byte".into()))?;
            // SAFETY: the module is loaded.
            let handle = unsafe { result::module::get_function(*module, name) }
                .map_err(|error| unknown(describe(error)))?;
            let function = Function { handle, shared_bytes: USUAL_SHARED, launches: 0 };
            all.functions.insert(kernel.name, function);
        }
        Ok(all)
    }

    /// Returns the function of a launch, which may then use the dynamic shared memory of the
    /// launch, and counts the launch.
    pub(super) fn function(&mut self, launch: &Launch<'_>) -> Result<CUfunction, GpuError> {
        let function =
            self.functions.get_mut(launch.kernel.name).ok_or_else(|| launch.unknown_kernel())?;
        let shared_bytes = launch.shared_bytes;
        if shared_bytes > function.shared_bytes {
            let attribute =
                CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(shared_bytes).unwrap_or(i32::MAX);
            // SAFETY: the function belongs to a loaded module.
            unsafe { result::function::set_function_attribute(function.handle, attribute, bytes) }
                .map_err(|error| {
                    let problem = format!("{shared_bytes} bytes of shared memory are too many");
                    launch.refuse(format!("{problem} ({})", describe(error)))
                })?;
            function.shared_bytes = shared_bytes;
        }
        function.launches += 1;
        Ok(function.handle)
    }

    /// Returns the kernels that were launched, by name.
    pub(super) fn launches(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = self
            .functions
            .iter()
            .filter(|(_, function)| function.launches > 0)
            .map(|(name, function)| (*name, function.launches))
            .collect();
        all.sort_unstable();
        all
    }

    /// Unloads everything. The context must be current, and the functions are not used again.
    pub(super) fn unload(&mut self) {
        self.functions.clear();
        for module in self.modules.drain(..) {
            // SAFETY: the module was loaded once, and none of its functions is used again. A
            // failure cannot be acted on.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}
