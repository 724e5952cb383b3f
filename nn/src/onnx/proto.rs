//! ONNX's messages, as far as a dense graph needs them: fields and tags as onnx.proto publishes them.
//!
//! What is not written here is not lost on anybody: readers take what is absent for its default.

use prost::{Message, Oneof};

/// `AttributeProto.type` of the attributes that are written.
pub(super) mod kind {
    pub(in crate::onnx) const FLOAT: i32 = 1;
    pub(in crate::onnx) const INT: i32 = 2;
    pub(in crate::onnx) const STRING: i32 = 3;
    pub(in crate::onnx) const TENSOR: i32 = 4;
    pub(in crate::onnx) const INTS: i32 = 7;
}

/// `TensorProto.DataType` of the tensors that are written.
pub(super) mod data {
    pub(in crate::onnx) const FLOAT: i32 = 1;
    pub(in crate::onnx) const INT64: i32 = 7;
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelProto {
    #[prost(int64, optional, tag = "1")]
    pub(super) ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(super) producer_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) producer_version: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) domain: Option<String>,
    #[prost(int64, optional, tag = "5")]
    pub(super) model_version: Option<i64>,
    #[prost(string, optional, tag = "6")]
    pub(super) doc_string: Option<String>,
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub(super) opset_import: Vec<OperatorSetIdProto>,
    #[prost(message, repeated, tag = "14")]
    pub(super) metadata_props: Vec<StringStringEntryProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OperatorSetIdProto {
    #[prost(string, optional, tag = "1")]
    pub(super) domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub(super) version: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StringStringEntryProto {
    #[prost(string, optional, tag = "1")]
    pub(super) key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<NodeProto>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<TensorProto>,
    #[prost(string, optional, tag = "10")]
    pub(super) doc_string: Option<String>,
    #[prost(message, repeated, tag = "11")]
    pub(super) input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<ValueInfoProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) op_type: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<AttributeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeProto {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(float, optional, tag = "2")]
    pub(super) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(super) i: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(super) s: Option<Vec<u8>>,
    #[prost(message, optional, tag = "5")]
    pub(super) t: Option<TensorProto>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(super) ints: Vec<i64>,
    #[prost(int32, optional, tag = "20")]
    pub(super) r#type: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(super) dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    pub(super) data_type: Option<i32>,
    #[prost(string, optional, tag = "8")]
    pub(super) name: Option<String>,
    /// Little-endian, element after element.
    #[prost(bytes = "vec", optional, tag = "9")]
    pub(super) raw_data: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfoProto {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub(super) r#type: Option<TypeProto>,
    #[prost(string, optional, tag = "3")]
    pub(super) doc_string: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub(super) tensor_type: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorType {
    #[prost(int32, optional, tag = "1")]
    pub(super) elem_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub(super) shape: Option<TensorShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub(super) dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Dimension {
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub(super) value: Option<DimensionValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum DimensionValue {
    #[prost(int64, tag = "1")]
    Number(i64),
    #[prost(string, tag = "2")]
    Symbol(String),
}

impl AttributeProto {
    pub(super) fn int(name: &str, value: i64) -> Self {
        Self { i: Some(value), ..Self::of(name, kind::INT) }
    }

    pub(super) fn ints(name: &str, values: &[i64]) -> Self {
        Self { ints: values.to_vec(), ..Self::of(name, kind::INTS) }
    }

    pub(super) fn float(name: &str, value: f32) -> Self {
        Self { f: Some(value), ..Self::of(name, kind::FLOAT) }
    }

    pub(super) fn text(name: &str, value: &str) -> Self {
        Self { s: Some(value.as_bytes().to_vec()), ..Self::of(name, kind::STRING) }
    }

    pub(super) fn tensor(name: &str, value: TensorProto) -> Self {
        Self { t: Some(value), ..Self::of(name, kind::TENSOR) }
    }

    fn of(name: &str, kind: i32) -> Self {
        Self { name: Some(name.to_owned()), r#type: Some(kind), ..Self::default() }
    }
}

impl TensorProto {
    pub(super) fn floats(name: &str, dims: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::of(name, dims, data::FLOAT, bytes)
    }

    pub(super) fn ints(name: &str, dims: &[usize], values: &[i64]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::of(name, dims, data::INT64, bytes)
    }

    fn of(name: &str, dims: &[usize], data_type: i32, bytes: Vec<u8>) -> Self {
        Self {
            dims: dims.iter().map(|&d| d as i64).collect(),
            data_type: Some(data_type),
            name: Some(name.to_owned()),
            raw_data: Some(bytes),
        }
    }
}

impl ValueInfoProto {
    pub(super) fn new(name: &str, elem_type: i32, shape: &[DimensionValue], doc: &str) -> Self {
        let dim = shape.iter().map(|d| Dimension { value: Some(d.clone()) }).collect();
        let shape = Some(TensorShapeProto { dim });
        let tensor_type = Some(TensorType { elem_type: Some(elem_type), shape });
        Self {
            name: Some(name.to_owned()),
            r#type: Some(TypeProto { tensor_type }),
            doc_string: (!doc.is_empty()).then(|| doc.to_owned()),
        }
    }
}
