//! The dense parameters of a model: named matrices in the order of their creation.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use zillion_feature::random;

use crate::error::{Error, Result};
use crate::graph::shape::ParamId;
use crate::graph::{ParamInit, ParamSpec};

/// The values of a model's parameters, in the order of [`Graph::params`](crate::Graph).
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    specs: Vec<ParamSpec>,
    values: Vec<Vec<f32>>,
}

impl Params {
    /// Creates the initial values. Each value depends only on the seed, the name of the parameter
    /// and the index of the element. So a new layer does not change the values of other layers.
    pub fn init(specs: &[ParamSpec], seed: u64) -> Self {
        let values = specs.iter().map(|spec| initial(spec, seed)).collect();
        Self { specs: specs.to_vec(), values }
    }

    /// Returns the descriptions of the parameters, in order.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// Returns the number of parameters (matrices, not floats).
    pub fn len(&self) -> usize {
        self.specs.len()
    }

    /// Returns whether the model has no parameters.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// Returns the floats of one parameter, row after row.
    pub fn value(&self, id: ParamId) -> &[f32] {
        &self.values[id.0 as usize]
    }

    /// Returns the floats of one parameter for writing.
    pub fn value_mut(&mut self, id: ParamId) -> &mut [f32] {
        &mut self.values[id.0 as usize]
    }

    /// Returns the index of the parameter with this name, or `None` if there is none.
    pub fn find(&self, name: &str) -> Option<ParamId> {
        self.specs.iter().position(|s| s.name == name).map(|i| ParamId(i as u32))
    }

    /// Returns the floats of the parameter with this name, or `None` if there is none.
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.find(name).map(|id| self.value(id))
    }

    /// Returns the description and the floats of each parameter, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&ParamSpec, &[f32])> {
        self.specs.iter().zip(self.values.iter().map(Vec::as_slice))
    }

    /// Returns the description and the floats of each parameter, in order, for writing.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (&ParamSpec, &mut [f32])> {
        self.specs.iter().zip(self.values.iter_mut().map(Vec::as_mut_slice))
    }

    /// Copies the values of `other`, which must have the same parameters.
    pub fn copy_from(&mut self, other: &Self) -> Result<()> {
        self.fits(&other.specs)?;
        self.values.clone_from(&other.values);
        Ok(())
    }

    /// Returns the bytes of a safetensors file with one f32 tensor `[rows, cols]` for each
    /// parameter. The same values always give the same bytes.
    pub fn to_safetensors(&self) -> Result<Vec<u8>> {
        let tensors = self.iter().map(|(spec, values)| {
            Ok((spec.name.as_str(), float_tensor([spec.rows, spec.cols], values)?))
        });
        Ok(safetensors::serialize(tensors.collect::<Result<Vec<_>>>()?, None)?)
    }

    /// Reads the bytes of a file that [`Params::to_safetensors`] has produced. The file must
    /// contain every parameter of the model with the right shape, and nothing else.
    pub fn from_safetensors(specs: &[ParamSpec], bytes: &[u8]) -> Result<Self> {
        Self::from_safetensors_by_piece(specs, bytes, &mut || {})
    }

    /// Reads a safetensors file, and calls `piece` after every few tens of kilobytes. In this
    /// function, a caller can let other work use the processor.
    pub fn from_safetensors_by_piece(
        specs: &[ParamSpec],
        bytes: &[u8],
        piece: &mut dyn FnMut(),
    ) -> Result<Self> {
        let file = SafeTensors::deserialize(bytes)?;
        Self::from_tensors(specs, file.tensors(), piece)
    }

    /// Reads the values of the parameters from tensors, and calls `piece` after every few tens of
    /// kilobytes.
    pub(crate) fn from_tensors<'a>(
        specs: &[ParamSpec],
        tensors: impl IntoIterator<Item = (String, TensorView<'a>)>,
        piece: &mut dyn FnMut(),
    ) -> Result<Self> {
        const PIECE_FLOATS: usize = 16 << 10;
        let mut tensors: BTreeMap<String, TensorView<'a>> = tensors.into_iter().collect();
        let mut values = Vec::with_capacity(specs.len());
        for spec in specs {
            let Some(tensor) = tensors.remove(&spec.name) else {
                return Err(wrong(
                    &spec.name,
                    "the file does not have this parameter, because it was written for another \
                     model; use the file of this model"
                        .into(),
                ));
            };
            if tensor.dtype() != Dtype::F32 || tensor.shape() != [spec.rows, spec.cols] {
                return Err(wrong(
                    &spec.name,
                    format!(
                        "the file has {:?} {:?}, but the model needs F32 [{}, {}]; use the file \
                         of this model",
                        tensor.dtype(),
                        tensor.shape(),
                        spec.rows,
                        spec.cols
                    ),
                ));
            }
            let (floats, _) = tensor.data().as_chunks::<4>();
            let mut own = Vec::with_capacity(floats.len());
            for floats in floats.chunks(PIECE_FLOATS) {
                own.extend(floats.iter().map(|&bytes| f32::from_le_bytes(bytes)));
                piece();
            }
            values.push(own);
        }
        match tensors.into_keys().next() {
            Some(name) => Err(wrong(
                &name,
                "the file has this parameter, but the model does not \
                                            have it; use the file of this model"
                    .into(),
            )),
            None => Ok(Self { specs: specs.to_vec(), values }),
        }
    }

    /// Checks that these parameters have the names and the shapes that a graph needs.
    pub(crate) fn fits(&self, specs: &[ParamSpec]) -> Result<()> {
        if self.specs.len() != specs.len() {
            let reason = format!(
                "found {} parameters, but the model has {}; use the parameters of this model",
                self.specs.len(),
                specs.len()
            );
            let name = specs.get(self.specs.len()).or(self.specs.get(specs.len()));
            return Err(wrong(name.map_or("", |s| &s.name), reason));
        }
        for (have, want) in self.specs.iter().zip(specs) {
            if have.name != want.name || (have.rows, have.cols) != (want.rows, want.cols) {
                let reason = format!(
                    "found `{}` of shape [{}, {}] instead of [{}, {}]; use the parameters of this \
                     model",
                    have.name, have.rows, have.cols, want.rows, want.cols
                );
                return Err(wrong(&want.name, reason));
            }
        }
        Ok(())
    }
}

fn wrong(name: &str, reason: String) -> Error {
    Error::Param { name: name.to_owned(), reason }
}

fn initial(spec: &ParamSpec, seed: u64) -> Vec<f32> {
    let stream = random::text_seed(seed, &spec.name);
    let fans = (spec.rows + spec.cols) as f64;
    let uniform = |low: f32, high: f32| {
        move |i: u64| {
            let unit = random::unit_f32((random::combine(stream, i) >> 32) as u32);
            low + (high - low) * unit
        }
    };
    let elements = 0..(spec.rows * spec.cols) as u64;
    match spec.init {
        ParamInit::XavierNormal => {
            let std = (2.0 / fans).sqrt();
            elements.map(|i| (std * normal(stream, i)) as f32).collect()
        }
        ParamInit::XavierUniform => {
            let bound = (6.0 / fans).sqrt() as f32;
            elements.map(uniform(-bound, bound)).collect()
        }
        ParamInit::Normal { std } => {
            elements.map(|i| (f64::from(std) * normal(stream, i)) as f32).collect()
        }
        ParamInit::Uniform { low, high } => elements.map(uniform(low, high)).collect(),
        ParamInit::Constant { value } => vec![value; spec.rows * spec.cols],
    }
}

/// Draws a standard normal number by the method of Box and Muller. It is computed in f64, because
/// the initialisation takes little time in any case.
fn normal(stream: u64, element: u64) -> f64 {
    let bits = random::combine(stream, element);
    let scale = 1.0 / f64::from(1u32 << 31) / 2.0;
    let u = (f64::from((bits >> 32) as u32) + 0.5) * scale;
    let v = f64::from(bits as u32) * scale;
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Returns floats as a tensor of a safetensors file.
pub(crate) fn float_tensor(shape: [usize; 2], values: &[f32]) -> Result<TensorView<'_>> {
    Ok(TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(values))?)
}
