//! The settings of the request log.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderName;
use serde::{Deserialize, Serialize};

/// The smallest bound of the log on the disk. A file has an eighth of the bound.
const LEAST_DISK_BYTES: u64 = 1 << 20;
/// The smallest size of the queue before the log.
const LEAST_QUEUE_BYTES: usize = 64 << 10;
/// The shortest and the longest time after which a file is closed.
const CLOSE_MS: RangeInclusive<u64> = 10..=86_400_000;
/// The largest size of a file, whatever the bound of the log on the disk is.
const MOST_FILE_BYTES: u64 = 64 << 20;

/// The settings of the log of requests, in which a stream of training finds what was served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestLogSettings {
    /// The folder of the log: `<folder>/<model>/<server>` receives the files of a model. Without a
    /// folder, there is no log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// The share of the requests that are logged, above 0 and up to 1. Absent: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// The most bytes that the files of this server have together. Absent: 1 GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_disk_bytes: Option<u64>,
    /// The time in milliseconds after which a file is closed, so that a trainer sees it. Absent:
    /// 2,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub close_ms: Option<u64>,
    /// The most bytes of lines that wait to be written. Absent: 16 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_bytes: Option<usize>,
    /// The header that holds the id of a request. Absent: `x-request-id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_header: Option<String>,
    /// The column that holds the id of a request. Absent: `request`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_column: Option<String>,
    /// The settings of single models, by their names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, ModelLogSettings>,
}

/// The settings of the log of requests for one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelLogSettings {
    /// The share of the model's requests that are logged, from 0 to 1. Absent: that of all models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// The input whose value is the id of a request. All rows of a request must have the same
    /// value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_input: Option<String>,
    /// The columns that are left out, because the log must not have their values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub omit: Vec<String>,
}

impl RequestLogSettings {
    /// Checks the settings. `server` is the name of the server, which is also the name of a folder.
    ///
    /// # Errors
    /// Returns the name of the first setting that cannot be used, the problem and the remedy.
    pub fn check(&self, server: &str) -> Result<(), String> {
        if self.folder.is_none() {
            return match *self == Self::default() {
                true => Ok(()),
                false => Err("`folder` is missing, so that the other settings of the request log \
                              have no effect; set it, or remove the section"
                    .to_owned()),
            };
        }
        check_server(server)?;
        if let Some(share) = self.share.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            return Err(format!(
                "`share` is {share}; choose a number above 0 and up to 1, or remove `folder` to \
                 log nothing"
            ));
        }
        let at_least = |name: &str, value: Option<u64>, least: u64| match value {
            Some(value) if value < least => {
                Err(format!("`{name}` is {value}; set it to at least {least}"))
            }
            _ => Ok(()),
        };
        at_least("max_disk_bytes", self.max_disk_bytes, LEAST_DISK_BYTES)?;
        if let Some(ms) = self.close_ms.filter(|ms| !CLOSE_MS.contains(ms)) {
            let (least, most) = (CLOSE_MS.start(), CLOSE_MS.end());
            return Err(format!("`close_ms` is {ms}; set it to a number from {least} to {most}"));
        }
        let queue_bytes = self.queue_bytes.map(|bytes| bytes as u64);
        at_least("queue_bytes", queue_bytes, LEAST_QUEUE_BYTES as u64)?;
        if self.parse_id_header().is_none() {
            return Err(format!(
                "`id_header` is `{}`, which is not a valid name of an HTTP header; choose another \
                 name",
                self.id_header.as_deref().unwrap_or_default()
            ));
        }
        if self.id_column.as_deref() == Some("") {
            return Err("`id_column` is empty; name a column, or leave the key out".to_owned());
        }
        for (name, model) in &self.models {
            if let Some(share) = model.share.filter(|share| !(0.0..=1.0).contains(share)) {
                return Err(format!(
                    "`models.{name}.share` is {share}; choose a number from 0 to 1"
                ));
            }
        }
        Ok(())
    }

    /// Returns the share of the requests of a model that are logged.
    pub(crate) fn share_of(&self, model: &str) -> f64 {
        let own = self.models.get(model).and_then(|model| model.share);
        own.or(self.share).unwrap_or(1.0)
    }

    pub(crate) fn id_column(&self) -> &str {
        self.id_column.as_deref().unwrap_or("request")
    }

    pub(crate) fn parse_id_header(&self) -> Option<HeaderName> {
        let name = self.id_header.as_deref().unwrap_or("x-request-id");
        HeaderName::try_from(name).ok()
    }

    pub(crate) fn max_disk_bytes(&self) -> u64 {
        self.max_disk_bytes.unwrap_or(1 << 30)
    }

    /// Returns the size from which on a file is closed. The bound of the disk holds eight such
    /// files, so that the removal of the oldest one removes a small part of the log.
    pub(crate) fn file_bytes(&self) -> u64 {
        (self.max_disk_bytes() / 8).min(MOST_FILE_BYTES)
    }

    pub(crate) fn close_time(&self) -> Duration {
        Duration::from_millis(self.close_ms.unwrap_or(2000))
    }

    pub(crate) fn queue_bytes(&self) -> usize {
        self.queue_bytes.unwrap_or(16 << 20)
    }
}

/// Checks that the name of a server can be the name of a partition of a followed folder.
fn check_server(server: &str) -> Result<(), String> {
    let is_hidden = server.starts_with('.') || server.ends_with(".tmp");
    if server.is_empty() || server.len() > 200 || server.contains(['/', '\0']) || is_hidden {
        return Err(format!(
            "the name of the server, `{server}`, is also the name of a folder of the request log; \
             set `serve.name` to a text of up to 200 bytes without `/`, which does not begin with \
             a dot or end in `.tmp`"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RequestLogSettings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn settings_that_cannot_be_used_are_refused_by_name() {
        for (text, server, said) in [
            ("share = 0.5", "a", "`folder` is missing"),
            ("folder = 'x'\nshare = 0.0", "a", "`share` is 0"),
            ("folder = 'x'\nshare = 1.5", "a", "`share` is 1.5"),
            ("folder = 'x'\nshare = nan", "a", "`share` is NaN"),
            ("folder = 'x'\nmax_disk_bytes = 1000", "a", "`max_disk_bytes` is 1000"),
            ("folder = 'x'\nclose_ms = 0", "a", "`close_ms` is 0"),
            ("folder = 'x'\nclose_ms = 86400001", "a", "from 10 to 86400000"),
            ("folder = 'x'\nqueue_bytes = 7", "a", "`queue_bytes` is 7"),
            ("folder = 'x'\nid_header = 'a b'", "a", "`id_header` is `a b`"),
            ("folder = 'x'\nid_column = ''", "a", "`id_column` is empty"),
            ("folder = 'x'\n[models.m]\nshare = -1", "a", "`models.m.share` is -1"),
            ("folder = 'x'", "a/b", "`serve.name`"),
            ("folder = 'x'", ".a", "`serve.name`"),
            ("folder = 'x'", "a.tmp", "`serve.name`"),
        ] {
            let refused = parse(text).check(server).unwrap_err();
            assert!(refused.contains(said), "{text}: {refused}");
        }
        // A server without a log may have any name.
        parse("").check("a/b").unwrap();
        parse("folder = 'x'\n[models.m]\nshare = 0").check("a").unwrap();
    }

    #[test]
    fn a_model_has_its_own_share() {
        let settings = parse("folder = 'x'\nshare = 0.25\n[models.m]\nshare = 0.0\n[models.n]");
        let shares = ["m", "n", "other"].map(|model| settings.share_of(model));
        assert_eq!(shares, [0.0, 0.25, 0.25]);
        assert_eq!(settings.file_bytes(), MOST_FILE_BYTES);
        assert_eq!(parse("max_disk_bytes = 1048576").file_bytes(), 131_072);
    }
}
