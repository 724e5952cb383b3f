//! The implementation of `Source` for Arrow IPC files.

use std::path::Path;
use std::sync::Arc;

use arrow_schema::SchemaRef;

use super::{ArraySource, Batches, FilePlan, Source, Unit, group_units};
use crate::error::Result;
use crate::field::Field;
use crate::ipc::IpcFile;
use crate::text::OtherColumns;

impl Source for IpcFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn columns(&self) -> Vec<&str> {
        self.names()
    }

    fn rows(&self) -> Option<u64> {
        Some(self.groups.iter().sum())
    }

    fn units(&self, file: usize) -> Vec<Unit> {
        group_units(file, &self.groups)
    }

    fn plan(
        self: Arc<Self>,
        fields: &[Field],
        first: Option<&Path>,
        _others: OtherColumns,
    ) -> Result<FilePlan> {
        self.group_plan(fields, first).map(|plan| FilePlan::Groups(Arc::new(plan)))
    }

    fn arrays(&self) -> Option<&dyn ArraySource> {
        Some(self)
    }
}

impl ArraySource for IpcFile {
    fn schema(&self) -> SchemaRef {
        self.plain_schema()
    }

    fn batches(&self) -> Result<Batches> {
        Ok(Box::new(self.all_batches()?))
    }
}
