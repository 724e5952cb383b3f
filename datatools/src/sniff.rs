//! The detection of the format of a text file from its beginning: the delimiter, the quote
//! character, and whether the first record is a header.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::Path;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use zillion_reader::{
    Byte, Compression, DataConfig, FileFormat, Format, Header, Quote, ReaderError, Result,
    TextFormat, format_of,
};

use zillion_reader::text::{
    Dialect, Encoding, Grammar, JsonKeys, JsonRow, Lines, Records, Step, SvmRow, open_stream,
};

use crate::parquet_files::{failed, setting};

/// The maximum number of bytes to read.
const LOOKED_AT: usize = 1 << 20;
/// The maximum number of records to read.
const RECORDS: usize = 500;
/// The candidates for the delimiter, in the order of preference. If several candidates are equally
/// good, the first one is chosen.
const DELIMITERS: [u8; 5] = *b",;\t|:";
const QUOTES: [Option<u8>; 3] = [Some(b'"'), Some(b'\''), None];
/// The minimum share of records that have the same number of cells as the first record. A delimiter
/// with a smaller share is not accepted.
const MOST: f64 = 0.9;

/// The result of the detection: settings that probably read the file correctly.
#[derive(Clone, Debug)]
pub struct Sniffed {
    /// The settings that read the file. Their `root` and their file lists are empty.
    pub config: DataConfig,
    /// The remarks about the detected settings, for the user.
    pub notes: Vec<String>,
    /// The names of the columns that no feature can read: names that occur twice, and an empty text
    /// for each column without a name.
    pub unusable: Vec<String>,
}

/// Detects the format of a file from its beginning.
///
/// # Errors
/// Returns an error if the file cannot be read, is empty or is binary, or if no delimiter
/// results in records of equal length.
pub fn sniff(path: &Path) -> Result<Sniffed> {
    let reading = DataConfig::default();
    let mut start = [0; 4];
    reading
        .read_bytes(path)?
        .read(&mut start)
        .map_err(|error| failed("open the file", path, error))?;
    let by_ending = format_of(path, Format::Auto);
    let binary = match &start {
        b"PAR1" => Some((FileFormat::Parquet, Format::Parquet)),
        b"ARRO" => Some((FileFormat::Arrow, Format::Arrow)),
        _ => None,
    };
    if let Some((found, format)) = binary {
        let is_named = by_ending.is_ok_and(|by_ending| by_ending == found);
        let format = if is_named { Format::Auto } else { format };
        let config = DataConfig { format, ..reading };
        return Ok(Sniffed { config, notes: Vec::new(), unusable: Vec::new() });
    }
    let mut notes = Vec::new();
    let (text, encoding) = read_beginning(&reading, path)?;
    let reading = DataConfig { encoding, ..reading };
    if encoding != Encoding::default() {
        notes.push(format!(
            "the file is not UTF-8 and is read as {}; if its letters are wrong, correct \
             `data.encoding`",
            encoding.name()
        ));
    }
    check_compression(path, start)?;
    if let Some(found) = detect_lines(&text, path)? {
        let (by_ending, format) = match by_ending {
            Ok(FileFormat::Text(by_ending, _)) if by_ending == found => (true, Format::Auto),
            Ok(_) => (false, format_of_lines(found)),
            Err(_) => (true, format_of_lines(found)),
        };
        if !by_ending {
            let kind = if found == TextFormat::Json { "JSON lines" } else { "libsvm" };
            notes.push(format!("the file is {kind}, although its extension names another format"));
        }
        let config = DataConfig { format, ..reading };
        return Ok(Sniffed { config, notes, unusable: Vec::new() });
    }
    let (dialect, rows) = dialect(&text, path)?;
    let (format, own_delimiter) = match by_ending {
        Ok(FileFormat::Text(TextFormat::Tsv, _)) => (Format::Auto, b'\t'),
        Ok(FileFormat::Text(TextFormat::Csv, _)) => (Format::Auto, b','),
        Ok(_) => {
            let note = "the file is a table of text, although its extension names another format";
            notes.push(note.to_owned());
            (Format::Csv, b',')
        }
        Err(_) => (Format::Csv, b','),
    };
    let first: Vec<String> = rows.first().cloned().unwrap_or_default();
    let named = is_header(&rows);
    let header = match named {
        true => Header::Yes,
        false => {
            notes.push(format!(
                "the file has no header, so its columns are named c1 to c{} in their order",
                first.len()
            ));
            Header::Names((1..=first.len()).map(|i| format!("c{i}")).collect())
        }
    };
    let mut seen = BTreeSet::new();
    let names = if named { &first[..] } else { &[] };
    let unusable =
        names.iter().filter(|name| name.is_empty() || !seen.insert(*name)).cloned().collect();
    let config = DataConfig {
        format,
        header,
        delimiter: Byte::new(char::from(dialect.delimiter)).filter(|b| b.byte() != own_delimiter),
        quote: Quote::new(dialect.quote.map(char::from).and_then(Byte::new)),
        ..reading
    };
    Ok(Sniffed { config, notes, unusable })
}

/// Reads the beginning of a file, decompressed and without the byte order mark. Converts it to
/// UTF-8 and returns the encoding that it had.
fn read_beginning(reading: &DataConfig, path: &Path) -> Result<(Vec<u8>, Encoding)> {
    let unreadable = |error: io::Error| failed("read", path, error);
    let source = open_stream(reading.read_bytes(path)?, path)?;
    let mut text = Vec::new();
    source.take(LOOKED_AT as u64).read_to_end(&mut text).map_err(unreadable)?;
    if text.is_empty() {
        return Err(ReaderError::EmptyFile { path: path.to_owned() });
    }
    let marked = encoding_rs::Encoding::for_bom(&text);
    if let Some((encoding, _)) = marked.filter(|(encoding, _)| *encoding != encoding_rs::UTF_8) {
        let (converted, _) = encoding.decode_with_bom_removal(&text);
        return Ok((converted.into_owned().into_bytes(), Encoding::new(encoding)));
    }
    if text.starts_with("\u{feff}".as_bytes()) {
        text.drain(..3);
    }
    if let Err(e) = std::str::from_utf8(&text)
        // The last character may be incomplete, because only the beginning of the file was read.
        // This is not an error of the file.
        && e.error_len().is_some()
    {
        if text.contains(&0) {
            return Err(ReaderError::Encoding { encoding: "binary", path: path.to_owned() });
        }
        let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
        detector.feed(&text, text.len() < LOOKED_AT);
        let encoding = detector.guess(None, Utf8Detection::Deny);
        let (converted, _) = encoding.decode_without_bom_handling(&text);
        return Ok((converted.into_owned().into_bytes(), Encoding::new(encoding)));
    }
    Ok((text, Encoding::default()))
}

/// Returns JSON lines or libsvm if the first rows have this format, and otherwise `None`.
fn detect_lines(text: &[u8], path: &Path) -> Result<Option<TextFormat>> {
    let refuse = |problem: &str| setting(problem, path.display());
    let by_ending = match format_of(path, Format::Auto) {
        Ok(FileFormat::Text(format @ (TextFormat::Json | TextFormat::Svm), _)) => Some(format),
        _ => None,
    };
    let first = text.trim_ascii_start();
    if first.starts_with(b"[") && by_ending != Some(TextFormat::Svm) {
        let end = first.iter().position(|&b| b == b'{').unwrap_or(first.len());
        if end < 200 && first[1..end].trim_ascii().is_empty() {
            let problem = "the file is a JSON array of objects; write one object per line instead \
                           (`jq -c '.[]'`)";
            return Err(refuse(problem));
        }
    }
    let mut lines = Lines::new(Grammar::Svm, text);
    if first.starts_with(b"{") || by_ending == Some(TextFormat::Json) {
        let line = Lines::new(Grammar::Json, text).advance().unwrap_or_default();
        return match JsonRow::default().read(line, &JsonKeys::default()) {
            Ok(()) => Ok(Some(TextFormat::Json)),
            // A CSV header may begin with a brace.
            Err(_) if by_ending.is_none() && !first.starts_with(b"{\"") => Ok(None),
            Err(problem) => Err(refuse(&format!("row 1: {problem}"))),
        };
    }
    if by_ending == Some(TextFormat::Svm) {
        return Ok(by_ending);
    }
    let mut rows = 0;
    while rows < 50
        && let Some(line) = lines.advance()
    {
        let mut row = SvmRow::default();
        let is_number =
            |label: &[u8]| std::str::from_utf8(label).is_ok_and(|l| l.parse::<f64>().is_ok());
        if row.read(line).is_err() || !is_number(row.label) || row.entries.is_empty() {
            // The last line may be incomplete, because only the beginning of the file was read.
            let last = lines.advance().is_none() && text.len() >= LOOKED_AT;
            return Ok((last && rows > 0).then_some(TextFormat::Svm));
        }
        rows += 1;
    }
    Ok((rows > 0).then_some(TextFormat::Svm))
}

fn format_of_lines(format: TextFormat) -> Format {
    if format == TextFormat::Json { Format::Jsonl } else { Format::Libsvm }
}

/// Returns an error if the file is compressed but lacks the extension for its compression. The
/// reader recognises a compressed file by its extension, and would otherwise read it as text.
fn check_compression(path: &Path, start: [u8; 4]) -> Result<()> {
    let found = match start {
        [0x1f, 0x8b, ..] => (Compression::Gzip, ".gz"),
        [0x28, 0xb5, 0x2f, 0xfd] => (Compression::Zstd, ".zst"),
        _ => return Ok(()),
    };
    let by_ending = match format_of(path, Format::Csv) {
        Ok(FileFormat::Text(_, compression)) => compression,
        _ => Compression::None,
    };
    if by_ending == found.0 {
        return Ok(());
    }
    let problem = format!("the file is compressed; add `{}` to its name", found.1);
    Err(setting(problem, path.display()))
}

/// Returns the best delimiter and quote character, and the records that result from them. The best
/// pair gives the largest share of records of equal length. Among pairs with the same share, the
/// pair with the most cells is the best.
fn dialect(text: &[u8], path: &Path) -> Result<(Dialect, Vec<Vec<String>>)> {
    let mut best: Option<(f64, usize, Dialect, Vec<Vec<String>>)> = None;
    for quote in QUOTES {
        for delimiter in DELIMITERS {
            // A single quote counts as an apostrophe, unless it is at the start of some cell.
            let opens = |at: &[u8]| at[1] == b'\'' && [delimiter, b'\n'].contains(&at[0]);
            if quote == Some(b'\'') && !text.windows(2).any(opens) {
                continue;
            }
            let dialect = Dialect { delimiter, quote };
            let Some(rows) = read_records(text, dialect) else { continue };
            let width = rows.first().map_or(0, Vec::len);
            let equal = rows.iter().filter(|row| row.len() == width).count();
            let share = equal as f64 / rows.len().max(1) as f64;
            if width < 2 || share < MOST {
                continue;
            }
            let pays = match &best {
                None => true,
                Some((known, cells, ..)) => {
                    share > *known + 1e-9 || (share >= *known && width > *cells)
                }
            };
            if pays {
                best = Some((share, width, dialect, rows));
            }
        }
    }
    let problem = "no delimiter (comma, semicolon, tab, bar, colon) gives all records the same \
                   number of cells; set `data.delimiter` and `data.quote`";
    let (.., dialect, rows) = best.ok_or_else(|| setting(problem, path.display()))?;
    Ok((dialect, rows))
}

/// Returns the first records, without a last record that may be incomplete. Returns `None` if a
/// quote is still open at the end of the text.
fn read_records(text: &[u8], dialect: Dialect) -> Option<Vec<Vec<String>>> {
    let is_whole = text.len() < LOOKED_AT;
    let mut records = Records::new(dialect, text);
    let mut rows = Vec::new();
    while rows.len() < RECORDS {
        match records.advance() {
            Step::Record => {}
            Step::LastRecord if is_whole => {}
            Step::OpenQuote if is_whole => return None,
            _ => break,
        }
        let cell = |i| String::from_utf8_lossy(records.cell(i)).trim().to_owned();
        rows.push((0..records.cells()).map(cell).collect());
    }
    Some(rows)
}

/// Returns whether the first record is a header. A header contains no number. In addition, numbers
/// must stand below one of its cells, or most of its cells must not occur again in their columns.
fn is_header(rows: &[Vec<String>]) -> bool {
    let Some((first, rest)) = rows.split_first() else { return true };
    let is_number = |cell: &str| cell.replace(',', ".").parse::<f64>().is_ok();
    if first.iter().any(|cell| is_number(cell)) {
        return false;
    }
    // One column with a text above numbers is enough.
    let numbers_below = (0..first.len()).any(|at| {
        let cells = || rest.iter().filter_map(|row| row.get(at)).filter(|c| !c.is_empty());
        let numbers = cells().filter(|cell| is_number(cell)).count();
        !first[at].is_empty() && numbers * 2 > cells().count()
    });
    if numbers_below {
        return true;
    }
    let repeats = first
        .iter()
        .enumerate()
        .filter(|(at, cell)| !cell.is_empty() && rest.iter().any(|row| row.get(*at) == Some(cell)));
    repeats.count() * 2 < first.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> std::result::Result<Sniffed, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.csv");
        std::fs::write(&path, text).expect("it takes a file");
        sniff(&path).map_err(|e| e.to_string())
    }

    fn delimiter(text: &str) -> char {
        of(text).map(|s| s.config.delimiter.map_or(',', |b| char::from(b.byte()))).expect("a table")
    }

    #[test]
    fn delimiters_are_told_apart() {
        assert_eq!(delimiter("a,b\n1,2\n3,4\n"), ',');
        assert_eq!(delimiter("a;b\n1,5;2,5\n3,0;4,0\n"), ';');
        assert_eq!(delimiter("a\tb\nx, y\t2\nz, w\t4\n"), '\t');
        assert_eq!(delimiter("id,tags\n1,a|b\n2,c|d\n"), ',');
        assert_eq!(delimiter("id|name\n1|x\n2|y\n"), '|');
        assert!(of("just some words\nand more\n").is_err_and(|e| e.contains("data.delimiter")));
    }

    #[test]
    fn quotes_may_hold_anything() {
        let sniffed = of("id,text\n1,\"a, b\nand \"\"c\"\"\"\n2,\"x\"\n").expect("a table");
        assert_eq!(sniffed.config.quote, Quote::new(Byte::new('"')));
        // The quote means inches here, so a quote that is never closed is text.
        let sniffed = of("id,size\n1,5\"\n2,7\"\n3,\"8\n").expect("a table");
        assert_eq!(sniffed.config.quote, Quote::NONE);
    }

    #[test]
    fn headers_are_told_from_rows() {
        let header = |text: &str| of(text).expect("a table").config.header;
        assert_eq!(header("user,item\n1,2\n"), Header::Yes);
        assert_eq!(header("user,city\na,b\nc,d\n"), Header::Yes);
        let names = Header::Names(vec!["c1".into(), "c2".into()]);
        assert_eq!(header("1,2\n3,4\n"), names);
        assert_eq!(header("red,small\nblue,small\nred,big\n"), names);
        assert_eq!(of("a,a,\n1,2,3\n").expect("a table").unusable, ["a", ""]);
    }

    #[test]
    fn encodings_are_detected() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.csv");
        let detect = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("it takes a file");
            let sniffed = sniff(&path).expect("a table");
            (sniffed.config.encoding.name(), sniffed.notes.join(" "))
        };
        let (name, notes) = detect(b"stadt,label\nK\xf6ln,1\nM\xfcnchen,0\nUlm,1\n");
        assert_eq!(name, "windows-1252");
        assert!(notes.contains("read as windows-1252"), "{notes}");
        let text = "\u{feff}stadt,label\nKöln,1\nUlm,0\n";
        let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(detect(&utf16).0, "utf-16le");
        assert_eq!(detect(text.as_bytes()), ("utf-8".to_owned(), String::new()));
    }

    #[test]
    fn unreadable_files_get_a_remedy() {
        assert!(of("").is_err_and(|e| e.contains("empty")));
        assert!(of("\u{feff}").is_err());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.csv");
        std::fs::write(&path, b"a,b\n\xe4,1\0\n").expect("it takes a file");
        assert!(sniff(&path).is_err_and(|e| e.to_string().contains("is binary")));
        std::fs::write(&path, [0x28, 0xb5, 0x2f, 0xfd, 0]).expect("it takes a file");
        assert!(sniff(&path).is_err());
    }
}
