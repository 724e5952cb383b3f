//! The sessions of ONNX Runtime that compute a model.
//!
//! # Concurrency
//! A session computes one batch at a time. Each thread that scores takes an idle session, or opens
//! one if there is none, so there are as many sessions as threads have scored at once. A session
//! has one thread, because the threads of the server are busy with other requests.

use std::sync::{Mutex, PoisonError};

use ort::environment::Environment;
use ort::session::Session;
use ort::value::{Outlet, TensorElementType, TensorRef, ValueType};

use super::OnnxInterface;
use crate::error::{Error, Result};
use crate::late::{LateCheck, check_time};

/// The environment variable with the path of the library.
const LIBRARY: &str = "ORT_DYLIB_PATH";

/// The name of the library that the system is asked for without that variable.
const USUAL: &str = "libonnxruntime.so";

/// The largest number of rows that a session computes at once. It bounds the memory of a session.
const ROWS_AT_ONCE: usize = 1024;

/// The environment of all sessions of the process, after the library was opened.
static ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

/// The sessions of a model.
#[derive(Debug)]
pub(super) struct Sessions {
    bytes: Vec<u8>,
    idle: Mutex<Vec<Session>>,
}

impl Sessions {
    /// Opens the first session of a model, and checks the inputs and the outputs.
    pub(super) fn open(bytes: &[u8], interface: &OnnxInterface) -> Result<Self> {
        let session = open_session(bytes)?;
        check_interface(&session, interface)?;
        Ok(Self { bytes: bytes.to_vec(), idle: Mutex::new(vec![session]) })
    }

    /// Computes the outputs of a batch, and appends them to `scores`.
    pub(super) fn score(
        &self,
        interface: &OnnxInterface,
        rows: usize,
        inputs: &[&[f32]],
        scores: &mut [Vec<f32>],
        is_late: Option<LateCheck<'_>>,
    ) -> Result<()> {
        check_time(is_late)?;
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let known = idle().pop();
        let mut session = match known {
            Some(session) => session,
            None => open_session(&self.bytes)?,
        };
        let scored = score_parts(&mut session, interface, rows, inputs, scores, is_late);
        // A batch that fails or is late does not cost its session.
        idle().push(session);
        scored
    }

    /// Returns the number of sessions that no batch uses.
    #[cfg(test)]
    pub(super) fn idle_sessions(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Computes the outputs of a batch part by part, and appends them to `scores`.
fn score_parts(
    session: &mut Session,
    interface: &OnnxInterface,
    rows: usize,
    inputs: &[&[f32]],
    scores: &mut [Vec<f32>],
    is_late: Option<LateCheck<'_>>,
) -> Result<()> {
    for first in (0..rows).step_by(ROWS_AT_ONCE) {
        check_time(is_late)?;
        let count = ROWS_AT_ONCE.min(rows - first);
        score_rows(session, interface, (first, count), inputs, scores)?;
    }
    Ok(())
}

/// Computes the outputs of some rows of a batch.
fn score_rows(
    session: &mut Session,
    interface: &OnnxInterface,
    (first, count): (usize, usize),
    inputs: &[&[f32]],
    scores: &mut [Vec<f32>],
) -> Result<()> {
    let failed = |error: ort::Error| {
        Error::Onnx(format!(
            "ONNX Runtime cannot compute the model ({error}); roll back, or publish another model"
        ))
    };
    let mut feed = Vec::with_capacity(inputs.len());
    for ((name, cols), values) in interface.inputs.iter().zip(inputs) {
        let part = values.get(first * cols..(first + count) * cols).ok_or_else(|| {
            Error::Onnx(format!("the input `{name}` has too few values; report this defect"))
        })?;
        let tensor = TensorRef::from_array_view(([count, *cols], part)).map_err(failed)?;
        feed.push((name.as_str(), tensor));
    }
    let found = session.run(feed).map_err(failed)?;
    for (name, scores) in interface.outputs.iter().zip(scores) {
        let values = match found.get(name) {
            Some(value) => value.try_extract_tensor::<f32>().map_err(failed)?.1,
            None => &[],
        };
        if values.len() != count {
            return Err(Error::Onnx(format!(
                "the output `{name}` of the ONNX model has {} values for {count} rows; publish a \
                 model that computes one score for each row",
                values.len()
            )));
        }
        scores.extend_from_slice(values);
    }
    Ok(())
}

fn open_session(bytes: &[u8]) -> Result<Session> {
    let refuse = |error: String| {
        Error::Onnx(format!(
            "ONNX Runtime cannot load the model ({error}); use a later ONNX Runtime, or export \
             the model for an earlier version of the operators"
        ))
    };
    let environment = environment()?;
    let builder = Session::builder(&environment).map_err(|error| refuse(error.to_string()))?;
    let builder = builder.with_intra_threads(1).map_err(|error| refuse(error.to_string()))?;
    let builder = builder.with_inter_threads(1).map_err(|error| refuse(error.to_string()))?;
    let mut builder =
        builder.with_parallel_execution(false).map_err(|error| refuse(error.to_string()))?;
    builder.commit_from_memory(bytes).map_err(|error| refuse(error.to_string()))
}

/// Returns the environment of the process, and opens the library for it if it is not open.
///
/// # Errors
/// Returns an error if the library cannot be opened. The next call tries again.
fn environment() -> Result<Environment> {
    let mut known = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(environment) = &*known {
        return Ok(environment.clone());
    }
    let given = std::env::var_os(LIBRARY).filter(|path| !path.is_empty());
    let path = given.unwrap_or_else(|| USUAL.into());
    let refuse = |error: String| {
        Error::Onnx(format!(
            "the library ONNX Runtime cannot be used ({error}); set {LIBRARY} to the path of \
             {USUAL} 1.{} or later, which the package `onnxruntime` of PyPI has in its folder `capi`",
            ort::MINOR_VERSION
        ))
    };
    let builder = ort::init_from(&path).map_err(|error| refuse(error.to_string()))?;
    let built = builder.with_name("zillion").with_telemetry(false).build();
    let environment = built.map_err(|error| refuse(error.to_string()))?;
    *known = Some(environment.clone());
    Ok(environment)
}

/// Checks that a model has the inputs and the outputs that are fed and read.
fn check_interface(session: &Session, interface: &OnnxInterface) -> Result<()> {
    let refuse = |problem: String| {
        Err(Error::Onnx(format!(
            "{problem}; publish an ONNX model with these inputs and outputs: {}; {}",
            interface
                .inputs
                .iter()
                .map(|(name, cols)| format!("{name} [rows, {cols}]"))
                .collect::<Vec<_>>()
                .join(", "),
            interface.outputs.join(", ")
        )))
    };
    let find = |outlets: &[Outlet], name: &str| {
        outlets.iter().find(|outlet| outlet.name() == name).and_then(shape_of)
    };
    for (name, cols) in &interface.inputs {
        // A dimension that the model leaves open is -1.
        if find(session.inputs(), name).is_none_or(|shape| shape != [-1, *cols as i64]) {
            return refuse(format!(
                "the ONNX model has no input `{name}` of floats [rows, {cols}]"
            ));
        }
    }
    let is_known = |outlet: &&Outlet| interface.inputs.iter().any(|(n, _)| n == outlet.name());
    if let Some(other) = session.inputs().iter().find(|outlet| !is_known(outlet)) {
        return refuse(format!("nothing fills the input `{}` of the ONNX model", other.name()));
    }
    for name in &interface.outputs {
        let shape = find(session.outputs(), name);
        if shape.is_none_or(|shape| shape != [-1] && shape != [-1, 1]) {
            return refuse(format!(
                "the ONNX model has no output `{name}` with one float for each row"
            ));
        }
    }
    Ok(())
}

/// Returns the shape of a tensor of floats, or `None` if it has another type.
fn shape_of(outlet: &Outlet) -> Option<Vec<i64>> {
    match outlet.dtype() {
        ValueType::Tensor { ty: TensorElementType::Float32, shape, .. } => Some(shape.to_vec()),
        _ => None,
    }
}
