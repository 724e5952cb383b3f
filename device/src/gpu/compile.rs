//! Compiles the kernels to machine code of a GPU, and keeps the results in a folder.
//!
//! The code of a unit depends on its source, the headers, the options, the architecture and the
//! version of the compiler, and on nothing else. The name of a file in the folder has a hash of
//! them, so that a changed kernel is never confused with an old one. The result is a cubin, which
//! any driver of the same or a newer major version loads. PTX is not kept: an older driver refuses
//! PTX of a newer compiler.

mod cache;
mod compiler;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::error::GpuError;
use super::kernels;
use super::launch::Unit;
use super::libraries::{compiler_library, require};
pub use cache::KernelFolder;
pub use compiler::{Compiled, KernelUse, compile_unit};

/// The options of the compiler apart from the architecture. Contraction is off: the kernels must
/// give the bits of the processor.
pub const OPTIONS: &[&str] =
    &["-fmad=false", "-std=c++17", "-default-device", "-Xptxas=-v", "-lineinfo"];

/// The environment variable that names the folder of compiled kernels.
pub const FOLDER_VARIABLE: &str = "ZILLION_GPU_KERNELS";

/// The machine code of a unit, and where it came from.
#[derive(Clone, Debug)]
pub struct Binary {
    /// The name of the unit.
    pub unit: &'static str,
    /// The machine code of the unit.
    pub cubin: Vec<u8>,
    /// The hash of the machine code, as 16 hexadecimal digits.
    pub hash: String,
    /// Whether the unit was compiled now, and not read from the folder.
    pub is_compiled: bool,
}

/// Returns the machine code of all units for an architecture such as `sm_90`: from `folder` if it
/// has them, and otherwise by compiling them on `threads` threads and writing them there.
///
/// # Errors
///
/// Returns an error if a unit is not in the folder and cannot be compiled, or if the folder cannot
/// be written.
pub fn binaries(
    arch: &str,
    folder: &KernelFolder,
    threads: usize,
) -> Result<Vec<Binary>, GpuError> {
    let compiler = compiler_library();
    let version = require(&compiler).is_ok().then(|| compiler.version.clone()).flatten();
    let next = AtomicUsize::new(0);
    let threads = threads.clamp(1, kernels::UNITS.len().max(1));
    let work = || {
        let mut made = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = kernels::UNITS.get(index) else { return made };
            made.push((index, binary(unit, arch, folder, version.as_deref())));
        }
    };
    let mut all: Vec<(usize, Result<Binary, GpuError>)> = std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for helper in helpers {
            // A panic of a helper leaves its units out, which the count below reports.
            all.extend(helper.join().unwrap_or_default());
        }
        all
    });
    all.sort_by_key(|(index, _)| *index);
    let binaries = all.into_iter().map(|(_, binary)| binary).collect::<Result<Vec<_>, _>>()?;
    if binaries.len() != kernels::UNITS.len() {
        return Err(GpuError::Cache("a thread that compiled kernels ended early".into()));
    }
    Ok(binaries)
}

fn binary(
    unit: &'static Unit,
    arch: &str,
    folder: &KernelFolder,
    version: Option<&str>,
) -> Result<Binary, GpuError> {
    if let Some(cubin) = folder.read(unit, arch, version)? {
        let hash = short_hash(&cubin);
        return Ok(Binary { unit: unit.name, cubin, hash, is_compiled: false });
    }
    let Some(version) = version else {
        let compiler = compiler_library();
        let problem = compiler.problem.unwrap_or_default();
        return Err(GpuError::Compile {
            unit: unit.name,
            arch: arch.to_owned(),
            problem: format!(
                "{} {problem}; the folder {folder} does not have this unit",
                compiler.name
            ),
        });
    };
    let compiled = compile_unit(unit, arch)?;
    folder.write(unit, arch, version, &compiled.cubin)?;
    let hash = short_hash(&compiled.cubin);
    Ok(Binary { unit: unit.name, cubin: compiled.cubin, hash, is_compiled: true })
}

/// Compiles all units for an architecture into a folder, and returns what the compiler said about
/// each. A unit that the folder has is compiled again.
///
/// # Errors
///
/// Returns an error if the compiler is missing, a unit is wrong, or the folder cannot be written.
pub fn compile_all(arch: &str, folder: &Path) -> Result<Vec<Compiled>, GpuError> {
    let compiler = compiler_library();
    require(&compiler)?;
    let version = compiler.version.unwrap_or_default();
    let folder = KernelFolder::at(folder)?;
    let mut all = Vec::with_capacity(kernels::UNITS.len());
    for unit in kernels::UNITS {
        let compiled = compile_unit(unit, arch)?;
        folder.write(unit, arch, &version, &compiled.cubin)?;
        all.push(compiled);
    }
    Ok(all)
}

/// Returns the folder of compiled kernels: `given`, or that of the environment variable
/// `ZILLION_GPU_KERNELS`, or `zillion/kernels` in the user's folder of caches.
///
/// # Errors
///
/// Returns an error if the folder was named and cannot be created. A default folder that cannot be
/// created is not used: the kernels are then compiled at every start.
pub fn kernel_folder(given: Option<&Path>) -> Result<KernelFolder, GpuError> {
    if let Some(path) = given {
        return KernelFolder::at(path);
    }
    if let Some(path) = std::env::var_os(FOLDER_VARIABLE).filter(|path| !path.is_empty()) {
        return KernelFolder::at(Path::new(&path));
    }
    let caches = std::env::var_os("XDG_CACHE_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    Ok(caches
        .and_then(|caches| KernelFolder::at(&caches.join("zillion/kernels")).ok())
        .unwrap_or_else(KernelFolder::none))
}

/// Returns the first 16 hexadecimal digits of a hash of the bytes.
fn short_hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().chars().take(16).collect()
}
