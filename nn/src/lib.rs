//! The dense model: its graph, automatic differentiation, executors for the CPU and a GPU, the zoo
//! of models, losses, dense optimizers and metrics.
//!
//! A model is data: nodes with symbolic shapes (`B` rows of the batch, `U` unique rows of a table).
//! A model is built from named layers. Differentiation adds nodes of the same kind. The executor
//! runs the nodes on tiles of rows in a fixed number of lanes, so the result does not depend on the
//! threads. The inputs are slices: rows of embeddings, their stride, indices and offsets.
//!
//! This crate is not a tensor library, because a graph is built once and run many times. It does
//! not know tables, files or networks: the caller pulls the rows and pushes the gradients.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use zillion_device::Workers;
//! use zillion_nn::*;
//!
//! let inputs = GraphInputs {
//!     numeric: vec!["x".into()],
//!     labels: vec!["clicked".into()],
//!     ..GraphInputs::default()
//! };
//! let mut b = GraphBuilder::new(inputs, Mode::Train);
//! let x = b.numeric("x", &[0])?;
//! let logit = b.linear("linear", x, 1)?;
//! let loss = b.bce_with_logits("loss", logit, 0)?;
//!
//! let train = differentiate(&b.finish(), loss)?;
//! let mut params = Params::init(&train.graph.params, 1);
//! let mut executor = Executor::new(Program::train(&train, Settings::default())?);
//!
//! let batch = Inputs {
//!     rows: 2,
//!     numeric: vec![&[1.0, -1.0]],
//!     labels: vec![LabelView { values: &[1.0, 0.0], mask: None }],
//!     ..Inputs::default()
//! };
//! let workers = Workers::new(NonZeroUsize::MIN).expect("one thread needs no start");
//! executor.train(&workers, &batch, &mut params, StepSeed { seed: 1, step: 0 }, &mut [])?;
//! let weight = params.find("linear.weight").expect("a linear layer has a weight");
//! assert!(executor.loss().is_some_and(|loss| loss > 0.0));
//! assert!(executor.param_grad(weight).is_some_and(|g| g[0] < 0.0));
//! # Ok::<(), Error>(())
//! ```

mod autodiff;
mod checks;
mod cost;
mod cpu;
mod error;
mod gpu;
mod graph;
mod inputs;
mod lowered;
pub mod metrics;
mod onnx;
mod ops;
pub mod optim;
mod params;
mod passes;
mod profile;
pub mod timeline;
pub mod zoo;

pub use autodiff::{TrainGraph, differentiate};
pub use cost::{Cost, cost};
pub use cpu::dense_type::DenseType;
pub use cpu::executor::Executor;
pub use cpu::packed_params::PackedParams;
pub use cpu::program::{Memory, Program};
pub use error::{Error, Result};
pub use gpu::device_params::DeviceParams;
pub use gpu::device_rows::DeviceRows;
pub use gpu::executor::GpuExecutor;
pub use gpu::library::LibraryProducts;
pub use gpu::results::{StepResults, StepScalars, Ticket};
pub use gpu::staging::{BatchStager, StagedBatch};
pub use graph::builder::{GraphBuilder, Mode, NORM_EPS, NORM_MOMENTUM};
pub use graph::drawing;
pub use graph::op::{Binary, Distance, Focal, Fused, Gather, GroupLoss, InBatch, Link, Op, Unary};
pub use graph::shape::{Dim, NodeId, ParamId, Shape};
pub use graph::sizes::Sizes;
pub use graph::{ColumnInput, Graph, GraphInputs, Node, ParamInit, ParamSpec, TableInput};
pub use inputs::{ColumnCopies, ColumnView, Inputs, LabelView, OccurrenceView, TableView};
pub use lowered::Settings;
pub use onnx::{OnnxColumn, OnnxHolds, OnnxInput, OnnxModel};
pub use ops::{StepSeed, dropout_keeps};
pub use params::Params;
pub use passes::{Passes, Stage, fake_quantize};
pub use profile::{OpTime, Profile};
