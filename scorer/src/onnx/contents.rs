//! The checks of an ONNX file that ONNX Runtime does not make.
//!
//! An ONNX file may name other files that hold its weights. ONNX Runtime would read them below the
//! current folder, so a version from outside could read files of the server. A model in a version
//! is one file.

use prost::Message;

use crate::error::{Error, Result};

/// The numbers of the fields are those of `onnx.proto3`. Fields that are not named here are
/// skipped, so the weights are not copied.
#[derive(Clone, PartialEq, Message)]
struct ModelFile {
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphPart>,
    #[prost(message, repeated, tag = "20")]
    training: Vec<TrainingPart>,
    #[prost(message, repeated, tag = "25")]
    functions: Vec<FunctionPart>,
}

#[derive(Clone, PartialEq, Message)]
struct TrainingPart {
    #[prost(message, optional, tag = "1")]
    initialization: Option<GraphPart>,
    #[prost(message, optional, tag = "2")]
    algorithm: Option<GraphPart>,
}

#[derive(Clone, PartialEq, Message)]
struct FunctionPart {
    #[prost(message, repeated, tag = "7")]
    nodes: Vec<NodePart>,
    #[prost(message, repeated, tag = "11")]
    defaults: Vec<AttributePart>,
}

#[derive(Clone, PartialEq, Message)]
struct GraphPart {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<NodePart>,
    #[prost(message, repeated, tag = "5")]
    initializers: Vec<TensorPart>,
    #[prost(message, repeated, tag = "15")]
    sparse_initializers: Vec<SparsePart>,
}

#[derive(Clone, PartialEq, Message)]
struct NodePart {
    #[prost(message, repeated, tag = "5")]
    attributes: Vec<AttributePart>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributePart {
    #[prost(message, optional, tag = "5")]
    tensor: Option<TensorPart>,
    #[prost(message, optional, boxed, tag = "6")]
    graph: Option<Box<GraphPart>>,
    #[prost(message, repeated, tag = "10")]
    tensors: Vec<TensorPart>,
    #[prost(message, repeated, tag = "11")]
    graphs: Vec<GraphPart>,
    #[prost(message, optional, tag = "22")]
    sparse: Option<SparsePart>,
    #[prost(message, repeated, tag = "23")]
    sparses: Vec<SparsePart>,
}

#[derive(Clone, PartialEq, Message)]
struct SparsePart {
    #[prost(message, optional, tag = "1")]
    values: Option<TensorPart>,
    #[prost(message, optional, tag = "2")]
    indices: Option<TensorPart>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorPart {
    #[prost(string, optional, tag = "8")]
    name: Option<String>,
    #[prost(message, repeated, tag = "13")]
    external: Vec<EntryPart>,
    #[prost(int32, optional, tag = "14")]
    location: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct EntryPart {}

/// Checks that the bytes are an ONNX model that names no other files.
///
/// # Errors
/// Returns an error that says what is wrong with the file.
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    let refuse = |problem: String| {
        Error::Onnx(format!("{problem}; export the model again, with its weights in the file"))
    };
    let model = ModelFile::decode(bytes)
        .map_err(|error| refuse(format!("the file is not an ONNX model ({error})")))?;
    let Some(graph) = &model.graph else {
        return Err(refuse("the file has no graph".to_owned()));
    };
    let training = model.training.iter().flat_map(|part| [&part.initialization, &part.algorithm]);
    let graphs = [graph].into_iter().chain(training.flatten());
    let of_functions = model.functions.iter().flat_map(|function| {
        let nodes = function.nodes.iter().find_map(external_of_node);
        nodes.or_else(|| function.defaults.iter().find_map(external_of_attribute))
    });
    match graphs.filter_map(external_of_graph).chain(of_functions).next() {
        Some(name) => Err(refuse(format!("the weight `{name}` is in another file"))),
        None => Ok(()),
    }
}

/// Returns the name of a tensor of a graph that is in another file, or `None` if there is none.
fn external_of_graph(graph: &GraphPart) -> Option<&str> {
    let mut weights = graph.initializers.iter();
    let mut sparse = graph.sparse_initializers.iter();
    let own = weights.find_map(external).or_else(|| sparse.find_map(external_of_sparse));
    own.or_else(|| graph.nodes.iter().find_map(external_of_node))
}

fn external_of_node(node: &NodePart) -> Option<&str> {
    node.attributes.iter().find_map(external_of_attribute)
}

fn external_of_attribute(attribute: &AttributePart) -> Option<&str> {
    let mut tensors = attribute.tensor.iter().chain(&attribute.tensors);
    let mut sparse = attribute.sparse.iter().chain(&attribute.sparses);
    let mut graphs = attribute.graph.as_deref().into_iter().chain(&attribute.graphs);
    let found = tensors.find_map(external).or_else(|| sparse.find_map(external_of_sparse));
    found.or_else(|| graphs.find_map(external_of_graph))
}

fn external_of_sparse(sparse: &SparsePart) -> Option<&str> {
    sparse.values.iter().chain(&sparse.indices).find_map(external)
}

fn external(tensor: &TensorPart) -> Option<&str> {
    let is_elsewhere = !tensor.external.is_empty() || tensor.location.unwrap_or_default() != 0;
    is_elsewhere.then(|| tensor.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elsewhere() -> TensorPart {
        TensorPart { name: Some("w".to_owned()), external: vec![EntryPart {}], location: Some(1) }
    }

    fn refusal(graph: GraphPart) -> String {
        let model = ModelFile { graph: Some(graph), ..ModelFile::default() };
        check(&model.encode_to_vec()).unwrap_err().to_string()
    }

    #[test]
    fn weights_in_other_files_are_refused_wherever_they_are() {
        let initializers = GraphPart { initializers: vec![elsewhere()], ..GraphPart::default() };
        let sparse = SparsePart { indices: Some(elsewhere()), ..SparsePart::default() };
        let sparse = GraphPart { sparse_initializers: vec![sparse], ..GraphPart::default() };
        let inner = AttributePart {
            graph: Some(Box::new(initializers.clone())),
            ..AttributePart::default()
        };
        let node = NodePart { attributes: vec![inner] };
        let nested = GraphPart { nodes: vec![node.clone()], ..GraphPart::default() };
        for graph in [initializers, sparse, nested] {
            let said = refusal(graph);
            assert!(said.contains("the weight `w` is in another file"), "{said}");
        }
        let function = FunctionPart { nodes: vec![node], ..FunctionPart::default() };
        let (graph, functions) = (Some(GraphPart::default()), vec![function]);
        let model = ModelFile { graph, functions, ..ModelFile::default() };
        assert!(check(&model.encode_to_vec()).is_err());
        let whole = ModelFile { functions: Vec::new(), ..model };
        check(&whole.encode_to_vec()).unwrap();
    }

    #[test]
    fn bytes_that_are_no_model_are_refused() {
        for bytes in [&b"no model"[..], b""] {
            let said = check(bytes).unwrap_err().to_string();
            assert!(said.contains("export the model again"), "{said}");
        }
    }
}
