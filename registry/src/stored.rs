//! The forms in which a manifest is stored.
//!
//! * Format 1 has the contents of the frame in itself, and lists the files of its layer.
//! * Format 2 names the frame by its hash. It lists the files of its layer, or names the pack that
//!   holds them. So the manifest of a packed delta has the same size whatever the job is.
//!
//! New manifests have format 2. Manifests of both formats are read, and a version of one format can
//! stand on a version of the other. A program that knows only format 1 refuses a manifest of format
//! 2, and names the unknown field.

use std::borrow::Cow;
use std::io::BufWriter;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zillion_access::Signature;
use zillion_feature::{HASH_ID, Statistics};
use zillion_rows::TableSpec;
use zillion_rows::layer::{LayerManifest, LayerPack};

use crate::frame::{Frame, ScoreSettings};
use crate::manifest_scan::Scan;
use crate::origin::Origin;
use crate::reference::{Link, MAX_JSON_BYTES, VersionFile, VersionId, describe_large_file};
use crate::version::{VersionLayer, VersionManifest};

/// The format of a manifest that has the contents of its frame.
const INLINE: u32 = 1;
/// The format of a manifest that names its frame.
const REFERRING: u32 = 2;

/// The number of bytes of a manifest that are hashed at once.
const HASHED_AT_ONCE: usize = 64 << 10;

/// The fields of a manifest of either format, in the order in which they are stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stored<'a> {
    format: u32,
    model: Cow<'a, str>,
    version: VersionId,
    parent: Option<Cow<'a, Link>>,
    chain: Cow<'a, str>,
    published_ms: u64,
    hash: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema_hash: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema: Option<Cow<'a, toml::Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tables: Option<Cow<'a, [TableSpec]>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    statistics: Option<Cow<'a, Statistics>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    frame: Option<Cow<'a, VersionFile>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer: Option<Cow<'a, LayerManifest>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pack: Option<Cow<'a, LayerPack>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    graph: Option<Cow<'a, VersionFile>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settings: Option<ScoreSettings>,
    dense: Cow<'a, VersionFile>,
    parity: Cow<'a, VersionFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    items: Option<Cow<'a, VersionFile>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sides: Option<Cow<'a, [VersionFile]>>,
    origin: Cow<'a, Origin>,
    #[serde(default, skip_serializing_if = "is_empty")]
    signatures: Cow<'a, [Signature]>,
}

fn is_empty(signatures: &[Signature]) -> bool {
    signatures.is_empty()
}

impl<'a> Stored<'a> {
    /// Returns the stored form of a manifest.
    pub(crate) fn of(manifest: &'a VersionManifest) -> Self {
        // A field that is added to the manifest must be stored, or named here.
        let VersionManifest {
            model,
            version,
            parent,
            chain,
            published_ms,
            hash,
            frame,
            frame_file,
            layer,
            dense,
            parity,
            items,
            origin,
            signatures,
        } = manifest;
        let inline = match frame_file {
            None => Some(frame),
            Some(_) => None,
        };
        let (layer, pack) = match layer {
            VersionLayer::Listed(layer) => (Some(Cow::Borrowed(layer)), None),
            VersionLayer::Packed(pack) => (None, Some(Cow::Borrowed(pack))),
        };
        Self {
            format: if inline.is_some() { INLINE } else { REFERRING },
            model: model.into(),
            version: *version,
            parent: parent.as_ref().map(Cow::Borrowed),
            chain: chain.into(),
            published_ms: *published_ms,
            hash: hash.into(),
            schema_hash: inline.map(|frame| Cow::Borrowed(&frame.schema_hash[..])),
            schema: inline.map(|frame| Cow::Borrowed(&frame.schema)),
            tables: inline.map(|frame| Cow::Borrowed(&frame.tables[..])),
            statistics: inline.map(|frame| Cow::Borrowed(&frame.statistics)),
            frame: frame_file.as_ref().map(Cow::Borrowed),
            layer,
            pack,
            graph: inline.map(|frame| Cow::Borrowed(&frame.graph)),
            settings: inline.map(|frame| frame.settings),
            dense: Cow::Borrowed(dense),
            parity: Cow::Borrowed(parity),
            items: items.as_ref().map(Cow::Borrowed),
            sides: inline.map(|frame| Cow::Borrowed(&frame.sides[..])),
            origin: Cow::Borrowed(origin),
            signatures: Cow::Borrowed(signatures),
        }
    }

    /// Returns the bytes of the manifest's object.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self)
            .expect("a manifest is plain data with text keys, which JSON can always hold")
    }

    /// Computes the chain hash, which includes neither itself nor the signatures.
    pub(crate) fn chain_hash(&mut self) -> String {
        let chain = std::mem::take(&mut self.chain);
        let signatures = std::mem::take(&mut self.signatures);
        // The manifest of a large version is neither copied nor written to memory for its hash.
        let mut out = BufWriter::with_capacity(HASHED_AT_ONCE, blake3::Hasher::new());
        serde_json::to_writer(&mut out, self)
            .expect("a manifest is plain data with text keys, which JSON can always hold");
        let hasher = out.into_inner().expect("a hasher takes every byte");
        (self.chain, self.signatures) = (chain, signatures);
        hasher.finalize().to_hex().to_string()
    }

    /// Returns the file of the frame, or `None` if the manifest has the contents of the frame.
    pub(crate) fn frame_file(&self) -> Option<&VersionFile> {
        self.frame.as_deref()
    }

    /// Returns the frame whose contents the manifest has.
    ///
    /// # Errors
    /// Returns the problem if a part of the frame is missing or not valid.
    pub(crate) fn inline_frame(&self) -> Result<Frame, String> {
        let missing = |field: &str| format!("the manifest has no field `{field}`");
        let frame = Frame {
            schema_hash: self
                .schema_hash
                .clone()
                .ok_or_else(|| missing("schema_hash"))?
                .into_owned(),
            schema: self.schema.clone().ok_or_else(|| missing("schema"))?.into_owned(),
            tables: self.tables.clone().ok_or_else(|| missing("tables"))?.into_owned(),
            statistics: self.statistics.clone().ok_or_else(|| missing("statistics"))?.into_owned(),
            graph: self.graph.clone().ok_or_else(|| missing("graph"))?.into_owned(),
            settings: self.settings.ok_or_else(|| missing("settings"))?,
            sides: self.sides.clone().ok_or_else(|| missing("sides"))?.into_owned(),
        };
        frame.validate()?;
        Ok(frame)
    }
}

impl Stored<'static> {
    /// Parses a manifest. Verifies its format and hash, and that it belongs to this version of this
    /// model.
    ///
    /// # Errors
    /// Returns the problem if the manifest is not valid.
    pub(crate) fn parse(model: &str, version: VersionId, bytes: &[u8]) -> Result<Self, String> {
        Scan::of(bytes)?;
        let mut stored: Self = serde_json::from_slice(bytes)
            .map_err(|error| format!("the manifest cannot be parsed: {error}"))?;
        if !(INLINE..=REFERRING).contains(&stored.format) {
            return Err(format!(
                "the manifest has format {}, but this program reads the formats {INLINE} and {REFERRING}",
                stored.format
            ));
        }
        if stored.model != model || stored.version != version {
            return Err(format!(
                "the manifest belongs to version {} of model `{}`",
                stored.version, stored.model
            ));
        }
        if stored.hash != HASH_ID {
            return Err(format!(
                "the version hashes its keys with {}, but this program uses {HASH_ID}",
                stored.hash
            ));
        }
        let hash = stored.chain_hash();
        if hash != stored.chain {
            return Err(format!(
                "the manifest was changed after it was published: its hash is {hash}, but it records {}",
                stored.chain
            ));
        }
        stored.check_fields()?;
        let parity = &stored.parity;
        if parity.bytes > MAX_JSON_BYTES {
            return Err(describe_large_file(parity));
        }
        if let Some(parent) = &stored.parent
            && parent.version >= version
        {
            return Err(format!(
                "the number of its parent, version {}, is not lower",
                parent.version
            ));
        }
        if let Some(compacted) = stored.origin.compacts
            && (stored.parent.is_some() || compacted >= version)
        {
            return Err(format!(
                "the manifest repeats version {compacted}, but only a base can repeat a version, \
                 and only an earlier one"
            ));
        }
        Ok(stored)
    }

    /// Checks that the manifest has the fields of its format and no others.
    fn check_fields(&self) -> Result<(), String> {
        let inline = [
            ("schema_hash", self.schema_hash.is_some()),
            ("schema", self.schema.is_some()),
            ("tables", self.tables.is_some()),
            ("statistics", self.statistics.is_some()),
            ("graph", self.graph.is_some()),
            ("settings", self.settings.is_some()),
            ("sides", self.sides.is_some()),
        ];
        let is_inline = self.format == INLINE;
        if let Some((field, _)) = inline.iter().find(|(_, has)| *has != is_inline) {
            let problem = if is_inline { "lacks" } else { "has" };
            return Err(format!("the manifest {problem} the field `{field}`, against its format"));
        }
        if self.frame.is_some() == is_inline {
            let problem = if is_inline { "has" } else { "lacks" };
            return Err(format!("the manifest {problem} the field `frame`, against its format"));
        }
        match (&self.layer, &self.pack) {
            (Some(_), None) => Ok(()),
            (None, Some(_)) if !is_inline => Ok(()),
            _ => Err("the manifest needs either a layer or, in format 2, a pack".to_owned()),
        }
    }

    /// Returns the manifest with its frame.
    ///
    /// # Errors
    /// Returns the problem if the manifest has no layer, or a dense model of another kind than the
    /// frame says.
    pub(crate) fn into_manifest(self, frame: Arc<Frame>) -> Result<VersionManifest, String> {
        frame.settings.check_dense(&self.dense)?;
        let layer = match (self.layer, self.pack) {
            (Some(layer), _) => VersionLayer::Listed(layer.into_owned()),
            (None, Some(pack)) => VersionLayer::Packed(pack.into_owned()),
            (None, None) => return Err("the manifest has no layer".to_owned()),
        };
        Ok(VersionManifest {
            model: self.model.into_owned(),
            version: self.version,
            parent: self.parent.map(Cow::into_owned),
            chain: self.chain.into_owned(),
            published_ms: self.published_ms,
            hash: self.hash.into_owned(),
            frame,
            frame_file: self.frame.map(Cow::into_owned),
            layer,
            dense: self.dense.into_owned(),
            parity: self.parity.into_owned(),
            items: self.items.map(Cow::into_owned),
            origin: self.origin.into_owned(),
            signatures: self.signatures.into_owned(),
        })
    }
}

/// Sets the right chain hash in the bytes of a manifest, and removes its signatures. Whoever can
/// write to a registry can do the same, so that tests of readers do it. Returns `None` if the bytes
/// are not a manifest.
pub fn reseal_manifest(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut stored: Stored<'static> = serde_json::from_slice(bytes).ok()?;
    HASH_ID.clone_into(stored.hash.to_mut());
    stored.signatures = Cow::Borrowed(&[]);
    stored.chain = stored.chain_hash().into();
    Some(stored.to_bytes())
}
