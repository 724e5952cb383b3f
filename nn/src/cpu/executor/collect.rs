//! The work between passes: adding up the partial sums of the lanes, collecting values from the
//! lanes, and copying results.

use super::*;

use crate::ops;

/// The number of elements of a sum over the batch that one task adds up. It is small, so that
/// several threads get a share of the work. It is large enough that taking a task from the queue
/// costs little in comparison.
const SUM_CHUNK: usize = 1 << 15;

impl Executor {
    /// Adds up the partial sums of the lanes, in the order of lanes.
    pub(super) fn sums(&mut self, workers: &Workers, phase: usize, inputs: &Inputs<'_>) {
        struct Part<'a> {
            op: &'a Op,
            partial: usize,
            start: usize,
            out: &'a mut [f32],
            id: NodeId,
        }
        let Self { program, consts, lanes, log, .. } = self;
        let program: &Program = program;
        let sums = &program.phases[phase].sums;
        if sums.is_empty() {
            return;
        }
        let placed = |&id: &NodeId| {
            let at = id.0 as usize;
            match (program.placement.places[at], program.placement.partials[at]) {
                (Place::Const { slot, .. }, Some(partial)) => Some((slot, partial, id)),
                _ => None,
            }
        };
        // The slots ascend with the nodes, so one pass over the constants finds all of them.
        let mut wanted = sums.iter().filter_map(placed).peekable();
        let parts = consts
            .iter_mut()
            .enumerate()
            .filter_map(|(at, out)| {
                wanted
                    .next_if(|&(slot, _, _)| slot == at)
                    .map(|(_, partial, id)| (partial, id, out))
            })
            .flat_map(|(partial, id, out)| {
                let op = &program.lowered.graph.node(id).op;
                let chunk = if ops::combines_by_element(op) { SUM_CHUNK } else { out.len().max(1) };
                let parts = out.chunks_mut(chunk).enumerate();
                parts.map(move |(index, out)| Part { op, partial, start: index * chunk, out, id })
            });
        let lanes: &[Lane] = lanes;
        let add_up = |part: Part<'_>| {
            let rows = program.lowered.work_rows(part.id);
            let partials = lanes
                .iter()
                .map(|lane| (inputs.span(rows, &lane.rows).len(), lane))
                .filter(|&(rows, _)| rows > 0)
                .map(|(rows, lane)| (rows, &*lane.partials[part.partial]));
            let total = inputs.span(rows, &(0..inputs.rows)).len();
            ops::combine(part.op, partials, part.start, total, part.out);
        };
        // The parts come from a queue and not from a list, so that a step allocates no memory.
        let queue = Mutex::new(parts);
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        workers.for_each(workers.threads(), |_| {
            while let Some(part) = next() {
                let (id, begun) = (part.id, log.begin());
                add_up(part);
                log.end(begun, Work::Node(id));
            }
        });
    }

    /// Collects the values that later phases read with all their rows. The rows of each such value
    /// are copied from all lanes into one buffer.
    pub(super) fn collect(&mut self, phase: usize) {
        let Self { program, consts, lanes, log, .. } = self;
        for &id in &program.phases[phase].collects {
            let begun = log.begin();
            let node = program.lowered.graph.node(id);
            let places = &program.placement.places;
            let (Place::Const { slot: to, .. }, Place::Wide { slot, offset, stride }) =
                (places[id.0 as usize], places[node.inputs[0].0 as usize])
            else {
                continue;
            };
            let out = &mut consts[to];
            out.clear();
            for lane in lanes.iter() {
                for row in 0..lane.rows.len() {
                    let start = row * stride + offset;
                    out.extend_from_slice(&lane.wide[slot][start..start + node.shape.cols]);
                }
            }
            log.end(begun, Work::Node(id));
        }
    }

    pub(super) fn collect_outputs(&mut self, inputs: &Inputs<'_>, params: &Params) {
        for (index, &id) in self.program.lowered.outputs.iter().enumerate() {
            let mut out = std::mem::take(&mut self.outputs[index]);
            out.clear();
            if let Place::Wide { slot, offset, stride } =
                self.program.placement.places[id.0 as usize]
            {
                let shape = self.program.lowered.graph.shape(id);
                for lane in &self.lanes {
                    for row in 0..inputs.span(shape.rows, &lane.rows).len() {
                        let start = row * stride + offset;
                        out.extend_from_slice(&lane.wide[slot][start..start + shape.cols]);
                    }
                }
            } else if let Some(value) = constant(&self.program, &self.consts, id) {
                out.extend_from_slice(value);
            } else if let Place::Param { param, offset } =
                self.program.placement.places[id.0 as usize]
            {
                let len = self.program.lowered.graph.shape(id).const_len().unwrap_or(0);
                out.extend_from_slice(&params.value(param)[offset..offset + len]);
            }
            self.outputs[index] = out;
        }
    }
}

/// Returns the value of a constant that the run computed, or `None` for another node.
pub(super) fn constant<'a>(
    program: &Program,
    consts: &'a [Vec<f32>],
    id: NodeId,
) -> Option<&'a [f32]> {
    let len = program.lowered.graph.shape(id).const_len()?;
    match program.placement.places[id.0 as usize] {
        Place::Const { slot, offset } => consts[slot].get(offset..offset + len),
        _ => None,
    }
}
