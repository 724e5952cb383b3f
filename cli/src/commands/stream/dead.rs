//! `zillion stream dead`: the rejected messages of a run.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use zillion_console::{print_json, print_line};
use zillion_trainer::{STATUS_FILE, StreamStatus};

use super::find_streams;
use crate::args::StreamDeadArgs;

/// The names of a stream and of a partition, by their numbers.
type Names = BTreeMap<(u64, u64), (String, String)>;

pub(super) fn run(args: &StreamDeadArgs) -> Result<()> {
    let folder = find_streams(&args.run)?;
    let path = folder.join("dead_letters.jsonl");
    let file = File::open(&path)
        .with_context(|| format!("cannot read the rejected messages in `{}`", path.display()))?;
    let names = read_names(&folder.join(STATUS_FILE));
    // The first line has the format.
    let lines = BufReader::new(file).lines().skip(1);
    if let Some(export) = &args.export {
        return write_messages(lines, &names, export);
    }
    let mut newest = VecDeque::new();
    for line in lines {
        newest.push_back(line?);
        if newest.len() > args.last {
            newest.pop_front();
        }
    }
    for line in newest {
        let letter: Value = serde_json::from_str(&line)?;
        if args.json {
            print_json(&letter)?;
            continue;
        }
        let (stream, partition) = name_place(&names, &letter);
        print_line(&format!(
            "stream {stream} partition {partition} offset {}: {}",
            number(&letter, "offset"),
            letter["reason"].as_str().unwrap_or_default()
        ));
    }
    Ok(())
}

/// Reads the names of partitions from the status of the run. Without a status there are none.
fn read_names(path: &Path) -> Names {
    let status = std::fs::read(path).ok();
    let status = status.and_then(|text| serde_json::from_slice::<StreamStatus>(&text).ok());
    let partitions = status.map(|status| status.feed.partitions).unwrap_or_default();
    let name = |partition: zillion_trainer::PartitionStatus| {
        let id = partition.id?;
        let place = (u64::from(id.stream), u64::from(id.number));
        Some((place, (partition.stream, partition.partition)))
    };
    partitions.into_iter().filter_map(name).collect()
}

/// Returns the names of the stream and of the partition of a message, or their numbers if the names
/// are not known.
fn name_place(names: &Names, letter: &Value) -> (String, String) {
    let (stream, partition) = (number(letter, "stream"), number(letter, "partition"));
    let known = names.get(&(stream, partition)).cloned();
    known.unwrap_or_else(|| (stream.to_string(), partition.to_string()))
}

fn number(letter: &Value, key: &str) -> u64 {
    letter[key].as_u64().unwrap_or_default()
}

/// Writes the bytes of messages into a new folder. Messages that are one line of text go into a
/// file of lines for each stream. Each other message, which a line could not hold, gets a file of
/// its own. Messages of which only the beginning was kept are left out, with a note.
fn write_messages(
    lines: impl Iterator<Item = std::io::Result<String>>,
    names: &Names,
    export: &Path,
) -> Result<()> {
    if export.exists() {
        bail!("`{}` exists; choose another folder", export.display());
    }
    std::fs::create_dir(export)
        .with_context(|| format!("cannot create the folder `{}`", export.display()))?;
    let (mut written, mut cut) = (0, 0);
    for line in lines {
        let letter: Value = serde_json::from_str(&line?)?;
        if letter["is_cut"] == true {
            cut += 1;
            continue;
        }
        let bytes = match (&letter["text"], &letter["base64"]) {
            (Value::String(text), _) => text.clone().into_bytes(),
            (_, Value::String(base64)) => BASE64_STANDARD.decode(base64)?,
            _ => bail!("a line of the rejected messages has no message; restore the file"),
        };
        let (stream, _) = name_place(names, &letter);
        let (partition, offset) = (number(&letter, "partition"), number(&letter, "offset"));
        let (name, end) = match is_line(&bytes) {
            true => (format!("{stream}.jsonl"), b"\n".as_slice()),
            false => (format!("{stream}-{partition}-{offset}"), b"".as_slice()),
        };
        append(&export.join(&name), &[bytes.as_slice(), end].concat())?;
        written += 1;
    }
    eprintln!("{written} messages in {}", export.display());
    if cut > 0 {
        eprintln!("{cut} messages were too long to be kept whole, and are left out");
    }
    Ok(())
}

/// Returns whether a message is one line of text. The bytes of Avro and Protobuf have control
/// characters.
fn is_line(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes)
        .is_ok_and(|text| text.chars().all(|char| char == '\t' || !char.is_control()))
}

fn append(path: &Path, bytes: &[u8]) -> Result<()> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
        .with_context(|| format!("cannot write the messages to `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_exported_by_stream_and_binary_ones_alone() {
        let folder = tempfile::tempdir().unwrap();
        let export = folder.path().join("out");
        let lines = [
            r#"{"stream":0,"partition":1,"offset":7,"text":"{\"a\":1","is_cut":false}"#,
            r#"{"stream":0,"partition":1,"offset":9,"text":"{}","is_cut":false}"#,
            r#"{"stream":1,"partition":0,"offset":3,"text":"\u0000\n","is_cut":false}"#,
            r#"{"stream":1,"partition":0,"offset":5,"base64":"/w==","is_cut":false}"#,
            r#"{"stream":1,"partition":0,"offset":8,"text":"","is_cut":true}"#,
        ];
        let names = Names::from([((0, 1), ("clicks".to_owned(), "b".to_owned()))]);
        let lines = || lines.iter().map(|line| Ok((*line).to_owned()));
        write_messages(lines(), &names, &export).unwrap();
        let read = |name: &str| std::fs::read(export.join(name)).unwrap();
        assert_eq!(read("clicks.jsonl"), b"{\"a\":1\n{}\n");
        assert_eq!(read("1-0-3"), b"\0\n");
        assert_eq!(read("1-0-5"), [0xff]);
        assert_eq!(std::fs::read_dir(&export).unwrap().count(), 3);
        let error = write_messages(lines(), &names, &export).unwrap_err().to_string();
        assert!(error.contains("choose another folder"), "{error}");
        let nowhere = folder.path().join("no/out");
        let error = write_messages(lines(), &names, &nowhere).unwrap_err().to_string();
        assert!(error.contains("no/out"), "{error}");
    }
}
