//! The settings `run.device` and `train.precision`: where the training graph is computed, and with
//! which products.
//!
//! The device is in `[run]` because it changes no byte of the result: with the precision `f32`, a
//! GPU computes what the processor computes. The precision is in `[train]`, because another one
//! changes the result.

use std::fmt;

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;

use crate::error::Result;

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
    /// Products of bf16, on a GPU alone.
    Bf16,
}

impl Precision {
    /// Returns whether products are exact, which is the default and is not written.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
    pub(crate) fn is_f32(&self) -> bool {
        *self == Self::F32
    }

    /// Checks that training has the precision.
    pub(super) fn check(self) -> Result<()> {
        let name = match self {
            Self::F32 => return Ok(()),
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
        };
        let message = format!(
            "is \"{name}\", but no device trains with it yet: products have the precision \"f32\", \
             whose bytes are the same on the processor and on a GPU; set \"f32\", or remove the key"
        );
        Err(ConfigError::at("train.precision", message).into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Job;
    use super::*;

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
    fn a_precision_that_no_device_has_is_refused() {
        let exact = job("[train]\nprecision = 'f32'").unwrap();
        assert_eq!(exact.train, job("").unwrap().train);
        assert!(!exact.in_force().unwrap().contains("precision"));
        for name in ["tf32", "bf16"] {
            let error = job(&format!("[train]\nprecision = '{name}'")).unwrap_err().to_string();
            assert!(error.contains("`train.precision`") && error.contains(name), "{error}");
            assert!(error.contains("set \"f32\""), "{error}");
        }
        let error = job("[train]\nprecision = 'fp16'").unwrap_err().to_string();
        assert!(error.contains("train.precision") && error.contains("bf16"), "{error}");
    }
}
