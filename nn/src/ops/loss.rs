//! The weighted sums of the losses of logits against labels, and their gradients.
//!
//! Binary cross-entropy is `max(z, 0) − z·y + ln(1 + e^−|z|)`, which cannot overflow. The focal
//! loss has a weight for each class and a focus on hard examples (Lin et al. 2017, "Focal Loss for
//! Dense Object Detection"). In its formula, `p` is the probability that the model gives to the
//! true label:
//!
//! ```text
//! loss = c · (1 − p)^gamma · (−ln p),   c = positive where the label is 1, negative where it is 0
//! ```
//!
//! Let `s` be the logit for the label 1, and the negative logit for the label 0. Then `−ln p =
//! softplus(−s)` and `1 − p = e^(−softplus(s))`, so no value overflows or loses precision. With a
//! `gamma` of 0, the loss is the cross-entropy weighted by class.
//!
//! A score can also predict a number: by the squared error, by Huber's error, or as the logarithm
//! of the mean of a Poisson distribution ([`Distance`]).

use super::*;
use crate::graph::op::{Distance, Focal};

/// The weighted sums of losses over the batch, and their gradients.
pub(super) struct Loss;

impl OpGroup for Loss {
    fn write_attributes(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match op {
            Op::FocalSum(Focal { gamma, positive, negative })
            | Op::FocalGrad(Focal { gamma, positive, negative }) => {
                write!(f, "[{gamma}, {positive} : {negative}]")
            }
            Op::DistanceSum(distance) | Op::DistanceGrad(distance) => match distance {
                Distance::Squared => write!(f, "[squared]"),
                Distance::Huber { delta } => write!(f, "[huber {delta}]"),
                Distance::Poisson => write!(f, "[poisson]"),
            },
            _ => Ok(()),
        }
    }

    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        let column = |s: &Shape| s.cols == 1 && s.rows == Dim::Batch;
        let scalar = Shape::constant(1, 1);
        if let Op::FocalSum(spec) | Op::FocalGrad(spec) = op {
            let Focal { gamma, positive, negative } = *spec;
            for (name, value) in [("gamma", gamma), ("positive", positive), ("negative", negative)]
            {
                if !(value.is_finite() && value >= 0.0) {
                    return Err(format!("{name} must be 0 or above, found {value}"));
                }
            }
        }
        if let Op::DistanceSum(Distance::Huber { delta })
        | Op::DistanceGrad(Distance::Huber { delta }) = op
            && !(delta.is_finite() && *delta > 0.0)
        {
            return Err(format!("delta must be above 0, found {delta}"));
        }
        match (op, inputs) {
            (Op::BceSum | Op::FocalSum(_) | Op::DistanceSum(_), [_, _, _])
                if inputs.iter().all(column) =>
            {
                Ok(scalar)
            }
            (Op::BceGrad | Op::FocalGrad(_) | Op::DistanceGrad(_), [g, rest @ ..])
                if rest.len() == 3 && *g == scalar && rest.iter().all(column) =>
            {
                Ok(Shape::batch(1))
            }
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) {
        let &[g, z, y, w] = inputs else { return reject(op) };
        match op {
            Op::BceGrad => slopes(tile, [g, z, y, w], out, |z, y| math::sigmoid(z) - y),
            Op::FocalGrad(spec) => slopes(tile, [g, z, y, w], out, |z, y| spec.slope(z, y)),
            Op::DistanceGrad(distance) => {
                slopes(tile, [g, z, y, w], out, |z, y| distance.slope(z, y));
            }
            _ => reject(op),
        }
    }

    fn accumulate(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], partial: &mut Partial<'_>) {
        let &[z, y, w] = inputs else { return reject(op) };
        let sum = match op {
            Op::BceSum => sum_of(tile, [z, y, w], |z, y| {
                z.max(0.0) - z * y + math::ln_1p(math::exp(-z.abs()))
            }),
            Op::FocalSum(spec) => sum_of(tile, [z, y, w], |z, y| spec.loss(z, y)),
            Op::DistanceSum(distance) => sum_of(tile, [z, y, w], |z, y| distance.loss(z, y)),
            _ => return reject(op),
        };
        partial.values[0] = if partial.is_new() { sum } else { partial.values[0] + sum };
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        let &[z, y, w] = node.inputs.as_slice() else { return Err(cx.refuse_gradient(id)) };
        let op = match node.op {
            _ if cx.needs_gradient(y) || cx.needs_gradient(w) => return Err(cx.refuse_gradient(id)),
            Op::BceSum => Op::BceGrad,
            Op::FocalSum(spec) => Op::FocalGrad(spec),
            Op::DistanceSum(distance) => Op::DistanceGrad(distance),
            _ => return Err(cx.refuse_gradient(id)),
        };
        cx.push_gradient(id, z, op, &[g, z, y, w])
    }

    fn flops(_op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        8 * sizes.sizes.rows as u64
    }
}

/// Writes `g · w · slope(z, y)` for each row, or 0 if the weight is 0.
fn slopes(
    tile: &Tile<'_>,
    [g, z, y, w]: [View<'_>; 4],
    out: ViewMut<'_>,
    slope: impl Fn(f32, f32) -> f32,
) {
    let g = g.at(0);
    for i in 0..tile.rows {
        let w = w.at(i);
        out.data[i * out.stride] = if w == 0.0 { 0.0 } else { g * w * slope(z.at(i), y.at(i)) };
    }
}

/// Returns the sum of `w · loss(z, y)` over the rows, computed in f64.
fn sum_of(tile: &Tile<'_>, [z, y, w]: [View<'_>; 3], loss: impl Fn(f32, f32) -> f32) -> f32 {
    let sum: f64 = (0..tile.rows)
        .map(|i| {
            // If the weight of a row is 0, its label may be missing. The value of the label can
            // then be any number.
            let (loss, w) = (loss(z.at(i), y.at(i)), w.at(i));
            if w == 0.0 { 0.0 } else { f64::from(w * loss) }
        })
        .sum();
    sum as f32
}

impl Focal {
    /// Returns three numbers for a logit and its label: the weight of the class, the sign of the
    /// label, and the logit multiplied by this sign.
    #[inline(always)]
    fn class_sign_and_logit(self, z: f32, y: f32) -> (f32, f32, f32) {
        let sign = 2.0 * y - 1.0;
        (y * self.positive + (1.0 - y) * self.negative, sign, sign * z)
    }

    #[inline(always)]
    fn loss(self, z: f32, y: f32) -> f32 {
        let (class, _, s) = self.class_sign_and_logit(z, y);
        class * math::exp(-self.gamma * math::log1p_exp(s)) * math::log1p_exp(-s)
    }

    /// Returns the derivative of the loss, with `q = 1 − p`:
    /// `−c · sign · q^gamma · (gamma · p · (−ln p) + q)`.
    #[inline(always)]
    fn slope(self, z: f32, y: f32) -> f32 {
        let (class, sign, s) = self.class_sign_and_logit(z, y);
        let focus = math::exp(-self.gamma * math::log1p_exp(s));
        let (p, q) = (math::sigmoid(s), math::sigmoid(-s));
        -class * sign * focus * (self.gamma * p * math::log1p_exp(-s) + q)
    }
}

impl Distance {
    #[inline(always)]
    fn loss(self, z: f32, y: f32) -> f32 {
        let apart = z - y;
        match self {
            Self::Squared => apart * apart,
            Self::Huber { delta } if apart.abs() <= delta => 0.5 * apart * apart,
            Self::Huber { delta } => delta * (apart.abs() - 0.5 * delta),
            Self::Poisson => math::exp(z) - y * z,
        }
    }

    #[inline(always)]
    fn slope(self, z: f32, y: f32) -> f32 {
        match self {
            Self::Squared => 2.0 * (z - y),
            Self::Huber { delta } => (z - y).clamp(-delta, delta),
            Self::Poisson => math::exp(z) - y,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the numbers of the paper (section 3.2). With gamma 2, the loss at p = 0.9 is a
    /// hundredth of the cross-entropy, and the loss at p ≈ 0.968 is a thousandth.
    #[test]
    fn easy_examples_count_as_little_as_the_paper_says() {
        let spec = Focal { gamma: 2.0, positive: 1.0, negative: 1.0 };
        for (p, share) in [(0.9f32, 0.01f32), (0.968, 0.001_024), (0.5, 0.25)] {
            let z = (p / (1.0 - p)).ln();
            for (z, y) in [(z, 1.0), (-z, 0.0)] {
                let ratio = spec.loss(z, y) / -p.ln();
                assert!((ratio - share).abs() < 1e-3 * share, "{p} {y}: {ratio}");
            }
        }
    }

    /// Compares losses and slopes with the definition in f64, and checks that large logits do not
    /// overflow.
    #[test]
    fn losses_and_slopes_follow_the_definition() {
        for gamma in [0.0f32, 0.5, 2.0, 5.0] {
            let spec = Focal { gamma, positive: 0.25, negative: 0.75 };
            let loss = |z: f64, y: f64| {
                let p = 1.0 / (1.0 + (-(2.0 * y - 1.0) * z).exp());
                let class = if y == 1.0 { 0.25 } else { 0.75 };
                -class * (1.0 - p).powf(f64::from(gamma)) * p.ln()
            };
            for z in [-7.0f32, -1.5, -0.1, 0.0, 0.3, 2.0, 6.0] {
                for y in [0.0f32, 1.0] {
                    let (at, of) = (f64::from(z), f64::from(y));
                    let slope = (loss(at + 1e-5, of) - loss(at - 1e-5, of)) / 2e-5;
                    let found = [f64::from(spec.loss(z, y)), f64::from(spec.slope(z, y))];
                    for (found, expected) in found.into_iter().zip([loss(at, of), slope]) {
                        let error = (found - expected).abs();
                        assert!(error < 3e-6 * expected.abs().max(1e-2), "{gamma} {z} {y}");
                    }
                }
            }
            for (z, y) in [(1e4f32, 0.0f32), (-1e4, 1.0), (1e4, 1.0), (-1e4, 0.0)] {
                assert!(spec.loss(z, y).is_finite() && spec.slope(z, y).is_finite());
            }
        }
    }
}
