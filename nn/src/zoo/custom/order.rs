//! The order in which nodes are built, and the errors in the references between nodes.

use std::collections::HashMap;

use zillion_config::ConfigError;

use super::nodes::NodeSpec;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    /// The node has been reached, and its inputs are not finished yet. If it is reached again in
    /// this state, there is a cycle.
    Open,
    Done,
}

/// Sorts nodes depth first from the roots, so that each node comes after its inputs. A root
/// consists of its key in the job, which errors name, and the name of its node. `path` is the path
/// of the section that contains the nodes.
///
/// # Errors
/// Returns an error if a name refers to no node, if nodes form a cycle, or if no root depends on a
/// node.
pub(super) fn sort_nodes(
    nodes: Vec<(String, NodeSpec)>,
    roots: &[(String, &str)],
    path: &str,
) -> Result<Vec<(String, NodeSpec)>, ConfigError> {
    let names: Vec<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
    let index: HashMap<&str, usize> = (0..).zip(&names).map(|(at, &name)| (name, at)).collect();
    let find = |name: &str, key: &str| {
        let unknown = || ConfigError::unknown_value(key, name, &names);
        index.get(name).copied().ok_or_else(unknown)
    };
    let mut inputs = Vec::with_capacity(nodes.len());
    for (name, node) in &nodes {
        let key = format!("{path}.nodes.{name}.inputs");
        let of_node: Result<Vec<usize>, _> = node.inputs.iter().map(|i| find(i, &key)).collect();
        inputs.push(of_node?);
    }
    let mut walk = Walk { inputs: &inputs, states: vec![State::New; nodes.len()], order: vec![] };
    let refuse_cycle = |cycle: Vec<usize>| {
        let names: Vec<&str> = cycle.iter().map(|&at| names[at]).collect();
        let message = format!(
            "nodes form a cycle, in which each node reads the next one: {}",
            names.join(" -> ")
        );
        ConfigError::at(&format!("{path}.nodes.{}", names[0]), message)
    };
    for (key, node) in roots {
        walk.from(find(node, &format!("{path}.{key}"))?).map_err(refuse_cycle)?;
    }
    let used = walk.order.len();
    // A cycle is also reported if no output depends on it.
    for at in 0..nodes.len() {
        walk.from(at).map_err(refuse_cycle)?;
    }
    if used < nodes.len() {
        // The error names an unused node that no other unused node reads.
        let idle = &walk.order[used..];
        let read = |at: &usize| idle.iter().any(|&other| inputs[other].contains(at));
        let name = idle.iter().find(|at| !read(at)).map_or("", |&at| names[at]);
        let message =
            "no output depends on this node; remove it, or name it in another node's `inputs`";
        return Err(ConfigError::at(&format!("{path}.nodes.{name}"), message));
    }
    let order = walk.order;
    let mut nodes: Vec<Option<(String, NodeSpec)>> = nodes.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|at| nodes[at].take()).collect())
}

struct Walk<'a> {
    inputs: &'a [Vec<usize>],
    states: Vec<State>,
    order: Vec<usize>,
}

impl Walk<'_> {
    /// Appends to the order the nodes on which `root` depends, and then `root` itself. If there is
    /// a cycle, returns its nodes as the error, with the first node repeated at the end. The
    /// function uses a list instead of recursion, because a graph may be deep.
    fn from(&mut self, root: usize) -> Result<(), Vec<usize>> {
        if self.states[root] != State::New {
            return Ok(());
        }
        let mut path = vec![(root, 0)];
        self.states[root] = State::Open;
        while let Some((node, next)) = path.last_mut() {
            let (node, at) = (*node, *next);
            *next += 1;
            match self.inputs[node].get(at) {
                None => {
                    self.states[node] = State::Done;
                    self.order.push(node);
                    path.pop();
                }
                Some(&input) => match self.states[input] {
                    State::Done => {}
                    State::New => {
                        self.states[input] = State::Open;
                        path.push((input, 0));
                    }
                    State::Open => {
                        let nodes = path.iter().map(|&(node, _)| node);
                        let mut cycle: Vec<usize> =
                            nodes.skip_while(|&node| node != input).collect();
                        cycle.push(input);
                        return Err(cycle);
                    }
                },
            }
        }
        Ok(())
    }
}
