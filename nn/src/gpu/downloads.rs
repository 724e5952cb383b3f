//! The download of the results of a run, for which the host waits.

use std::ops::Range;

use crate::error::Result;
use crate::gpu::executor::GpuExecutor;
use crate::graph::op::Op;
use crate::graph::shape::{NodeId, ParamId};
use crate::inputs::Inputs;
use crate::params::Params;

impl GpuExecutor {
    /// Copies the results to pinned memory, waits, and reads the constants. Copies all constants,
    /// or the loss alone.
    pub(super) fn download(&mut self, inputs: &Inputs<'_>, all: bool) -> Result<()> {
        let Some(loaded) = &self.loaded else { return Ok(()) };
        let Some(host) = loaded.host() else { return Ok(()) };
        let results = self.fixed.results;
        let loss = self.program.lowered.loss.and_then(|loss| self.constant_range(loss));
        let constants = match loss {
            Some((start, len)) if !all => start..start + len,
            _ => 0..results.bytes() / 4,
        };
        let from = results.part(4 * constants.start, 4 * constants.len())?;
        self.gpu.copy_out(self.stream, &host.results_out, 4 * constants.start, from)?;
        let mut at = results.bytes();
        for (index, &memory) in loaded.bound.outputs.iter().enumerate() {
            let Some(memory) = memory else { continue };
            let bytes = 4 * self.output_floats(index, inputs);
            self.gpu.copy_out(self.stream, &host.results_out, at, memory.part(0, bytes)?)?;
            at += memory.bytes();
        }
        for (plan, &memory) in self.plans.iter().zip(&loaded.bound.row_grads) {
            let bytes = 4 * inputs.tables[plan.table].values.len();
            self.gpu.copy_out(self.stream, &host.results_out, at, memory.part(0, bytes)?)?;
            at += memory.bytes();
        }
        self.gpu.synchronize(self.stream)?;
        self.results.resize(results.bytes() / 4, 0.0);
        let to = &mut self.results[constants.clone()];
        Ok(host.results_out.read(4 * constants.start, to)?)
    }

    /// Returns the number of floats of a result.
    pub(super) fn output_floats(&self, index: usize, inputs: &Inputs<'_>) -> usize {
        let shape = self.program.lowered.graph.shape(self.program.lowered.outputs[index]);
        if let Some(len) = shape.const_len() {
            return len;
        }
        inputs.span(shape.rows, &(0..inputs.rows)).len() * shape.cols
    }

    pub(super) fn read_outputs(&mut self, inputs: &Inputs<'_>, params: &Params) -> Result<()> {
        let Some(loaded) = &self.loaded else { return Ok(()) };
        let Some(host) = loaded.host() else { return Ok(()) };
        let mut at = self.fixed.results.bytes();
        let mut outputs = std::mem::take(&mut self.outputs);
        for (index, out) in outputs.iter_mut().enumerate() {
            let id = self.program.lowered.outputs[index];
            out.clear();
            if let Some(memory) = loaded.bound.outputs[index] {
                out.resize(self.output_floats(index, inputs), 0.0);
                host.results_out.read(at, out)?;
                at += memory.bytes();
            } else if let Some(value) = self.constant(id) {
                out.extend_from_slice(value);
            } else if let Some(value) = self.param_value(id, params) {
                out.extend_from_slice(value);
            }
        }
        self.outputs = outputs;
        Ok(())
    }

    /// Returns the floats of a node that is a parameter or a view of one.
    fn param_value<'a>(&self, id: NodeId, params: &'a Params) -> Option<&'a [f32]> {
        let (param, range) = self.param_range(id)?;
        params.value(param).get(range)
    }

    /// Returns the parameter, and the range of its floats, of a node that is a parameter or a view
    /// of one.
    pub(super) fn param_range(&self, id: NodeId) -> Option<(ParamId, Range<usize>)> {
        let graph = &self.program.lowered.graph;
        let len = graph.shape(id).const_len()?;
        let (mut id, mut start) = (id, 0);
        loop {
            match graph.node(id).op {
                Op::Param { param } => return Some((param, start..start + len)),
                Op::Slice { start: of_view, .. } => start += of_view,
                _ => return None,
            }
            id = graph.node(id).inputs[0];
        }
    }

    pub(super) fn read_row_grads(
        &self,
        inputs: &Inputs<'_>,
        row_grads: &mut [&mut [f32]],
    ) -> Result<()> {
        let Some(loaded) = &self.loaded else { return Ok(()) };
        let Some(host) = loaded.host() else { return Ok(()) };
        let outputs = loaded.bound.outputs.iter().flatten().map(|of| of.bytes());
        let at = self.fixed.results.bytes() + outputs.sum::<usize>();
        for (table, out) in row_grads.iter_mut().enumerate() {
            let Some(index) = self.plans.iter().position(|plan| plan.table == table) else {
                out.fill(0.0);
                continue;
            };
            debug_assert_eq!(out.len(), inputs.tables[table].values.len());
            let before = &loaded.bound.row_grads[..index];
            let offset = before.iter().map(|of| of.bytes()).sum::<usize>();
            host.results_out.read(at + offset, out)?;
        }
        Ok(())
    }
}
