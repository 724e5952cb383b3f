//! The libraries of CUDA on this machine: whether they are there, where, and whether their versions
//! can be used.
//!
//! Everything here runs before any other call of CUDA. A call into a missing library, or of a
//! function that an older library lacks, would end the program.

use std::ffi::c_int;

use cudarc::{cublaslt, driver, nvrtc};

use super::error::GpuError;
use super::info::LibraryInfo;

/// The name of the driver's library.
pub(super) const DRIVER: &str = "libcuda.so.1";
/// The name of the library that compiles kernels.
pub(super) const COMPILER: &str = "libnvrtc.so.13";
/// The name of the library of matrix products.
pub(super) const PRODUCTS: &str = "libcublasLt.so.13";
/// The oldest version of CUDA that a driver must support.
const OLDEST_DRIVER: c_int = 13_000;

/// Returns the driver, the compiler and the library of products, in this order.
pub fn libraries() -> Vec<LibraryInfo> {
    vec![driver_library(), compiler_library(), product_library()]
}

/// Returns the driver's library.
pub(super) fn driver_library() -> LibraryInfo {
    // SAFETY: opening the library runs its initialisation, which has no requirements.
    if !unsafe { driver::sys::is_culib_present() } {
        let problem = "was not found: no NVIDIA driver is installed; install driver 580 or newer, \
                       or run on processors";
        return missing(DRIVER, problem);
    }
    let mut version: c_int = 0;
    // SAFETY: the library is present, every version has the function, and it only writes the
    // number. It may be called before the driver is initialised.
    let status = unsafe { driver::sys::cuDriverGetVersion(&raw mut version) };
    let problem = match status.result() {
        Err(error) => Some(format!("does not tell its version ({:?})", error.0)),
        Ok(()) if version < OLDEST_DRIVER => Some(format!(
            "supports CUDA {}, and 13.0 is needed; install driver 580 or newer",
            cuda_version(version)
        )),
        Ok(()) => None,
    };
    let version = (version > 0).then(|| format!("CUDA {}", cuda_version(version)));
    LibraryInfo { name: DRIVER, path: loaded_path("libcuda.so"), version, problem }
}

/// Returns the library that compiles kernels.
pub(super) fn compiler_library() -> LibraryInfo {
    // SAFETY: as for the driver.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        let problem = "was not found: install NVRTC 13 (the CUDA toolkit, or the Python package \
                       nvidia-cuda-nvrtc), or give a folder of compiled kernels";
        return missing(COMPILER, problem);
    }
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: as for the driver.
    let status = unsafe { nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    let path = loaded_path("libnvrtc");
    let problem = match status.result() {
        Err(error) => Some(format!("does not tell its version ({:?})", error.0)),
        Ok(()) if major != 13 => Some(format!(
            "has version {major}.{minor}, and 13 is needed; install NVRTC 13, or remove the other \
             one from the path of libraries"
        )),
        Ok(()) => None,
    };
    LibraryInfo { name: COMPILER, path, version: Some(format!("{major}.{minor}")), problem }
}

/// Returns the library of matrix products.
pub(super) fn product_library() -> LibraryInfo {
    // SAFETY: as for the driver.
    if !unsafe { cublaslt::sys::is_culib_present() } {
        let problem = "was not found: install cuBLAS 13 (the CUDA toolkit, or the Python package \
                       nvidia-cublas); only precision f32 works without it";
        return missing(PRODUCTS, problem);
    }
    // SAFETY: as for the driver.
    let version = unsafe { cublaslt::sys::cublasLtGetVersion() };
    let text = format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100);
    let problem = (!(130_000..140_000).contains(&version)).then(|| {
        format!(
            "has version {text}, and 13 is needed; install cuBLAS 13, or remove the other one from \
             the path of libraries"
        )
    });
    let path = loaded_path("libcublasLt");
    LibraryInfo { name: PRODUCTS, path, version: Some(text), problem }
}

/// Returns an error if the library cannot be used.
pub(super) fn require(library: &LibraryInfo) -> Result<(), GpuError> {
    match &library.problem {
        Some(problem) => Err(GpuError::Library { library: library.name, problem: problem.clone() }),
        None => Ok(()),
    }
}

fn missing(name: &'static str, problem: &str) -> LibraryInfo {
    LibraryInfo { name, path: None, version: None, problem: Some(problem.to_owned()) }
}

fn cuda_version(number: c_int) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Returns the paths of the loaded files whose name begins with `name`. There are two if another
/// part of the process has loaded its own copy.
fn loaded_path(name: &str) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    paths_in(&maps, name)
}

fn paths_in(maps: &str, name: &str) -> Option<String> {
    let mut paths: Vec<&str> = Vec::new();
    for line in maps.lines() {
        let Some(start) = line.find('/') else { continue };
        let path = &line[start..];
        let file = path.rsplit('/').next().unwrap_or_default();
        if file.starts_with(name) && !file.contains("builtins") && !paths.contains(&path) {
            paths.push(path);
        }
    }
    (!paths.is_empty()).then(|| paths.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaded_file_is_found_in_the_map() {
        let maps = "\
7f10-7f20 r--p 00000000 08:01 123    /usr/lib/libnvrtc-builtins.so.13.0
7f20-7f30 r--p 00000000 08:01 124    /opt/my cuda/libnvrtc.so.13
7f30-7f40 r-xp 00001000 08:01 124    /opt/my cuda/libnvrtc.so.13
7f40-7f50 rw-p 00000000 00:00 0
";
        assert_eq!(paths_in(maps, "libnvrtc").as_deref(), Some("/opt/my cuda/libnvrtc.so.13"));
        assert_eq!(paths_in(maps, "libcuda"), None);
    }

    #[test]
    fn a_missing_library_names_itself_and_the_remedy() {
        for library in libraries() {
            if let Err(error) = require(&library) {
                let text = error.to_string();
                assert!(text.contains(library.name), "{text}");
                assert!(text.contains("install"), "{text}");
            }
        }
    }
}
