//! The passes that rewrite a graph before it runs. The list of passes is ordered, and each pass can
//! be switched off.
//!
//! A pass takes a graph with its roots, and returns a graph that computes the same results. The
//! passes remove, share, move and join operations. Joined operations add and multiply in the order
//! of the single operations, so every bit stays the same, except for the sign of a zero. For this
//! reason, a version does not need to store which passes were on in training.
//!
//! To add a pass, add a file here, a line in [`PASSES`], and a test of the printed graph before and
//! after the pass. Another test checks that every model computes the same results with each pass on
//! and off. This test includes new passes automatically.

mod algebra;
mod common_subexpressions;
mod constant_folding;
mod dead_code;
mod epilogues;
mod fake_quantize;
mod ir;
mod running_sums;
mod shared_columns;
#[cfg(test)]
mod tests;

// The files of the passes import these names with `use super::*`.
use std::fmt;

use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::NodeId;
pub use fake_quantize::fake_quantize;
pub(crate) use ir::Ir;
use ir::Rewrite;
pub(crate) use shared_columns::run as share_columns;

/// A pass over a graph, with its name and purpose.
struct Pass {
    name: &'static str,
    what: &'static str,
    /// The function that rewrites a graph. `None` for a pass that changes only the plan of the
    /// buffers.
    run: Option<fn(&Ir) -> Result<Ir>>,
}

/// All passes, in the order in which they run.
const PASSES: [Pass; 7] = [
    Pass {
        name: "dead_code",
        what: "removes nodes that no result needs",
        run: Some(dead_code::run),
    },
    Pass {
        name: "common_subexpressions",
        what: "computes equal operations on the same inputs once",
        run: Some(common_subexpressions::run),
    },
    Pass {
        name: "constant_folding",
        what: "computes operations that depend on no batch and no parameter before the run",
        run: Some(constant_folding::run),
    },
    Pass {
        name: "algebra",
        what: "removes operations that change nothing or that another operation can replace",
        run: Some(algebra::run),
    },
    Pass {
        name: "running_sums",
        what: "adds each term of a sum as soon as it is computed",
        run: Some(running_sums::run),
    },
    Pass {
        name: "epilogues",
        what: "joins element-wise operations to the operation that computes their rows",
        run: Some(epilogues::run),
    },
    Pass {
        name: "in_place",
        what: "computes a node in the buffer of an operand that is not read again",
        run: None,
    },
];

/// The set of the passes that are applied to the graph of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passes {
    off: u32,
}

/// The graph after one pass.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The name of the pass; `None` for the first stage.
    pub pass: Option<&'static str>,
    /// The graph after the pass.
    pub graph: Graph,
}

impl Passes {
    /// The set of all passes.
    pub const ALL: Self = Self { off: 0 };
    /// The empty set of passes.
    pub const NONE: Self = Self { off: (1 << PASSES.len()) - 1 };

    /// Returns the name and the purpose of each pass, in the order in which they run.
    pub fn known() -> impl ExactSizeIterator<Item = (&'static str, &'static str)> {
        PASSES.iter().map(|pass| (pass.name, pass.what))
    }

    /// Returns the set of all passes except the named ones. The name `all` means every pass.
    ///
    /// # Errors
    /// Returns an error if a name belongs to no pass. The error suggests the nearest valid name.
    pub fn without<S: AsRef<str>>(names: &[S]) -> Result<Self> {
        let mut passes = Self::ALL;
        for name in names {
            passes = passes.off(name.as_ref())?;
        }
        Ok(passes)
    }

    /// Returns this set without the named pass. The name `all` means every pass.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`Passes::without`].
    pub fn off(self, name: &str) -> Result<Self> {
        if name == "all" {
            return Ok(Self::NONE);
        }
        match PASSES.iter().position(|pass| pass.name == name) {
            Some(index) => Ok(Self { off: self.off | 1 << index }),
            None => {
                let near = zillion_config::nearest(name, PASSES.iter().map(|pass| pass.name));
                let hint =
                    near.map_or_else(String::new, |near| format!(", did you mean {near:?}?"));
                let names: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
                Err(Error::Setting {
                    name: "passes_off",
                    reason: format!(
                        "unknown pass {name:?}{hint} (known: {}, and \"all\" for every pass)",
                        names.join(", ")
                    ),
                })
            }
        }
    }

    /// Returns whether the set contains the pass with this name.
    pub fn has(self, name: &str) -> bool {
        PASSES.iter().position(|pass| pass.name == name).is_some_and(|i| self.off & 1 << i == 0)
    }

    /// Runs the passes of the set that rewrite graphs, and calls `each` with the graph after each
    /// of them.
    pub(crate) fn run(self, mut ir: Ir, mut each: impl FnMut(&'static str, &Ir)) -> Result<Ir> {
        for pass in PASSES.iter().filter(|pass| self.has(pass.name)) {
            if let Some(run) = pass.run {
                ir = run(&ir)?;
                each(pass.name, &ir);
            }
        }
        Ok(ir)
    }
}

impl fmt::Display for Passes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            PASSES.iter().map(|pass| pass.name).filter(|name| self.has(name)).collect();
        f.write_str(&names.join(", "))
    }
}
