//! The server of the quickstart, and what it answers.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use zillion_bench::server::{Asker, ServerChild, Setup};
use zillion_feature::random::{combine, mix64};
use zillion_nn::metrics::auc;

use super::events::{ITEM, ITEMS, USERS, World};

/// The number of pairs of a user and an item with which the AUC is measured.
const PAIRS: u64 = 3_000;
/// The number of users whose predictions for the popular item are averaged.
const FANS: u64 = 50;

/// A server that follows the registry.
pub(super) struct Follower {
    server: ServerChild,
    body: Bytes,
    pairs: Vec<(u64, u64)>,
}

/// The answer of the server at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) version: u64,
    /// The mean probability of the item that becomes popular.
    pub(super) item: f32,
    /// The AUC of the predictions against labels that the world gives to the pairs.
    pub(super) auc: f64,
}

impl Follower {
    pub(super) fn start(model: &str, registry: &Path, log: &Path) -> Result<Self> {
        let server = ServerChild::start(Setup::new(model, registry, log))?;
        let pair = |number: u64| {
            let draw = mix64(combine(99, number));
            (draw % USERS, (draw >> 32) % ITEMS)
        };
        let of_item = (0..FANS).map(|user| (user, ITEM));
        let others = (0..PAIRS).map(pair).filter(|&(_, item)| item != ITEM);
        let pairs: Vec<(u64, u64)> = of_item.chain(others).collect();
        let input = |name: &str, data: Vec<u64>| {
            serde_json::json!({
                "name": name, "shape": [data.len()], "datatype": "INT64", "data": data
            })
        };
        let body = serde_json::json!({
            "inputs": [
                input("user", pairs.iter().map(|pair| pair.0).collect()),
                input("item", pairs.iter().map(|pair| pair.1).collect()),
            ],
            "outputs": [{ "name": "probabilities" }],
        });
        Ok(Self { server, body: Bytes::from(body.to_string()), pairs })
    }

    pub(super) fn url(&self) -> &str {
        self.server.url()
    }

    /// Asks for the predictions of all pairs.
    pub(super) fn ask(&self, world: &World) -> Result<Answered> {
        let (asker, target) = (Asker::new(self.server.url())?, self.server.target()?);
        let began = Instant::now();
        let body = loop {
            let (status, body) = asker.post(&target, &self.body)?;
            match status {
                200 => break body,
                // The server has no version yet, or is overloaded for a moment.
                503 | 429 if began.elapsed() < Duration::from_secs(30) => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                _ => bail!("the server answered {status}: {}", String::from_utf8_lossy(&body)),
            }
        };
        let answer: serde_json::Value = serde_json::from_slice(&body)?;
        let version = answer["model_version"].as_str().and_then(|version| version.parse().ok());
        let data = answer["outputs"][0]["data"].as_array().context("the answer has no data")?;
        let scores: Vec<f32> =
            data.iter().map(|value| value.as_f64().unwrap_or(f64::NAN) as f32).collect();
        let fans = FANS as usize;
        if scores.len() != self.pairs.len() {
            bail!("the server has answered {} rows of {}", scores.len(), self.pairs.len());
        }
        // The labels are those of the world: they do not change from one question to the next.
        let label = |(number, &(user, item)): (usize, &(u64, u64))| {
            let chance = (mix64(combine(7, number as u64)) >> 11) as f64 / (1u64 << 53) as f64;
            f32::from(u8::from(chance < world.probability(user, item)))
        };
        let labels: Vec<f32> = self.pairs.iter().enumerate().map(label).collect();
        Ok(Answered {
            version: version.context("the answer names no version")?,
            item: scores[..fans].iter().sum::<f32>() / fans as f32,
            auc: auc(&scores[fans..], &labels[fans..], None)?.unwrap_or(0.5),
        })
    }
}
