//! The setting `run.spill`: the tables that keep only a part of their rows in memory.
//!
//! The setting is in `[run]` because it changes no byte of the result: a run can be resumed with a
//! different limit, or with all rows in memory.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;

use super::Job;
use crate::error::Result;

/// A size of memory in bytes, written as in `"2 GiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Memory(u64);

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Memory {
    /// Returns the number of bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl TryFrom<String> for Memory {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refused = || {
            format!(
                "must be a number and a unit (B, KiB, MiB, GiB), such as \"2 GiB\", found {text:?}"
            )
        };
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = text[digits.len()..].trim();
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
        let number: u64 = digits.trim().parse().map_err(|_| refused())?;
        number.checked_mul(*factor).filter(|&bytes| bytes > 0).map(Self).ok_or_else(refused)
    }
}

impl From<Memory> for String {
    fn from(memory: Memory) -> Self {
        memory.to_string()
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, factor): &&(&str, u64)| self.0.is_multiple_of(*factor);
        let (unit, factor) = UNITS.iter().find(fits).unwrap_or(&("B", 1));
        write!(f, "{} {unit}", self.0 / factor)
    }
}

impl Job {
    /// Returns the folder of the files with spilled rows.
    pub(crate) fn spill_folder(&self) -> PathBuf {
        self.run.spill_folder.clone().unwrap_or_else(|| self.output().join("spill"))
    }

    /// Checks that the tables of `run.spill` exist and can be spilled.
    pub(super) fn check_spill(&self) -> Result<()> {
        for name in self.run.spill.keys() {
            let Some(table) = self.tables.iter().find(|table| table.name == *name) else {
                let known: Vec<&str> = self.tables.iter().map(|t| t.name.as_str()).collect();
                return Err(ConfigError::unknown_key("run.spill", name, &known).into());
            };
            table.check_spill()?;
        }
        if self.run.spill_folder.is_some() && self.run.spill.is_empty() {
            let message =
                "has no effect, because no table spills; name tables in `run.spill`, or remove it";
            return Err(ConfigError::at("run.spill_folder", message).into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(run: &str) -> Result<Job, String> {
        let text = format!(
            "[features.user]\nkind = 'id'\n[features.item]\nkind = 'id'\n[labels.y]\n[tables.item]\ndense = true\n\
             [model]\nkind = 'lr'\n{run}"
        );
        let value: toml::Table = toml::from_str(&text).unwrap();
        Job::from_value(value.into()).map_err(|e| e.to_string())
    }

    #[test]
    fn tables_that_spill_are_named_and_can() {
        let job = read("[run.spill]\nuser = '2 GiB'").unwrap();
        assert_eq!(job.run.spill["user"].bytes(), 2 << 30);
        assert!(job.spill_folder().ends_with("spill"));
        let printed: toml::Table = toml::from_str(&job.in_force().unwrap()).unwrap();
        assert_eq!(Job::from_value(printed.into()).unwrap().run, job.run);
        for (run, expected) in [
            ("[run.spill]\nuzer = '2 GiB'", "user"),
            ("[run.spill]\nuser = '2 GB'", "run.spill.user"),
            ("[run.spill]\nitem = '2 GiB'", "run.spill.item"),
            ("[run]\nspill_folder = 'x'", "run.spill_folder"),
        ] {
            let error = read(run).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn memory_is_a_number_and_a_unit_and_prints_as_it_is_read() {
        for (text, bytes) in [("2 GiB", 2u64 << 30), ("512MiB", 512 << 20), ("3 B", 3)] {
            let memory = Memory::try_from(text.to_owned()).unwrap();
            assert_eq!(memory.bytes(), bytes);
            assert_eq!(Memory::try_from(memory.to_string()).unwrap(), memory);
        }
        for text in ["", "2", "GiB", "2 GB", "-1 B", "0 MiB", "1.5 GiB", "99999999999 GiB"] {
            let error = Memory::try_from(text.to_owned()).unwrap_err();
            assert!(error.contains("2 GiB"), "{error}");
        }
    }
}
