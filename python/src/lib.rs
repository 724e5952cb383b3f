//! The module `zillion._zillion`: what the Python package calls in Rust.
//!
//! The sources of the package are in `python/zillion`. They give users classes with documentation;
//! this module has functions that take texts, paths and bytes, and return them. Jobs and reports
//! cross the boundary as JSON, so there is one schema, that of the job file.
//!
//! The module does not implement the Python API, and computes nothing itself.
//!
//! * [`boundary`]: the lock of the interpreter, errors and panics;
//! * [`job`]: jobs as TOML and JSON, and their check;
//! * [`train`]: a training with callbacks in Python;
//! * [`stepper`]: a run whose steps Python takes;
//! * [`model`]: a checkpoint that scores rows;
//! * [`batches`]: the batches of a job;
//! * [`tables`]: tables for models in Python;
//! * [`run`]: plots of runs, and the descriptors of gRPC;
//! * [`command`]: the command line.

mod batches;
mod boundary;
mod command;
mod job;
mod model;
mod run;
mod stepper;
mod tables;
mod train;

/// The functions and classes of the module.
#[pyo3::pymodule]
mod _zillion {
    #[pymodule_export]
    use crate::batches::BatchReader;
    #[pymodule_export]
    use crate::command::run_command;
    #[pymodule_export]
    use crate::job::{check, effective, load, parse, print, validate};
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::run::{descriptors, plot};
    #[pymodule_export]
    use crate::stepper::{BatchRows, Stepper};
    #[pymodule_export]
    use crate::tables::Tables;
    #[pymodule_export]
    use crate::train::train;
}
