//! The implementation of `GroupFile` for Parquet files.

use std::path::Path;

use arrow_schema::SchemaRef;

use super::{ArraySource, Batches, GroupFile};
use crate::arrays::GroupPlan;
use crate::error::Result;
use crate::field::Field;
use crate::parquet::ParquetFile;

impl GroupFile for ParquetFile {
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

impl ArraySource for ParquetFile {
    fn schema(&self) -> SchemaRef {
        self.schema().clone()
    }

    fn batches(&self) -> Result<Batches> {
        Ok(Box::new(self.all_batches()?))
    }
}
