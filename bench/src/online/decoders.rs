//! The rates of the decoders of messages alone: messages in memory to batches.
//!
//! Each message holds one event, apart from Arrow, whose messages hold many.

use anyhow::{Result, bail};
use serde::Serialize;
use zillion_device::machine::CpuTimes;
use zillion_feature::{Schema, Statistics};
use zillion_reader::{
    AvroSchemas, DataConfig, MessageDecoder, MessageFormat, ProtobufSchemas, SchemaLanguage,
    SideTables, WriterSchema,
};

use super::events::{Event, Events, IDS};
use super::job::JobSettings;
use super::source::now_ms;
use crate::turns;

/// The number of messages that are decoded together, which is about that of a block of a stream.
const TOGETHER: usize = 4096;
/// The id of the schema of the messages.
const ID: u32 = 1;

/// The rates of the decoders.
#[derive(Serialize)]
pub(super) struct DecoderRates {
    json: DecoderRate,
    arrow: DecoderRate,
    avro: DecoderRate,
    protobuf: DecoderRate,
}

/// The rate of one decoder.
#[derive(Serialize)]
struct DecoderRate {
    bytes_per_row: f64,
    /// The median of the rows per second of this process's CPU time.
    rows_per_cpu_second: f64,
}

/// Measures the decoders on `rows` events, each `repeat` times in turn.
pub(super) fn measure(rows: u64, repeat: usize) -> Result<DecoderRates> {
    let mut events = Events::new(1);
    let time = now_ms();
    let events: Vec<Event> = (0..rows).map(|_| events.draw(time)).collect();
    let mut inputs = [
        Input::new(MessageFormat::Json, &events, json)?,
        Input::new(MessageFormat::Arrow, &events, super::ingest::arrow)?,
        Input::new(MessageFormat::Avro(AvroSchemas::registered()), &events, |e| each(e, avro))?,
        Input::new(MessageFormat::Protobuf(ProtobufSchemas::registered()), &events, |e| {
            each(e, protobuf)
        })?,
    ];
    for _ in 0..repeat {
        for input in &mut inputs {
            input.measure()?;
        }
    }
    let [json, arrow, avro, protobuf] = inputs.map(Input::rate);
    Ok(DecoderRates { json, arrow, avro, protobuf })
}

/// The messages of one format, and the measurements of them.
struct Input {
    decoder: MessageDecoder,
    messages: Vec<Vec<u8>>,
    rows: usize,
    rates: Vec<f64>,
}

impl Input {
    fn new(
        format: MessageFormat,
        events: &[Event],
        write: impl Fn(&[Event]) -> Result<Vec<Vec<u8>>>,
    ) -> Result<Self> {
        let job: toml::Table = JobSettings::default().text().parse()?;
        let schema = Schema::from_job(&job.into())?;
        let config = DataConfig::default();
        let sides = SideTables::load(&config, &schema)?;
        let language = match &format {
            MessageFormat::Avro(_) => SchemaLanguage::Avro,
            _ => SchemaLanguage::Protobuf,
        };
        let text = match language {
            SchemaLanguage::Avro => avro_schema(),
            _ => protobuf_schema(),
        };
        let statistics = Statistics::default();
        let mut decoder = MessageDecoder::new(format, &config, &schema, &sides, &statistics)?;
        decoder.add_schema(ID, &WriterSchema::plain(language, text));
        Ok(Self { decoder, messages: write(events)?, rows: events.len(), rates: Vec::new() })
    }

    fn measure(&mut self) -> Result<()> {
        let (cpu, mut rows) = (CpuTimes::now().own, 0);
        for messages in self.messages.chunks(TOGETHER) {
            let decoded = self.decoder.decode(messages.iter().map(Vec::as_slice))?;
            if let Some(rejected) = decoded.rejected.first() {
                bail!("a message of the benchmark was rejected ({})", rejected.rejection);
            }
            rows += decoded.batch.rows;
        }
        let cpu = CpuTimes::now().own.saturating_sub(cpu);
        if rows != self.rows {
            bail!("the decoder gave {rows} rows of {}; report this", self.rows);
        }
        self.rates.push(rows as f64 / cpu.as_secs_f64().max(1e-9));
        Ok(())
    }

    fn rate(mut self) -> DecoderRate {
        let bytes: usize = self.messages.iter().map(Vec::len).sum();
        DecoderRate {
            bytes_per_row: (bytes as f64 / self.rows as f64).round(),
            rows_per_cpu_second: turns::median(&mut self.rates).round(),
        }
    }
}

fn json(events: &[Event]) -> Result<Vec<Vec<u8>>> {
    each(events, |event| {
        let mut line = Vec::new();
        event.append_line(&mut line);
        line
    })
}

fn each(events: &[Event], write: impl Fn(&Event) -> Vec<u8>) -> Result<Vec<Vec<u8>>> {
    Ok(events.iter().map(write).collect())
}

/// Returns the texts of an event that the job does not read.
fn texts(event: &Event) -> [String; 2] {
    let request = event.ids[0].wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let page = format!("https://news.example.com/section/{:05}/article.html", request % 40_000);
    [format!("{:032x}", u128::from(request) << 7), page]
}

fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn protobuf_schema() -> String {
    let ids = (3..).zip(IDS).map(|(number, (name, _))| format!("int64 {name} = {number};"));
    let ids = ids.collect::<String>();
    format!(
        "syntax = \"proto3\"; message Event {{ string request = 1; string page = 2; {ids} \
         int64 time = 11; bool click = 12; }}"
    )
}

fn protobuf(event: &Event) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, ID as u8, 0];
    for (number, text) in (1..).zip(texts(event)) {
        varint(&mut bytes, number << 3 | 2);
        varint(&mut bytes, text.len() as u64);
        bytes.extend_from_slice(text.as_bytes());
    }
    let rest = [event.time_ms as u64, u64::from(event.has_click)];
    for (number, value) in (3..).zip(event.ids.into_iter().chain(rest)) {
        varint(&mut bytes, number << 3);
        varint(&mut bytes, value);
    }
    bytes
}

fn avro_schema() -> String {
    let field = |name: &str, kind: &str| format!("{{\"name\":\"{name}\",\"type\":\"{kind}\"}}");
    let mut fields = vec![field("request", "string"), field("page", "string")];
    fields.extend(IDS.iter().map(|(name, _)| field(name, "long")));
    fields.extend([field("time", "long"), field("click", "boolean")]);
    format!("{{\"type\":\"record\",\"name\":\"Event\",\"fields\":[{}]}}", fields.join(","))
}

fn avro(event: &Event) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, ID as u8];
    for text in texts(event) {
        varint(&mut bytes, (text.len() as u64) << 1);
        bytes.extend_from_slice(text.as_bytes());
    }
    for value in event.ids.into_iter().chain([event.time_ms as u64]) {
        varint(&mut bytes, value << 1);
    }
    bytes.push(u8::from(event.has_click));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_formats_have_the_same_rows() {
        let rates = measure(5_000, 1).unwrap();
        for rate in [rates.json, rates.arrow, rates.avro, rates.protobuf] {
            assert!(rate.bytes_per_row > 50.0 && rate.rows_per_cpu_second > 0.0);
        }
    }
}
