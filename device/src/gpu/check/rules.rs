//! The rules of the row optimizers as `embedding/src/optimizer` has them, in their plainest form:
//! the reference of the kernels.

use super::super::kernels::RowRule;

/// Returns the sum of squares of the row optimizers.
fn sum_of_squares(values: impl Iterator<Item = f32>) -> f32 {
    let mut lanes = [0.0f32; 8];
    values.enumerate().for_each(|(i, x)| lanes[i % 8] += x * x);
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Applies a rule to one row, as `embedding/src/optimizer` does.
pub(super) fn apply(rule: &RowRule, scale: f32, row: &mut [f32], raw: &[f32]) {
    let dim = (rule.end - rule.begin) as usize;
    let begin = rule.begin as usize;
    let raw = &raw[begin..begin + dim];
    let (weights, rest) = row.split_at_mut(begin + dim);
    let weights = &mut weights[begin..];
    let state = &mut rest[rule.state as usize - begin - dim..];
    let hold = |x: f32, low: f32, high: f32| {
        let raised = if x < low { low } else { x };
        if raised > high { high } else { raised }
    };
    let shaped = |i: usize, w: f32| {
        let g = (raw[i] + rule.l2 * w) * scale;
        if rule.guarded == 1 { hold(g, -rule.clip_value, rule.clip_value) } else { g }
    };
    let mut clip = 1.0;
    if rule.guarded == 1 && rule.clip_norm < f32::INFINITY {
        let mut lanes = [0.0f64; 8];
        for i in 0..dim {
            let x = f64::from(shaped(i, weights[i]));
            lanes[i % 8] += x * x;
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        let length = (((a + e) + (c + g)) + ((b + f) + (d + h))).sqrt();
        let norm = f64::from(rule.clip_norm);
        clip = if length > norm { (norm / length) as f32 } else { 1.0 };
    }
    let gradient =
        |i: usize, w: f32| if rule.guarded == 1 { shaped(i, w) * clip } else { shaped(i, w) };
    let l1 = rule.c;
    let curvature = |root: f32| (rule.b + root) * rule.a + rule.d;
    match rule.kind {
        RowRule::ROWWISE_ADAGRAD => {
            let squares = sum_of_squares((0..dim).map(|i| gradient(i, weights[i])));
            state[0] += squares / dim as f32;
            let step = rule.lr / (state[0].sqrt() + rule.eps);
            for (i, w) in weights.iter_mut().enumerate() {
                *w -= step * gradient(i, *w);
            }
        }
        RowRule::GROUP_FTRL => {
            let threshold = rule.l21 * (dim as f32).sqrt();
            let soft = |z: f32| if z.abs() <= l1 { 0.0 } else { z - l1.copysign(z) };
            let (z, n) = state.split_at_mut(dim);
            let of_weights = (0..dim).map(|i| weights[i] * curvature(n[i].sqrt()));
            let length = sum_of_squares(of_weights).sqrt();
            let grown = if length > 0.0 { 1.0 + threshold / length } else { 1.0 };
            for i in 0..dim {
                let w = weights[i];
                let g = gradient(i, w);
                let root = n[i].sqrt();
                n[i] += g * g;
                let implied = -(w * curvature(root) * grown + l1.copysign(w));
                let before = if w == 0.0 { z[i] } else { implied };
                z[i] = before + (g - (n[i].sqrt() - root) * rule.a * w);
            }
            let length = sum_of_squares((0..dim).map(|i| soft(z[i]))).sqrt();
            let kept = if length > threshold { 1.0 - threshold / length } else { 0.0 };
            for i in 0..dim {
                let s = soft(z[i]);
                let is_zero = kept == 0.0 || s == 0.0;
                weights[i] = if is_zero { 0.0 } else { -(kept * s) / curvature(n[i].sqrt()) };
            }
        }
        _ => {
            for (i, w) in weights.iter_mut().enumerate() {
                let g = gradient(i, *w);
                apply_to_element(rule, dim, i, g, w, state);
            }
        }
    }
    if rule.guarded == 1 {
        weights.iter_mut().for_each(|w| *w = hold(*w, rule.low, rule.high));
    }
}

/// Applies a rule without sums to one weight, whose gradient is `g`.
fn apply_to_element(rule: &RowRule, dim: usize, i: usize, g: f32, w: &mut f32, state: &mut [f32]) {
    let l1 = rule.c;
    let curvature = |root: f32| (rule.b + root) * rule.a + rule.d;
    match rule.kind {
        RowRule::SGD => *w -= rule.lr * g,
        RowRule::MOMENTUM => {
            state[i] = rule.a * state[i] + g;
            let step = if rule.b == 1.0 { g + rule.a * state[i] } else { state[i] };
            *w -= rule.lr * step;
        }
        RowRule::ADAGRAD => {
            state[i] += g * g;
            *w -= rule.lr * g / (state[i].sqrt() + rule.eps);
        }
        RowRule::ADAM => {
            state[i] += rule.b * (g - state[i]);
            state[dim + i] = rule.a * state[dim + i] + rule.c * (g * g);
            let denominator = state[dim + i].sqrt() / rule.d + rule.eps;
            *w -= rule.lr * (state[i] / denominator);
        }
        _ => {
            let root = state[dim + i].sqrt();
            state[dim + i] += g * g;
            let next_root = state[dim + i].sqrt();
            let implied = -(*w * curvature(root) + l1.copysign(*w));
            let before = if *w == 0.0 { state[i] } else { implied };
            let after = before + (g - (next_root - root) * rule.a * *w);
            let shrunk = (l1.copysign(after) - after) / curvature(next_root);
            state[i] = after;
            *w = if after.abs() <= l1 { 0.0 } else { shrunk };
        }
    }
}
