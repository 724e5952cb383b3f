//! The tensors in a file of dense parameters, and a function that reads only the weights.

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::error::{Error, Result};
use crate::graph::ParamSpec;
use crate::params::Params;

/// The character between the name of a state and the name of its parameter. The name of a parameter
/// never contains it.
pub(super) const SEPARATOR: char = '/';

/// Reads the parameters and skips the state of the optimizer.
///
/// # Errors
/// Returns an error if the bytes are not such a file, or if a parameter is missing, has another
/// shape, or is unknown.
pub fn read_params(specs: &[ParamSpec], bytes: &[u8]) -> Result<Params> {
    let file = SafeTensors::deserialize(bytes)?;
    let tensors = file.tensors().into_iter().filter(|(name, _)| !name.contains(SEPARATOR));
    Params::from_tensors(specs, tensors, &mut || {})
}

pub(super) fn wrong(name: &str, reason: impl Into<String>) -> Error {
    Error::Param { name: name.to_owned(), reason: reason.into() }
}

/// Returns a count as a tensor of a safetensors file.
pub(super) fn count_tensor(bytes: &[u8; 8]) -> Result<TensorView<'_>> {
    Ok(TensorView::new(Dtype::U64, vec![1], bytes)?)
}

/// Returns the count in a tensor that [`count_tensor`] has made, or `None` if the tensor has a
/// different type or shape.
pub(super) fn read_count(tensor: &TensorView<'_>) -> Option<u64> {
    let bytes = <[u8; 8]>::try_from(tensor.data()).ok()?;
    (tensor.dtype() == Dtype::U64).then(|| u64::from_le_bytes(bytes))
}
