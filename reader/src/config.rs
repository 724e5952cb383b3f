//! The `[data]` section of a job: the files, their format, and the order in which they are read.

use std::fmt;
use std::path::PathBuf;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zillion_feature::Schema;

use crate::error::{ReaderError, Result};
use crate::files;
use crate::format::{FileFormat, Format, TextFormat, format_of};
use crate::input::{FileFacts, Input};
use crate::stores::Stores;
use crate::text::Encoding;

/// The default number of rows that are shuffled together.
pub const SHUFFLE_WINDOW: usize = 262_144;

/// The `[data]` section of a job: the files, their format, and the order in which they are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// The folder that relative paths in the file lists start from.
    pub root: PathBuf,
    /// The training files: one path, directory or glob, or a list of them.
    pub train: Paths,
    /// The validation files, written like the training files.
    pub valid: Paths,
    /// The test files, written like the training files.
    pub test: Paths,
    /// The format of the files. With `auto`, the extension of each file decides.
    pub format: Format,
    /// The encoding of text files.
    #[serde(skip_serializing_if = "is_default")]
    pub encoding: Encoding,
    /// Whether text files start with a header, or the names of the columns if they have no header.
    pub header: Header,
    /// The character between cells. If `None`, it is `,` in CSV and a tab in TSV.
    pub delimiter: Option<Byte>,
    /// The character around cells that contain delimiters, or an empty text if no character quotes
    /// cells.
    pub quote: Quote,
    /// The decimal separator of numbers in text files: `.` or `,`.
    pub decimal: Decimal,
    /// The texts that mean a missing value. An empty cell always means a missing value.
    pub null: Vec<String>,
    /// The character between the ids of a multi-hot cell.
    pub list_separator: Byte,
    /// The number of bad rows that a pass over the data may leave out. With 0, the first bad row is
    /// an error. [`ReaderError::is_about_one_row`] tells which errors make a row bad. A bad row of
    /// a side table is always an error.
    #[serde(skip_serializing_if = "is_default")]
    pub max_bad_rows: u64,
    /// The file to which the bad rows are written, or `None` to write no such file. The file has
    /// one JSON object for each row, and each bad row is written once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejects: Option<PathBuf>,
    /// The share of the training rows that is used, or `None` to use all rows. The seed, the file
    /// and the number of a row decide whether the row is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Share>,
    /// The share of the training rows with label 0 that each epoch uses, or `None` to use all of
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub negatives: Option<NegativesConfig>,
    /// Whether training rows are shuffled in every epoch.
    pub shuffle: bool,
    /// The number of rows that are shuffled together.
    pub shuffle_window: WindowRows,
    /// The buckets of those files whose paths are URLs. A job does not set this field.
    #[serde(skip)]
    pub stores: Stores,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            root: PathBuf::new(),
            train: Paths::default(),
            valid: Paths::default(),
            test: Paths::default(),
            format: Format::Auto,
            encoding: Encoding::default(),
            header: Header::Yes,
            delimiter: None,
            quote: Quote(Some(Byte(b'"'))),
            decimal: Decimal::Point,
            null: Vec::new(),
            list_separator: Byte(b'|'),
            max_bad_rows: 0,
            rejects: None,
            sample: None,
            negatives: None,
            shuffle: true,
            shuffle_window: WindowRows(SHUFFLE_WINDOW),
            stores: Stores::default(),
        }
    }
}

impl DataConfig {
    /// Returns the files that match a list of paths, directories and globs, relative to
    /// [`DataConfig::root`]. An entry or the root may be the URL of a bucket, such as
    /// `s3://clicks/day=*/`. The result follows the order of the list; the files of one entry are
    /// sorted.
    ///
    /// # Errors
    /// Returns an error if an entry matches no file, or if two entries match the same file.
    pub fn files(&self, paths: &Paths) -> Result<Vec<PathBuf>> {
        files::expand(&self.root, &paths.0, &self.stores)
    }

    /// Returns the path or the URL of a file that a job names relative to [`DataConfig::root`].
    pub fn locate(&self, name: &std::path::Path) -> PathBuf {
        files::locate(&self.root, name)
    }

    /// Returns the size of a file and the time of its last change.
    ///
    /// # Errors
    /// Returns an error if the file does not exist or cannot be inspected.
    pub fn file_facts(&self, path: &std::path::Path) -> Result<FileFacts> {
        Input::open(&self.stores, path)?.facts()
    }

    /// Opens a file for reading from its first byte to its last, without decompression.
    ///
    /// # Errors
    /// Returns an error if the file does not exist or cannot be opened.
    pub fn read_bytes(&self, path: &std::path::Path) -> Result<Box<dyn std::io::Read + Send>> {
        Input::open(&self.stores, path)?.read_start()
    }

    /// Returns whether a file is a text file. If the settings name a format, that format decides.
    /// Otherwise, the extension of the file decides.
    ///
    /// # Errors
    /// Returns an error if the settings name no format and the extension is not known.
    pub fn is_text(&self, path: &std::path::Path) -> Result<bool> {
        let format = format_of(path, self.format)?;
        Ok(matches!(format, FileFormat::Text(..)))
    }

    /// Checks the conditions that involve several settings.
    pub(crate) fn check(&self) -> Result<()> {
        let quote = self.quote.byte();
        let formats = [TextFormat::Csv, TextFormat::Tsv];
        if quote.is_some() && formats.iter().any(|&f| quote == Some(self.delimiter_for(f))) {
            let problem = "the quote and the delimiter are the same character; choose different \
                           characters";
            return Err(ReaderError::setting("data.quote", problem));
        }
        if self.rejects.is_some() && self.max_bad_rows == 0 {
            let problem = "`data.max_bad_rows` is 0, so the first bad row is an error; set it to the number of bad rows that may be left out";
            return Err(ReaderError::setting("data.rejects", problem));
        }
        Ok(())
    }

    /// Returns the sampling of rows with label 0 in training: the position of the label in the
    /// schema and the share of the rows that is kept. Returns `None` if the job sets no sampling.
    ///
    /// # Errors
    /// Returns an error if the settings name a label that is not in the schema, or if they name no
    /// label and the schema has several labels.
    pub fn negatives(&self, schema: &Schema) -> Result<Option<(usize, f64)>> {
        let Some(NegativesConfig { keep, label }) = &self.negatives else { return Ok(None) };
        let refuse = |problem: String| ReaderError::setting("data.negatives.label", problem);
        let names: Vec<&str> = schema.labels.iter().map(|l| l.name.as_str()).collect();
        let position = match label {
            Some(label) => names.iter().position(|name| name == label).ok_or_else(|| {
                refuse(format!(
                    "unknown label `{label}` (labels: {}); name one of these labels",
                    names.join(", ")
                ))
            })?,
            None if names.len() == 1 => 0,
            None => {
                return Err(refuse(format!(
                    "the schema has several labels ({}); name the label whose zeros are sampled",
                    names.join(", ")
                )));
            }
        };
        Ok(Some((position, keep.get())))
    }

    pub(crate) fn delimiter_for(&self, format: TextFormat) -> u8 {
        match (self.delimiter, format) {
            (Some(byte), _) => byte.0,
            (None, TextFormat::Tsv) => b'\t',
            (None, _) => b',',
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The sampling of rows with label 0 in training. Each epoch draws a different set of rows, so that
/// training uses all rows in the long run. Scoring corrects the predictions of the model for the
/// rows that were left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NegativesConfig {
    /// The share of the rows with label 0 that an epoch uses.
    pub keep: Share,
    /// The name of the label, or `None` if the schema has only one label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A share of rows, above 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64")]
pub struct Share(f64);

impl Share {
    /// Returns the share as a number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Share {
    type Error = &'static str;

    fn try_from(share: f64) -> std::result::Result<Self, Self::Error> {
        let is_share = share > 0.0 && share <= 1.0;
        is_share.then_some(Self(share)).ok_or("must be above 0 and at most 1")
    }
}

/// The entries of a file list. A job writes them as one string or as a list of strings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Paths(pub Vec<String>);

impl Paths {
    /// Returns whether the list has no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Paths {
    fn from(path: &str) -> Self {
        Self(vec![path.to_owned()])
    }
}

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct PathsVisitor;
        impl<'de> Visitor<'de> for PathsVisitor {
            type Value = Paths;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path or a list of paths")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Paths, E> {
                Ok(Paths(vec![text.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(
                self,
                items: A,
            ) -> std::result::Result<Paths, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(items)).map(Paths)
            }
        }
        deserializer.deserialize_any(PathsVisitor)
    }
}

/// The source of the column names of text files. A job writes it as `true` or as a list of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Header {
    /// The first record of each file holds the names of the columns.
    #[default]
    Yes,
    /// The files have no header, and the job lists the names of the columns.
    Names(Vec<String>),
}

impl Serialize for Header {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Yes => serializer.serialize_bool(true),
            Self::Names(names) => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true or a list of column names")
            }
            fn visit_bool<E: de::Error>(self, header: bool) -> std::result::Result<Header, E> {
                if header {
                    return Ok(Header::Yes);
                }
                Err(E::custom(
                    "files without a header need column names; set header = [\"label\", \"user\", \
                     ..]",
                ))
            }
            fn visit_seq<A: SeqAccess<'de>>(
                self,
                items: A,
            ) -> std::result::Result<Header, A::Error> {
                let names = Vec::deserialize(SeqAccessDeserializer::new(items))?;
                if names.is_empty() {
                    return Err(de::Error::custom(
                        "the list of column names is empty; name the columns",
                    ));
                }
                Ok(Header::Names(names))
            }
        }
        deserializer.deserialize_any(HeaderVisitor)
    }
}

/// One ASCII character with a function in text files, such as the delimiter. A job writes it as a
/// string of one character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Byte(u8);

impl Byte {
    /// Returns the character, or `None` if it is not ASCII or ends a line.
    pub fn new(character: char) -> Option<Self> {
        let byte = u8::try_from(character).ok()?;
        (byte.is_ascii() && byte != b'\n' && byte != b'\r').then_some(Self(byte))
    }

    /// Returns the character as a byte.
    pub fn byte(self) -> u8 {
        self.0
    }
}

impl TryFrom<String> for Byte {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let mut characters = text.chars();
        match (characters.next().and_then(Self::new), characters.next()) {
            (Some(byte), None) => Ok(byte),
            _ => Err(format!(
                "expected one ASCII character that does not end a line, found {text:?}"
            )),
        }
    }
}

impl From<Byte> for String {
    fn from(byte: Byte) -> Self {
        char::from(byte.0).into()
    }
}

/// The quote character of text files. A job writes it as a string of one character, or as an empty
/// string if no character quotes cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Quote(Option<Byte>);

impl Quote {
    /// The setting without a quote character.
    pub const NONE: Self = Self(None);

    /// Returns the setting for this quote character, or for no quote character if it is `None`.
    pub fn new(character: Option<Byte>) -> Self {
        Self(character)
    }

    /// Returns the quote character as a byte, or `None` if there is no quote character.
    pub fn byte(self) -> Option<u8> {
        self.0.map(Byte::byte)
    }
}

impl TryFrom<String> for Quote {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        if text.is_empty() { Ok(Self::NONE) } else { text.try_into().map(|byte| Self(Some(byte))) }
    }
}

impl From<Quote> for String {
    fn from(quote: Quote) -> Self {
        quote.0.map_or_else(Self::new, Self::from)
    }
}

/// The decimal separator of numbers in text files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decimal {
    /// A point, as in `1.5`.
    #[default]
    #[serde(rename = ".")]
    Point,
    /// A comma, as in `1,5`.
    #[serde(rename = ",")]
    Comma,
}

/// The number of rows of a window, from 1 to 2³¹ − 1. The limit exists because row indices in a
/// window have 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct WindowRows(usize);

impl WindowRows {
    /// Returns the number of rows, or `None` if it is outside the range.
    pub fn new(rows: usize) -> Option<Self> {
        (1..=i32::MAX as usize).contains(&rows).then_some(Self(rows))
    }

    /// Returns the number of rows.
    pub fn get(self) -> usize {
        self.0
    }
}

impl<'de> Deserialize<'de> for WindowRows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let rows = u64::deserialize(deserializer)?;
        usize::try_from(rows)
            .ok()
            .and_then(Self::new)
            .ok_or_else(|| de::Error::custom("must be at least 1 and less than 2^31 rows"))
    }
}
