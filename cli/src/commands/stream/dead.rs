//! `zillion stream dead`: the rejected messages of a run.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use zillion_console::{print_json, print_line};

use super::find_streams;
use crate::args::StreamDeadArgs;

pub(super) fn run(args: &StreamDeadArgs) -> Result<()> {
    let path = find_streams(&args.run)?.join("dead_letters.jsonl");
    let file = File::open(&path)
        .with_context(|| format!("cannot read the rejected messages in `{}`", path.display()))?;
    // The first line has the format.
    let lines = BufReader::new(file).lines().skip(1);
    if let Some(export) = &args.export {
        return write_messages(lines, export);
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
        let place = |key: &str| letter[key].as_u64().unwrap_or_default();
        print_line(&format!(
            "stream {} partition {} offset {}: {}",
            place("stream"),
            place("partition"),
            place("offset"),
            letter["reason"].as_str().unwrap_or_default()
        ));
    }
    Ok(())
}

/// Writes the bytes of messages to a file, each with an end of line. Messages of which only the
/// beginning was kept are left out, with a note.
fn write_messages(
    lines: impl Iterator<Item = std::io::Result<String>>,
    export: &Path,
) -> Result<()> {
    if export.exists() {
        bail!("`{}` exists; choose another file", export.display());
    }
    let mut out = BufWriter::new(File::create(export)?);
    let (mut written, mut cut) = (0, 0);
    for line in lines {
        let letter: Value = serde_json::from_str(&line?)?;
        if letter["is_cut"] == true {
            cut += 1;
            continue;
        }
        match (&letter["text"], &letter["base64"]) {
            (Value::String(text), _) => out.write_all(text.as_bytes())?,
            (_, Value::String(base64)) => out.write_all(&BASE64_STANDARD.decode(base64)?)?,
            _ => bail!("a line of the rejected messages has no message; restore the file"),
        }
        out.write_all(b"\n")?;
        written += 1;
    }
    out.flush()?;
    eprintln!("{written} messages in {}", export.display());
    if cut > 0 {
        eprintln!("{cut} messages were too long to be kept whole, and are left out");
    }
    Ok(())
}
