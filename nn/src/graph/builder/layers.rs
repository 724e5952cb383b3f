//! The layers of the builder that have parameters.

use super::{GraphBuilder, Mode};
use crate::error::Result;
use crate::graph::ParamInit;
use crate::graph::op::Op;
use crate::graph::shape::NodeId;

/// The number that batch norm and layer norm add to the variance, which is the default of torch.
pub const NORM_EPS: f32 = 1e-5;
/// The share of a batch's statistics in the next running statistics of batch norm, which is the
/// default of torch.
pub const NORM_MOMENTUM: f32 = 0.1;

impl GraphBuilder {
    /// Adds `x·W + b`. `W [in, out]` has Xavier normal initial values (see
    /// [`Self::set_linear_init`]), and `b` is initially zero.
    pub fn linear(&mut self, name: &str, x: NodeId, out: usize) -> Result<NodeId> {
        let weight = self.weight_of(name, x, out)?;
        let zero = ParamInit::Constant { value: 0.0 };
        let (_, bias) = self.param(&format!("{name}.bias"), (1, out), zero, true)?;
        self.push(name, Op::Linear, &[x, weight, bias])
    }

    /// Adds `x·W` without a bias.
    pub fn linear_no_bias(&mut self, name: &str, x: NodeId, out: usize) -> Result<NodeId> {
        let weight = self.weight_of(name, x, out)?;
        self.push(name, Op::Linear, &[x, weight])
    }

    /// Adds `x·w`, where `w [in, out]` is initially zero, as the weights of a linear model are.
    /// With one output per layer, Xavier normal weights would be as large as the numbers
    /// themselves: the first scores would be noise, which a small rate takes hundreds of steps to
    /// remove.
    pub fn linear_from_zero(&mut self, name: &str, x: NodeId, out: usize) -> Result<NodeId> {
        let zero = ParamInit::Constant { value: 0.0 };
        let shape = (self.cols(x), out);
        let (_, weight) = self.param(&format!("{name}.weight"), shape, zero, true)?;
        self.push(name, Op::Linear, &[x, weight])
    }

    fn weight_of(&mut self, name: &str, x: NodeId, out: usize) -> Result<NodeId> {
        let shape = (self.cols(x), out);
        let (_, weight) = self.param(&format!("{name}.weight"), shape, self.linear_init, true)?;
        Ok(weight)
    }

    /// Adds `x + b`, where `b [1, n]` is initially zero.
    pub fn bias(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let shape = (1, self.cols(x));
        let zero = ParamInit::Constant { value: 0.0 };
        let (_, bias) = self.param(&format!("{name}.bias"), shape, zero, true)?;
        self.add(name, x, bias)
    }

    /// Adds batch norm over the rows (Ioffe & Szegedy 2015), with torch's constants. Training
    /// normalises by the mean and the biased variance of the batch. It updates the running
    /// statistics with the mean and the unbiased variance.
    pub fn batch_norm(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let (scale, shift) = self.scale_and_shift(name, self.cols(x))?;
        self.normalised(name, x, scale, shift)
    }

    /// Adds batch norm with the given nodes for scale and shift.
    fn normalised(
        &mut self,
        name: &str,
        x: NodeId,
        scale: NodeId,
        shift: NodeId,
    ) -> Result<NodeId> {
        let n = self.cols(x);
        let zero = ParamInit::Constant { value: 0.0 };
        let one = ParamInit::Constant { value: 1.0 };
        let mean_name = format!("{name}.running_mean");
        let var_name = format!("{name}.running_var");
        let (mean_param, mean) = self.param(&mean_name, (1, n), zero, false)?;
        let (var_param, var) = self.param(&var_name, (1, n), one, false)?;
        let stats_name = format!("{name}.stats");
        let stats = match self.mode {
            Mode::Infer => self.concat(&stats_name, &[mean, var])?,
            Mode::Train => {
                let stats = self.push(&stats_name, Op::BatchNormStats, &[x])?;
                for (param, running, variance) in
                    [(mean_param, mean, false), (var_param, var, true)]
                {
                    let next = format!("{}.next", if variance { &var_name } else { &mean_name });
                    let op = Op::BatchNormRunning { momentum: NORM_MOMENTUM, variance };
                    let next = self.push(&next, op, &[running, stats])?;
                    self.graph.updates.push((param, next));
                }
                stats
            }
        };
        self.push(name, Op::BatchNorm { eps: NORM_EPS }, &[x, stats, scale, shift])
    }

    /// Adds layer norm over the columns (Ba, Kiros & Hinton 2016).
    pub fn layer_norm(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let (scale, shift) = self.scale_and_shift(name, self.cols(x))?;
        self.push(name, Op::LayerNorm { eps: NORM_EPS }, &[x, scale, shift])
    }

    fn scale_and_shift(&mut self, name: &str, n: usize) -> Result<(NodeId, NodeId)> {
        let one = ParamInit::Constant { value: 1.0 };
        let zero = ParamInit::Constant { value: 0.0 };
        let (_, scale) = self.param(&format!("{name}.weight"), (1, n), one, true)?;
        let (_, shift) = self.param(&format!("{name}.bias"), (1, n), zero, true)?;
        Ok((scale, shift))
    }

    /// Adds `max(x, 0) + a · min(x, 0)`. Each column has one learned `a`, which is initially 0.25
    /// (He et al. 2015).
    pub fn prelu(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let init = ParamInit::Constant { value: 0.25 };
        let (_, slope) = self.param(&format!("{name}.weight"), (1, self.cols(x)), init, true)?;
        let positive = self.relu(&format!("{name}.positive"), x)?;
        let negative = self.sub(&format!("{name}.negative"), x, positive)?;
        self.mul_add(name, negative, slope, positive)
    }

    /// Adds `p · x + (1 − p) · a · x`. Here `p` is the sigmoid of the normalised `x`. The
    /// normalisation is over the rows, without scale and shift. Each column has one learned `a`,
    /// which is initially 0 (Zhou et al. 2018).
    pub fn dice(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let n = self.cols(x);
        let zero = ParamInit::Constant { value: 0.0 };
        let (_, slope) = self.param(&format!("{name}.weight"), (1, n), zero, true)?;
        let one = self.fill(&format!("{name}.one"), 1, n, 1.0)?;
        let none = self.fill(&format!("{name}.none"), 1, n, 0.0)?;
        let normal = self.normalised(&format!("{name}.norm"), x, one, none)?;
        let share = self.sigmoid(&format!("{name}.share"), normal)?;
        let kept = self.mul(&format!("{name}.kept"), x, share)?;
        let rest = self.sub(&format!("{name}.rest"), x, kept)?;
        self.mul_add(name, rest, slope, kept)
    }

    /// Adds a cross layer of DCN: `x0 · (x·w) + b + x` (Wang et al. 2017).
    pub fn cross(&mut self, name: &str, x0: NodeId, x: NodeId) -> Result<NodeId> {
        let weight = self.weight_of(name, x, 1)?;
        let projected = self.matmul(&format!("{name}.projected"), x, weight)?;
        let crossed = self.mul_add(&format!("{name}.crossed"), x0, projected, x)?;
        self.bias(name, crossed)
    }

    /// Adds a cross layer of DCN v2: `x0 ∘ (x·W + b) + x` (Wang et al. 2021).
    pub fn cross_v2(&mut self, name: &str, x0: NodeId, x: NodeId) -> Result<NodeId> {
        let projected = self.linear(&format!("{name}.projected"), x, self.cols(x))?;
        self.mul_add(name, x0, projected, x)
    }

    /// Adds a cross layer of DCN v2 of low rank: `x0 ∘ (x·V·U + b) + x`.
    pub fn cross_v2_low_rank(
        &mut self,
        name: &str,
        x0: NodeId,
        x: NodeId,
        rank: usize,
    ) -> Result<NodeId> {
        let narrow = self.linear_no_bias(&format!("{name}.narrow"), x, rank)?;
        let projected = self.linear(&format!("{name}.projected"), narrow, self.cols(x))?;
        self.mul_add(name, x0, projected, x)
    }
}
