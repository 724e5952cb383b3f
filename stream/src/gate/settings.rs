//! The settings of a gate and their checks.

use serde::{Deserialize, Serialize};

use super::error::GateError;

/// The settings of a gate. Their names are in the section `gate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateSettings {
    /// The number of rows that a window or the anchor needs to be judged.
    pub min_rows: u64,
    /// The number of standard errors by which a difference must be beyond a threshold.
    pub errors: f64,
    /// The loss of AUC against the promoted version on a window, beyond `errors` standard errors,
    /// at which a version fails.
    pub auc_drop: f64,
    /// The loss of AUC against the promoted version on the anchor, beyond `errors` standard
    /// errors, at which a version fails.
    pub anchor_auc_drop: f64,
    /// The loss of AUC on the anchor, against the promoted version or the baseline, at which a
    /// version is held: it is not published, and the next one is judged anew.
    pub hold_drop: f64,
    /// The number of standard errors by which a loss must be beyond `hold_drop`.
    pub hold_errors: f64,
    /// The event time after which a hold warns, in seconds. While versions are held, rows wait this
    /// much longer before they become anchor rows.
    pub hold_seconds: u64,
    /// The event time after which the baseline is chosen anew, in seconds; 0: no baseline.
    pub baseline_seconds: u64,
    /// The largest number of anchor rows.
    pub anchor_rows: usize,
    /// One row out of this number is offered to the anchor.
    pub anchor_every: u64,
    /// The event time that must pass between a row and the promotion by which the row becomes an
    /// anchor row, in seconds.
    pub anchor_delay_seconds: u64,
    /// The number of promoted versions over which the reference of the bands is averaged.
    pub reference_versions: u64,
    /// The bands of the inputs.
    pub bands: Bands,
}

/// The bands of the inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bands {
    /// The fall of the live model's AUC on the newest window below its reference.
    pub auc: Band,
    /// The factor between the click rate and its reference.
    pub click_rate: Band,
    /// The factor between the sum of predictions and the sum of labels.
    pub calibration: Band,
    /// The rise of a column's share of missing values above its reference.
    pub missing: Band,
    /// The rise of the share of new keys above its reference.
    pub new_keys: Band,
    /// The population stability index of the scores against their reference.
    pub score_drift: Band,
    /// The factor between the norm of the update and its reference.
    pub update_norm: Band,
}

/// The two bounds of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// The bound beyond which the gate warns.
    pub warn: f64,
    /// The bound beyond which the version fails.
    pub fail: f64,
}

impl Default for Bands {
    fn default() -> Self {
        Self {
            auc: Band { warn: 0.1, fail: 0.25 },
            click_rate: Band { warn: 2.0, fail: 10.0 },
            calibration: Band { warn: 1.5, fail: 10.0 },
            missing: Band { warn: 0.2, fail: 0.9 },
            new_keys: Band { warn: 0.2, fail: 0.95 },
            score_drift: Band { warn: 0.5, fail: 8.0 },
            update_norm: Band { warn: 5.0, fail: 100.0 },
        }
    }
}

impl Default for GateSettings {
    fn default() -> Self {
        Self {
            min_rows: 500,
            errors: 4.0,
            auc_drop: 0.005,
            anchor_auc_drop: 0.005,
            hold_drop: 0.0025,
            hold_errors: 2.0,
            hold_seconds: 300,
            baseline_seconds: 600,
            anchor_rows: 8192,
            anchor_every: 16,
            anchor_delay_seconds: 300,
            reference_versions: 30,
            bands: Bands::default(),
        }
    }
}

impl GateSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// Returns an error that names the setting which cannot be used.
    pub fn check(&self) -> Result<(), GateError> {
        check("min_rows", self.min_rows as f64, 40.0..=1e9, "40 to 10^9")?;
        check("errors", self.errors, 1.0..=20.0, "1 to 20")?;
        check("auc_drop", self.auc_drop, 0.0..=0.5, "0 to 0.5")?;
        check("anchor_auc_drop", self.anchor_auc_drop, 0.0..=0.5, "0 to 0.5")?;
        check("hold_drop", self.hold_drop, 0.0..=0.5, "0 to 0.5")?;
        check("hold_errors", self.hold_errors, 0.0..=20.0, "0 to 20")?;
        let (week, remedy) = (0.0..=604_800.0, "0 to 604,800 (a week)");
        check("hold_seconds", self.hold_seconds as f64, week.clone(), remedy)?;
        check("baseline_seconds", self.baseline_seconds as f64, week.clone(), remedy)?;
        check("anchor_rows", self.anchor_rows as f64, 40.0..=1048576.0, "40 to 1,048,576")?;
        if self.anchor_rows as u64 <= self.min_rows {
            return refuse("anchor_rows", self.anchor_rows, "more than `gate.min_rows`");
        }
        check("anchor_every", self.anchor_every as f64, 1.0..=1e9, "1 to 10^9")?;
        let delay = self.anchor_delay_seconds as f64;
        check("anchor_delay_seconds", delay, week, remedy)?;
        let versions = self.reference_versions as f64;
        check("reference_versions", versions, 1.0..=1e6, "1 to 10^6")?;
        let bands = &self.bands;
        for (name, band) in [
            ("click_rate", bands.click_rate),
            ("calibration", bands.calibration),
            ("update_norm", bands.update_norm),
        ] {
            band.check(name, 1.0, "a factor above 1, and `fail` not below `warn`")?;
        }
        for (name, band) in
            [("auc", bands.auc), ("missing", bands.missing), ("new_keys", bands.new_keys)]
        {
            band.check(name, 0.0, "a share above 0, and `fail` not below `warn`")?;
        }
        bands.score_drift.check("score_drift", 0.0, "an index above 0, and `fail` not below `warn`")
    }
}

impl Band {
    fn check(self, name: &str, above: f64, remedy: &'static str) -> Result<(), GateError> {
        if self.warn > above && self.fail >= self.warn && self.fail.is_finite() {
            return Ok(());
        }
        let value = format!("{{ warn = {}, fail = {} }}", self.warn, self.fail);
        refuse(&format!("bands.{name}"), value, remedy)
    }
}

fn check(
    setting: &str,
    value: f64,
    range: std::ops::RangeInclusive<f64>,
    remedy: &'static str,
) -> Result<(), GateError> {
    if range.contains(&value) { Ok(()) } else { refuse(setting, value, remedy) }
}

fn refuse(
    setting: &str,
    value: impl std::fmt::Display,
    remedy: &'static str,
) -> Result<(), GateError> {
    Err(GateError::Setting { setting: setting.to_owned(), value: value.to_string(), remedy })
}
