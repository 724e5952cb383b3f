//! The benchmark `zillion bench serve`: scores per second without a network, measured in the same
//! way as the benchmark of the system with which Zillion is compared (the peer).
//!
//! The model, the table, the ids and the method of timing are the same as in `s1_serving.py` (ONNX
//! Runtime and torch, with a numpy array as the table). There is one request at a time, all threads
//! share its work, and 64 different requests are used in a cycle. The time of a request starts with
//! its raw values (ids and numbers in columns) and ends with its scores. Our time therefore
//! includes mixing and deduplicating the ids and looking them up in a hash index. The peer only
//! indexes an array.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use zillion_device::machine::{self, CpuTimes};
use zillion_registry::Cache;
use zillion_rows::layer::Unthrottled;
use zillion_scorer::{DenseType, DeviceStatistics, ScoringDevice, Servable};

use crate::args::{BenchServeArgs, ServeModel};
use crate::criteo::{Form, MODEL, Requests, UserPart, open_model, publish_form};
use crate::load::figures::Percentiles;
use crate::print_outcome;
use zillion_console::exit::Stop;
use zillion_console::{compute_pool, durable_files};

/// The number of different requests.
const DIFFERENT: usize = 64;
/// The number of requests that are sent before the timed requests. Each different request is sent
/// once, so that the pages of the mapped files are in memory. The compared system has its table in
/// memory and sends 30 such requests.
const WARM_UP: usize = DIFFERENT;

#[derive(Serialize)]
struct Outcome {
    model: ServeModel,
    candidates: usize,
    threads: usize,
    requests: usize,
    /// The number of rows in the table.
    rows: u64,
    /// The number type of the dense layers.
    dense: DenseType,
    /// The number of bytes of the packed weights of dense layers.
    packed_bytes: usize,
    /// The number of ids that have one value for all rows of a request.
    shared_fields: usize,
    /// The number of ids in the history, which all rows of a request share.
    history: usize,
    /// Whether the rows are read from records in memory.
    row_records: bool,
    /// The number of floating-point operations of the dense model for a request. What is computed
    /// once for all rows counts once.
    flops_per_request: u64,
    /// The number of unique keys in requests that are missing in the table. The figures are valid
    /// only if this number is 0.
    missing: u64,
    #[serde(flatten)]
    latency: Percentiles,
    /// The median time of a request for encoding its raw values, which mixes keys and transforms
    /// numbers.
    encode_p50_ms: f64,
    /// The rate that follows from the mean time of a request. The rate of the compared system is
    /// computed in the same way.
    candidates_per_second: f64,
    load_ms: f64,
    /// The GPU and its counts, if it computes the scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<Device>,
    resident_mib: Option<u64>,
    own_cpus: f64,
    /// The number of processors that other programs kept busy. The figures are valid if this number
    /// is below 0.25.
    other_cpus: Option<f64>,
}

/// A GPU that computes the scores.
#[derive(Serialize)]
struct Device {
    name: String,
    #[serde(flatten)]
    counts: DeviceStatistics,
}

/// Opens the device of the arguments, if they name one.
fn open_device(args: &BenchServeArgs) -> Result<Option<Arc<ScoringDevice>>> {
    let memory = args.gpu_memory.map(|memory| memory.0);
    Ok(args.device.as_deref().map(|name| ScoringDevice::open(name, memory)).transpose()?)
}

pub(crate) fn run(args: &BenchServeArgs, is_json: bool) -> Result<()> {
    let device = open_device(args)?;
    let folder = tempfile::tempdir()?;
    let published = open_model(&folder.path().join("registry"))?;
    let workers = compute_pool(Some(args.threads))?;
    let user = UserPart {
        shared_fields: usize::from(args.shared_fields),
        history: args.history.map_or(0, std::num::NonZeroUsize::get),
    };
    let rows = args.rows.get();
    if args.model == ServeModel::Din && user.history == 0 {
        let reason = "--model din: its attention needs a history; set --history, as in \
                      --history 50";
        return Err(Stop::Usage(reason.to_owned()).into());
    }
    let form = Form { model: args.model, history: user.history };
    let version = publish_form(&published, rows, folder.path(), &workers, form)?.version;
    let mut cache = Cache::open(&folder.path().join("cache"), MODEL, durable_files()?)?;
    cache.set_row_records(args.row_records);
    let began = Instant::now();
    let (dense, pace) = (args.dense, &mut Unthrottled);
    let servable = Servable::load_on(
        device.as_ref(),
        Some(dense),
        &published,
        version,
        [],
        &mut cache,
        &workers,
        pace,
    )?;
    let load = began.elapsed();

    let candidates = args.candidates.get();
    let requests = Requests::with_user(rows, candidates, DIFFERENT, user);
    let first = servable.encoder().encode(candidates, requests.get(0))?;
    let flops_per_request = servable.cost(&first)?.flops;
    let count = args.requests.map_or_else(|| usual_count(candidates), std::num::NonZeroUsize::get);
    let mut missing = 0;
    for i in 0..WARM_UP {
        missing = servable.score(candidates, requests.get(i))?.missing;
    }
    let (mut whole, mut encode) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let before = CpuTimes::now();
    for i in 0..count {
        let columns = requests.get(i);
        let began = Instant::now();
        let batch = servable.encoder().encode(candidates, columns)?;
        let encoded = began.elapsed();
        let scores = servable.score_batch(&batch)?;
        whole.push(began.elapsed());
        encode.push(encoded);
        drop(scores);
    }
    let cpus = CpuTimes::now().since(&before);
    let mean = whole.iter().sum::<Duration>().as_secs_f64() / count as f64;
    let outcome = Outcome {
        model: args.model,
        candidates,
        threads: args.threads.get(),
        requests: count,
        rows,
        dense,
        packed_bytes: servable.packed_bytes(),
        shared_fields: user.shared_fields,
        history: user.history,
        row_records: args.row_records,
        flops_per_request,
        missing,
        latency: Percentiles::of(whole),
        encode_p50_ms: Percentiles::of(encode).p50_ms,
        candidates_per_second: (candidates as f64 / mean).round(),
        load_ms: (load.as_secs_f64() * 1e4).round() / 10.0,
        device: device
            .map(|device| Device { name: device.describe(), counts: device.statistics() }),
        resident_mib: machine::resident_memory().map(|bytes| bytes >> 20),
        own_cpus: cpus.own_cpus,
        other_cpus: cpus.other_cpus,
    };
    print_outcome(&outcome, is_json)
}

/// Returns the number of timed requests with `candidates` rows. The benchmark of the compared
/// system uses the same numbers.
fn usual_count(candidates: usize) -> usize {
    match candidates {
        1 => 3000,
        100 => 1000,
        500 => 400,
        _ => 250,
    }
}
