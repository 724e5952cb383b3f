//! The schedule of a graph, which contains the phase in which each node is computed.
//!
//! A run alternates between work on constants and passes over the batch. A pass belongs to a phase.
//! In a pass, each tile of rows goes through all operations of the phase before the next tile
//! begins, so its values stay in the cache. A sum over the batch ends a phase, and nodes that need
//! the sum run in a later phase. A value whose rows are all needed by other nodes also ends a
//! phase.
//!
//! A row-wise node runs in the phase of its first use, and not as early as possible. So a model
//! without batch norm runs its forward pass and its backward pass in a single phase, and its
//! activations stay in their tile. Only the sum of the sample weights is computed in an earlier
//! phase.

use crate::graph::Graph;
use crate::graph::shape::NodeId;
use crate::lowered::Class;

/// The phases of a graph.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schedule<'a> {
    /// The class of each node, or `None` if no requested value depends on the node.
    pub(crate) classes: &'a [Option<Class>],
    /// The phase of each node. A row-wise node or a sum over the batch is computed in the pass of
    /// this phase. A constant is computed before the pass of this phase.
    pub(crate) phases: Vec<usize>,
    /// The number of phases.
    pub(crate) count: usize,
}

impl<'a> Schedule<'a> {
    /// Creates the schedule of the nodes that have a class.
    pub(crate) fn new(graph: &Graph, classes: &'a [Option<Class>]) -> Self {
        let earliest = find_earliest_phases(graph, classes);
        let count = earliest.count;
        let phases = delay_to_first_use(graph, classes, &earliest);
        Self { classes, phases, count }
    }

    pub(crate) fn class(&self, id: NodeId) -> Option<Class> {
        self.classes[id.0 as usize]
    }

    pub(crate) fn phase(&self, id: NodeId) -> usize {
        self.phases[id.0 as usize]
    }
}

struct Earliest {
    phases: Vec<usize>,
    count: usize,
}

fn find_earliest_phases(graph: &Graph, classes: &[Option<Class>]) -> Earliest {
    // The first phase in which a node can be read. A sum over the batch can be read only in the
    // phase after its own phase.
    let mut readable = vec![0; graph.nodes.len()];
    let mut phases = vec![0; graph.nodes.len()];
    let mut count = 0;
    for (index, node) in graph.nodes.iter().enumerate() {
        let Some(class) = classes[index] else { continue };
        let phase = node.inputs.iter().map(|i| readable[i.0 as usize]).max().unwrap_or(0);
        phases[index] = phase;
        readable[index] = phase + usize::from(ends_a_pass(class));
        if class == Class::RowWise || ends_a_pass(class) {
            count = count.max(phase + 1);
        }
    }
    Earliest { phases, count }
}

fn delay_to_first_use(graph: &Graph, classes: &[Option<Class>], earliest: &Earliest) -> Vec<usize> {
    let last = earliest.count.saturating_sub(1);
    let mut used = vec![false; graph.nodes.len()];
    let mut latest = vec![0; graph.nodes.len()];
    for (index, class) in classes.iter().enumerate() {
        // A constant that no node reads may be computed after the last pass.
        latest[index] = last + usize::from(*class == Some(Class::Global));
    }
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        if classes[index].is_none() {
            continue;
        }
        for input in node.inputs.iter().map(|i| i.0 as usize) {
            let unique = classes[index] == Some(Class::Unique);
            let by = match classes[input] {
                _ if unique => continue,
                Some(class) if ends_a_pass(class) => latest[index].saturating_sub(1),
                _ => latest[index],
            };
            used[input] = true;
            latest[input] = latest[input].min(by);
        }
    }
    // Sums, and nodes without readers, run as soon as their inputs are ready, while the inputs are
    // still in the cache.
    let mut phases = latest;
    let mut readable = vec![0; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        let Some(class) = classes[index] else { continue };
        let soonest = node.inputs.iter().map(|i| readable[i.0 as usize]).max().unwrap_or(0);
        if !used[index] || class != Class::RowWise {
            phases[index] = soonest;
        }
        debug_assert!(phases[index] >= soonest && phases[index] >= earliest.phases[index]);
        readable[index] = phases[index] + usize::from(ends_a_pass(class));
    }
    phases
}

/// Returns whether a value is complete only after the pass that computes it.
fn ends_a_pass(class: Class) -> bool {
    matches!(class, Class::BatchReduce | Class::Collect)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowered::classify;
    use crate::{GraphBuilder, GraphInputs, Mode, differentiate};

    fn inputs() -> GraphInputs {
        GraphInputs {
            numeric: vec!["x".into(), "y".into()],
            labels: vec!["label".into()],
            ..GraphInputs::default()
        }
    }

    fn mlp(norm: bool) -> (Graph, NodeId, Vec<NodeId>) {
        let mut b = GraphBuilder::new(inputs(), Mode::Train);
        let x = b.numeric("x", &[0, 1]).unwrap();
        let mut h = b.linear("l0", x, 4).unwrap();
        if norm {
            h = b.batch_norm("bn", h).unwrap();
        }
        h = b.relu("relu", h).unwrap();
        let logit = b.linear("l1", h, 1).unwrap();
        let loss = b.bce_with_logits("loss", logit, 0).unwrap();
        let train = differentiate(&b.finish(), loss).unwrap();
        let mut roots = vec![train.loss];
        roots.extend(train.param_grads.iter().map(|&(_, g)| g));
        (train.graph, loss, roots)
    }

    #[test]
    fn forward_and_backward_share_the_pass_after_the_sum_of_weights() {
        let (graph, _, roots) = mlp(false);
        let classes = classify(&graph, &roots);
        let schedule = Schedule::new(&graph, &classes);
        assert_eq!(schedule.count, 2);
        let phase = |name: &str| schedule.phase(graph.find(name).unwrap());
        assert_eq!(phase("loss.weight.sum"), 0);
        for name in ["x", "l0", "relu", "l1", "loss.sum", "l1.grad", "l0.grad"] {
            assert_eq!(phase(name), 1, "{name}");
        }
    }

    #[test]
    fn batch_norm_is_a_barrier_forward_and_backward() {
        let (graph, _, roots) = mlp(true);
        let classes = classify(&graph, &roots);
        let schedule = Schedule::new(&graph, &classes);
        let phase = |name: &str| schedule.phase(graph.find(name).unwrap());
        assert_eq!(schedule.count, 3);
        assert_eq!([phase("l0"), phase("bn.stats")], [0, 0]);
        assert_eq!([phase("bn"), phase("l1"), phase("bn.grad")], [1, 1, 1]);
        assert_eq!(phase("l0.grad"), 2);
        assert_eq!(phase("loss.weight.sum"), 0);
    }

    #[test]
    fn unrequested_nodes_are_not_computed() {
        let (graph, _, _) = mlp(false);
        let classes = classify(&graph, &[graph.find("l0").unwrap()]);
        let schedule = Schedule::new(&graph, &classes);
        assert!(schedule.class(graph.find("relu").unwrap()).is_none());
        assert!(schedule.class(graph.find("x").unwrap()).is_some());
    }
}
