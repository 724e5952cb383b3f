//! Plots of runs, and the descriptors of the interfaces of gRPC.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::boundary::call;

/// Returns the SVG of the plots of a run, one beside the other.
#[pyfunction]
pub(crate) fn plot(py: Python<'_>, folder: PathBuf, kinds: Vec<String>) -> PyResult<String> {
    call(py, "plot", || zillion_cli::draw_plots(&folder, &kinds))
}

/// Returns the descriptors of the server's messages and services, as a `FileDescriptorSet`. The
/// client of gRPC makes its messages from them, so it needs no generated code.
#[pyfunction]
pub(crate) fn descriptors(py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
    let bytes = call(py, "descriptors", || Ok(zillion_serving::proto::DESCRIPTORS))?;
    Ok(PyBytes::new(py, bytes))
}
