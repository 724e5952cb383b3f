//! The schemas of messages that a registry has: found when they are seen, stored in the folder of
//! the run, and recorded in the log.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use zillion_reader::{ReferencedSchema, SchemaLanguage, WriterSchema};
use zillion_stream::{Decision, FoundSchema, StoredSchema};

use super::Feed;
use crate::error::Result;

impl Feed {
    /// Finds the schemas of the messages in a stream's block that its reader does not know. Returns
    /// `false` if the run stops before the registry has answered. A schema that the registry does
    /// not know stays unknown, so that its message is rejected with the reason.
    ///
    /// # Errors
    /// Returns an error if the registry does not answer, or if a schema cannot be stored.
    pub(super) fn find_schemas(&mut self, stream: usize, stop: &AtomicBool) -> Result<bool> {
        let input = &self.streams[stream];
        if input.registry.is_none() {
            return Ok(true);
        }
        let messages = input.block.iter();
        let ids = messages.filter_map(|message| input.reader.unknown_schema(message.bytes));
        let ids: BTreeSet<u32> = ids.collect();
        for id in ids {
            let Some(registry) = &self.streams[stream].registry else { break };
            let schema = match registry.find(id, &|| stop.load(Ordering::Relaxed))? {
                FoundSchema::Found(schema) => schema,
                FoundSchema::Unknown => continue,
                FoundSchema::Stopped => return Ok(false),
            };
            // The file is there before the decision that names it.
            let fingerprint = schema.save(&self.setup.files, &self.schema_folder())?;
            tracing::info!(stream = %self.streams[stream].name, id, "a schema was recorded");
            self.record(&Decision::Schema { stream: stream as u16, id, fingerprint })?;
            self.streams[stream].reader.add_schema(id, &writer_schema(&schema));
        }
        Ok(true)
    }

    /// Adds a schema that the log has recorded.
    ///
    /// # Errors
    /// Returns an error if its file is missing or damaged.
    pub(super) fn add_recorded_schema(
        &mut self,
        stream: u16,
        id: u32,
        fingerprint: u64,
    ) -> Result<()> {
        let schema = StoredSchema::load(&self.schema_folder(), fingerprint)?;
        if let Some(input) = self.streams.get_mut(usize::from(stream)) {
            input.reader.add_schema(id, &writer_schema(&schema));
        }
        Ok(())
    }

    /// Adds the schemas that were recorded before the checkpoint from which the run goes on.
    pub(super) fn restore_schemas(&mut self) -> Result<()> {
        let pinned: Vec<_> = self.position.schemas().collect();
        for schema in pinned {
            self.add_recorded_schema(schema.stream, schema.id, schema.fingerprint)?;
        }
        Ok(())
    }

    fn schema_folder(&self) -> PathBuf {
        self.setup.schema_folder()
    }
}

fn writer_schema(schema: &StoredSchema) -> WriterSchema {
    let references = schema.references.iter().map(|reference| ReferencedSchema {
        name: reference.name.clone(),
        text: reference.text.clone(),
    });
    WriterSchema {
        language: match schema.language.as_str() {
            "AVRO" => SchemaLanguage::Avro,
            "PROTOBUF" => SchemaLanguage::Protobuf,
            other => SchemaLanguage::Other(other.to_owned()),
        },
        text: schema.text.clone(),
        references: references.collect(),
    }
}
