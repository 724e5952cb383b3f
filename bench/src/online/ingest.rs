//! The benchmark `zillion bench online ingest`: the rate of the feed of a run without training.
//!
//! The feed consumes files, decodes their messages, appends its decisions to the log with a sync
//! for each batch, cuts batches and plans their lookups, all on one thread. The events were written
//! before, and are in the page cache.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use serde::Serialize;
use toml::{Table, Value};
use zillion_console::durable_files;
use zillion_device::machine::CpuTimes;
use zillion_trainer::{Job, consume_streams};

use super::decoders::{self, DecoderRates};
use super::events::{Event, Events, IDS};
use super::job::{JobSettings, RUN};
use super::source::{PARTITIONS, now_ms, write_backlog};
use super::writer::PartitionWriter;
use crate::args::OnlineIngestArgs;
use crate::{print_outcome, scratch_folder, turns};

/// The number of rows of an Arrow file.
const ARROW_ROWS: u64 = 4096;

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    json: Rate,
    arrow: Rate,
    /// The rates of the decoders alone, with the formats that have one row in a message.
    decoders: DecoderRates,
    other_cpus: Option<f64>,
}

/// The rate of one format.
#[derive(Serialize)]
struct Rate {
    bytes_per_row: f64,
    /// The median of the rows per second of wall time.
    rows_per_second: f64,
    /// The median of the rows per second of this process's CPU time, which other programs disturb
    /// less.
    rows_per_cpu_second: f64,
}

/// The events of one format, and the measurements of them.
struct Input {
    job: JobSettings,
    events: std::path::PathBuf,
    rows: u64,
    walls: Vec<f64>,
    cpus: Vec<f64>,
}

pub(crate) fn run(args: &OnlineIngestArgs, is_json: bool) -> Result<()> {
    let folder = scratch_folder(args.folder.as_deref())?;
    let folder = folder.path();
    let rows = args.rows.get();
    let input = |format: &'static str| Input {
        // A batch never waits, because the files exist.
        job: JobSettings { format, ..JobSettings::default() },
        events: folder.join(format),
        rows,
        walls: Vec::new(),
        cpus: Vec::new(),
    };
    let mut inputs = [input("json"), input("arrow")];
    eprintln!("writing {rows} rows as JSON and as Arrow");
    write_backlog(&inputs[0].events, rows, 1.0)?;
    write_arrow(&inputs[1].events, rows)?;
    let before = CpuTimes::now();
    // The formats are measured alternately, so that disturbances of the machine affect both.
    for _ in 0..args.repeat.get() {
        for input in &mut inputs {
            input.measure(folder)?;
        }
    }
    let decoders = decoders::measure(rows, args.repeat.get())?;
    let other_cpus = CpuTimes::now().since(&before).other_cpus;
    let [json, arrow] = inputs.map(Input::rate);
    print_outcome(&Outcome { rows, json: json?, arrow: arrow?, decoders, other_cpus }, is_json)
}

impl Input {
    fn measure(&mut self, folder: &Path) -> Result<()> {
        let run = folder.join(RUN);
        let mut job: Table = self.job.text().parse().context("the job is not valid")?;
        if let Some(stream) = job.get_mut("stream").and_then(|streams| streams.get_mut(0)) {
            stream["path"] = Value::from(self.events.display().to_string());
        }
        let job = Job::from_value(job.into())?;
        let (start, cpu) = (Instant::now(), CpuTimes::now().own);
        let status = consume_streams(job, durable_files()?, &run, self.rows)?;
        let cpu = CpuTimes::now().own.saturating_sub(cpu);
        let rows = status.rows as f64;
        if status.rows != self.rows || status.rejected > 0 {
            bail!("the feed gave {} rows of {}; report this", status.rows, self.rows);
        }
        self.walls.push(rows / start.elapsed().as_secs_f64());
        self.cpus.push(rows / cpu.as_secs_f64().max(1e-9));
        fs::remove_dir_all(&run).with_context(|| format!("cannot remove {}", run.display()))
    }

    fn rate(mut self) -> Result<Rate> {
        let mut bytes = 0;
        for partition in fs::read_dir(&self.events)? {
            for file in fs::read_dir(partition?.path())? {
                bytes += file?.metadata()?.len();
            }
        }
        Ok(Rate {
            bytes_per_row: (bytes as f64 / self.rows as f64).round(),
            rows_per_second: turns::median(&mut self.walls).round(),
            rows_per_cpu_second: turns::median(&mut self.cpus).round(),
        })
    }
}

/// Writes rows as files, each with an Arrow stream.
fn write_arrow(root: &Path, rows: u64) -> Result<()> {
    let mut events = Events::new(1);
    let mut writers = Vec::new();
    for number in 0..PARTITIONS {
        writers.push(PartitionWriter::create(root, number, false)?);
    }
    let mut written = 0;
    for number in 0.. {
        if written >= rows {
            break;
        }
        let time = now_ms();
        let count = ARROW_ROWS.min(rows - written);
        let block: Vec<Event> = (0..count).map(|_| events.draw(time)).collect();
        written += count;
        for message in arrow(&block)? {
            writers[number % PARTITIONS].write_file(&message, "arrow")?;
        }
    }
    Ok(())
}

/// Returns events as Arrow streams without compression, with the columns that the job reads.
pub(super) fn arrow(events: &[Event]) -> Result<Vec<Vec<u8>>> {
    let names = IDS.iter().map(|(name, _)| *name).chain(["time", "click"]);
    let fields: Vec<Field> = names.map(|name| Field::new(name, DataType::Int64, false)).collect();
    let schema = Arc::new(Schema::new(fields));
    let mut messages = Vec::new();
    for block in events.chunks(ARROW_ROWS as usize) {
        let array = |value: &dyn Fn(&Event) -> i64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(block.iter().map(value)))
        };
        let ids = (0..IDS.len()).map(|id| array(&|event| event.ids[id] as i64));
        let rest = [array(&|event| event.time_ms), array(&|event| i64::from(event.has_click))];
        let batch = RecordBatch::try_new(schema.clone(), ids.chain(rest).collect())?;
        let mut stream = StreamWriter::try_new(Vec::new(), &schema)?;
        stream.write(&batch)?;
        messages.push(stream.into_inner()?);
    }
    Ok(messages)
}
