//! Opens a device by its name.

use std::path::Path;

use super::cuda::{Cuda, CudaOptions};
use super::device::Gpu;
use super::error::GpuError;

/// Opens the device with this name: `cuda:0` for the first GPU, or `emulated` or `emulated:SEED` in
/// a build with the feature `emulated-gpu`. An `emulated:SEED:fail=N` fails when its N-th kernel
/// runs. Compiled kernels are kept in `kernel_folder`, or in the usual folder.
///
/// # Errors
///
/// Returns an error if the name is wrong, or the device cannot be opened.
pub fn open(name: &str, kernel_folder: Option<&Path>) -> Result<Box<dyn Gpu>, GpuError> {
    let wrong =
        |problem: &str| GpuError::Device { device: name.to_owned(), problem: problem.to_owned() };
    let (kind, number) = match name.split_once(':') {
        Some((kind, number)) => (kind, Some(number)),
        None => (name, None),
    };
    match kind {
        "cuda" => {
            let number = number.unwrap_or("0");
            let ordinal =
                number.parse().map_err(|_| wrong("name the number of a GPU, as in cuda:0"))?;
            let kernel_folder = kernel_folder.map(Path::to_path_buf);
            let options = CudaOptions { ordinal, kernel_folder, ..CudaOptions::default() };
            Ok(Box::new(Cuda::open(&options)?))
        }
        #[cfg(feature = "emulated-gpu")]
        "emulated" => {
            use super::emulated::{Emulated, EmulatedOptions};
            let wrong = |_| wrong("name a seed, as in emulated:7 or emulated:7:fail=100");
            let (number, fail) = match number.unwrap_or("0").split_once(":fail=") {
                Some((number, fail)) => (number, Some(fail.parse().map_err(wrong)?)),
                None => (number.unwrap_or("0"), None),
            };
            let seeded = EmulatedOptions::seeded(number.parse().map_err(wrong)?);
            Ok(Box::new(Emulated::new(EmulatedOptions { fail_launch: fail, ..seeded })))
        }
        #[cfg(not(feature = "emulated-gpu"))]
        "emulated" => {
            Err(wrong("this build has no emulated device; build it with the feature emulated-gpu"))
        }
        _ => Err(wrong("there is no such kind of device; name cuda:0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_refused() {
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:0:1", "rocm:0"] {
            let error = open(name, None).unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
        assert_eq!(open("emulated:3", None).is_ok(), cfg!(feature = "emulated-gpu"));
        assert_eq!(open("emulated:3:fail=9", None).is_ok(), cfg!(feature = "emulated-gpu"));
        for name in ["emulated:x", "emulated:3:fail=", "emulated:3:9", "emulated:fail=9"] {
            assert!(open(name, None).is_err(), "{name}");
        }
    }

    #[test]
    fn a_machine_without_a_driver_names_the_missing_library() {
        // On a machine with a driver, there is nothing to see here.
        if super::super::cuda::libraries()[0].path.is_some() {
            return;
        }
        let error = open("cuda:0", None).unwrap_err().to_string();
        assert!(error.contains("libcuda.so.1") && error.contains("install driver"), "{error}");
    }
}
