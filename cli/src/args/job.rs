//! The arguments of the commands `init`, `check`, `train` and `eval`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use zillion_console::parse_dense_type;
use zillion_console::profile::ProfileArgs;
use zillion_datatools::DraftedModel;
use zillion_scorer::DenseType;
use zillion_trainer::TrainerPlace;

#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// Path of the job file
    pub(crate) job: PathBuf,
    /// Override a key of the job, as in --set train.epochs=3 (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    /// File of labelled rows: Parquet, Arrow, CSV, TSV, JSON lines or libsvm (text also as .gz or
    /// .zst)
    pub(crate) data: PathBuf,
    /// Path of the job file to write; - for stdout
    #[arg(long, value_name = "FILE", default_value = "job.toml")]
    pub(crate) out: PathBuf,
    /// Write only a job for this file; by default, a file without validation and test files beside
    /// it is first split into training, validation and test files
    #[arg(long)]
    pub(crate) no_split: bool,
    /// Column of the label, which holds 0 and 1, numbers or texts; absent: the column is guessed
    #[arg(long, value_name = "COLUMN")]
    pub(crate) label: Option<String>,
    /// Kind of the model, whose rates are drafted with it: lr, fm, dnn, wide_deep, deepfm, dcn,
    /// dcnv2 or dlrm; absent: the kind is chosen by the features
    #[arg(long, value_name = "KIND", value_parser = parse_model)]
    pub(crate) model: Option<DraftedModel>,
}

fn parse_model(name: &str) -> Result<DraftedModel, String> {
    let kinds = || DraftedModel::ALL.map(DraftedModel::name).join(", ");
    DraftedModel::from_name(name).ok_or_else(|| format!("init drafts these kinds: {}", kinds()))
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Number of rows of the training data that are examined
    #[arg(long, default_value = "100000", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample: u64,
    /// Compare the model's gradients with finite differences on a few rows of the data
    #[arg(long)]
    pub(crate) gradients: bool,
    /// Print the findings as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Resume from the newest checkpoint in run.output, or start a new run if there is no
    /// checkpoint
    #[arg(long)]
    pub(crate) resume: bool,
    /// Replace the run in run.output: remove its checkpoints once the job has been checked, and
    /// start a new run; a folder with files but no run is refused
    #[arg(long, conflicts_with = "resume")]
    pub(crate) overwrite: bool,
    /// Score the training files slice by slice of event time, learn from each slice after it was
    /// scored, and print the figures of the slices; writes no checkpoint. SPAN is a number with
    /// m, h or d, as in 12h
    #[arg(
        long,
        value_name = "SPAN",
        value_parser = parse_span,
        conflicts_with_all = ["resume", "overwrite", "ps", "ps_etcd", "fetch", "step", "metrics", "audit_log", "profile", "trainer"]
    )]
    pub(crate) progressive: Option<Duration>,
    /// Start a new run on other data with the rows and parameters of this checkpoint or run
    #[arg(long, value_name = "FOLDER")]
    pub(crate) from: Option<PathBuf>,
    /// Device that computes the training graph: auto, cpu, or a GPU such as cuda:0; overrides
    /// run.device
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Number of compute threads; overrides run.threads
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Servers of a parameter service that hold the tables, as in HOST:PORT,HOST:PORT; overrides
    /// ps.servers
    #[arg(long, value_name = "SERVERS", value_delimiter = ',')]
    pub(crate) ps: Vec<String>,
    /// Members of etcd that name the servers, as in http://HOST:2379,http://HOST:2379; overrides
    /// ps.etcd
    #[arg(long, value_name = "URLS", value_delimiter = ',', conflicts_with = "ps")]
    pub(crate) ps_etcd: Vec<String>,
    /// Prefix of the keys of the cluster in etcd; overrides ps.etcd_prefix
    #[arg(long, value_name = "PREFIX", conflicts_with = "ps")]
    pub(crate) ps_etcd_prefix: Option<String>,
    /// Number of servers that hold the tables, if etcd names them; overrides ps.server_count
    #[arg(long, value_name = "COUNT", conflicts_with = "ps")]
    pub(crate) ps_count: Option<usize>,
    /// Folder or bucket in which the servers keep their parts of checkpoints; overrides ps.store
    #[arg(long, value_name = "FOLDER")]
    pub(crate) ps_store: Option<PathBuf>,
    /// File with the token of the servers; overrides ps.token_file
    #[arg(long, value_name = "FILE")]
    pub(crate) ps_token_file: Option<PathBuf>,
    /// File with the authorities that sign the certificates of the servers, in PEM; overrides
    /// ps.tls_ca
    #[arg(long, value_name = "FILE", requires = "ps")]
    pub(crate) ps_tls_ca: Option<PathBuf>,
    /// File with the certificate that the trainer shows to the servers, in PEM; overrides
    /// ps.tls_cert
    #[arg(long, value_name = "FILE", requires_all = ["ps_tls_ca", "ps_tls_key"])]
    pub(crate) ps_tls_cert: Option<PathBuf>,
    /// File with the private key of this certificate, in PEM; overrides ps.tls_key
    #[arg(long, value_name = "FILE", requires = "ps_tls_cert")]
    pub(crate) ps_tls_key: Option<PathBuf>,
    /// Number of this trainer, counted from 0, and number of trainers of the run, as in 0/2
    #[arg(long, value_name = "N/COUNT", default_value = "0/1", value_parser = parse_place)]
    pub(crate) trainer: TrainerPlace,
    /// Print the job with every default and override, without training
    #[arg(long)]
    pub(crate) print_config: bool,
    #[command(flatten)]
    pub(crate) profile: ProfileArgs,
    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
    /// With --fetch: print the first N rows of each batch [default: 5]
    #[arg(long, value_name = "N", requires = "fetch", conflicts_with = "fetch_rows")]
    pub(crate) rows: Option<u64>,
    /// Print values of nodes every N steps
    #[arg(long, value_name = "N", default_value = "1", requires = "fetch", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) fetch_every: u64,
    /// Pause after each step, and show the loss, the gradient norms and the rows with the largest
    /// loss
    #[arg(long)]
    pub(crate) step: bool,
    /// Address at which /metrics is served for Prometheus during training; port 0 takes a free
    /// port, which is printed
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    /// File for the audit log of what the job publishes; one process at a time writes to it
    #[arg(long, env = "ZILLION_AUDIT_LOG", value_name = "FILE")]
    pub(crate) audit_log: Option<PathBuf>,
    /// Print the outcome as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EvalArgs {
    /// Folder of a checkpoint, or folder of a run (the best epoch is used)
    pub(crate) checkpoint: PathBuf,
    /// Files to score; absent: the test files of the job
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Vec<String>,
    /// Job file that the checkpoint must have; a checkpoint of another job is refused
    #[arg(long)]
    pub(crate) job: Option<PathBuf>,
    /// Override a key of `[data]` of the checkpoint's job, as in --set data.root=... (repeatable);
    /// the other keys stay as the run has them
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Number type of the dense layers: f32, bf16 or int8, as a server with --dense scores
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = parse_dense_type)]
    pub(crate) dense: DenseType,
    /// Device that computes the scores: cpu, or a GPU such as cuda:0
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
    /// Number of compute threads; absent: one for each core
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print the report as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FetchArgs {
    /// Node whose values are printed as lines of JSON (repeatable; `zillion model graph` lists the
    /// nodes)
    #[arg(long, value_name = "NODE")]
    pub(crate) fetch: Vec<String>,
    /// With --fetch: numbers of the rows to print, counted from 0, as in 0,5,7
    #[arg(long, value_name = "ROWS", value_delimiter = ',', requires = "fetch")]
    pub(crate) fetch_rows: Vec<u64>,
}

/// Parses a span of time, as in `12h`.
fn parse_span(text: &str) -> Result<Duration, String> {
    let units = [("m", 60), ("h", 3600), ("d", 86_400)];
    let seconds = units.iter().find_map(|(unit, seconds)| {
        let count: u64 = text.strip_suffix(unit)?.parse().ok()?;
        count.checked_mul(*seconds).filter(|&seconds| seconds > 0 && seconds < 1 << 32)
    });
    seconds.map(Duration::from_secs).ok_or_else(|| {
        "write a whole number above 0 with m (minutes), h (hours) or d (days), as in 12h".to_owned()
    })
}

/// Parses the place of a trainer, as in `0/2`.
fn parse_place(text: &str) -> Result<TrainerPlace, String> {
    let place = text.split_once('/').and_then(|(index, count)| {
        Some(TrainerPlace { index: index.parse().ok()?, count: count.parse().ok()? })
    });
    place.filter(|place| place.index < place.count).ok_or_else(|| {
        "write the number of the trainer, counted from 0, and the number of trainers, as in 0/2"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_unit() {
        assert_eq!(parse_span("12h"), Ok(Duration::from_secs(12 * 3600)));
        assert_eq!(parse_span("90m"), Ok(Duration::from_secs(5400)));
        for text in ["", "h", "0d", "12", "-1h", "1.5h", "99999999999999d"] {
            assert!(parse_span(text).unwrap_err().contains("12h"), "{text}");
        }
    }

    #[test]
    fn the_place_of_a_trainer_is_a_number_below_the_number_of_trainers() {
        assert_eq!(parse_place("1/3"), Ok(TrainerPlace { index: 1, count: 3 }));
        assert_eq!(parse_place("0/1"), Ok(TrainerPlace::ALONE));
        for text in ["", "0", "1/1", "2/1", "-1/2", "0/0", "a/b", "0/1/2"] {
            assert!(parse_place(text).unwrap_err().contains("0/2"), "{text}");
        }
    }

    #[test]
    fn the_help_of_eval_says_which_keys_it_overrides() {
        let help = <EvalArgs as clap::Args>::augment_args(clap::Command::new("eval"))
            .render_help()
            .to_string();
        let words: Vec<&str> = help.split_whitespace().collect();
        let help = words.join(" ");
        assert!(help.contains("Override a key of `[data]` of the checkpoint's job"), "{help}");
    }
}
