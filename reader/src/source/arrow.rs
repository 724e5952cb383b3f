//! The implementation of `GroupFile` for Arrow IPC files.

use std::path::Path;

use arrow_schema::SchemaRef;

use super::{ArraySource, Batches, GroupFile};
use crate::arrays::GroupPlan;
use crate::error::Result;
use crate::field::Field;
use crate::ipc::IpcFile;

impl GroupFile for IpcFile {
    fn path(&self) -> &Path {
        self.input.path()
    }

    fn columns(&self) -> Vec<&str> {
        self.names()
    }

    fn groups(&self) -> &[u64] {
        &self.groups
    }

    fn plan(&self, fields: &[Field], first: Option<&Path>) -> Result<GroupPlan> {
        self.group_plan(fields, first)
    }
}

impl ArraySource for IpcFile {
    fn schema(&self) -> SchemaRef {
        self.plain_schema()
    }

    fn batches(&self) -> Result<Batches> {
        Ok(Box::new(self.all_batches()))
    }
}
