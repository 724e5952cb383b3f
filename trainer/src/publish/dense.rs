//! The dense parameters of versions, which can be published less often than rows.
//!
//! Rows of a few keys change from second to second; the dense parameters change a little
//! everywhere, so that they cannot be written as a difference. With `publish.dense_every`, a delta
//! between two versions with new parameters has the parameters of its parent. It is a version like
//! any other: its rows and its parameters become visible together, and its parity rows were scored
//! with exactly them.
//!
//! # Invariants
//! Whether a version has new parameters follows from the versions on which it stands, and from no
//! clock. So a run that was killed publishes the same versions as one that was not.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_nn::{ParamSpec, Params};
use zillion_registry::{Model, ONNX, VersionFile, VersionManifest};

use crate::error::Result;

/// The dense parameters that a publisher has written or read last.
#[derive(Debug)]
pub(super) struct DenseCadence {
    every: NonZeroUsize,
    specs: Vec<ParamSpec>,
    kept: Option<(VersionFile, Params)>,
}

/// The dense parameters of the present state, with their file.
pub(super) struct Trained<'a> {
    pub(super) params: &'a Params,
    pub(super) file: VersionFile,
    pub(super) bytes: Vec<u8>,
}

impl<'a> Trained<'a> {
    /// Makes the file of some parameters, or that of the ONNX model which takes their place.
    pub(super) fn of(params: &'a Params, onnx: Option<&[u8]>) -> Result<Self> {
        let (kind, bytes) = match onnx {
            Some(bytes) => (ONNX, bytes.to_owned()),
            None => ("safetensors", params.to_safetensors()?),
        };
        Ok(Self { params, file: VersionFile::of(kind, &bytes), bytes })
    }
}

impl DenseCadence {
    pub(super) fn new(every: NonZeroUsize, specs: Vec<ParamSpec>) -> Self {
        Self { every, specs, kept: None }
    }

    /// Returns whether a version that stands on `chain` has new parameters. A base always has. A
    /// version on a base that repeats an earlier version has them too, because the parameters of
    /// that base are older than those of the version before.
    pub(super) fn is_due(&self, chain: Option<&[Arc<VersionManifest>]>) -> bool {
        let Some((newest, chain)) = chain.and_then(|chain| Some((chain.last()?, chain))) else {
            return true;
        };
        if newest.compacts().is_some() {
            return true;
        }
        let every = self.every.get();
        let newest_first = chain.iter().rev().take(every);
        newest_first.take_while(|version| version.dense == newest.dense).count() >= every
    }

    /// Keeps the parameters of a version, if a later version can have them too.
    pub(super) fn keep(&mut self, file: VersionFile, params: &Params) {
        if self.every > NonZeroUsize::MIN {
            self.kept = Some((file, params.clone()));
        }
    }

    /// Returns the parameters in a file of the model.
    pub(super) fn params(&mut self, model: &Model, file: &VersionFile) -> Result<&Params> {
        let known = self.kept.take().filter(|(known, _)| known == file);
        let kept = match known {
            Some(kept) => kept,
            None => {
                let bytes = model.read_file(file)?;
                (file.clone(), Params::from_safetensors(&self.specs, &bytes)?)
            }
        };
        Ok(&self.kept.insert(kept).1)
    }
}
