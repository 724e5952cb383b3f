//! The settings `run.device` and `train.precision`: where the training graph is computed, and with
//! which products.
//!
//! The device is in `[run]` because it changes no byte of the result: with the precision `f32`, a
//! GPU computes what the processor computes. The precision is in `[train]`, because another one
//! changes the result.

use std::fmt;

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;
use zillion_device::gpu;
use zillion_device::matmul::bf16::Instructions;

use super::Job;

/// The device that a job asks for, written as in `"cuda:0"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// The first GPU if it can train the job, else the processor.
    #[default]
    Auto,
    /// The processor, with all threads of the run.
    Cpu,
    /// The GPU with this number. The run ends with an error if the GPU cannot train the job.
    Cuda(u32),
    /// The emulated GPU with this seed, which only builds for tests have.
    Emulated(u64),
}

impl TryFrom<String> for DeviceChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refused =
            || format!("must be \"auto\", \"cpu\", or a GPU such as \"cuda:0\", found {text:?}");
        let (kind, number) = match text.split_once(':') {
            Some((kind, number)) => (kind, Some(number)),
            None => (text.as_str(), None),
        };
        match (kind, number) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            ("cuda", Some(number)) => number.parse().map(Self::Cuda).map_err(|_| refused()),
            ("emulated", number) => {
                number.unwrap_or("0").parse().map(Self::Emulated).map_err(|_| refused())
            }
            _ => Err(refused()),
        }
    }
}

impl From<DeviceChoice> for String {
    fn from(device: DeviceChoice) -> Self {
        device.to_string()
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Emulated(seed) => write!(f, "emulated:{seed}"),
        }
    }
}

/// The number type of the factors of matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Products of f32 in a fixed order of additions, with the same bytes on every device.
    #[default]
    F32,
    /// Products of f32 that are rounded to 10 bits of fraction, on a GPU alone.
    Tf32,
    /// Products of bf16, on a GPU or on processors with instructions for them.
    Bf16,
}

impl Precision {
    /// Returns whether products are exact, which is the default and is not written.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
    pub(crate) fn is_f32(&self) -> bool {
        *self == Self::F32
    }

    /// Returns the name of the precision in a job.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
        }
    }

    /// Returns the precision of the products that the library of a GPU computes; `None` if all
    /// products are exact.
    pub(crate) fn of_library(self) -> Option<gpu::Precision> {
        match self {
            Self::F32 => None,
            Self::Tf32 => Some(gpu::Precision::Tf32),
            Self::Bf16 => Some(gpu::Precision::Bf16),
        }
    }

    /// Returns the instructions that multiply in this precision on processors, of which `here` are
    /// the ones of this machine. `Ok(None)` means that all products are exact. `reason` says why
    /// the job trains on processors.
    ///
    /// # Errors
    /// Returns the error for a precision that the processors of this machine do not compute. It is
    /// not replaced, because it is a part of the result.
    pub(crate) fn on_processors(
        self,
        here: Option<Instructions>,
        reason: &str,
    ) -> Result<Option<Instructions>, ConfigError> {
        match self.problem_on_processors(here, reason) {
            Some(problem) => Err(ConfigError::at("train.precision", problem)),
            None => Ok(here.filter(|_| self == Self::Bf16)),
        }
    }

    /// Returns the problem of [`Precision::on_processors`] without the name of the setting, or
    /// `None` if there is none.
    pub(crate) fn problem_on_processors(
        self,
        here: Option<Instructions>,
        reason: &str,
    ) -> Option<String> {
        let name = self.name();
        match (self, here) {
            (Self::F32, _) | (Self::Bf16, Some(_)) => None,
            (Self::Tf32, _) => Some(format!(
                "is \"{name}\", which only a GPU computes, and {reason}; set \"f32\", which \
                 processors compute, or train on a machine with a GPU (the precision is part of \
                 the result, so it is not replaced)"
            )),
            (Self::Bf16, None) => Some(format!(
                "is \"{name}\", for which this processor has neither AMX-BF16 nor AVX512-BF16, \
                 and {reason}; set \"f32\", which all processors compute, or train on a machine \
                 with such a processor or with a GPU (the precision is part of the result, so it \
                 is not replaced)"
            )),
        }
    }
}

impl Job {
    /// Returns the setting that a GPU cannot train with and the reason. Returns `None` if only the
    /// operations of the graph are left to check.
    pub(crate) fn problem_on_gpu(&self) -> Option<String> {
        let train = &self.train;
        if !train.mode.is_sync() {
            return Some(format!(
                "`train.mode` is \"{}\", and steps whose gradients are applied when they arrive are \
                 computed on processors",
                train.mode.name()
            ));
        }
        if train.fake_quantize.is_some() {
            return Some(
                "`train.fake_quantize` rounds factors of products, which processors do".to_owned(),
            );
        }
        if self.compares_groups() {
            return Some(
                "`train.loss` compares the rows of groups, which processors do".to_owned(),
            );
        }
        self.ps.as_ref().and_then(|_| self.problem_of_borrowed_rows())
    }

    /// Returns the setting with which a GPU cannot train tables on servers and the reason. Returns
    /// `None` if it can. The trainer borrows the rows, and their steps are the GPU's alone.
    fn problem_of_borrowed_rows(&self) -> Option<String> {
        let train = &self.train;
        let keeps_on_host = [
            (train.accumulate.get() > 1, "train.accumulate", "adds gradients on the host"),
            (train.average.is_some(), "train.average", "reads the parameters after each step"),
            (train.rounds_batches(), "train.wire", "rounds the gradients of rows on the host"),
            (!self.streams.is_empty(), "streams", "scores rows before they are learned from"),
        ];
        let found = keeps_on_host.into_iter().find(|(is_set, ..)| *is_set);
        let (key, reason) = match found {
            Some((_, key, reason)) => (format!("`{key}`"), reason.to_owned()),
            None if train.max_table_bytes.is_some() => {
                let reason = "is set, and the servers would evict rows while they are lent";
                ("`train.max_table_bytes`".to_owned(), reason.to_owned())
            }
            None => {
                let refused = self.tables.iter().find_map(zillion_embedding::lending_refusal);
                return refused.map(|reason| format!("{reason} (`[ps]` keeps the tables there)"));
            }
        };
        Some(format!("{key} {reason}, and the tables of `[ps]` are trained on the GPU alone"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Job, difference};
    use super::*;
    use crate::error::Result;

    fn job(more: &str) -> Result<Job> {
        let text = format!(
            "[data]\ntrain = ['x.csv']\n[features.user]\nkind = 'id'\n[labels.click]\n\
             [model]\nkind = 'lr'\n{more}"
        );
        Job::from_value(toml::from_str::<toml::Table>(&text).expect("TOML").into())
    }

    #[test]
    fn a_device_is_read_and_printed() {
        for name in ["auto", "cpu", "cuda:0", "cuda:12", "emulated:7"] {
            let job = job(&format!("[run]\ndevice = '{name}'")).unwrap();
            assert_eq!(job.run.device.to_string(), name);
            let printed = job.in_force().unwrap();
            assert!(printed.contains(&format!("device = \"{name}\"")), "{printed}");
            // The device is no part of what a checkpoint belongs to.
            assert!(job.portable().unwrap().get("run").is_none());
        }
        assert_eq!(job("").unwrap().run.device, DeviceChoice::Auto);
        for name in ["", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:0:1", "cpu:0", "auto:1", "GPU"] {
            let error = job(&format!("[run]\ndevice = '{name}'")).unwrap_err().to_string();
            assert!(error.contains("`run.device`") && error.contains("cuda:0"), "{error}");
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn processors_refuse_what_they_do_not_compute() {
        let on = |precision: Precision, here| precision.on_processors(here, "there is no GPU");
        assert_eq!(on(Precision::F32, None).unwrap(), None);
        let error = on(Precision::Bf16, None).unwrap_err().to_string();
        let words = ["`train.precision`", "\"bf16\"", "AMX-BF16", "no GPU", "set \"f32\""];
        assert!(words.iter().all(|words| error.contains(words)), "{error}");
        for here in std::iter::once(None).chain(Instructions::list().map(Some)) {
            assert_eq!(on(Precision::F32, here).unwrap(), None);
            let error = on(Precision::Tf32, here).unwrap_err().to_string();
            assert!(error.contains("only a GPU"), "{error}");
            assert_eq!(on(Precision::Bf16, here).ok(), here.map(Some));
        }
    }

    #[test]
    fn a_precision_is_part_of_what_a_checkpoint_belongs_to() {
        let exact = job("[train]\nprecision = 'f32'").unwrap();
        assert_eq!(exact.train, job("").unwrap().train);
        assert!(!exact.in_force().unwrap().contains("precision"));
        for name in ["tf32", "bf16"] {
            let other = job(&format!("[train]\nprecision = '{name}'")).unwrap();
            assert!(other.in_force().unwrap().contains(&format!("precision = \"{name}\"")));
            let both = [exact.portable().unwrap(), other.portable().unwrap()];
            let (key, ..) = difference(&both[0], &both[1]).unwrap();
            assert_eq!(key, "train.precision");
            // Servers read the job of a published version without its device.
            assert_eq!(Job::from_portable(both[1].clone()).unwrap().train, other.train);
        }
        let error = job("[train]\nprecision = 'fp16'").unwrap_err().to_string();
        assert!(error.contains("train.precision") && error.contains("bf16"), "{error}");
    }
}
