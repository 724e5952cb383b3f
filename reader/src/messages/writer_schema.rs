//! The schema of the writer of a message, as a registry of schemas gives it.

/// The language of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaLanguage {
    /// A schema of Avro, which is JSON.
    Avro,
    /// A file of Protobuf (`.proto`).
    Protobuf,
    /// Another language, with its name.
    Other(String),
}

/// A schema of a writer, with all texts that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterSchema {
    /// The language of the schema.
    pub language: SchemaLanguage,
    /// The text of the schema.
    pub text: String,
    /// The schemas to which the text refers, and those to which these refer.
    pub references: Vec<ReferencedSchema>,
}

/// A schema to which another one refers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferencedSchema {
    /// The name in the reference: the full name of a type in Avro, the path of a file in Protobuf.
    pub name: String,
    /// The text of the schema.
    pub text: String,
}

impl WriterSchema {
    /// Returns a schema without references.
    pub fn plain(language: SchemaLanguage, text: impl Into<String>) -> Self {
        Self { language, text: text.into(), references: Vec::new() }
    }

    /// Checks that the schema is one of the language of its stream.
    ///
    /// # Errors
    /// Returns the problem and the remedy.
    pub(super) fn check(&self, wanted: &SchemaLanguage) -> Result<(), String> {
        let name = |language: &SchemaLanguage| match language {
            SchemaLanguage::Avro => "Avro".to_owned(),
            SchemaLanguage::Protobuf => "Protobuf".to_owned(),
            SchemaLanguage::Other(name) => name.clone(),
        };
        if self.language == *wanted {
            return Ok(());
        }
        let (found, wanted) = (name(&self.language), name(wanted));
        Err(format!(
            "it is one of {found}, but the stream has messages in {wanted}; change `format`, or \
             put the messages into another topic"
        ))
    }
}
