//! The option that chooses the device of scores.

use anyhow::Result;
use zillion_console::exit::usage_error;
use zillion_scorer::DenseType;

/// The name of the choice of processors.
pub(crate) const PROCESSORS: &str = "cpu";

/// Returns the name of the GPU that an option chooses, or `None` for processors.
///
/// # Errors
/// Returns an error if dense layers are not in f32, which a GPU does not compute.
pub(crate) fn chosen_gpu(device: &str, dense: DenseType) -> Result<Option<&str>> {
    if device == PROCESSORS {
        return Ok(None);
    }
    if !dense.is_exact() {
        return usage_error(format!(
            "the device {device} computes dense layers in f32 alone; remove --dense or --device"
        ));
    }
    Ok(Some(device))
}
