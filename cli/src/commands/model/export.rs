//! `zillion model export`: writes a version as files that other programs can open.
//!
//! # Crash consistency
//! Each file is complete or absent. The description of the files, `export.json`, is written last.
//! So in a folder without this file, the export is not complete.

mod describe;
mod rows;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use zillion_console::exit::refuse;
use zillion_console::{compute_pool, durable_files, print_json, print_line};
use zillion_device::Files;
use zillion_feature::{HASH_ID, Schema};
use zillion_nn::{Graph, OnnxColumn, OnnxModel, Params};
use zillion_registry::{Cache, Model, VersionFile, VersionManifest};
use zillion_rows::TableLayout;
use zillion_rows::layer::{LayerFile, Unthrottled};

use crate::args::{ExportArgs, ExportPart};
use crate::operator::open_trusted;
use crate::registry::{cache_folder, pointed_version};
use crate::text::{bytes, grouped};

/// The number of the format of [`MANIFEST`].
const FORMAT: u32 = 1;
/// The name of the file that describes the other files.
const MANIFEST: &str = "export.json";

pub(super) fn run(args: &ExportArgs) -> Result<()> {
    let model = open_trusted(&args.model, &args.trust)?;
    let version = pointed_version(&model, args.number.or(args.version), &args.pointer)?;
    let files = durable_files()?;
    prepare(&args.output, args.force, &files)?;
    let folder = cache_folder(args.cache.as_ref(), &args.model.registry)?;
    let cache = Cache::open(&folder, model.name(), files.clone())?;
    let mut export = Export::of(model, cache, files, &args.output, version)?;
    let is_chosen = |part| args.only.is_empty() || args.only.contains(&part);
    if is_chosen(ExportPart::Rows) {
        let workers = compute_pool(args.threads)?;
        export.write_rows(&workers)?;
        export.write_sides()?;
    }
    if is_chosen(ExportPart::Dense) {
        export.write_dense()?;
    }
    if is_chosen(ExportPart::Graph) {
        export.write_graph()?;
    }
    let written = export.finish()?;
    if args.json {
        return print_json(&written);
    }
    for file in written["files"].as_array().into_iter().flatten() {
        let rows =
            file["rows"].as_u64().map_or_else(String::new, |n| format!(", {} rows", grouped(n)));
        let path = file["path"].as_str().unwrap_or_default();
        print_line(&format!("{path}  {}{rows}", bytes(file["bytes"].as_u64().unwrap_or_default())));
    }
    print_line(&format!("{MANIFEST}  describes the files and the inputs of the graph"));
    Ok(())
}

/// Creates the folder. Refuses a folder that is not empty, unless `force` is set. If an old export
/// is replaced, its description is removed first.
fn prepare(folder: &Path, force: bool, files: &Files) -> Result<()> {
    files.create_dir(folder)?;
    files.sweep(folder)?;
    let first = std::fs::read_dir(folder)
        .with_context(|| format!("cannot list the folder {}", folder.display()))?
        .next();
    if first.is_some() && !force {
        return refuse(format!(
            "the folder {} is not empty; name another one, or replace its files with --force",
            folder.display()
        ));
    }
    let manifest = folder.join(MANIFEST);
    if manifest.exists() {
        files.remove_file(manifest)?;
    }
    Ok(())
}

/// A version that is being exported.
struct Export<'a> {
    model: Model,
    cache: Cache,
    files: Files,
    output: &'a Path,
    chain: Vec<Arc<VersionManifest>>,
    version: Arc<VersionManifest>,
    schema: Schema,
    /// The descriptions of the written files, in the order of writing.
    written: Vec<Value>,
    /// The description of the tables; absent before they are written.
    tables: Option<Value>,
    graph: Option<Value>,
}

impl<'a> Export<'a> {
    fn of(
        model: Model,
        mut cache: Cache,
        files: Files,
        output: &'a Path,
        version: zillion_registry::VersionId,
    ) -> Result<Self> {
        let chain = cache.chain(&model, version)?;
        let Some(newest) = chain.last().cloned() else {
            bail!(
                "version {version} has no chain of versions, which is a defect; publish the \
                 version again"
            )
        };
        let schema = Schema::from_job(&newest.frame.schema)?;
        Ok(Self {
            model,
            cache,
            files,
            output,
            chain,
            version: newest,
            schema,
            written: Vec::new(),
            tables: None,
            graph: None,
        })
    }

    /// Returns the bytes of a file of the version. The bytes are hashed again, because the export
    /// has no other check for a damaged cache.
    fn read(&self, file: &VersionFile) -> Result<bytes::Bytes> {
        let described = LayerFile { blake3: file.blake3.clone(), bytes: file.bytes };
        let bytes = self.cache.read(&self.model, &file.name(), &described, &mut Unthrottled)?;
        let found = VersionFile::of(&file.kind, &bytes);
        if found != *file {
            bail!(
                "the file {} is damaged, because its hash is {} instead of the published hash; \
                 remove the file to fetch it again",
                self.cache.folder().join(file.name()).display(),
                found.blake3
            );
        }
        Ok(bytes)
    }

    /// Writes a file from bytes in memory, and adds it to the description of the export.
    fn put(&mut self, path: &str, what: &str, bytes: &[u8], more: Value) -> Result<()> {
        self.files.write_bytes(self.output.join(path), bytes)?;
        self.record(path, what, bytes.len() as u64, more);
        Ok(())
    }

    /// Adds a written file to the description of the export.
    fn record(&mut self, path: &str, what: &str, bytes: u64, more: Value) {
        let mut entry = json!({ "path": path, "what": what, "bytes": bytes });
        if let (Value::Object(entry), Value::Object(more)) = (&mut entry, more) {
            entry.extend(more);
        }
        self.written.push(entry);
    }

    /// Copies the side tables unchanged, because other programs can open their formats.
    fn write_sides(&mut self) -> Result<()> {
        let version = self.version.clone();
        if !version.frame.sides.is_empty() {
            self.files.create_dir(self.output.join("sides"))?;
        }
        for (at, file) in version.frame.sides.iter().enumerate() {
            let bytes = self.read(file)?;
            let name = self.schema.sides[at].name.clone();
            let path = format!("sides/{name}.arrow");
            self.put(&path, "side", &bytes, json!({ "side": name }))?;
        }
        Ok(())
    }

    fn write_dense(&mut self) -> Result<()> {
        let bytes = self.read(&self.version.dense)?;
        let path =
            if self.version.frame.settings.onnx { "dense.onnx" } else { "dense.safetensors" };
        self.put(path, "dense", &bytes, json!({}))
    }

    fn write_graph(&mut self) -> Result<()> {
        let graph = Graph::from_json(&self.read(&self.version.frame.graph)?)?;
        // The graph before an ONNX model has no parameters, and its outputs are that model's
        // inputs.
        let params = match self.version.frame.settings.onnx {
            true => Params::init(&graph.params, 0),
            false => Params::from_safetensors(&graph.params, &self.read(&self.version.dense)?)?,
        };
        let columns = self.columns(&graph)?;
        let metadata = self.metadata();
        let OnnxModel { bytes, inputs, outputs } = graph.to_onnx(&params, &columns, &metadata)?;
        self.put("graph.onnx", "graph", &bytes, json!({}))?;
        let outputs = outputs.iter().map(|(name, cols)| json!({ "name": name, "columns": cols }));
        let outputs: Vec<Value> = outputs.collect();
        self.graph = Some(json!({
            "path": "graph.onnx",
            "inputs": inputs,
            "outputs": outputs,
        }));
        Ok(())
    }

    /// Returns the description of each column of the graph. The inputs have the names of the
    /// features and of the segments of their tables.
    fn columns(&self, graph: &Graph) -> Result<Vec<OnnxColumn>> {
        let layouts: Vec<TableLayout> =
            self.version.frame.tables.iter().map(|t| t.layout()).collect();
        let mut columns = Vec::with_capacity(graph.inputs.columns.len());
        for column in &graph.inputs.columns {
            let feature = self.schema.sparse().find(|f| f.name == column.name);
            let table = &graph.inputs.tables[column.table].name;
            let layout = layouts.iter().find(|l| l.name == *table);
            let (Some(feature), Some(layout)) = (feature, layout) else {
                bail!(
                    "feature `{}` of table `{table}` is in the graph of the version, but not in \
                     its schema; publish the model again",
                    column.name
                );
            };
            let segments = layout.segments.iter().map(|s| (s.name.clone(), s.offset, s.dim));
            columns.push(OnnxColumn {
                list: feature.pooling().is_some(),
                segments: segments.collect(),
            });
        }
        Ok(columns)
    }

    /// Returns the metadata that is written into every exported file.
    fn metadata(&self) -> BTreeMap<String, String> {
        let version = &self.version;
        let entries = [
            ("zillion.model", version.model.clone()),
            ("zillion.version", version.version.to_string()),
            ("zillion.chain", version.chain.clone()),
            ("zillion.hash", HASH_ID.to_owned()),
        ];
        entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Writes the description of the export and returns it.
    fn finish(self) -> Result<Value> {
        // The names in subfolders are made durable before the description lists them.
        for folder in ["rows", "sides"].map(|name| self.output.join(name)) {
            if folder.is_dir() {
                self.files.sync_dir(folder)?;
            }
        }
        let version = &self.version;
        let described = json!({
            "format": FORMAT,
            "model": version.model,
            "version": version.version,
            "chain": version.chain,
            "published_ms": version.published_ms,
            "step": version.origin.step,
            "hash": HASH_ID,
            "files": self.written,
            "features": describe::features(&self.schema, &version.frame.statistics),
            "labels": self.schema.labels.iter().map(|l| &l.name).collect::<Vec<_>>(),
            "sides": describe::sides(&self.schema),
            "tables": self.tables.unwrap_or_else(|| json!([])),
            "graph": self.graph,
        });
        let mut text = serde_json::to_vec_pretty(&described)?;
        text.push(b'\n');
        self.files.write_bytes(self.output.join(MANIFEST), &text)?;
        Ok(described)
    }
}
