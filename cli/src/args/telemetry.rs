//! The arguments of every command about its log and its traces.

use clap::ValueEnum;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Log and traces")]
pub(crate) struct TelemetryArgs {
    /// Format of the log on stderr
    #[arg(long, global = true, value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// Level of the log, or levels by module, as in `info,zillion_serving=debug`; absent: the value
    /// of ZILLION_LOG, otherwise info for `serve` and warn for the other commands
    #[arg(long, global = true, value_name = "DIRECTIVES")]
    pub(crate) log_filter: Option<String>,
    /// URL of the OpenTelemetry collector that gets the traces (OTLP over HTTP; /v1/traces is
    /// appended); absent: the URL in OTEL_EXPORTER_OTLP_ENDPOINT, otherwise no traces are sent
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) otlp: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines of text for people
    Text,
    /// One JSON object on each line
    Json,
}
