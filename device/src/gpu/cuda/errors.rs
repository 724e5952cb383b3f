//! The errors of the driver and of the library of products, in our words.

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// Returns the name and the text of an error of the driver.
pub(super) fn describe(error: DriverError) -> String {
    match error.error_string() {
        Ok(text) => format!("{:?}, {}", error.0, text.to_string_lossy()),
        Err(_) => format!("{:?}", error.0),
    }
}

pub(super) fn describe_products(error: CublasError) -> String {
    format!("{:?}", error.0)
}

/// Returns whether the context is dead after this error: no later call can succeed.
pub(super) fn is_fatal(error: DriverError) -> bool {
    matches!(
        error.0,
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
    )
}
