//! The compiler of kernels, NVRTC.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use cudarc::nvrtc::sys;

use super::OPTIONS;
use crate::gpu::error::GpuError;
use crate::gpu::kernels;
use crate::gpu::launch::Unit;
use crate::gpu::libraries::{compiler_library, require};

/// The output of the compiler for a unit.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The name of the unit.
    pub unit: &'static str,
    /// The machine code of the unit.
    pub cubin: Vec<u8>,
    /// The intermediate code, as text. It is for checks of the arithmetic.
    pub ptx: String,
    /// The log of the compiler.
    pub log: String,
    /// The needs of each kernel, in the order of the log.
    pub kernels: Vec<KernelUse>,
}

/// The registers and the memory that a kernel needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelUse {
    /// The name of the kernel.
    pub name: String,
    /// The number of registers of a thread.
    pub registers: u32,
    /// The bytes of registers that are kept in memory because there are too few.
    pub spill_bytes: u32,
}

/// A program of the compiler, which is destroyed when it is dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created, and is destroyed only here. Its status says nothing that
        // could be acted on.
        let _ = unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

/// Compiles a unit for an architecture such as `sm_90`.
///
/// # Errors
///
/// Returns an error if the compiler is missing or refuses the source.
pub fn compile_unit(unit: &Unit, arch: &str) -> Result<Compiled, GpuError> {
    require(&compiler_library())?;
    let fail =
        |problem: String| GpuError::Compile { unit: unit.name, arch: arch.to_owned(), problem };
    let text = |text: &str| CString::new(text).map_err(|_| fail("the text has a zero byte".into()));
    let (source, name) = (text(unit.source)?, text(&format!("{}.cu", unit.name))?);
    let mut headers = Vec::new();
    let mut names = Vec::new();
    for (name, body) in kernels::HEADERS {
        names.push(text(name)?);
        headers.push(text(body)?);
    }
    let pointers = |all: &[CString]| all.iter().map(|one| one.as_ptr()).collect::<Vec<_>>();
    let (header_pointers, name_pointers) = (pointers(&headers), pointers(&names));
    let mut options = vec![text(&format!("-arch={arch}"))?];
    for option in OPTIONS {
        options.push(text(option)?);
    }
    let option_pointers = pointers(&options);
    let (header_count, option_count) = (headers.len() as i32, options.len() as i32);
    let mut program = Program(ptr::null_mut());
    // SAFETY: the library is present and has the version of the bindings. All strings end with a
    // zero byte and live until the end of the function, and the counts are those of the lists.
    let status = unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program.0,
            source.as_ptr(),
            name.as_ptr(),
            header_count,
            header_pointers.as_ptr(),
            name_pointers.as_ptr(),
        )
    };
    status.result().map_err(|error| fail(describe(error.0)))?;
    // SAFETY: as above; the program was created.
    let status =
        unsafe { sys::nvrtcCompileProgram(program.0, option_count, option_pointers.as_ptr()) };
    let log = output(&program, sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog);
    let log = text_of(log.map_err(&fail)?);
    if let Err(error) = status.result() {
        return Err(fail(format!("{}\n{log}", describe(error.0))));
    }
    let cubin = output(&program, sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN).map_err(&fail)?;
    let ptx = output(&program, sys::nvrtcGetPTXSize, sys::nvrtcGetPTX).map_err(&fail)?;
    if cubin.is_empty() {
        return Err(fail(
            "the compiler made no machine code; name an architecture as sm_90".into(),
        ));
    }
    let kernels = parse_log(&log);
    Ok(Compiled { unit: unit.name, cubin, ptx: text_of(ptx), log, kernels })
}

/// Returns one output of the compiler, whose size is asked for first.
fn output(
    program: &Program,
    size: unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
    bytes: unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult,
) -> Result<Vec<u8>, String> {
    let mut length = 0;
    // SAFETY: the program was created, and the function only writes the size.
    unsafe { size(program.0, &raw mut length) }.result().map_err(|error| describe(error.0))?;
    let mut all = vec![0u8; length];
    if length > 0 {
        // SAFETY: the buffer has as many bytes as the function writes.
        unsafe { bytes(program.0, all.as_mut_ptr().cast()) }
            .result()
            .map_err(|error| describe(error.0))?;
    }
    Ok(all)
}

fn text_of(mut bytes: Vec<u8>) -> String {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn describe(status: sys::nvrtcResult) -> String {
    // SAFETY: the library is present, and returns a static string for every status.
    let text = unsafe { sys::nvrtcGetErrorString(status) };
    if text.is_null() {
        return format!("{status:?}");
    }
    // SAFETY: the string ends with a zero byte and lives as long as the library.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Reads what each kernel needs from the log of the assembler.
fn parse_log(log: &str) -> Vec<KernelUse> {
    let number_before = |line: &str, after: &str| -> Option<u32> {
        line[..line.find(after)?].split_whitespace().next_back()?.parse().ok()
    };
    let mut all: Vec<KernelUse> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            all.push(KernelUse { name, ..KernelUse::default() });
        }
        let Some(last) = all.last_mut() else { continue };
        if let Some(bytes) = number_before(line, " bytes spill stores") {
            last.spill_bytes = bytes;
        }
        if let Some(registers) = number_before(line, " registers") {
            last.registers = registers;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_registers_and_spills() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Used 8 registers, used 0 barriers
";
        let first = KernelUse { name: "first".into(), registers: 40, spill_bytes: 24 };
        let second = KernelUse { name: "second".into(), registers: 8, spill_bytes: 0 };
        assert_eq!(parse_log(log), [first, second]);
    }
}
