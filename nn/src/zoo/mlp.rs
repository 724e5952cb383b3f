//! The MLP block all deep models share.

use super::activation::Activation;
use crate::error::Result;
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;

/// Hidden layers: linear, batch norm, activation, dropout, in this order (FuxiCTR's `MLP_Block`).
pub(super) struct Mlp<'a> {
    pub(super) name: &'a str,
    pub(super) hidden: &'a [usize],
    pub(super) activation: Activation,
    pub(super) batch_norm: bool,
    pub(super) dropout: f32,
}

impl Mlp<'_> {
    /// The last hidden layer's units, or `x` itself where there are none.
    pub(super) fn build(&self, b: &mut GraphBuilder, mut x: NodeId) -> Result<NodeId> {
        for (index, &width) in self.hidden.iter().enumerate() {
            let layer = format!("{}.{index}", self.name);
            x = b.linear(&layer, x, width)?;
            if self.batch_norm {
                x = b.batch_norm(&format!("{layer}.norm"), x)?;
            }
            x = self.activation.apply(b, &layer, x)?;
            x = b.dropout(&format!("{layer}.dropout"), x, self.dropout)?;
        }
        Ok(x)
    }
}
