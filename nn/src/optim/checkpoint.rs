//! Dense parameters and optimizer state in one safetensors file.
//!
//! Parameters are stored under their own names. The state of a parameter is stored under the name
//! of the rule and the name of the parameter, for example `adam.m/mlp.0.weight`. The number of
//! steps is stored under `adam.step/`. Only the names of state contain a slash. Averages are stored
//! under `average.value/`. The same values give the same bytes.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::average::{Average, is_average};
use super::dense::{DenseOptimizer, Slot};
use super::rule::Rule;
use super::spec::DenseOptimizerSpec;
use super::tensors::{SEPARATOR, count_tensor, read_count, wrong};
use crate::error::Result;
use crate::params::{Params, float_tensor};

/// Writes parameters and optimizer state, and returns the bytes of the file.
///
/// # Errors
/// Returns an error if the name of a parameter contains a slash.
pub fn write_dense(params: &Params, optimizer: &DenseOptimizer) -> Result<Vec<u8>> {
    write_dense_with(params, optimizer, None)
}

/// Writes parameters, optimizer state and the average of the parameters if there is one. Returns
/// the bytes of the file.
///
/// # Errors
/// Returns an error for the same reasons as [`write_dense`].
pub fn write_dense_with(
    params: &Params,
    optimizer: &DenseOptimizer,
    average: Option<&Average>,
) -> Result<Vec<u8>> {
    let mut tensors = Vec::new();
    for (spec, values) in params.iter() {
        if spec.name.contains(SEPARATOR) {
            return Err(wrong(
                &spec.name,
                "the name of a parameter must not contain a slash; rename the layer",
            ));
        }
        tensors.push((spec.name.clone(), float_tensor([spec.rows, spec.cols], values)?));
    }
    for slot in optimizer.slots() {
        for (state, values) in Rule::state_names(optimizer.spec()).into_iter().zip(slot.state()) {
            if let Some(state) = state.filter(|_| slot.trainable) {
                let name = format!("{state}{SEPARATOR}{}", slot.name);
                tensors.push((name, float_tensor(slot.shape, values)?));
            }
        }
    }
    let steps = optimizer.steps().to_le_bytes();
    tensors.push((step_name(optimizer.spec()), count_tensor(&steps)?));
    let averaged = average.map(Average::count).unwrap_or_default().to_le_bytes();
    if let Some(average) = average {
        tensors.extend(average.tensors(&averaged)?);
    }
    Ok(safetensors::serialize(tensors, None)?)
}

impl DenseOptimizer {
    /// Restores the state that [`write_dense`] wrote, so that training continues as if it had not
    /// been interrupted.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if the bytes are not such a file. Also returns an
    /// error if the state is missing, has a different shape, or belongs to a different rule.
    pub fn read(&mut self, bytes: &[u8]) -> Result<()> {
        let file = SafeTensors::deserialize(bytes)?;
        let is_own = |name: &str| name.contains(SEPARATOR) && !is_average(name);
        let mut tensors: BTreeMap<String, TensorView<'_>> =
            file.tensors().into_iter().filter(|(name, _)| is_own(name)).collect();
        let step_name = step_name(self.spec());
        let Some(steps) = tensors.remove(&step_name).and_then(|tensor| read_count(&tensor)) else {
            let reason = "the checkpoint has no state of this optimizer; resume with the optimizer that \
                          wrote it";
            return Err(wrong(&step_name, reason));
        };
        let states = Rule::state_names(self.spec());
        let mut slots = self.slots().to_vec();
        for slot in slots.iter_mut().filter(|slot| slot.trainable) {
            let (name, shape) = (slot.name.clone(), slot.shape);
            for (state, values) in states.into_iter().zip(slot.state_mut()) {
                let Some(state) = state else { continue };
                let name = format!("{state}{SEPARATOR}{name}");
                let Some(tensor) = tensors.remove(&name) else {
                    return Err(wrong(
                        &name,
                        "the checkpoint lacks this state; resume with the optimizer that wrote it",
                    ));
                };
                if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
                    let found = (tensor.dtype(), tensor.shape().to_vec());
                    return Err(wrong(
                        &name,
                        format!(
                            "must be F32 {shape:?}, found {found:?}; resume with the job that \
                             wrote the checkpoint"
                        ),
                    ));
                }
                let (floats, _) = tensor.data().as_chunks();
                *values = floats.iter().map(|&float| f32::from_le_bytes(float)).collect();
            }
        }
        if let Some(name) = tensors.into_keys().next() {
            return Err(wrong(
                &name,
                "the checkpoint has state that this optimizer does not keep; resume with the \
                          optimizer that wrote it",
            ));
        }
        self.restore(steps, slots);
        Ok(())
    }
}

impl Slot {
    fn state(&self) -> [&[f32]; 2] {
        [&self.first, &self.second]
    }

    fn state_mut(&mut self) -> [&mut Vec<f32>; 2] {
        [&mut self.first, &mut self.second]
    }
}

fn step_name(spec: &DenseOptimizerSpec) -> String {
    let kind = spec.kind();
    format!("{kind}.step{SEPARATOR}")
}
