//! The columns of an Arrow schema that the fields of a pass read, and the form in which the values
//! of each column are decoded.

use std::path::Path;

use arrow_array::ArrayRef;
use arrow_schema::{DataType, Schema};

use super::plain::{plain, type_of_nulls};
use crate::arrays::{check_type, plain_type};
use crate::error::Result;
use crate::field::{Field, Role};
use crate::header;

/// The form in which each column is decoded.
#[derive(Clone, Debug)]
pub(crate) struct Forms {
    /// The type that replaces the null type of a column; one entry for each column.
    null_types: Vec<DataType>,
    /// Whether a dictionary of strings stays a dictionary, so that each entry is hashed only once;
    /// one flag for each column.
    keep_dictionary: Vec<bool>,
}

impl Forms {
    /// Returns the forms in which all `width` columns of a schema are plain arrays.
    pub(super) fn of_all(width: usize) -> Self {
        Self { null_types: vec![DataType::Int64; width], keep_dictionary: vec![false; width] }
    }

    /// Finds the columns of the fields and checks their types. Returns the position of each field's
    /// column, and the forms of the columns. `first` is the first file of the list if `path` is a
    /// later one.
    ///
    /// # Errors
    /// Returns an error if a column is missing or if its type does not fit.
    pub(crate) fn of_fields(
        schema: &Schema,
        fields: &[Field],
        path: &Path,
        first: Option<&Path>,
    ) -> Result<(Vec<usize>, Self)> {
        let width = schema.fields().len();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let mut columns = Vec::with_capacity(fields.len());
        let mut forms = Self::of_all(width);
        let mut uses = vec![0; width];
        for field in fields {
            let column = header::find(&names, field, path, first)?;
            let found = plain_type(schema.field(column).data_type());
            if found == DataType::Null {
                forms.null_types[column] = type_of_nulls(&field.role);
            } else {
                check_type(field, &found, path)?;
            }
            uses[column] += 1;
            columns.push(column);
        }
        for (field, &column) in fields.iter().zip(&columns) {
            forms.keep_dictionary[column] =
                uses[column] == 1 && matches!(field.role, Role::Id { .. });
        }
        Ok((columns, forms))
    }

    /// Turns the dictionaries of all columns into plain texts.
    pub(crate) fn unpack_dictionaries(&mut self) {
        self.keep_dictionary.fill(false);
    }

    /// Returns whether the dictionaries of a column stay dictionaries.
    pub(crate) fn keeps_dictionary(&self, column: usize) -> bool {
        self.keep_dictionary[column]
    }

    /// Returns the values of a column with a type that the decoders accept.
    ///
    /// # Errors
    /// Returns the problem if the array is damaged.
    pub(crate) fn plain(
        &self,
        array: &ArrayRef,
        column: usize,
    ) -> std::result::Result<ArrayRef, String> {
        plain(array, &self.null_types[column], self.keep_dictionary[column])
    }
}
