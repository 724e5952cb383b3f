//! The export of traces to an OpenTelemetry collector by OTLP. The traces are sent by HTTP as
//! protobuf, in batches, by a separate thread.
//!
//! Nothing is sent unless `--otlp` or the environment names a collector. The environment variables
//! are those of OpenTelemetry: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`,
//! `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER` and its `_ARG`, `OTEL_SDK_DISABLED`. The
//! OpenTelemetry libraries read the variables for headers, timeouts and the sizes of batches. A
//! setting that this program does not support causes an error and is not ignored.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{self, Sampler, SdkTracerProvider, SpanData};
use zillion_console::exit::usage_error;

/// The path of the endpoint at which a collector receives traces.
const PATH: &str = "/v1/traces";

/// The endpoint of the collector, the name of the service, and the sampler.
#[derive(Debug)]
struct Settings {
    endpoint: String,
    service: Option<String>,
    sampler: Sampler,
}

/// Starts the export of traces if the settings name a collector. Otherwise returns `None`.
///
/// # Errors
/// Returns an error if the settings are wrong or if this program does not support them.
pub(super) fn start(
    url: Option<&str>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<SdkTracerProvider>> {
    let Some(settings) = Settings::read(url, environment)? else { return Ok(None) };
    // The client needs a TLS provider, because it has none of its own. A provider that was
    // installed before stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let exporter = SpanExporter::builder().with_http().with_endpoint(&settings.endpoint).build();
    let exporter =
        exporter.with_context(|| format!("cannot send traces to {}", settings.endpoint))?;
    let exporter = WarningExporter {
        exporter,
        endpoint: settings.endpoint,
        is_failing: AtomicBool::new(false),
    };
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let mut resource = Resource::builder().with_attribute(version);
    if let Some(service) = settings.service {
        resource = resource.with_service_name(service);
    }
    global::set_text_map_propagator(TraceContextPropagator::new());
    let provider = SdkTracerProvider::builder()
        .with_resource(resource.build())
        .with_sampler(settings.sampler)
        .with_batch_exporter(exporter);
    Ok(Some(provider.build()))
}

impl Settings {
    fn read(
        url: Option<&str>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>> {
        // An empty variable counts as not set, as everywhere in OpenTelemetry.
        let value = |name: &str| environment(name).filter(|text| !text.trim().is_empty());
        let of_base = |base: &str| format!("{}{PATH}", base.trim_end_matches('/'));
        let (from, endpoint) = if let Some(url) = url {
            ("--otlp", of_base(url))
        } else if value("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"))
            || value("OTEL_TRACES_EXPORTER").is_some_and(|text| text == "none")
        {
            return Ok(None);
        } else if let Some(endpoint) = value("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint)
        } else if let Some(base) = value("OTEL_EXPORTER_OTLP_ENDPOINT") {
            ("OTEL_EXPORTER_OTLP_ENDPOINT", of_base(&base))
        } else {
            return Ok(None);
        };
        let parsed = endpoint.parse::<hyper::Uri>().ok();
        let is_http = |uri: &hyper::Uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
        };
        if !parsed.as_ref().is_some_and(is_http) {
            return usage(from, &endpoint, "give the collector as an http:// or https:// URL");
        }
        for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
            match value(name) {
                Some(protocol) if protocol != "http/protobuf" => {
                    let can = "only http/protobuf is supported (port 4318 of a collector); set it to that";
                    return usage(name, &protocol, can);
                }
                Some(_) => break,
                None => {}
            }
        }
        if let Some(exporter) = value("OTEL_TRACES_EXPORTER").filter(|exporter| exporter != "otlp")
        {
            return usage("OTEL_TRACES_EXPORTER", &exporter, "set it to `otlp` or `none`");
        }
        let named = value("OTEL_SERVICE_NAME");
        let attributes = value("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        // The variable has priority over the attributes, and the attributes have priority over the
        // name of this program.
        let is_named = attributes.split(',').any(|pair| pair.trim().starts_with("service.name="));
        let service = named.or_else(|| (!is_named).then(|| "zillion".to_owned()));
        let sampler = sampler(value("OTEL_TRACES_SAMPLER"), value("OTEL_TRACES_SAMPLER_ARG"))?;
        Ok(Some(Self { endpoint, service, sampler }))
    }
}

/// Returns the sampler that the environment variables of OpenTelemetry name.
fn sampler(name: Option<String>, argument: Option<String>) -> Result<Sampler> {
    let ratio = || match argument.as_deref().map(str::parse::<f64>) {
        None => Ok(1.0),
        Some(Ok(ratio)) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        Some(_) => {
            let shown = argument.as_deref().unwrap_or_default();
            usage(
                "OTEL_TRACES_SAMPLER_ARG",
                shown,
                "give the share of traces as a number from 0 to 1",
            )
        }
    };
    let parent_based = |root: Sampler| Sampler::ParentBased(Box::new(root));
    Ok(match name.as_deref() {
        None | Some("parentbased_always_on") => parent_based(Sampler::AlwaysOn),
        Some("parentbased_always_off") => parent_based(Sampler::AlwaysOff),
        Some("parentbased_traceidratio") => parent_based(Sampler::TraceIdRatioBased(ratio()?)),
        Some("always_on") => Sampler::AlwaysOn,
        Some("always_off") => Sampler::AlwaysOff,
        Some("traceidratio") => Sampler::TraceIdRatioBased(ratio()?),
        Some(other) => {
            let known = "unknown sampler; use always_on, always_off, traceidratio, or one of them after parentbased_";
            return usage("OTEL_TRACES_SAMPLER", other, known);
        }
    })
}

fn usage<T>(setting: &str, value: &str, problem: &str) -> Result<T> {
    usage_error(format!("{setting}={value}: {problem}"))
}

/// An exporter that logs a warning when spans cannot be sent, because the libraries do not report
/// this. After a warning, it logs nothing until spans have been sent successfully again.
#[derive(Debug)]
struct WarningExporter {
    exporter: SpanExporter,
    endpoint: String,
    is_failing: AtomicBool,
}

impl trace::SpanExporter for WarningExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let outcome = self.exporter.export(batch).await;
        let was_failing = self.is_failing.swap(outcome.is_err(), Ordering::Relaxed);
        match &outcome {
            Err(error) if !was_failing => {
                tracing::warn!(
                    "collector {}: {spans} spans are lost, and all later ones until it can be reached: {error}",
                    self.endpoint
                );
            }
            Ok(()) if was_failing => {
                tracing::warn!("collector {}: spans are sent again", self.endpoint)
            }
            _ => {}
        }
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Settings>> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::read(url, variable)
    }

    #[test]
    fn a_collector_is_found_where_opentelemetry_says() {
        let endpoint = |url, variables: &[(&str, &str)]| {
            read(url, variables).unwrap().map(|settings| settings.endpoint)
        };
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318/");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://b/x");
        assert_eq!(endpoint(None, &[]), None);
        assert_eq!(endpoint(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), None);
        assert_eq!(endpoint(None, &[base]).as_deref(), Some("http://a:4318/v1/traces"));
        assert_eq!(endpoint(None, &[base, own]).as_deref(), Some("https://b/x"));
        assert_eq!(endpoint(Some("http://c"), &[base, own]).as_deref(), Some("http://c/v1/traces"));
        assert_eq!(endpoint(None, &[base, ("OTEL_SDK_DISABLED", "true")]), None);
        assert_eq!(endpoint(None, &[base, ("OTEL_TRACES_EXPORTER", "none")]), None);
    }

    #[test]
    fn names_and_samplers_are_opentelemetrys() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318");
        let settings =
            |more: (&'static str, &'static str)| read(None, &[base, more]).unwrap().unwrap();
        assert_eq!(settings(("X", "")).service.as_deref(), Some("zillion"));
        assert_eq!(settings(("OTEL_SERVICE_NAME", "s")).service.as_deref(), Some("s"));
        assert_eq!(settings(("OTEL_RESOURCE_ATTRIBUTES", "a=b,service.name=x")).service, None);
        let shown = |name, argument| {
            let variables =
                [base, ("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)];
            format!("{:?}", read(None, &variables).unwrap().unwrap().sampler)
        };
        assert_eq!(shown("", ""), "ParentBased(AlwaysOn)");
        assert_eq!(shown("always_off", ""), "AlwaysOff");
        assert_eq!(
            shown("parentbased_traceidratio", "0.25"),
            "ParentBased(TraceIdRatioBased(0.25))"
        );
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318");
        for (variable, value, more) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", ("X", "")),
            (
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
                "http/json",
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ),
            ("OTEL_TRACES_SAMPLER", "xray", ("X", "")),
            ("OTEL_TRACES_SAMPLER_ARG", "2", ("OTEL_TRACES_SAMPLER", "traceidratio")),
            ("OTEL_TRACES_EXPORTER", "zipkin", ("X", "")),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "a:4317", ("X", "")),
        ] {
            let said = read(None, &[base, (variable, value), more]).unwrap_err().to_string();
            assert!(said.contains(&format!("{variable}={value}")), "{said}");
        }
        assert!(read(Some("ftp://x"), &[]).unwrap_err().to_string().contains("--otlp=ftp://x"));
    }
}
