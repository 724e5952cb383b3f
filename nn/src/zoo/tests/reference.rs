//! A second definition of the models, for tests. It computes in f64, row by row. It has only the
//! names of the parameters in common with the graph.

use std::collections::BTreeMap;

use zillion_feature::Pooling;

use super::batch::TestBatch;
use crate::params::Params;
use crate::zoo::{
    Activation, DeepFmSpec, DinSpec, Interaction, ModelSpec, Structure, WideDeepSpec,
};

pub(super) type Matrix = Vec<Vec<f64>>;

pub(super) struct Reference<'a> {
    pub(super) batch: &'a TestBatch,
    /// The floats of the table's rows.
    pub(super) table: Vec<f64>,
    /// The number of columns and the floats of each parameter.
    pub(super) params: BTreeMap<String, (usize, Vec<f64>)>,
    /// Whether batch norm uses the statistics of the batch.
    pub(super) train: bool,
}

impl<'a> Reference<'a> {
    pub(super) fn new(batch: &'a TestBatch, params: &Params, train: bool) -> Self {
        let wide = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect();
        let param = |(spec, values): (&crate::graph::ParamSpec, &[f32])| {
            (spec.name.clone(), (spec.cols, wide(values)))
        };
        let params = params.iter().map(param).collect();
        Self { batch, table: wide(&batch.table), params, train }
    }

    /// Returns the weighted mean of the losses of the rows.
    pub(super) fn loss(&self, spec: &ModelSpec) -> f64 {
        let (mut sum, mut total) = (0.0, 0.0);
        let rows = self.logits(spec).into_iter().zip(&self.batch.labels).zip(&self.batch.weight);
        for ((logit, &label), &weight) in rows {
            let probability = 1.0 / (1.0 + (-logit).exp());
            let likelihood = if label == 1.0 { probability } else { 1.0 - probability };
            sum -= f64::from(weight) * likelihood.ln();
            total += f64::from(weight);
        }
        sum / total
    }

    pub(super) fn logits(&self, spec: &ModelSpec) -> Vec<f64> {
        match spec {
            ModelSpec::Lr(_) => self.wide(),
            ModelSpec::Fm(_) => add(self.wide(), self.pairs(&self.vectors())),
            ModelSpec::Dnn(s) => {
                let x = self.mlp("mlp", s.hidden.len(), s.mlp.activation, self.deep());
                one(self.linear("output", &x))
            }
            ModelSpec::WideDeep(WideDeepSpec(s)) => {
                let x = self.mlp("mlp", s.hidden.len(), s.mlp.activation, self.deep());
                add(self.wide(), one(self.linear("output", &x)))
            }
            ModelSpec::DeepFm(DeepFmSpec(s)) => {
                let x = self.mlp("mlp", s.hidden.len(), s.mlp.activation, self.deep());
                add(add(self.wide(), self.pairs(&self.vectors())), one(self.linear("output", &x)))
            }
            ModelSpec::Dcn(s) => {
                let x0 = self.deep();
                let mut x = x0.clone();
                for layer in 0..s.cross_layers {
                    let (_, w) = &self.params[&format!("cross.{layer}.weight")];
                    let (_, b) = &self.params[&format!("cross.{layer}.bias")];
                    x = map(&x, |row, x| {
                        let dot: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                        (0..x.len()).map(|i| x0[row][i] * dot + b[i] + x[i]).collect()
                    });
                }
                self.crossed(s.structure, s.hidden.len(), s.mlp.activation, x0, x)
            }
            ModelSpec::Dcnv2(s) => {
                let x0 = self.deep();
                let mut x = x0.clone();
                for layer in 0..s.cross_layers {
                    let name = |part: &str| format!("cross.{layer}.{part}");
                    let projected = match s.low_rank {
                        None => self.linear(&name("projected"), &x),
                        Some(_) => {
                            self.linear(&name("projected"), &self.linear(&name("narrow"), &x))
                        }
                    };
                    x = map(&x, |row, x| {
                        (0..x.len()).map(|i| x0[row][i] * projected[row][i] + x[i]).collect()
                    });
                }
                self.crossed(s.structure, s.hidden.len(), s.mlp.activation, x0, x)
            }
            ModelSpec::Dlrm(s) => {
                let mut fields = self.vectors();
                let mut bottom = None;
                if !self.batch.numeric.is_empty() {
                    let hidden = s.bottom.as_ref().map_or(3, |layers| layers.len() - 1);
                    let x = self.mlp("bottom", hidden, s.mlp.activation, self.numeric());
                    let name = format!("bottom.{hidden}");
                    let x = self.activate(s.mlp.activation, &name, &self.linear(&name, &x));
                    fields.insert(0, x.clone());
                    bottom = Some(x);
                }
                let x = match s.interaction {
                    Interaction::Cat => join(&fields, self.batch.rows),
                    Interaction::Dot => (0..self.batch.rows)
                        .map(|row| {
                            let mut x = bottom.as_ref().map_or(Vec::new(), |b| b[row].clone());
                            for i in 0..fields.len() {
                                for j in 0..i {
                                    let pair = fields[i][row].iter().zip(&fields[j][row]);
                                    x.push(pair.map(|(a, b)| a * b).sum());
                                }
                            }
                            x
                        })
                        .collect(),
                };
                let x = self.mlp("mlp", s.hidden.len(), s.mlp.activation, x);
                one(self.linear("output", &x))
            }
            ModelSpec::Din(s) => {
                let named = |name: &str| {
                    self.batch.model.columns.iter().position(|c| c.name == name).unwrap()
                };
                let vectors = self.vectors();
                let mut parts = Vec::new();
                for (column, vector) in vectors.iter().enumerate() {
                    let pairs = s.attention.iter().filter(|pair| named(&pair.history) == column);
                    let attended: Vec<Matrix> = pairs
                        .map(|pair| {
                            let name = format!("attention.{}.{}", pair.query, pair.history);
                            self.attend(s, &name, &vectors[named(&pair.query)], column)
                        })
                        .collect();
                    let pooled = attended.is_empty().then(|| vector.clone());
                    parts.extend(pooled);
                    parts.extend(attended);
                }
                let fm = s.fm.then(|| self.pairs(&parts));
                parts.push(self.numeric());
                let x = join(&parts, self.batch.rows);
                let x = self.mlp("mlp", s.hidden.len(), s.mlp.activation, x);
                let mut logit = one(self.linear("output", &x));
                if let Some(fm) = fm {
                    logit = add(logit, fm);
                }
                if s.wide { add(self.wide(), logit) } else { logit }
            }
            ModelSpec::Graph(_) => unreachable!("graphs have tests of their own"),
            several => unreachable!("{} has several: see `tasks`", several.kind()),
        }
    }

    /// Returns, for each row, the sum of the items of its list. Each item is multiplied by its
    /// attention weight.
    fn attend(&self, s: &DinSpec, name: &str, query: &Matrix, column: usize) -> Matrix {
        let offsets = self.batch.columns[column].offsets.as_ref().unwrap();
        let list = |row: usize| offsets[row] as usize..offsets[row + 1] as usize;
        let items: Matrix = self.batch.columns[column]
            .inverse
            .iter()
            .map(|&unique| {
                let segment = self.batch.model.columns[column].vector.unwrap();
                let start = unique as usize * self.batch.stride + segment.offset;
                self.table[start..start + segment.dim].to_vec()
            })
            .collect();
        let mut x = Vec::new();
        for (row, query) in query.iter().enumerate() {
            for value in list(row) {
                let pairs = || query.iter().zip(&items[value]);
                let mut all = query.clone();
                all.extend(&items[value]);
                all.extend(pairs().map(|(q, k)| q - k));
                all.extend(pairs().map(|(q, k)| q * k));
                x.push(all);
            }
        }
        let x = self.mlp(name, s.attention_hidden.len(), s.attention_activation, x);
        let weights = one(self.linear(&format!("{name}.weight_of"), &x));
        (0..self.batch.rows)
            .map(|row| {
                let total: f64 = list(row).map(|value| weights[value].exp()).sum();
                let mut sum = vec![0.0; query[row].len()];
                for value in list(row) {
                    let weight =
                        if s.softmax { weights[value].exp() / total } else { weights[value] };
                    sum.iter_mut().zip(&items[value]).for_each(|(sum, item)| *sum += weight * item);
                }
                sum
            })
            .collect()
    }

    fn crossed(
        &self,
        structure: Structure,
        hidden: usize,
        activation: Activation,
        x0: Matrix,
        crossed: Matrix,
    ) -> Vec<f64> {
        let x = match structure {
            Structure::Stacked => self.mlp("mlp", hidden, activation, crossed),
            Structure::Parallel => {
                let deep = self.mlp("mlp", hidden, activation, x0);
                join(&[crossed, deep], self.batch.rows)
            }
        };
        one(self.linear("output", &x))
    }

    /// Returns the linear part of each row. It is the sum of the weights of the row's ids, of its
    /// numbers multiplied by their weights, and of the bias if the model has one.
    fn wide(&self) -> Vec<f64> {
        let mut sum = vec![0.0; self.batch.rows];
        for column in 0..self.batch.columns.len() {
            let offset = self.batch.model.columns[column].linear.unwrap();
            sum = add(sum, one(self.gather(column, offset, 1)));
        }
        if !self.batch.numeric.is_empty() {
            sum = add(sum, one(self.linear("wide.numeric", &self.numeric())));
        }
        if let Some((_, bias)) = self.params.get("wide.bias") {
            sum.iter_mut().for_each(|sum| *sum += bias[0]);
        }
        sum
    }

    /// Returns Σ ⟨v, v'⟩ over all pairs of fields, for each row.
    fn pairs(&self, fields: &[Matrix]) -> Vec<f64> {
        let mut sum = vec![0.0; self.batch.rows];
        for (row, sum) in sum.iter_mut().enumerate() {
            for i in 0..fields.len() {
                for j in 0..i {
                    let pair = fields[i][row].iter().zip(&fields[j][row]);
                    *sum += pair.map(|(a, b)| a * b).sum::<f64>();
                }
            }
        }
        sum
    }

    pub(super) fn deep(&self) -> Matrix {
        let mut parts = self.vectors();
        parts.push(self.numeric());
        join(&parts, self.batch.rows)
    }

    fn numeric(&self) -> Matrix {
        let value = |row: usize| move |column: &Vec<f32>| f64::from(column[row]);
        (0..self.batch.rows)
            .map(|row| self.batch.numeric.iter().map(value(row)).collect())
            .collect()
    }

    fn vectors(&self) -> Vec<Matrix> {
        let segment = |column: usize| self.batch.model.columns[column].vector.unwrap();
        let gather = |c: usize| self.gather(c, segment(c).offset, segment(c).dim);
        (0..self.batch.columns.len()).map(gather).collect()
    }

    fn gather(&self, column: usize, offset: usize, dim: usize) -> Matrix {
        let pooling = self.batch.model.columns[column].pooling;
        let column = &self.batch.columns[column];
        let mut result = vec![vec![0.0; dim]; self.batch.rows];
        for (row, result) in result.iter_mut().enumerate() {
            let values = match &column.offsets {
                None => row..row + 1,
                Some(offsets) => offsets[row] as usize..offsets[row + 1] as usize,
            };
            let count = values.len() as f64;
            for unique in &column.inverse[values] {
                let start = *unique as usize * self.batch.stride + offset;
                let vector = &self.table[start..start + dim];
                let scale = if pooling == Pooling::Mean { 1.0 / count } else { 1.0 };
                result.iter_mut().zip(vector).for_each(|(sum, value)| *sum += scale * value);
            }
        }
        result
    }

    pub(super) fn mlp(
        &self,
        name: &str,
        layers: usize,
        activation: Activation,
        mut x: Matrix,
    ) -> Matrix {
        for index in 0..layers {
            let layer = format!("{name}.{index}");
            x = self.linear(&layer, &x);
            x = self.batch_norm(&format!("{layer}.norm"), x);
            x = self.activate(activation, &layer, &x);
        }
        x
    }

    pub(super) fn linear(&self, name: &str, x: &Matrix) -> Matrix {
        let (cols, weight) = &self.params[&format!("{name}.weight")];
        let bias = self.params.get(&format!("{name}.bias"));
        map(x, |_, x| {
            let unit = |unit: usize| {
                let start = bias.map_or(0.0, |(_, bias)| bias[unit]);
                x.iter().enumerate().fold(start, |sum, (i, x)| sum + x * weight[i * cols + unit])
            };
            (0..*cols).map(unit).collect()
        })
    }

    /// Normalises `x` by the batch norm of this name. Returns `x` if the model has no such batch
    /// norm.
    fn batch_norm(&self, name: &str, x: Matrix) -> Matrix {
        let Some((cols, scale)) = self.params.get(&format!("{name}.weight")) else { return x };
        let shift = &self.params[&format!("{name}.bias")].1;
        let (mean, variance) = self.statistics(name, &x);
        map(&x, |_, x| {
            let unit =
                |i: usize| (x[i] - mean[i]) / (variance[i] + 1e-5).sqrt() * scale[i] + shift[i];
            (0..*cols).map(unit).collect()
        })
    }

    /// Returns the mean and the variance of each column. In training, they are computed from the
    /// batch. Otherwise, they are the running statistics.
    fn statistics(&self, name: &str, x: &Matrix) -> (Vec<f64>, Vec<f64>) {
        let get = |part: &str| self.params[&format!("{name}.{part}")].1.clone();
        let (mut mean, mut variance) = (get("running_mean"), get("running_var"));
        if self.train {
            let rows = x.len() as f64;
            for col in 0..mean.len() {
                mean[col] = x.iter().map(|x| x[col]).sum::<f64>() / rows;
                let square = |x: &Vec<f64>| (x[col] - mean[col]).powi(2);
                variance[col] = x.iter().map(square).sum::<f64>() / rows;
            }
        }
        (mean, variance)
    }

    fn activate(&self, activation: Activation, layer: &str, x: &Matrix) -> Matrix {
        let slopes = self.params.get(&format!("{layer}.prelu.weight"));
        let dice = self.params.get(&format!("{layer}.dice.weight"));
        let normal = dice.map(|_| {
            let (mean, variance) = self.statistics(&format!("{layer}.dice.norm"), x);
            move |col: usize, x: f64| (x - mean[col]) / (variance[col] + 1e-5).sqrt()
        });
        let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
        let function = |col: usize, x: f64| match activation {
            Activation::Relu => x.max(0.0),
            Activation::LeakyRelu => x.max(0.01 * x),
            Activation::Prelu => {
                if x > 0.0 {
                    x
                } else {
                    slopes.unwrap().1[col] * x
                }
            }
            Activation::Sigmoid => logistic(x),
            Activation::Tanh => x.tanh(),
            Activation::Gelu => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }
            Activation::Silu => x * logistic(x),
            Activation::Dice => {
                let share = logistic(normal.as_ref().unwrap()(col, x));
                (share + (1.0 - share) * dice.unwrap().1[col]) * x
            }
        };
        map(x, |_, x| x.iter().enumerate().map(|(col, &x)| function(col, x)).collect())
    }
}

pub(super) fn map(x: &Matrix, f: impl Fn(usize, &[f64]) -> Vec<f64>) -> Matrix {
    x.iter().enumerate().map(|(row, x)| f(row, x)).collect()
}

fn join(parts: &[Matrix], rows: usize) -> Matrix {
    (0..rows).map(|row| parts.iter().flat_map(|part| part[row].clone()).collect()).collect()
}

pub(super) fn one(x: Matrix) -> Vec<f64> {
    x.into_iter().map(|x| x[0]).collect()
}

fn add(a: Vec<f64>, b: Vec<f64>) -> Vec<f64> {
    a.into_iter().zip(b).map(|(a, b)| a + b).collect()
}
