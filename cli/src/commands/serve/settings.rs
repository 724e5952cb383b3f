//! The settings of a server. An option replaces the environment, the environment replaces the file,
//! and the file replaces the defaults.
//!
//! The file is in TOML and has one section, `[serve]`, whose keys are the names of the options. The
//! file is read again on SIGHUP. Settings that a running server can change are then applied. All
//! others are reported, and take effect after a restart.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use toml::{Table, Value};
use zillion_access::AuditLog;
use zillion_console::exit::{as_usage, usage_error};
use zillion_console::job_file;
use zillion_device::machine;
use zillion_scorer::ScoringDevice;
use zillion_serving::{Follow, Limits, ServeConfig};

use super::listeners::TlsSettings;
pub(super) use crate::args::ServeArgs as Settings;
use crate::device::PROCESSORS;
use crate::registry::cache_folder;
use crate::telemetry;

const SECTION: &str = "serve";

/// The default interval in milliseconds between two checks of a registry in a folder.
const LOCAL_POLL_MS: u64 = 200;
/// The default interval in milliseconds between two checks of a registry in a bucket. It is longer,
/// because each check sends a few requests that cost money.
const REMOTE_POLL_MS: u64 = 2000;

/// The largest average work of a request, in microseconds, that a network thread may do in one go.
const MOST_INLINE_US: u64 = 2000;

/// The settings that cannot change while the server runs. [`Settings::take_changeable`] keeps their
/// old values.
const FIXED: [&str; 32] = [
    "registry",
    "model_control",
    "http",
    "grpc",
    "admin",
    "listener",
    "network_threads",
    "auth",
    "access",
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
    "insecure",
    "audit_log",
    "request_log",
    "traffic",
    "cache_bytes",
    "load_into_memory",
    "row_records",
    "dense",
    "device",
    "gpu_memory",
    "max_stale_ms",
    "registry_wait_ms",
    "stagger_ms",
    "trust",
    "cache",
    "threads",
    "poll_ms",
    "retain",
    "lame_duck_ms",
    "name",
];

/// The settings that must not be 0, because the server would then answer nothing.
const NOT_ZERO: [&str; 14] = [
    "max_waiting",
    "max_body_bytes",
    "max_rows",
    "max_values",
    "max_retrieved",
    "max_bytes_in_flight",
    "max_answer_bytes",
    "max_connections_per_address",
    "idle_ms",
    "write_ms",
    "max_connections",
    "request_ms",
    "receive_ms",
    "poll_ms",
];

impl Settings {
    /// Reads the settings file if the options name one. Then replaces its settings by those of the
    /// environment and of the options.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or has an unknown key, or if a required setting
    /// is missing.
    pub(super) fn read(args: &Self) -> Result<Self> {
        let environment =
            std::env::vars().filter(|(name, _)| name.starts_with(job_file::SERVE_PREFIX));
        Self::merge_layers(args, environment)
    }

    fn merge_layers(
        args: &Self,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self> {
        let mut layers = read_file(args).map_err(as_usage)?;
        job_file::lay_over(&mut layers, environment, &[]).map_err(as_usage)?;
        let mut options = Table::new();
        let set = Value::try_from(args.with_request_log_options());
        options.insert(SECTION.to_owned(), set.map_err(|e| as_usage(e.into()))?);
        zillion_config::merge(&mut layers, options);
        let named = || match &args.config {
            Some(path) => format!("the settings of the server (file {})", path.display()),
            None => "the settings of the server".to_owned(),
        };
        let settings: Self =
            zillion_config::section(&Value::Table(layers), SECTION).with_context(named)?;
        settings.check()?;
        Ok(settings)
    }

    /// Checks that the settings fit together.
    ///
    /// # Errors
    /// Returns an error if a required setting is missing, or if two settings contradict each other.
    pub(super) fn check(&self) -> Result<()> {
        let missing = |what: &str, options: &str, key: &str| {
            usage_error(format!(
                "no {what} is given; use {options}, or set `{key}` in the file that --config names"
            ))
        };
        if self.registry.is_none() {
            return missing("registry", "--registry URL", "registry");
        }
        if self.model.is_empty() && !self.model_control {
            return missing("model", "--model NAME or --model-control", "models");
        }
        for (model, traffic) in &self.traffic {
            if let Err(problem) = traffic.check() {
                return usage_error(format!("`serve.traffic.{model}`: {problem}"));
            }
            // A client may load a model that the settings do not name.
            if !self.model_control && !self.models().iter().any(|(name, _)| name == model) {
                return usage_error(format!(
                    "`serve.traffic.{model}`: the server has no model of this name; add it to \
                     `serve.models`, or leave the section out"
                ));
            }
        }
        if self.load_into_memory && self.row_records {
            return usage_error(format!(
                "`{SECTION}.load_into_memory` and `{SECTION}.row_records` are two ways to keep rows \
                 in memory; set one of them"
            ));
        }
        self.check_request_log()?;
        let newest = self.models().into_iter().find(|(_, follow)| *follow == Follow::Latest);
        if let (Some(_), Some((name, _))) = (&self.trust, newest) {
            return usage_error(format!(
                "`{SECTION}.trust` does not work with model `{name}@latest`, because no signature \
                 says which version is the newest; follow a pointer"
            ));
        }
        if let Some(inline_us) = self.inline_us.filter(|&inline_us| inline_us > MOST_INLINE_US) {
            return usage_error(format!(
                "`{SECTION}.inline_us` is {inline_us}, and a network thread must not keep its other \
                 connections waiting for so long; set it to at most {MOST_INLINE_US}"
            ));
        }
        let table = Table::try_from(self)?;
        match NOT_ZERO.iter().find(|key| table.get(**key) == Some(&Value::Integer(0))) {
            Some(key) => usage_error(format!(
                "`{SECTION}.{key}` is 0, and the server would answer nothing; set it to at least 1"
            )),
            None => Ok(()),
        }
    }

    /// Checks the settings of the request log.
    ///
    /// # Errors
    /// Returns an error if a setting cannot be used, or belongs to a model that is not served.
    fn check_request_log(&self) -> Result<()> {
        let server = self.name.clone().unwrap_or_else(default_name);
        if let Err(problem) = self.request_log.check(&server) {
            return usage_error(format!("`{SECTION}.request_log`: {problem}"));
        }
        let models = self.models();
        let is_served = |model: &str| models.iter().any(|(name, _)| name == model);
        // A client may load a model that the settings do not name.
        match self.request_log.models.keys().find(|model| !self.model_control && !is_served(model))
        {
            Some(model) => usage_error(format!(
                "`{SECTION}.request_log.models.{model}`: the server has no model of this name; add \
                 it to `{SECTION}.models`, or leave the section out"
            )),
            None => Ok(()),
        }
    }

    /// Sets the log filter to the value of the settings file, unless the command line or the
    /// environment sets a filter.
    ///
    /// # Errors
    /// Returns an error if the directives are not valid.
    pub(super) fn set_log_filter(&self) -> Result<()> {
        let directives = self.log_filter.as_deref();
        telemetry::set_usual_filter(directives).context("serve.log_filter")
    }

    /// Returns the URL of the registry.
    pub(super) fn registry(&self) -> &str {
        self.registry.as_deref().unwrap_or_default()
    }

    /// Returns the names of the models. Each comes with the version that answers by default.
    pub(super) fn models(&self) -> Vec<(String, Follow)> {
        self.model.iter().map(|text| parse_model(text)).collect()
    }

    /// Returns the address at which the server answers HTTP.
    pub(super) fn http(&self) -> &str {
        self.http.as_deref().unwrap_or("127.0.0.1:8080")
    }

    /// Returns the TLS settings of listeners without their own TLS settings. Returns `None` if the
    /// settings name no certificate.
    ///
    /// # Errors
    /// Returns an error if only one of the certificate and its key is named, or neither of them is
    /// and an authority of clients is.
    pub(super) fn tls(&self) -> Result<Option<TlsSettings>> {
        match (&self.tls_certificate, &self.tls_key) {
            (None, None) if self.tls_client_ca.is_some() => usage_error(
                "`serve.tls_client_ca` is named, and no listener has TLS by which a client could \
                 show a certificate; set `serve.tls_certificate` and `serve.tls_key` too",
            ),
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some(TlsSettings {
                certificate: certificate.clone(),
                key: key.clone(),
                client_authority: self.tls_client_ca.clone(),
                require_client: false,
            })),
            _ => {
                usage_error("TLS needs both `serve.tls_certificate` and `serve.tls_key`; set both")
            }
        }
    }

    /// Opens the audit log. Returns `None` if the settings name no audit log.
    ///
    /// # Errors
    /// Returns an error if the log cannot be opened or if its chain is broken.
    pub(super) fn audit_log(&self) -> Result<Option<Arc<AuditLog>>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let log = self.audit_log.as_ref().map(|path| AuditLog::open(path, now));
        Ok(log.transpose()?.map(Arc::new))
    }

    /// Returns the limits on requests.
    pub(super) fn limits(&self) -> Limits {
        let usual = ServeConfig::default().limits;
        let time = |ms: Option<u64>, usual| ms.map_or(usual, Duration::from_millis);
        Limits {
            body_bytes: self.max_body_bytes.unwrap_or(usual.body_bytes),
            rows: self.max_rows.unwrap_or(usual.rows),
            values: self.max_values.unwrap_or(usual.values),
            retrieved: self.max_retrieved.unwrap_or(usual.retrieved),
            waiting: self.max_waiting.unwrap_or(usual.waiting),
            queue_time: time(self.queue_ms, usual.queue_time),
            inline_time: match self.inline_us {
                Some(time) => Duration::from_micros(time),
                // A network thread that waited for a GPU would delay all of its connections.
                None if self.names_gpu() => Duration::ZERO,
                None => usual.inline_time,
            },
            bytes_in_flight: self.max_bytes_in_flight.unwrap_or(usual.bytes_in_flight),
            answer_bytes: self.max_answer_bytes.unwrap_or(usual.answer_bytes),
            connections: self.max_connections.unwrap_or(usual.connections),
            connections_per_address: self
                .max_connections_per_address
                .unwrap_or(usual.connections_per_address),
            idle_time: time(self.idle_ms, usual.idle_time),
            write_time: time(self.write_ms, usual.write_time),
            request_time: time(self.request_ms, usual.request_time),
            head_time: time(self.receive_ms, usual.body_time),
            body_time: time(self.receive_ms, usual.body_time),
            drain_time: time(self.drain_ms, usual.drain_time),
        }
    }

    /// Returns whether a GPU computes the scores.
    fn names_gpu(&self) -> bool {
        self.device.as_deref().is_some_and(|name| name != PROCESSORS)
    }

    /// Opens the device that computes scores; `None` for processors.
    ///
    /// # Errors
    /// Returns an error if the device cannot be used, or if other settings do not go together with
    /// it.
    fn open_device(&self) -> Result<Option<Arc<ScoringDevice>>> {
        let name = self.device.as_deref().filter(|name| *name != PROCESSORS);
        let Some(name) = name else {
            if self.gpu_memory.is_some() {
                return usage_error(format!(
                    "`{SECTION}.gpu_memory` is the memory of a GPU, but the server uses none; set \
                     `{SECTION}.device`, or leave it out"
                ));
            }
            return Ok(None);
        };
        if let Some(dense) = self.dense.filter(|dense| !dense.is_exact()) {
            return usage_error(format!(
                "`{SECTION}.device` {name:?} computes dense layers in f32 alone, not in {dense}; \
                 leave `{SECTION}.dense` out, or serve on processors"
            ));
        }
        let device = ScoringDevice::open(name, self.gpu_memory.map(|memory| memory.0))
            .with_context(|| format!("`{SECTION}.device` {name:?} cannot be used"))?;
        eprintln!("{}", device.describe());
        Ok(Some(device))
    }

    /// Returns the settings in the form of the serving crate. `is_remote` tells whether the
    /// registry is not a local folder.
    ///
    /// # Errors
    /// Returns an error if no cache folder is named and the registry has no default place for one.
    pub(super) fn config(&self, is_remote: bool) -> Result<ServeConfig> {
        let usual = ServeConfig::default();
        let usual_poll = if is_remote { REMOTE_POLL_MS } else { LOCAL_POLL_MS };
        Ok(ServeConfig {
            models: self.models(),
            cache: cache_folder(self.cache.as_ref(), self.registry())?,
            threads: self.threads.unwrap_or_else(machine::cpus).get(),
            poll: Duration::from_millis(self.poll_ms.unwrap_or(usual_poll)),
            retain: self.retain.unwrap_or(usual.retain),
            server: self.name.clone().unwrap_or_else(default_name),
            model_control: self.model_control,
            cache_bytes: self.cache_bytes,
            load_into_memory: self.load_into_memory,
            row_records: self.row_records,
            dense: self.dense.or(usual.dense),
            device: self.open_device()?,
            max_stale: self.max_stale_ms.map(Duration::from_millis),
            registry_wait: self.registry_wait_ms.map_or(usual.registry_wait, Duration::from_millis),
            stagger: self.stagger_ms.map_or(usual.stagger, Duration::from_millis),
            traffic: self.traffic.clone(),
            request_log: self.request_log.clone(),
            audit: self.audit_log()?,
            limits: self.limits(),
            ..usual
        })
    }

    /// Returns the settings that have another value in `new`, in the order of their keys.
    ///
    /// # Errors
    /// Returns an error if the settings cannot be written as TOML, which would be a defect.
    pub(super) fn compare(&self, new: &Self) -> Result<Vec<Change>> {
        let table = |settings: &Self| Table::try_from(settings);
        let (before, after) = (table(self)?, table(new)?);
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let differing = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
        let change = |key: &String| Change {
            key: key.clone(),
            now: after.get(key).map_or_else(|| "not set".to_owned(), Value::to_string),
            is_fixed: FIXED.contains(&key.as_str()),
        };
        Ok(differing.map(change).collect())
    }

    /// Applies the settings that a running server can change.
    ///
    /// # Errors
    /// Returns an error if the settings cannot be written as TOML, which would be a defect.
    pub(super) fn take_changeable(&mut self, new: &Self) -> Result<()> {
        let (mut settings, mut old) = (Table::try_from(new)?, Table::try_from(&*self)?);
        for key in FIXED {
            settings.remove(key);
            settings.extend(old.remove(key).map(|value| (key.to_owned(), value)));
        }
        *self = settings.try_into()?;
        Ok(())
    }
}

/// A setting whose value has changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) key: String,
    /// The new value of the setting.
    pub(super) now: String,
    /// Whether the change takes effect only after a restart.
    pub(super) is_fixed: bool,
}

fn read_file(args: &Settings) -> Result<Table> {
    let Some(path) = &args.config else { return Ok(Table::new()) };
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let table: Table = text.parse().with_context(|| format!("{shown} is not valid TOML"))?;
    match table.keys().find(|key| *key != SECTION) {
        None => Ok(table),
        Some(key) => anyhow::bail!(
            "unknown section `{key}` in {shown}; remove it, because only `[{SECTION}]` belongs in \
             this file"
        ),
    }
}

/// Parses `name`, `name@latest` or `name@pointer`. Returns the name of the model and the version
/// that it follows.
fn parse_model(text: &str) -> (String, Follow) {
    match text.split_once('@') {
        None => (text.to_owned(), Follow::Pointer(zillion_registry::STABLE.to_owned())),
        Some((name, "latest")) => (name.to_owned(), Follow::Latest),
        Some((name, pointer)) => (name.to_owned(), Follow::Pointer(pointer.to_owned())),
    }
}

/// Makes a default name for the server that is unique in the registry.
fn default_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.trim().chars().filter(plain).take(60).collect();
    format!("server-{host}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn args(more: &[&str]) -> Settings {
        let line = ["zillion", "serve"].iter().chain(more);
        match Args::try_parse_from(line).expect("the line parses").command {
            Command::Serve(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn read(args: &Settings, environment: &[(&str, &str)]) -> Result<Settings> {
        let owned = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Settings::merge_layers(args, owned)
    }

    #[test]
    fn options_win_over_the_environment_and_that_over_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("serve.toml");
        let text = "[serve]\nregistry = 'r'\nmodels = ['a@canary', 'b']\npoll_ms = 1\n\
                    max_rows = 2\nretain = 3\n";
        std::fs::write(&path, text).expect("a file");
        let path = path.to_str().expect("plain names");
        let args = args(&["--config", path, "--poll-ms", "7"]);
        let environment = [("ZILLION_SERVE__POLL_MS", "5"), ("ZILLION_SERVE__MAX_ROWS", "6")];
        let settings = read(&args, &environment).expect("settings");
        let found = (settings.poll_ms, settings.max_rows, settings.retain);
        assert_eq!(found, (Some(7), Some(6), Some(3)));
        let usual = ServeConfig::default().limits;
        assert_eq!((settings.limits().rows, settings.limits().values), (6, usual.values));
        let models = settings.models();
        assert_eq!(models[0], ("a".to_owned(), Follow::Pointer("canary".to_owned())));
        assert_eq!(models.len(), 2);
        let more = Settings { retain: Some(4), max_rows: Some(9), ..settings.clone() };
        let change = |key: &str, now: &str, is_fixed| {
            let (key, now) = (key.to_owned(), now.to_owned());
            Change { key, now, is_fixed }
        };
        let changes = settings.compare(&more).expect("plain data");
        assert_eq!(changes, [change("max_rows", "9", false), change("retain", "4", true)]);
        let mut running = settings.clone();
        running.take_changeable(&more).expect("plain data");
        assert_eq!((running.max_rows, running.retain), (Some(9), Some(3)));
        assert_eq!(running.compare(&more).expect("plain data"), [change("retain", "4", true)]);
    }

    #[test]
    fn signed_models_are_followed_by_a_pointer() {
        let read = |model| {
            let more = ["--registry", "r", "--trust", "keys", "--model", model];
            read(&args(&more), &[]).map(|settings| settings.trust)
        };
        let error = read("clicks@latest").expect_err("no signature");
        assert!(error.to_string().contains("follow a pointer"), "{error}");
        assert_eq!(read("clicks@canary").expect("settings"), Some("keys".into()));
    }

    #[test]
    fn a_network_thread_scores_small_requests_only() {
        let read = |inline_us| {
            let more = ["--registry", "r", "--model", "m", "--inline-us", inline_us];
            read(&args(&more), &[]).map(|settings| settings.limits().inline_time)
        };
        assert_eq!(read("0").expect("settings"), Duration::ZERO);
        assert_eq!(read("2000").expect("settings"), Duration::from_millis(2));
        let error = read("2001").expect_err("too long");
        assert!(error.to_string().contains("at most 2000"), "{error}");
    }

    #[test]
    fn settings_that_would_have_no_effect_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("serve.toml");
        let shown = path.to_str().expect("plain names");
        let args = args(&["--config", shown, "--registry", "r", "--model", "m"]);
        let traffic = "[serve.traffic.other]\nshadow = { label = 'next', share = 0.1 }\n";
        for (text, said) in [
            ("[serve]\nmax_waiting = 0", "`serve.max_waiting` is 0"),
            (traffic, "`serve.traffic.other`"),
            ("[serve.request_log]\nshare = 0.5", "`serve.request_log`: `folder` is missing"),
            ("[serve.request_log]\nfolder = 'l'\nshare = 2", "`share` is 2"),
            (
                "[serve.request_log]\nfolder = 'l'\n[serve.request_log.models.other]\nshare = 1.0",
                "`serve.request_log.models.other`",
            ),
            ("[serve]\nname = 'a/b'\n[serve.request_log]\nfolder = 'l'", "`serve.name`"),
        ] {
            std::fs::write(&path, text).expect("a file");
            let error = read(&args, &[]).expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        let control = format!("[serve]\nmodel_control = true\n{traffic}");
        std::fs::write(&path, control).expect("a file");
        read(&args, &[]).expect("a client may load the model");
    }

    #[test]
    fn options_of_the_request_log_replace_its_section() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("serve.toml");
        let text = "[serve.request_log]\nfolder = 'file'\nshare = 0.5\nid_column = 'query'\n";
        std::fs::write(&path, text).expect("a file");
        let shown = path.to_str().expect("plain names");
        let more = ["--config", shown, "--registry", "r", "--model", "m", "--request-log-share"];
        let args = args(&[&more[..], &["0.25", "--request-log-close-ms", "50"]].concat());
        let environment = [("ZILLION_SERVE__REQUEST_LOG__FOLDER", "environment")];
        let settings = read(&args, &environment).expect("settings");
        let log = &settings.request_log;
        assert_eq!((log.folder.clone(), log.share), (Some("environment".into()), Some(0.25)));
        assert_eq!((log.close_ms, log.id_column.as_deref()), (Some(50), Some("query")));
        let other = read(&args, &[]).expect("settings");
        let changes = settings.compare(&other).expect("plain data");
        assert!(changes.len() == 1 && changes[0].key == "request_log" && changes[0].is_fixed);
    }

    #[test]
    fn what_nobody_knows_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("serve.toml");
        let shown = path.to_str().expect("plain names");
        let args = args(&["--config", shown, "--registry", "r", "--model", "m"]);
        for (text, said) in [
            ("[serve]\npol_ms = 1", "poll_ms"),
            ("[serve]\npoll_ms = 'soon'", "serve.poll_ms"),
            ("[train]\nepochs = 1", "`train`"),
            ("poll_ms", "not valid TOML"),
        ] {
            std::fs::write(&path, text).expect("a file");
            let error = read(&args, &[]).expect_err(text);
            let error = format!("{error:#}");
            assert!(error.contains(said) && error.contains("serve.toml"), "{text}: {error}");
        }
        let zero = self::args(&["--registry", "r", "--model", "m", "--max-rows", "0"]);
        let error = read(&zero, &[]).expect_err("no rows");
        assert!(error.to_string().contains("`serve.max_rows`"), "{error}");
        let error = read(&self::args(&["--registry", "r"]), &[]).expect_err("no model");
        assert!(error.to_string().contains("--model"), "{error}");
    }
}
