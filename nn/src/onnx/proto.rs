//! The ONNX messages that are needed for a dense graph, with the fields and tags of the published
//! onnx.proto.
//!
//! The types do not contain fields that are never written. A reader uses the default for an absent
//! field.

use prost::{Message, Oneof};

/// The values of `AttributeProto.type` for the attributes that are written.
pub(crate) mod kind {
    pub(in crate::onnx) const FLOAT: i32 = 1;
    pub(in crate::onnx) const INT: i32 = 2;
    pub(in crate::onnx) const STRING: i32 = 3;
    pub(in crate::onnx) const TENSOR: i32 = 4;
    pub(in crate::onnx) const INTS: i32 = 7;
}

/// The values of `TensorProto.DataType` for the tensors that are written.
pub(crate) mod data {
    pub(in crate::onnx) const FLOAT: i32 = 1;
    pub(in crate::onnx) const INT64: i32 = 7;
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelProto {
    #[prost(int64, optional, tag = "1")]
    pub(crate) ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) producer_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) producer_version: Option<String>,
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) opset_import: Vec<OperatorSetIdProto>,
    #[prost(message, repeated, tag = "14")]
    pub(crate) metadata_props: Vec<StringStringEntryProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OperatorSetIdProto {
    #[prost(string, optional, tag = "1")]
    pub(crate) domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub(crate) version: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StringStringEntryProto {
    #[prost(string, optional, tag = "1")]
    pub(crate) key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) node: Vec<NodeProto>,
    #[prost(string, optional, tag = "2")]
    pub(crate) name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) output: Vec<ValueInfoProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(crate) op_type: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<AttributeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttributeProto {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(float, optional, tag = "2")]
    pub(crate) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) i: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(crate) s: Option<Vec<u8>>,
    #[prost(message, optional, tag = "5")]
    pub(crate) t: Option<TensorProto>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(crate) ints: Vec<i64>,
    #[prost(int32, optional, tag = "20")]
    pub(crate) r#type: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    pub(crate) data_type: Option<i32>,
    #[prost(string, optional, tag = "8")]
    pub(crate) name: Option<String>,
    /// The little-endian bytes of the elements, in order.
    #[prost(bytes = "vec", optional, tag = "9")]
    pub(crate) raw_data: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueInfoProto {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub(crate) r#type: Option<TypeProto>,
    #[prost(string, optional, tag = "3")]
    pub(crate) doc_string: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub(crate) tensor_type: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorType {
    #[prost(int32, optional, tag = "1")]
    pub(crate) elem_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<TensorShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Dimension {
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub(crate) value: Option<DimensionValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum DimensionValue {
    #[prost(int64, tag = "1")]
    Number(i64),
    #[prost(string, tag = "2")]
    Symbol(String),
}

impl AttributeProto {
    pub(crate) fn int(name: &str, value: i64) -> Self {
        Self { i: Some(value), ..Self::of(name, kind::INT) }
    }

    pub(crate) fn ints(name: &str, values: &[i64]) -> Self {
        Self { ints: values.to_vec(), ..Self::of(name, kind::INTS) }
    }

    pub(crate) fn float(name: &str, value: f32) -> Self {
        Self { f: Some(value), ..Self::of(name, kind::FLOAT) }
    }

    pub(crate) fn text(name: &str, value: &str) -> Self {
        Self { s: Some(value.as_bytes().to_vec()), ..Self::of(name, kind::STRING) }
    }

    pub(crate) fn tensor(name: &str, value: TensorProto) -> Self {
        Self { t: Some(value), ..Self::of(name, kind::TENSOR) }
    }

    fn of(name: &str, kind: i32) -> Self {
        Self { name: Some(name.to_owned()), r#type: Some(kind), ..Self::default() }
    }
}

impl TensorProto {
    pub(crate) fn floats(name: &str, dims: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::of(name, dims, data::FLOAT, bytes)
    }

    pub(crate) fn ints(name: &str, dims: &[usize], values: &[i64]) -> Self {
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
    pub(crate) fn new(name: &str, elem_type: i32, shape: &[DimensionValue], doc: &str) -> Self {
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
