//! The reload on SIGHUP. The settings are read again, and those that a running server can change
//! are applied.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use anyhow::{Context, Result};
use prometheus::{IntCounterVec, Opts, Registry};
use tokio::signal::unix::{SignalKind, signal};
use zillion_serving::{Domain, Follow, ServeError};

use super::settings::Settings;
use super::{format_status, systemd};
use crate::args::ServeArgs;

/// The state that a reload needs: the settings of the running server, the command line that set
/// them, and the models of the server.
pub(super) struct Reloader {
    args: ServeArgs,
    settings: Settings,
    domain: Arc<Domain>,
    reloads: IntCounterVec,
}

impl Reloader {
    pub(super) fn new(
        args: ServeArgs,
        settings: Settings,
        domain: Arc<Domain>,
        metrics: &Registry,
    ) -> Result<Self> {
        let name = "zillion_serving_config_reloads_total";
        let help = "Times that settings were read again, by outcome.";
        let reloads = IntCounterVec::new(Opts::new(name, help), &["outcome"])?;
        for outcome in ["done", "refused"] {
            reloads.with_label_values(&[outcome]).inc_by(0);
        }
        metrics.register(Box::new(reloads.clone()))?;
        Ok(Self { args, settings, domain, reloads })
    }

    /// Returns a future that reads the settings again on each SIGHUP. It completes only if the
    /// process ends.
    ///
    /// # Errors
    /// Returns an error if the signal handler cannot be installed.
    pub(super) fn follow_hangups(mut self) -> Result<impl Future<Output = ()>> {
        let mut hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        Ok(async move {
            while hangups.recv().await.is_some() {
                systemd::notify_reloading();
                // Loading and unloading wait for the loaders, and the network thread must not wait
                // for them.
                let reloaded = tokio::task::spawn_blocking(move || {
                    self.reload_or_report();
                    self
                });
                self = match reloaded.await {
                    Ok(reloader) => reloader,
                    Err(error) => {
                        tracing::error!("the reload of the settings has ended early: {error}");
                        return;
                    }
                };
                systemd::notify_ready(&format_status(&self.domain));
            }
        })
    }

    /// Reads the settings again. A panic ends this reload only, and the old settings stay.
    fn reload_or_report(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.reload())).is_err() {
            self.reloads.with_label_values(&["refused"]).inc();
            tracing::error!(
                "the reload of the settings has panicked, and the old ones stay; report the defect"
            );
        }
    }

    fn reload(&mut self) {
        let outcome = match Settings::read(&self.args).and_then(|new| self.apply(new)) {
            Ok(()) => "done",
            Err(error) => {
                tracing::error!(
                    "the new settings are refused, and the server keeps the old settings: \
                     {error:#}"
                );
                "refused"
            }
        };
        self.reloads.with_label_values(&[outcome]).inc();
    }

    fn apply(&mut self, new: Settings) -> Result<()> {
        let changed = self.settings.compare(&new)?;
        let fixed: Vec<&str> = changed.iter().filter(|c| c.is_fixed).map(|c| &*c.key).collect();
        if !fixed.is_empty() {
            tracing::warn!(
                "these settings have an effect only after a restart of the server: {}",
                fixed.join(", ")
            );
        }
        // A setting that changes only after a restart may contradict a setting that changes at
        // once.
        let mut running = self.settings.clone();
        running.take_changeable(&new)?;
        running.check()?;
        new.set_log_filter()?;
        self.follow(&new)?;
        // The device of the running server decides whether network threads score.
        self.domain.set_limits(running.limits());
        for change in changed.iter().filter(|change| !change.is_fixed) {
            tracing::info!("setting {} is {} now", change.key, change.now);
        }
        if changed.is_empty() {
            tracing::info!("the settings were read again: nothing has changed");
        }
        self.settings = running;
        Ok(())
    }

    /// Loads the models that are new in `new` or now follow a different version. Unloads the models
    /// that `new` does not name any more, except for models that clients have loaded.
    fn follow(&self, new: &Settings) -> Result<()> {
        let before: BTreeMap<String, Follow> = self.settings.models().into_iter().collect();
        let now: BTreeMap<String, Follow> = new.models().into_iter().collect();
        for (model, follow) in &now {
            if before.get(model) != Some(follow) {
                self.domain.load(model, follow.clone())?;
            }
        }
        for model in before.keys().filter(|model| !now.contains_key(*model)) {
            match self.domain.unload(model) {
                // A client may have unloaded this model already.
                Ok(()) | Err(ServeError::UnknownModel { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
