//! The tensors of a checkpoint of dense parameters, and the reading of the weights alone.

use std::borrow::Cow;

use safetensors::tensor::{Dtype, SafeTensors, View};

use crate::error::{Error, Result};
use crate::graph::ParamSpec;
use crate::params::Params;

/// The character between the name of a state and the name of its parameter. The name of a parameter
/// never contains it.
pub(super) const SEPARATOR: char = '/';

/// Reads the parameters and skips the state of the optimizer.
///
/// # Errors
/// Returns an error if the bytes are no such file, or if a parameter is missing, has another shape,
/// or is unknown.
pub fn read_params(specs: &[ParamSpec], bytes: &[u8]) -> Result<Params> {
    let file = SafeTensors::deserialize(bytes)?;
    let tensors = file.tensors().into_iter().filter(|(name, _)| !name.contains(SEPARATOR));
    let alone = safetensors::serialize(tensors, None)?;
    Params::from_safetensors(specs, &alone)
}

pub(super) fn wrong(name: &str, reason: impl Into<String>) -> Error {
    Error::Param { name: name.to_owned(), reason: reason.into() }
}

pub(super) struct Tensor<'a> {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    pub(super) fn floats(shape: [usize; 2], values: &'a [f32]) -> Self {
        Self { dtype: Dtype::F32, shape: shape.to_vec(), bytes: bytemuck::cast_slice(values) }
    }
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
