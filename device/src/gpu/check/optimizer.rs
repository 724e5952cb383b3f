//! The dense optimizers against their definitions (`nn/src/optim`), by bits.

use super::super::kernels::{
    CHOOSE_RULES, ChooseRules, DENSE_AVERAGE, DENSE_SQUARES, DENSE_UPDATE, DensePiece, DenseRule,
    DenseUpdate, Geometry, LAMB_SQUARES, LAMB_WEIGHTS,
};
use super::super::{Gpu, GpuError};
use super::session::{Random, Session, Values};
use super::{Outcome, Size};

/// The number of floats of a piece.
const PIECE: usize = 16 * 1024;

/// A parameter with its state and its gradient.
struct Parameter {
    weights: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    gradient: Vec<f32>,
}

impl Parameter {
    fn new(random: &mut Random, n: usize) -> Self {
        let positive = |mut values: Vec<f32>| {
            values.iter_mut().for_each(|x| *x = x.abs());
            values
        };
        let mut weights = random.floats(n, Values::Plain);
        weights.iter_mut().step_by(7).for_each(|w| *w = 0.0);
        let [first, second] = [(); 2].map(|()| positive(random.floats(n, Values::Plain)));
        Self { weights, first, second, gradient: random.floats(n, Values::Plain) }
    }
}

fn direction(rule: &DenseRule, w: f32, m: f32, v: f32) -> f32 {
    let denominator = v.sqrt() / rule.d + rule.eps;
    rule.correction1 * m / denominator + rule.weight_decay * w
}

/// Updates one element, without the weights of LAMB.
fn update(rule: &DenseRule, g: f32, w: &mut f32, first: &mut f32, second: &mut f32) {
    match rule.kind {
        DenseRule::SGD => *w -= rule.rate * g,
        DenseRule::MOMENTUM => {
            *first = rule.a * *first + g;
            *w -= rule.rate * if rule.b == 1.0 { g + rule.a * *first } else { *first };
        }
        DenseRule::ADAGRAD => {
            *first += g * g;
            *w -= rule.rate * g / (first.sqrt() + rule.eps);
        }
        DenseRule::FTRL => {
            let l1 = rule.c;
            let root = second.sqrt();
            *second += g * g;
            let next_root = second.sqrt();
            let curvature = (rule.b + root) * rule.a + rule.d;
            let implied = -(*w * curvature + l1.copysign(*w));
            let before = if *w == 0.0 { *first } else { implied };
            let after = before + (g - (next_root - root) * rule.a * *w);
            let next_curvature = (rule.b + next_root) * rule.a + rule.d;
            let shrunk = (l1.copysign(after) - after) / next_curvature;
            *first = after;
            *w = if after.abs() <= l1 { 0.0 } else { shrunk };
        }
        _ => {
            *first += rule.b * (g - *first);
            *second = rule.a * *second + rule.c * (g * g);
            if rule.kind == DenseRule::ADAM {
                let denominator = second.sqrt() / rule.d + rule.eps;
                *w = *w * rule.kept - rule.rate * *first / denominator;
            }
        }
    }
}

/// Returns the sum of squares in sixteen interleaved sums of type f64.
fn squares(values: impl Iterator<Item = f32>) -> f64 {
    let mut lanes = [0.0f64; 16];
    values.enumerate().for_each(|(i, x)| lanes[i % 16] += f64::from(x) * f64::from(x));
    lanes.iter().sum()
}

/// Uploads parameters in pieces. Returns the parameters of the launch, and the addresses of the
/// weights and the states.
fn upload(
    session: &Session<'_>,
    parameters: &[Parameter],
) -> Result<(DenseUpdate, Vec<[u64; 3]>), GpuError> {
    let (mut pieces, mut addresses) = (Vec::new(), Vec::new());
    for (rule, parameter) in parameters.iter().enumerate() {
        let weights = session.upload(&parameter.weights)?;
        let first = session.upload(&parameter.first)?;
        let second = session.upload(&parameter.second)?;
        let gradient = session.upload(&parameter.gradient)?;
        addresses.push([weights, first, second]);
        for begin in (0..parameter.weights.len()).step_by(PIECE) {
            let skip = 4 * begin as u64;
            pieces.push(DensePiece {
                weights: weights + skip,
                first: first + skip,
                second: second + skip,
                gradient: gradient + skip,
                n: PIECE.min(parameter.weights.len() - begin) as u32,
                rule: rule as u32,
            });
        }
    }
    let update = DenseUpdate {
        pieces: session.upload(&pieces)?,
        piece_count: pieces.len() as u32,
        sums: session.poisoned::<f64>(2 * pieces.len())?.address(),
        ..DenseUpdate::default()
    };
    Ok((update, addresses))
}

/// Lets the device choose the rules of a step among others, and returns their address.
fn choose(session: &mut Session<'_>, name: &str, rules: &[DenseRule]) -> Result<u64, GpuError> {
    let mut choices = vec![DenseRule::default(); 4 * rules.len()];
    choices[2 * rules.len()..3 * rules.len()].copy_from_slice(rules);
    let chosen = session.poisoned::<DenseRule>(rules.len())?.address();
    let parameters = ChooseRules {
        choices: session.upload(&choices)?,
        rules: chosen,
        skips: session.upload(&[9u32])?,
        known: session.upload(&[7u32])?,
        n: rules.len() as u32,
        most: 4,
    };
    session.launch(&CHOOSE_RULES, Geometry::columns(parameters.n), &parameters)?;
    let got: Vec<DenseRule> = session.download(chosen, rules.len())?;
    session.compare_words(&format!("chosen, {name}"), &got, rules)?;
    Ok(chosen)
}

/// Compares all rules, the norms and the averages.
pub(super) fn dense(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("dense_update", gpu)?;
    let mut random = Random(81);
    let lengths: &[usize] = match size {
        Size::Small => &[700, 1, PIECE + 33],
        Size::Full => &[429 * 400, 400, 400 * 400, 1, 3344 * 400],
    };
    let (l2, scale, share) = (1e-3f32, 0.75f32, 0.05f32);
    for kind in 0..=DenseRule::FTRL {
        let name = format!("rule {kind}");
        let mut parameters: Vec<Parameter> =
            lengths.iter().map(|&n| Parameter::new(&mut random, n)).collect();
        let rules: Vec<DenseRule> = (0..lengths.len())
            .map(|index| {
                let (a, b, c, d) = match kind {
                    DenseRule::MOMENTUM => (0.9, (index % 2) as f32, 0.0, 0.0),
                    DenseRule::FTRL => (20.0, 1.0, 0.01, 0.1),
                    _ => (0.999, 0.1, 0.001, 0.044_7),
                };
                let rate = 0.01 * (index + 1) as f32;
                let (eps, kept, correction1, weight_decay) = (1e-8, 0.9999, 1.25, 0.01);
                let lamb_rate = f64::from(rate);
                DenseRule {
                    kind,
                    rate,
                    eps,
                    kept,
                    a,
                    b,
                    c,
                    d,
                    correction1,
                    weight_decay,
                    lamb_rate,
                }
            })
            .collect();
        let (mut launch, addresses) = upload(&session, &parameters)?;
        launch.rules = choose(&mut session, &name, &rules)?;
        launch.scale = session.upload(&[scale])?;
        launch.skip = session.upload(&[0u32])?;
        launch.share = session.upload(&[share])?;
        launch.l2 = l2;
        session.launch(&DENSE_SQUARES, launch.pieces(), &launch)?;
        let expected: Vec<f64> = parameters
            .iter()
            .flat_map(|p| p.weights.chunks(PIECE).zip(p.gradient.chunks(PIECE)))
            .map(|(w, g)| squares(w.iter().zip(g).map(|(&w, &g)| g + l2 * w)))
            .collect();
        let got: Vec<f64> = session.download(launch.sums, expected.len())?;
        session.compare_words(&format!("squares, {name}"), &got, &expected)?;
        session.launch(&DENSE_UPDATE, launch.elements(), &launch)?;
        for (parameter, rule) in parameters.iter_mut().zip(&rules) {
            let Parameter { weights, first, second, gradient } = parameter;
            for i in 0..weights.len() {
                let g = (gradient[i] + l2 * weights[i]) * scale;
                update(rule, g, &mut weights[i], &mut first[i], &mut second[i]);
            }
        }
        if kind == DenseRule::LAMB {
            session.launch(&LAMB_SQUARES, launch.pieces(), &launch)?;
            session.launch(&LAMB_WEIGHTS, launch.elements(), &launch)?;
            for (parameter, rule) in parameters.iter_mut().zip(&rules) {
                let (mut of_weights, mut of_direction) = (0.0f64, 0.0f64);
                let Parameter { weights, first, second, .. } = parameter;
                for begin in (0..weights.len()).step_by(PIECE) {
                    let range = begin..weights.len().min(begin + PIECE);
                    of_weights += squares(weights[range.clone()].iter().copied());
                    of_direction +=
                        squares(range.map(|i| direction(rule, weights[i], first[i], second[i])));
                }
                let is_moving = of_weights > 0.0 && of_direction > 0.0;
                let trust = if is_moving { (of_weights / of_direction).sqrt() } else { 1.0 };
                let step_size = (rule.lamb_rate * trust) as f32;
                for i in 0..weights.len() {
                    weights[i] -= step_size * direction(rule, weights[i], first[i], second[i]);
                }
            }
        }
        for (parameter, [weights, first, second]) in parameters.iter().zip(&addresses) {
            let Parameter { weights: w, first: f, second: s, .. } = parameter;
            for (what, at, expected) in
                [("weights", weights, w), ("first", first, f), ("second", second, s)]
            {
                let got = session.download(*at, expected.len())?;
                session.compare(&format!("{what}, {name}"), &got, expected)?;
            }
        }
        session.launch(&DENSE_AVERAGE, launch.elements(), &launch)?;
        for (parameter, [_, first, _]) in parameters.iter().zip(&addresses) {
            let average = |(&a, &w): (&f32, &f32)| a + share * (w - a);
            let expected: Vec<f32> =
                parameter.first.iter().zip(&parameter.weights).map(average).collect();
            let got = session.download(*first, expected.len())?;
            session.compare(&format!("average, {name}"), &got, &expected)?;
        }
        session.end_case(&name)?;
    }
    session.finish()
}
