//! The mapping from an Arrow type to the type of its values, which does not depend on their
//! encoding.

use std::sync::Arc;

use arrow_schema::DataType;

/// Returns the type of an array's values without their encoding: large strings, views and
/// dictionaries of strings become strings, and lists of any layout become lists.
pub fn plain_type(found: &DataType) -> DataType {
    match found {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) => plain_type(values),
        DataType::List(element)
        | DataType::LargeList(element)
        | DataType::FixedSizeList(element, _) => {
            let element = element.as_ref().clone();
            let plain = plain_type(element.data_type());
            DataType::List(Arc::new(element.with_data_type(plain)))
        }
        other => other.clone(),
    }
}
