//! The log and the traces of this process.
//!
//! The log is written to stderr, as lines for people or as one JSON object per line. `--log-filter`
//! or `ZILLION_LOG` (for example `debug`) sets its level. Traces are sent to an OpenTelemetry
//! collector if one is given ([`otlp`]), otherwise nowhere. The log and the traces do not mix:
//! spans have their own target, and their level is below the usual level of the log.
//!
//! A process has one log, so this module holds the filter of the log. [`set_usual_filter`] replaces
//! it while the process runs.

mod json;
mod modules;
mod otlp;

use std::io::IsTerminal;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};
use zillion_console::exit::Stop;

use crate::args::{LogFormat, TelemetryArgs};

/// The target of the spans that belong to traces. `zillion-serving` and `zillion-trainer` use the
/// same name.
const TRACES: &str = "zillion_trace";

/// The environment variable that holds the filter of the log.
const VARIABLE: &str = "ZILLION_LOG";

static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// The default filter of the log. It is not set if the command line or the environment gives a
/// filter.
static USUAL: OnceLock<String> = OnceLock::new();

/// The exporter of traces. It must be shut down, so that the last spans are sent.
pub(crate) struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

/// Starts the log and the traces. `usual` is the default level of the log.
///
/// # Errors
/// Returns an error if the log filter is not valid, or if the collector cannot be used.
pub(crate) fn start(args: &TelemetryArgs, usual: &str) -> Result<Telemetry> {
    let (filter, handle) = reload::Layer::new(EnvFilter::new("off"));
    // A second call in the same process keeps the first log.
    let _ = FILTER.set(handle);
    let log = match args.log_format {
        LogFormat::Json => json::Lines.boxed(),
        LogFormat::Text => tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .boxed(),
    };
    let traces = otlp::start(args.otlp.as_deref(), |name| std::env::var(name).ok())?;
    let spans = traces.as_ref().map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("zillion"))
            .with_location(false)
            .with_threads(false)
            .with_level(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target(TRACES, LevelFilter::TRACE))
    });
    tracing_subscriber::registry().with(log.with_filter(filter)).with(spans).init();
    let environment = std::env::var(VARIABLE).ok();
    match (&args.log_filter, &environment) {
        (Some(directives), _) => set_log_filter(directives).context("--log-filter"),
        (None, Some(directives)) => set_log_filter(directives).context(VARIABLE),
        (None, None) => {
            let _ = USUAL.set(usual.to_owned());
            set_log_filter(usual)
        }
    }
    .map_err(zillion_console::exit::as_usage)?;
    Ok(Telemetry { traces })
}

/// Sets the log filter to the directives of a command's own settings, or to the default level if
/// there are none. If the command line or the environment has directives, the filter does not
/// change.
///
/// # Errors
/// Returns an error that names the first directive that is not valid. The log then stays unchanged.
pub(crate) fn set_usual_filter(directives: Option<&str>) -> Result<()> {
    match (USUAL.get(), directives) {
        (Some(usual), directives) => set_log_filter(directives.unwrap_or(usual)),
        (None, Some(directives)) => parse(directives).map(drop),
        (None, None) => Ok(()),
    }
}

/// Sets the log filter. `directives` is a level, or levels by module.
///
/// # Errors
/// Returns an error that names the first directive that is not valid. The log then stays unchanged.
fn set_log_filter(directives: &str) -> Result<()> {
    let filter = parse(directives)?;
    let handle = FILTER.get().ok_or_else(|| anyhow!("the log has not been started"))?;
    handle.reload(filter).map_err(|error| anyhow!("the log's filter cannot be changed: {error}"))
}

/// Parses directives. The error names the first directive that is not valid.
fn parse(directives: &str) -> Result<EnvFilter> {
    // The parser takes a single word for the name of a module, so a misspelt level would log
    // nothing, without an error.
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let wrong = |directive: &str| {
        Stop::Usage(format!(
            "`{directive}` is not a directive; write a level (off, error, warn, info, debug, trace) or `module=level`"
        ))
    };
    for directive in directives.split(',').map(str::trim).filter(|d| !d.is_empty()) {
        let plain = !directive.contains(['[', ']', '{', '}', '"']);
        let fits = match directive.rsplit_once('=') {
            Some((module, level)) => !module.trim().is_empty() && is_level(level.trim()),
            None => is_level(directive),
        };
        if plain && !fits {
            return Err(wrong(directive).into());
        }
        if let Some((module, _)) = directive.rsplit_once('=').filter(|_| plain)
            && let Some(problem) = modules::find_problem(module.trim())
        {
            return Err(Stop::Usage(format!("`{directive}`: {problem}")).into());
        }
    }
    EnvFilter::builder().parse(directives).map_err(|error| {
        Stop::Usage(format!(
            "`{directives}` is not a valid filter of the log ({error}); write levels or \
             `module=level`"
        ))
        .into()
    })
}

impl Telemetry {
    /// Sends the remaining spans, and stops the export of traces.
    pub(crate) fn finish(self) {
        let Some(traces) = self.traces else { return };
        if let Err(error) = traces.shutdown() {
            tracing::warn!("the last spans could not be sent: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_levels_and_a_wrong_one_is_named() {
        for good in
            ["", "info", "WARN", "off", "info,zillion_serving=debug", "zillion::watch=trace, warn"]
        {
            assert!(parse(good).is_ok(), "{good}");
        }
        for (bad, named) in [
            ("loud", "`loud`"),
            ("info,zillion=loud", "`zillion=loud`"),
            ("=debug", "`=debug`"),
            ("zillion_serving", "`zillion_serving`"),
            ("info,zillion_servng=debug", "did you mean `zillion_serving`?"),
            ("a[=debug", "`a[=debug`"),
        ] {
            let said = parse(bad).unwrap_err().to_string();
            assert!(said.contains(named), "{said}");
        }
    }
}
