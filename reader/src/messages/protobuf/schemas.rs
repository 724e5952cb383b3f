//! The types of Protobuf messages, and the ids by which messages name them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};
use protox::prost_reflect::DescriptorPool;
use protox::prost_reflect::prost::Message;
use protox::prost_reflect::prost_types::FileDescriptorSet;

use crate::error::{ReaderError, Result};
use crate::messages::writer_schema::{SchemaLanguage, WriterSchema};

/// The name of a file that has none, because it comes from a registry of schemas.
const MAIN: &str = "schema.proto";

/// The types of Protobuf messages. Copies share their memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtobufSchemas {
    pub(super) source: Arc<Source>,
}

/// The places from which the type of a message is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// All messages have one type, and nothing is before them.
    Plain { file: SchemaFile, message: String },
    /// A message begins with the id of its file in a registry, and with the place of its type in
    /// this file.
    Confluent(BTreeMap<u32, SchemaFile>),
}

/// A compiled file with all files that it imports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SchemaFile {
    /// The bytes of a `FileDescriptorSet`.
    descriptors: Vec<u8>,
    /// The name of the file in the set.
    main: String,
}

impl ProtobufSchemas {
    /// Reads the type of messages that have nothing before them. A file whose name ends in `.proto`
    /// is compiled, with its imports in the folders `includes`, or beside the file if there are no
    /// such folders. Any other file is a `FileDescriptorSet` with all imports. `message` is the
    /// full name of the type.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or compiled, or if it lacks the type.
    pub fn load(file: &Path, includes: &[impl AsRef<Path>], message: &str) -> Result<Self> {
        let file = SchemaFile::load(file, includes)?;
        let pool = file.pool().map_err(refuse)?;
        if pool.get_message_by_name(message).is_none() {
            let mut known: Vec<String> = pool
                .files()
                .filter(|known| known.name() == file.main)
                .flat_map(|file| {
                    file.messages().map(|m| m.full_name().to_owned()).collect::<Vec<_>>()
                })
                .collect();
            known.truncate(20);
            let known = known.join(", ");
            return Err(refuse(format!(
                "`{}` has no message `{message}` (known: {known}); correct the full name",
                file.main
            )));
        }
        let source = Source::Plain { file, message: message.to_owned() };
        Ok(Self { source: Arc::new(source) })
    }

    /// Reads the files of schemas with their ids, for messages with ids. The files are compiled as
    /// for [`ProtobufSchemas::load`].
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or compiled.
    pub fn load_confluent<P: AsRef<Path>>(
        files: impl IntoIterator<Item = (u32, P)>,
        includes: &[impl AsRef<Path>],
    ) -> Result<Self> {
        let load = |(id, path): (u32, P)| Ok((id, SchemaFile::load(path.as_ref(), includes)?));
        let files = files.into_iter().map(load).collect::<Result<_>>()?;
        Ok(Self { source: Arc::new(Source::Confluent(files)) })
    }

    /// Returns no schemas, for messages with ids whose schemas are added when they are seen
    /// ([`MessageDecoder::add_schema`](crate::MessageDecoder::add_schema)).
    pub fn registered() -> Self {
        Self { source: Arc::new(Source::Confluent(BTreeMap::new())) }
    }
}

impl SchemaFile {
    fn load(path: &Path, includes: &[impl AsRef<Path>]) -> Result<Self> {
        if path.extension().is_none_or(|extension| extension != "proto") {
            let read = ReaderError::io("read the schema", path);
            let descriptors = std::fs::read(path).map_err(read)?;
            return Self::of_descriptors(descriptors)
                .map_err(|e| refuse(format!("`{}`: {e}", path.display())));
        }
        let mut folders: Vec<&Path> = includes.iter().map(AsRef::as_ref).collect();
        if folders.is_empty() {
            folders.push(path.parent().unwrap_or(Path::new("")));
        }
        let compile = || {
            let mut compiler = protox::Compiler::new(&folders)?;
            compiler.include_imports(true);
            compiler.open_file(path)?;
            Ok(compiler)
        };
        let compiler = compile().map_err(|e| refuse(describe(&e)))?;
        Ok(Self::of_compiler(&compiler))
    }

    /// Compiles a schema of a registry.
    ///
    /// # Errors
    /// Returns the problem, with the place in the text.
    pub(super) fn compile(schema: &WriterSchema) -> std::result::Result<Self, String> {
        schema.check(&SchemaLanguage::Protobuf)?;
        let mut texts = HashMap::from([(MAIN.to_owned(), schema.text.clone())]);
        for reference in &schema.references {
            texts.insert(reference.name.clone(), reference.text.clone());
        }
        let mut resolver = ChainFileResolver::new();
        resolver.add(Texts(texts));
        resolver.add(GoogleFileResolver::new());
        let mut compiler = protox::Compiler::with_file_resolver(resolver);
        compiler.include_imports(true);
        compiler.open_file(MAIN).map_err(|e| describe(&e))?;
        Ok(Self { main: MAIN.to_owned(), ..Self::of_compiler(&compiler) })
    }

    fn of_compiler(compiler: &protox::Compiler) -> Self {
        // A file comes after all files that it imports.
        let main = compiler.files().last().map(|file| file.name().to_owned());
        let descriptors = compiler.encode_file_descriptor_set();
        Self { descriptors, main: main.unwrap_or_default() }
    }

    fn of_descriptors(descriptors: Vec<u8>) -> std::result::Result<Self, String> {
        let pool = decode(&descriptors)?;
        let main = pool.files().last().map(|file| file.name().to_owned());
        let main = main.ok_or("it has no file; write a `FileDescriptorSet`")?;
        Ok(Self { descriptors, main })
    }

    /// Returns the descriptors of all types.
    pub(super) fn pool(&self) -> std::result::Result<DescriptorPool, String> {
        decode(&self.descriptors)
    }

    /// Returns the name of the file itself, apart from its imports.
    pub(super) fn main(&self) -> &str {
        &self.main
    }
}

fn decode(descriptors: &[u8]) -> std::result::Result<DescriptorPool, String> {
    check_syntax(descriptors)?;
    DescriptorPool::decode(descriptors).map_err(|e| refuse_set(&e.to_string()))
}

/// Checks that all files of a `FileDescriptorSet` have a syntax that the library for descriptors
/// knows. The library panics on another one.
fn check_syntax(descriptors: &[u8]) -> std::result::Result<(), String> {
    let set = FileDescriptorSet::decode(descriptors).map_err(|e| refuse_set(&e.to_string()))?;
    for file in &set.file {
        if !matches!(file.syntax.as_deref(), None | Some("proto2" | "proto3")) {
            return Err(format!(
                "`{}` has the syntax `{}`; write its types in `proto2` or `proto3`",
                file.name(),
                file.syntax()
            ));
        }
    }
    Ok(())
}

fn refuse_set(problem: &str) -> String {
    format!(
        "not a readable `FileDescriptorSet` ({problem}); let `protoc` write one that includes all \
         imports"
    )
}

/// Returns the error for a schema of Protobuf that cannot be used.
pub(super) fn refuse(problem: String) -> ReaderError {
    ReaderError::setting("the schema of Protobuf", problem)
}

/// Returns the problem of a file that cannot be compiled, with its place and the remedy.
fn describe(error: &protox::Error) -> String {
    format!("{error:?}; correct the file, or add its imports")
}

/// Files of a registry by their names.
struct Texts(HashMap<String, String>);

impl FileResolver for Texts {
    fn open_file(&self, name: &str) -> std::result::Result<File, protox::Error> {
        match self.0.get(name) {
            Some(text) => File::from_source(name, text),
            None => Err(protox::Error::file_not_found(name)),
        }
    }
}
