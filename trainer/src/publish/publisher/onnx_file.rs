//! The ONNX file of the next version.

use std::sync::Arc;

use super::Publisher;
use crate::error::Result;
use crate::publish::onnx::load_onnx;

impl Publisher {
    /// Sets the ONNX file that is the dense model of further versions.
    ///
    /// # Errors
    /// Returns an error if this build or this machine cannot compute the file.
    pub(in crate::publish) fn set_onnx(&mut self, bytes: &[u8]) -> Result<()> {
        let model = load_onnx(&self.graph, &self.schema, bytes)?;
        self.scorer.set_onnx(Some(Arc::new(model)));
        self.onnx = Some(bytes.to_owned());
        Ok(())
    }
}
